"""What only a GoClient raises. AlreadyClaimed and NotOwned are those of every assignment (headrace.errors)."""

from __future__ import annotations

from headrace.errors import ConfigError


class PodNameMissing(ConfigError):
    """The Go client names consumers after POD_NAME or POD_IP, and neither is set."""
