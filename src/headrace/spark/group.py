"""Group mode: Spark and plain workers share one consumer group. None lost, at least once.

The driver claims, the tasks read by id. Each batch has an owner of its own, ``spark-<token>-<seq>``, and the offset is
that token and number: what a batch reads is what its owner holds, so a replayed batch takes no other rows. When Spark
asks for what follows a batch, that batch is committed: its deliveries are acked, fenced like any worker's. While it
runs a thread renews its leases; when the driver dies nobody does, and after a lease the workers take over.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.errors import ConfigError
from headrace.options import shown
from headrace.spark.chunks import Patience
from headrace.spark.claims import Claims
from headrace.spark.held import Held, HeldReader
from headrace.spark.plan import even, step_for, task_count
from headrace.spark.renewal import Renewal
from headrace.spark.schema import layout_of
from headrace.spark.source import check_server
from headrace.spark.source_options import SourceSettings
from headrace.spark.taking import owner_of
from headrace.spark.workers import leave_quietly

BATCH_AT_MOST: Final = 10_000  # deliveries: their leases are renewed one by one
VERSION: Final = 1
T = TypeVar("T")


class GroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream`` with ``mode`` group."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        layout_of(schema)
        self._settings = settings
        self._deliveries = HeldReader(settings, schema)
        self._claims: Claims | None = None
        self._renewal: Renewal | None = None
        self._counted = ""  # the owner whose losses were asked for last
        self._unread: Counter[str] = Counter()  # losses that are in no offset yet, by stream

    # ── in the driver ──

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's words, here and below
        self._ask(lambda claims: claims.ensure_groups())
        return _offset(secrets.token_hex(6), 0, pin=True)  # asked for twice: an empty first batch decides for one

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(min(self._settings.max_rows, BATCH_AT_MOST))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        token, seq = _read(start)
        if start.get("pin"):
            return _offset(token, seq)
        most = min(limit.max_rows, BATCH_AT_MOST) if isinstance(limit, ReadMaxRows) else BATCH_AT_MOST
        if not self._settings.fail_on_loss:
            self._ask(lambda claims: self._collect_losses(claims, owner_of(token, seq)))
        found = self._ask(lambda claims: self._next(claims, token, seq, most))
        lost, self._unread = self._unread + Counter(start.get("lost", {})), Counter()
        return _offset(token, seq + 1 if found else seq, lost=lost)

    def _collect_losses(self, claims: Claims, owner: str) -> None:
        """A batch is committed: what its tasks have lost is written down with the next offset."""
        if self._counted != owner:
            for stream, losses in claims.lost(owner).items():
                self._unread[stream] += sum(loss.lost or 0 for loss in losses)
            self._counted = owner

    def _next(self, claims: Claims, token: str, seq: int, most: int) -> bool:
        claims.end(owner_of(token, seq))
        self._renew(claims, owner_of(token, seq + 1))
        return claims.take(token, seq + 1, most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ask(lambda claims: claims.bound())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        token, seq = _read(end)
        if seq == _read(start)[1]:
            return []
        owner = owner_of(token, seq)
        return self._shares(self._ask(lambda claims: self._held(claims, owner)), owner)

    def _held(self, claims: Claims, owner: str) -> dict[str, list[str]]:
        held = claims.held(owner)
        self._renew(claims, owner)
        return held

    def stop(self) -> None:
        leave_quietly()
        if self._renewal is not None:
            self._renewal.stop()
            self._renewal = None
        if self._claims is not None:
            self._claims.close()
            self._claims = None

    def _shares(self, held: dict[str, list[str]], owner: str) -> list[InputPartition]:
        """As many tasks as reading by ranges would have, of few streams or many."""
        total, most = sum(map(len, held.values())), self._settings.max_partition_rows
        tasks = task_count(total, len(held), self._settings.min_partitions, most)
        size = step_for(total, tasks, most)
        pieces = [(key, ids[at : at + size]) for key, ids in held.items() for at in range(0, len(ids), size)]
        pieces.sort(key=lambda piece: -len(piece[1]))
        return [Held(some, owner) for some in even(pieces, tasks, most, lambda piece: len(piece[1]))]

    def _ask(self, question: Callable[[Claims], T]) -> T:
        if self._claims is None:
            check_server(self._settings)
            self._claims = Claims(self._settings)
        claims = self._claims
        answer: T = Patience(self._settings.retry_ms).keep_trying(lambda: question(claims))
        return answer

    def _renew(self, claims: Claims, owner: str) -> None:
        """From now on this owner's leases are kept, in the streams known now."""
        if self._renewal is None:
            self._renewal = Renewal(self._settings)
            self._renewal.start()
        self._renewal.keep(owner, claims.streams)

    # ── in the tasks ──

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Held)
        return self._deliveries.read(partition)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_claims": None, "_renewal": None}


def _offset(token: str, seq: int, *, pin: bool = False, lost: Mapping[str, int] | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"lost": dict(sorted(lost.items()))} if lost else {}
    told["mode"] = "group"
    if pin:
        told["pin"] = True
    return {**told, "seq": seq, "token": token, "v": VERSION}


def _read(told: dict[str, Any]) -> tuple[str, int]:
    if told.get("mode") != "group" or told.get("v") != VERSION:
        raise ConfigError(
            f"the checkpoint's offset {shown(str(told))} was not written in mode group: use a new checkpoint"
        )
    return told["token"], told["seq"]
