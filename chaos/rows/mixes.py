"""What several rows share: how often handlers do what, and where a row can be played."""

from __future__ import annotations

import math
from typing import Final

from chaos.topology import Kind

QUICK: Final = {"ok": 0.9, "sink": 0.06, "slow": 0.02, "flaky": 0.01, "handback": 0.01}
"""Mostly quick handlers, a little of everything else."""
OFTEN_SLOW: Final = {"ok": 0.6, "slow": 0.3, "sink": 0.1}
"""Many are acked when their add has long been confirmed: a failover forgets such acks."""
ANY: Final = math.inf
DISK: Final = ("redis8", "valkey9")
"""Servers that can be asked whether a write is on disk (WAITAOF)."""
REPLICATED: Final[tuple[Kind, ...]] = ("sentinel", "cluster")
