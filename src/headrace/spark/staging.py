"""Rows that wait in the server until their batch is decided, and the one decision about it (docs: semantics).

1. A task puts its rows as blobs into lists of its own, one for each target, in that target's slot: stage().
2. The driver looks whether all lists are whole (seal), then stores their names as the batch's manifest (decide). The
   first manifest wins; a driver that died is followed by another which hears what was chosen.
3. Blob by blob the rows go into the streams (publish), counted; anybody may go on where another stopped.
4. All counted: done, with a receipt of how many rows each target got.

A batch that is given up loses its lists only if they were not chosen (abandon): what was chosen is the batch.

Every call may be repeated, so a cut connection costs time and nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, Final, Self, TypeVar

from headrace.errors import CommandRefused, DurabilityUnmet, HeadraceError, Verdict, WrongType, classify
from headrace.names import keys_of, published_key, sink_key
from headrace.policy import reconnect_delay_ms
from headrace.redis.calls import Call, Script, as_is, nothing, text
from headrace.redis.synclink import SyncLink
from headrace.spark.options import Address

T = TypeVar("T")

SEALED_S: Final = 30 * 86_400  # how long a sealed list outlives a driver that died before its decision
COUNTER_S: Final = 86_400
FORSAKEN_S: Final = 86_400  # by then a commit that was given up is not at work any more
PUBLISH_AT_ONCE: Final = 32  # blobs published in one write to the server
REPLICA_MS: Final = 10_000  # how long a replica is waited for, if retryTimeout is not less
MARK_S: Final = 60  # life of the mark that is written before a replica is asked for


@functools.cache
def load(name: str) -> Script:
    """Read a script of this package."""
    content = resources.files("headrace.spark").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, content, hashlib.sha1(content.encode(), usedforsecurity=False).hexdigest())


# ── values ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StagedList:
    """One task's rows for one target."""

    target: str
    name: str
    blobs: int
    rows: int
    dead: bool = False  # dead letters, not rows of the stream

    @property
    def counter(self) -> str:
        """How many of its blobs were published; in the same slot."""
        return published_key(self.name)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a batch became: rows by target."""

    batch: int
    rows: dict[str, int]
    dead: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.rows.values())


class SinkConflict(HeadraceError):
    """The server's memory of a query and Spark's do not fit each other: somebody has to look."""


class StagingLost(HeadraceError):
    """Rows that waited for their batch are gone: the server lost its data, or somebody deleted keys."""


def decision_name(stream: str, query: str) -> str:
    """The hash that remembers what a query has written: beside its stream, or by itself where rows choose."""
    return keys_of(stream).sink(query) if stream else sink_key(query)


def manifest_of(lists: Iterable[StagedList]) -> str:
    return json.dumps([asdict(one) for one in lists], separators=(",", ":"))


def lists_of(manifest: str) -> list[StagedList]:
    return [StagedList(**one) for one in json.loads(manifest)]


def receipt_of(batch: int, lists: Iterable[StagedList]) -> Receipt:
    rows: dict[str, int] = {}
    dead: dict[str, int] = {}
    for one in lists:
        count = dead if one.dead else rows
        count[one.target] = count.get(one.target, 0) + one.rows
    return Receipt(batch, dict(sorted(rows.items())), dict(sorted(dead.items())))


def read_receipt(words: str) -> Receipt:
    return Receipt(**json.loads(words))


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────


def stage(list_: str, before: int, expire_s: int, blobs: Sequence[bytes]) -> Call[int]:
    return Call((1, list_, before, expire_s, *blobs), as_is, load("stage"))


def seal(one: StagedList, expire_s: int) -> Call[str]:
    return Call((2, one.name, one.target, one.blobs, expire_s), text, load("seal"))


def decide(decision: str, batch: int, manifest: str, *, strict: bool, expire_s: int) -> Call[list[str]]:
    words = (1, decision, batch, manifest, "strict" if strict else "", expire_s)
    return Call(words, lambda reply: [text(word) for word in reply], load("decide"))


def forsake(decision: str, batch: int, manifest: str, expire_s: int) -> Call[str]:
    return Call((1, decision, batch, manifest, expire_s), text, load("forsake"))


def publish(one: StagedList, trim: tuple[str, str, str]) -> Call[list[int]]:
    trim = ("", "", "") if one.dead else trim
    return Call((3, one.target, one.name, one.counter, *trim), as_is, load("publish"))


def append(target: str, trim: tuple[str, str, str], blob: bytes) -> Call[list[int]]:
    """Publish a blob that was never staged."""
    return Call((1, target, *trim, blob), as_is, load("publish"))


def done(decision: str, batch: int, receipt: str, expire_s: int) -> Call[str]:
    return Call((1, decision, batch, receipt, expire_s), text, load("done"))


def _last(reply: list[bytes | None]) -> tuple[int, str]:
    return (int(reply[0]) if reply[0] is not None else -1), text(reply[1] or b"")


def last_done(decision: str) -> Call[tuple[int, str]]:
    """The last batch that was published, -1 if none, and its receipt."""
    return Call(("HMGET", decision, "done", "receipt"), _last)


def last_known(decision: str) -> Call[tuple[int, ...]]:
    """The last batch that was published and the one that was begun, if there are such."""
    return Call(("HMGET", decision, "done", "open"), lambda reply: tuple(int(one) for one in reply if one is not None))


def type_of(key: str) -> Call[str]:
    return Call(("TYPE", key), text)


# ── a link that does not give up at once ─────────────────────────────────────────────────────────────


class PatientLink:
    """Sends calls that may be repeated, again and again until the server answers or the time is over."""

    def __init__(self, address: Address, retry_ms: int, name: str = "headrace-sink") -> None:
        self._link: SyncLink = address.server().sync_link(name)
        self._retry_ms = retry_ms
        # Less than a command may take, or its answer would be cut; and never 0, which means for ever.
        self._replica_ms = max(100, min(REPLICA_MS, retry_ms, address.command_ms // 2))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self._link.close()

    def call(self, call: Call[T]) -> T:
        result: T = self.pipe([call])[0]
        return result

    def pipe(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """All answers. If one is an error that time may heal, all calls are sent again."""
        return self._patiently(lambda: self._all(calls))

    def _all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        answers = self._link.pipe(calls)
        for answer in answers:
            if isinstance(answer, HeadraceError):
                raise answer
        return answers

    def _patiently(self, send: Callable[[], T]) -> T:
        until, tries = time.monotonic() + self._retry_ms / 1000, 0
        while True:
            try:
                return send()
            except HeadraceError as error:
                pause_s = reconnect_delay_ms(tries, 0.5) / 1000
                if classify(error) is not Verdict.RETRY or time.monotonic() + pause_s > until:
                    raise
                tries += 1
                time.sleep(pause_s)

    def confirm_replica(self, targets: Iterable[str]) -> None:
        """Wait until a replica has everything that was written to these streams, by whoever.

        A server confirms what the asking connection has written, and to one that wrote nothing it confirms everything:
        after a reconnect, or where another driver has published, WAIT alone would lie. So each stream's server gets a
        small write first. What a replica has, it has in order.
        """
        calls: list[Call[Any]] = []
        for target in targets:
            mark = keys_of(target).stage("copied", 0, secrets.token_hex(4))
            calls += [stage(mark, 0, MARK_S, [b"x"]), Call(("UNLINK", mark), nothing)]
        wait: Call[int] = Call(("WAIT", 1, self._replica_ms), int)
        if not calls:
            return
        self.pipe(calls)  # connects where it must, so that all servers are known
        answers = self.pipe([*calls, *(wait.aimed(node) for node in self._link.nodes)])
        if not all(answers[len(calls) :]):
            raise DurabilityUnmet(
                "no replica confirmed the batch in time, so it is not finished: attach one, "
                "or write with durability = received. Repeating the batch adds nothing twice",
                wanted="replicated",
            )


# ── a batch, on the driver ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Batch:
    """Which batch of which query goes where, and under which rules."""

    query: str
    number: int
    decision: str
    trim: tuple[str, str, str] = ("", "", "")
    strict: bool = False  # batches follow each other; a gap means that the server has forgotten some
    forget_s: int = 0  # the decision's life, for a write that nobody can repeat; 0: for ever
    replicated: bool = False


def finish(link: PatientLink, batch: Batch, mine: Sequence[StagedList]) -> Receipt:
    """Decide, publish and close a batch, wherever an earlier try may have stopped. Returns what it became."""
    last, receipt = link.call(last_done(batch.decision))
    if batch.number <= last:
        drop(link, mine)
        return _told(batch, last, receipt)
    sealed = batch.forget_s or SEALED_S
    _check_seals(link, mine, link.pipe([seal(one, sealed) for one in mine]))
    answer = link.call(
        decide(batch.decision, batch.number, manifest_of(mine), strict=batch.strict, expire_s=batch.forget_s)
    )
    if answer[0] == "done":
        drop(link, mine)
        return _told(batch, *link.call(last_done(batch.decision)))
    if answer[0] != "chosen":
        drop(link, mine)
        raise _conflict(batch, answer)
    chosen = lists_of(answer[1])
    names = {one.name for one in chosen}
    drop(link, [one for one in mine if one.name not in names])
    return _publish_all(link, batch, chosen)


def abandon(link: PatientLink, batch: Batch, mine: Sequence[StagedList]) -> None:
    """Forget the lists of a batch that its driver gives up, but for those that were chosen: whoever repeats the batch
    publishes the rest of them. The commit that failed, or was interrupted, may still be at work meanwhile.
    """
    if batch.forget_s:  # nobody can repeat it
        drop_keys(link, [batch.decision, *(key for one in mine for key in (one.name, one.counter))])
        return
    manifest = link.call(forsake(batch.decision, batch.number, manifest_of(mine), FORSAKEN_S))
    chosen = {one.name for one in lists_of(manifest)} if manifest else set()
    drop(link, [one for one in mine if one.name not in chosen])


def drop(link: PatientLink, lists: Sequence[StagedList]) -> None:
    """Forget lists that will not be published."""
    drop_keys(link, [one.name for one in lists])


def drop_keys(link: PatientLink, names: Sequence[str]) -> None:
    link.pipe([Call(("UNLINK", name), nothing) for name in names])


def _publish_all(link: PatientLink, batch: Batch, chosen: Sequence[StagedList]) -> Receipt:
    if not batch.forget_s:
        link.pipe([Call(("PERSIST", one.name), nothing) for one in chosen])
    receipt = receipt_of(batch.number, chosen)
    for one in chosen:
        if not _publish_list(link, batch, one):
            return receipt  # another driver has finished the batch meanwhile
    if batch.replicated:
        link.confirm_replica({one.target for one in chosen})
    word = link.call(done(batch.decision, batch.number, json.dumps(asdict(receipt)), batch.forget_s))
    if word == "lost":
        raise SinkConflict(
            f"{batch.decision}: the decision about batch {batch.number} vanished while it was published: "
            "the server lost data; compare the target with the source before going on"
        )
    if batch.forget_s:  # nobody can ask again
        drop_keys(link, [batch.decision, *(one.counter for one in chosen)])
    else:
        link.pipe([Call(("EXPIRE", one.counter, COUNTER_S), nothing) for one in chosen])
    return receipt


def _publish_list(link: PatientLink, batch: Batch, one: StagedList) -> bool:
    """Publish what is left of a list. False: the whole batch is done already, and its counters may be gone."""
    (published, left) = link.call(publish(one, batch.trim)) if one.blobs else (0, 0)
    while published < one.blobs:
        if left == 0:
            if link.call(last_done(batch.decision))[0] >= batch.number:
                return False
            raise StagingLost(
                f"{one.name}: {published} of {one.blobs} blobs of batch {batch.number} for {one.target} were published "
                "and the rest is gone: the server lost data or keys were deleted"
            )
        answers = link.pipe([publish(one, batch.trim)] * min(left, PUBLISH_AT_ONCE))
        published, left = answers[-1]
    return True


def _check_seals(link: PatientLink, lists: Sequence[StagedList], words: Sequence[str]) -> None:
    for one, word in zip(lists, words, strict=True):
        if word == "ok":
            continue
        drop(link, lists)
        kind, _, found = word.partition(" ")
        if kind == "type":
            raise WrongType(f"{one.target} holds a {found}, not a stream: nothing of the batch was written")
        raise StagingLost(
            f"{one.name}: {found} of {one.blobs} staged blobs are there: the server lost data, or the batch waited "
            "longer than stagingTtl. Nothing of it was written: repeat it"
        )


def _told(batch: Batch, last: int, receipt: str) -> Receipt:
    """The receipt of a batch published before; only the last one's is kept."""
    if last == batch.number and receipt:
        return read_receipt(receipt)
    return Receipt(batch.number, {}, {})


def _conflict(batch: Batch, answer: Sequence[str]) -> HeadraceError:
    kind, other = answer
    if kind == "open":
        return SinkConflict(
            f"{batch.decision}: batch {other} was begun and not finished, and batch {batch.number} came: "
            f"write batch {other} again first, which publishes the rest of it"
        )
    if kind == "gap":
        last = f"batch {other}" if other else "no batch"
        return SinkConflict(
            f"{batch.decision}: the server knows {last} of this query as its last, and batch {batch.number} came: "
            "either the server lost data (compare the target with the source), or the target is new to this query "
            '(then set option("acceptGap", "true") once)'
        )
    if kind == "forsaken":
        return SinkConflict(f"{batch.decision}: batch {batch.number} was given up before its decision: write it again")
    return CommandRefused(f"{batch.decision}: decide answered {kind!r}")
