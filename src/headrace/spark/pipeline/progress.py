"""What a running pipeline says about itself after each batch. For people and dashboards; the truth is the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.spark.pipeline.ledger import Account


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch."""

    batch: int
    rows_in: int
    out: int
    duplicates: int
    quarantined: int
    seconds: float
    rows_per_s: float
    lag: int | None  # rows that wait in the streams behind this batch; None: not known

    @classmethod
    def of(cls, account: Account, lag: int | None) -> Progress:
        speed = account.rows_in / account.seconds if account.seconds else 0.0
        return cls(
            batch=account.batch,
            rows_in=account.rows_in,
            out=account.out,
            duplicates=account.duplicates,
            quarantined=account.quarantined,
            seconds=round(account.seconds, 3),
            rows_per_s=round(speed, 1),
            lag=lag,
        )

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def as_text(self) -> str:
        waiting = "" if self.lag is None else f", {self.lag:,} waiting"
        return (
            f"batch {self.batch}: {self.rows_in:,} in = {self.out:,} out + {self.duplicates:,} duplicates + "
            f"{self.quarantined:,} quarantined, {self.rows_per_s:,.0f} rows/s{waiting}"
        )


def lag_of(told: Mapping[str, Any] | None) -> int | None:
    """How many entries wait behind a batch, from Spark's own progress report: latest minus end, by their counters."""
    if not told or not told.get("sources"):
        return None
    source = told["sources"][0]
    latest, end = _counters(source.get("latestOffset")), _counters(source.get("endOffset"))
    if latest is None or end is None:
        return None
    return sum(max(0, count - end.get(key, 0)) for key, count in latest.items())


def _counters(offset: Any) -> dict[str, int] | None:
    """Entries added up to an offset, by stream; None where one is not known."""
    try:
        told = json.loads(offset) if isinstance(offset, str) else offset
        streams = told["streams"]
        return {key: int(at["n"]) for key, at in streams.items()}
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
