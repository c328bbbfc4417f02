"""The books of a pipeline: what every batch read, and where each row went. in = out + duplicates + quarantined.

The right side is counted after the fact, from the footers of the files and the receipts of the sink, never from what
the plan believed. One JSON file a batch, put in place by a rename; a batch replayed replaces its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.spark.pipeline.places import Place

BATCH: Final = re.compile(r"batch=[0-9]+\.json")  # anything else is none, as a file that was not finished

AS_IT_WAS: Final = (
    ". A route keeps what an earlier try of the batch has sent: if the pipeline was changed since then, put it back as "
    "it was (--once) until this batch is done, and change it after that"
)


class LedgerBroken(HeadraceError):
    """Rows are missing, or there are too many: nothing may go on before somebody has looked."""


@dataclass(frozen=True, slots=True)
class Account:
    """One batch."""

    pipeline: str
    query: str
    batch: int
    rows_in: int
    out: int
    duplicates: int
    quarantined: int
    routes: dict[str, int] = field(default_factory=dict)  # route -> rows of the sink's receipt
    finished_ms: int = 0
    seconds: float = 0.0

    def check(self, tables: Mapping[str, int], routes: Mapping[str, int]) -> None:
        """Raise LedgerBroken unless every count is what the rows read say it must be."""
        written = {"out": self.out, "duplicates": self.duplicates, "quarantined": self.quarantined}
        wrong = _differing((name, written[name], rows) for name, rows in tables.items())
        elsewhere = _differing((f"route {name}", self.routes.get(name, 0), rows) for name, rows in routes.items())
        if self.rows_in != self.out + self.duplicates + self.quarantined:
            wrong.append(f"in {self.rows_in:,} is not out {self.out:,} + {self.duplicates:,} + {self.quarantined:,}")
        if wrong or elsewhere:
            raise LedgerBroken(
                f"pipeline {self.pipeline}, query {self.query}, batch {self.batch}: {'; '.join(wrong + elsewhere)}. "
                "The batch is not finished: run the pipeline again to repeat it, and look at its tables if that does "
                f"not help{AS_IT_WAS if elsewhere else ''}"
            )


def _differing(counts: Iterable[tuple[str, int, int]]) -> list[str]:
    return [f"{name}: {found:,} written, {rows:,} read" for name, found, rows in counts if found != rows]


@dataclass(frozen=True, slots=True)
class Totals:
    """All batches together."""

    batches: int = 0
    rows_in: int = 0
    out: int = 0
    duplicates: int = 0
    quarantined: int = 0
    routes: dict[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        return self.rows_in == self.out + self.duplicates + self.quarantined

    @classmethod
    def of(cls, accounts: Iterable[Account]) -> Totals:
        found = list(accounts)
        routes: dict[str, int] = {}
        for one in found:
            for name, rows in one.routes.items():
                routes[name] = routes.get(name, 0) + rows
        return cls(
            batches=len(found),
            rows_in=sum(one.rows_in for one in found),
            out=sum(one.out for one in found),
            duplicates=sum(one.duplicates for one in found),
            quarantined=sum(one.quarantined for one in found),
            routes=routes,
        )


class Ledger:
    """The folder with one file a batch."""

    def __init__(self, place: Place, path: str) -> None:
        self._place = place
        self.path = path

    def put(self, account: Account) -> None:
        self._place.write(self._file(account.query, account.batch), json.dumps(asdict(account), sort_keys=True))

    def get(self, query: str, batch: int) -> Account | None:
        text = self._place.read(self._file(query, batch))
        return None if text is None else account_of(json.loads(text))

    def accounts(self) -> list[Account]:
        """Every batch of every query, in order."""
        found = []
        for folder in self._place.names(self.path):
            query = folder.removeprefix("query=")
            names = filter(BATCH.fullmatch, self._place.names(f"{self.path}/{folder}"))
            texts = [self._place.read(f"{self.path}/{folder}/{name}") for name in names]
            found += [account_of(json.loads(text)) for text in texts if text is not None and query]
        return sorted(found, key=lambda one: (one.finished_ms, one.batch))

    def totals(self) -> Totals:
        return Totals.of(self.accounts())

    def _file(self, query: str, batch: int) -> str:
        return f"{self.path}/query={query}/batch={batch}.json"


def account_of(told: dict[str, Any]) -> Account:
    """An account as its file tells it."""
    return Account(**told)
