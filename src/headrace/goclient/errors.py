"""What the calls of a GoClient raise.

GoClientError
├── AlreadyClaimed     somebody else has recovered it, or its owner is alive
├── NotOwned           not mine, or not any more
└── PodNameMissing     no consumer name: neither POD_NAME nor POD_IP is set (also a ConfigError)
"""

from __future__ import annotations

from headrace.errors import ConfigError, HeadraceError


class GoClientError(HeadraceError):
    """A call of a GoClient was refused."""


class AlreadyClaimed(GoClientError):
    """Somebody else has recovered the stream, or its owner is alive after all. Nothing is left to be done."""


class NotOwned(GoClientError):
    """The stream is not this consumer's, or not any more."""


class PodNameMissing(GoClientError, ConfigError):
    """The Go client names consumers after POD_NAME or POD_IP, and neither is set."""
