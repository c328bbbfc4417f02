"""What each role sends, call by call, so that every right of its profile is used: for taking them away one at a time.

A call that is refused does not end the life: the next ones say what else is missing. `tests/support/lives.py` has the
same roles as whole apps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from headrace import Effect
from headrace.errors import HeadraceError
from headrace.holding import place_of
from headrace.names import keys_of, partition_assignments, waiting_group
from headrace.partitioned import agreeing
from headrace.partitions import Partitions
from headrace.redis import commands, ownership, scripts
from headrace.redis.calls import Call, as_is
from headrace.redis.connect import Server as Connect
from headrace.redis.synclink import SyncLink
from tests.support.servers import Server

ROOT = Path(__file__).resolve().parents[2]
GROUP = "billing"
ME = "me-1-a"


def profile(role: str, stream: str) -> list[str]:
    """The words of a role's line in docs/acl.md, for one stream."""
    line = re.search(rf"^ACL SETUSER orders-{role} (.*)$", (ROOT / "docs/acl.md").read_text(), re.MULTILINE)
    assert line is not None, f"docs/acl.md has no profile {role}"
    return [word.replace("orders", stream) for word in line[1].split()]


def login(server: Server, words: list[str]) -> str:
    """Make the user `app` with these rights; the URL that logs in as it."""
    client: Any = server.sync()
    client.execute_command("ACL", "SETUSER", "app", "reset", *words)
    return f"unix://{server.socket}?username=app&password=secret"


class Life:
    """One role at work on one stream, with another client setting the scene."""

    def __init__(self, server: Server, url: str, stream: str) -> None:
        self.client: Any = server.sync()
        self.url, self.stream = url, stream
        self.keys = keys_of(stream)
        self.errors: list[HeadraceError] = []
        self.link: SyncLink = Connect(url).sync_link("rights")
        self._all = Connect(server.url).sync_link("rights-all")

    def say(self, call: Call[Any]) -> Any:
        """Send one call; what is refused is noted, and answered with None."""
        try:
            return self.link.call(call)
        except HeadraceError as error:
            self.errors.append(error)
            return None

    def try_to(self, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except HeadraceError as error:
            self.errors.append(error)
            return None

    def scene(self, held: int = 1) -> list[bytes]:
        """A fresh stream with the group, and so many deliveries in my hands."""
        for key in self.client.scan_iter(f"*{self.stream}*"):
            self.client.delete(key)
        self.client.xgroup_create(self.stream, GROUP, "0", mkstream=True)
        for _ in range(held):
            self.client.xadd(self.stream, {"payload": "{}"})
        if held:
            self.client.xreadgroup(GROUP, ME, {self.stream: ">"}, count=held)
        return [id_ for id_, _ in self.client.xrange(self.stream)]

    def link_of_worker(self) -> SyncLink:
        """Somebody with all rights."""
        return self._all

    def close(self) -> None:
        self.link.close()
        self._all.close()


def produce(life: Life) -> None:
    life.say(scripts.add(life.keys, ["payload", "{}"]))
    life.say(scripts.add(life.keys, ["payload", "{}"], key="k", window_ms=60_000))
    life.say(scripts.add(life.keys, ["payload", "{}"], key="k", window_ms=60_000))


def work(life: Life) -> None:
    """Every script and command of a worker, each with what it needs to come to its end."""
    keys, say = life.keys, life.say
    about = {"_original_id": "1-1", "_group": GROUP, "_reason": "no"}
    life.scene(0)
    life.client.delete(life.stream)
    say(scripts.ensure_group(keys, GROUP))
    life.scene(1)
    say(scripts.join(keys, GROUP, ME, "abc", 1_000))
    say(scripts.stay(keys, GROUP, ME, "abc"))
    say(commands.read(keys, GROUP, ME, 1))
    (id_,) = life.scene()
    say(scripts.renew(keys, GROUP, ME, [(id_, 1)]))
    say(scripts.renew_owner(keys, GROUP, ME, 0))
    say(scripts.mine(keys, GROUP, ME, 10, []))
    say(scripts.rescue(keys, GROUP, "other-1-b", 0))
    (id_,) = life.scene()
    say(scripts.park(keys, GROUP, ME, 0, "waiting", [(id_, 1, 1)], alone=True))
    say(scripts.look(keys, GROUP))
    say(scripts.turn(keys, GROUP, 100))
    say(scripts.due(keys, GROUP, ME, 1, alone=True, early_ms=1_000))
    (id_,) = life.scene()
    say(scripts.park(keys, GROUP, ME, 0, "waiting", [(id_, 1, 1)]))
    say(scripts.due(keys, GROUP, ME, 1))
    (id_,) = life.scene()
    say(scripts.adopt(keys, GROUP, ME, [id_]))
    (id_,) = life.scene()
    say(scripts.bury(keys, GROUP, ME, id_, 1, extra=about))
    (id_,) = life.scene()
    say(scripts.ack(keys, GROUP, ME, [(id_, 1)], delete="sole"))
    (id_,) = life.scene()
    say(scripts.done(keys, GROUP, ME, [(id_, 1, "k", b"")], 60_000))
    say(commands.values([keys.once(GROUP, "k")]))
    (id_,) = life.scene()
    say(scripts.effects(keys, GROUP, ME, id_, 1, _effects(keys.prefix), once=("k", b"", 60_000)))
    say(commands.consumers(keys, GROUP))
    say(commands.stream_info(keys))
    say(scripts.levels(keys, GROUP))
    say(scripts.pull_back(keys, GROUP))
    say(scripts.keep_floor(keys, GROUP))
    life.scene(0)
    life.client.execute_command("XGROUP", "CREATECONSUMER", life.stream, GROUP, "old")
    life.client.hset(keys.owners(GROUP), "old", '{"seen_ms":1,"lease_ms":1,"token":"a"}')
    life.client.hset(keys.owners(GROUP), "new", '{"seen_ms":1,"lease_ms":1,"token":"a"}')
    say(scripts.remove_owner(keys, GROUP, "old"))
    life.scene(1)
    life.client.set(keys.floor(GROUP), "1-1 1-1")
    life.client.zadd(keys.due(GROUP), {"1-1": 1})
    life.client.xgroup_destroy(life.stream, GROUP)
    say(scripts.regroup(keys, GROUP))


def _effects(prefix: str) -> list[Effect]:
    key = f"{prefix}:total"
    return [
        Effect.xadd(key + ":log", {"n": 1}),
        Effect.set(key + ":last", 1),
        Effect.hset(key + ":of", {"a": 1}),
        Effect.hincrby(key + ":sum", "a", 1),
        Effect.zadd(key + ":rank", {"a": 1}),
    ]


def operate(life: Life) -> None:
    """Dead letters and parked messages looked at, replayed and purged; groups, owners and what waits looked at."""
    keys, say = life.keys, life.say

    def buried() -> tuple[bytes, str]:
        (id_,) = life.scene()
        life.client.xack(life.stream, GROUP, id_)
        fields = {"payload": "{}", "_n": "2", "_original_id": id_, "_group": GROUP}
        return id_, life.client.xadd(keys.dead_letters, fields).decode()

    id_, letter = buried()
    say(commands.entries(keys.dead_letters, count=1, newest_first=True))
    say(commands.entries(keys.dead_letters, count=1))
    say(commands.length(keys.dead_letters))
    say(scripts.replay(keys, GROUP, id_.decode(), letter))  # in place
    id_, letter = buried()
    life.client.xdel(life.stream, id_)
    say(scripts.replay(keys, GROUP, id_.decode(), letter))  # as a copy
    (id_,) = life.scene()
    life.link_of_worker().call(scripts.park(keys, GROUP, ME, -1, "parked", [(id_, 1, 1)]))
    life.client.xdel(life.stream, id_)
    say(scripts.replay(keys, GROUP, id_.decode()))  # parked, and trimmed meanwhile
    _, letter = buried()
    say(commands.delete(keys.dead_letters, [letter]))
    say(commands.groups(keys))
    say(commands.consumers(keys, GROUP))
    say(commands.owners(keys, GROUP))
    say(commands.pending(keys, GROUP))
    say(commands.server_ms())
    say(Call(("ZMSCORE", keys.due(GROUP), "1-1"), as_is))
    say(scripts.levels(keys, GROUP))


def read_with_spark(life: Life) -> None:
    """The source, as Spark's driver and tasks call it: a batch; a stream with a mirroring group, from a time, from ids,
    bounded in time; losses that are counted; and each of the tables."""
    from headrace.spark.source_options import TABLES

    def batch() -> None:
        assert _batch_rows(life) == 3

    def stream() -> None:
        # the mirror moves behind a batch that the next question shows to be committed
        assert _streamed(life, 4, groupId="mirror", startingOffsets="earliest", onCommit="trim") == 3

    def since() -> None:
        _streamed(life, 0, startingTimestamp="2026-01-01T00:00:00Z")

    def after() -> None:
        assert _streamed(life, 3, startingOffsets=json.dumps({life.stream: "1500"})) == 2

    def bounded() -> None:
        assert _streamed(life, 4, startingOffsets="earliest", maxSpanPerTrigger="500ms") == 3

    for part in (batch, since, after, bounded, stream, partial(lose_with_spark, life)):
        life.scene(0)
        for n in range(3):
            life.client.xadd(life.stream, {"payload": str(n)}, id=f"{n + 1}000-0")
        life.try_to(part)
    _waits(life)
    for table in TABLES:
        life.try_to(partial(_batch_rows, life, table=table))


def lose_with_spark(life: Life) -> int:
    """A stream trimmed under a task, and that is lived with; answers how many losses were counted."""
    reader = _spark_stream(life, startingOffsets="earliest", failOnDataLoss="false")
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        shares = reader.partitions(start, end)
        life.client.xtrim(life.stream, maxlen=1, approximate=False)
        assert _rows(reader, shares) == 1
        told = reader.latestOffset(end, reader.getDefaultReadLimit())
        return sum(told["streams"][life.stream].get(word, 0) for word in ("lost", "unknown"))
    finally:
        reader.stop()


def share_with_spark(life: Life) -> int:
    """Group mode: a batch, committed, of which some is lost; answers how many were read and counted."""
    options = {"mode": "group", "groupId": GROUP, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    life.scene(0)
    for _ in range(3):
        life.client.xadd(life.stream, {"payload": "{}"})
    reader = _spark_stream(life, **options)
    try:
        pinned = reader.initialOffset()
        start = reader.latestOffset(pinned, reader.getDefaultReadLimit())
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        shares = reader.partitions(start, end)
        life.client.xtrim(life.stream, maxlen=1, approximate=False)
        seen = _rows(reader, shares)
        told = reader.latestOffset(end, reader.getDefaultReadLimit())
        return seen + int(told.get("lost", {}).get(life.stream, 0))
    finally:
        reader.stop()


def _waits(life: Life) -> None:
    """A delivery, one that waits, and an owner that is known."""
    life.scene(1)
    life.client.xgroup_create(life.stream, waiting_group(GROUP), "0")
    life.client.xreadgroup(waiting_group(GROUP), "crashed", {life.stream: ">"})
    life.client.hset(keys_of(life.stream).owners(GROUP), ME, '{"seen_ms":1,"lease_ms":1,"token":"a"}')


def _batch_rows(life: Life, **options: str) -> int:
    from headrace.spark.datasource import RedisStreams

    source = RedisStreams({"url": life.url, "streams": life.stream, **options})
    reader: Any = source.reader(source.schema())
    return _rows(reader, reader.partitions())


def _spark_stream(life: Life, **options: str) -> Any:
    from headrace.spark.datasource import RedisStreams

    source = RedisStreams({"url": life.url, "streams": life.stream, "retryTimeout": "0s", "blockMs": "1", **options})
    return source.streamReader(source.schema())


def _streamed(life: Life, batches: int, **options: str) -> int:
    reader = _spark_stream(life, **options)
    try:
        start, seen = reader.initialOffset(), 0
        for _ in range(batches):
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            seen += _rows(reader, reader.partitions(start, end))
            start = end
        return seen
    finally:
        reader.stop()


def _rows(reader: Any, shares: Any) -> int:
    return sum(part.num_rows for share in shares for part in reader.read(share))


def write_with_spark(life: Life) -> None:
    """The sink, as Spark's tasks and driver call it: exactly once, again, with an abort, and at least once."""
    import pyarrow as pa
    from pyspark.sql.types import StringType, StructField, StructType

    from headrace.spark.datasource import RedisStreams

    life.scene(0)
    schema = StructType([StructField("payload", StringType())])
    batch = pa.RecordBatch.from_pydict({"payload": ["a", "b"]})

    def write(*, abort: bool = False, **options: str) -> None:
        writer: Any = RedisStreams({"url": life.url, "stream": life.stream, "retryTimeout": "0s", **options}).writer(
            schema, False
        )
        messages = [writer.write(iter([batch]))]
        writer.abort(messages) if abort else writer.commit(messages)

    def write_twice() -> None:
        write(txnAppId="app", txnVersion="1")
        write(txnAppId="app", txnVersion="1")  # is dropped; an abort, which drops too, would not say that it may not

    life.try_to(write_twice)
    life.try_to(lambda: write(txnAppId="app2", txnVersion="1", maxlen="100"))
    life.try_to(lambda: write(txnAppId="app3", txnVersion="1", abort=True))
    life.try_to(lambda: write(delivery="at-least-once"))


def _agree(life: Life) -> Partitions:
    """The first to say how many there are."""
    parts = Partitions(life.stream, 3)
    life.client.delete(life.keys.partitions)
    for call in agreeing(parts):
        life.say(call)
    return parts


def produce_parts(life: Life) -> None:
    parts = _agree(life)
    life.keys = keys_of(parts.names[0])
    produce(life)


def work_parts(life: Life) -> None:
    """A worker of a partitioned stream: it agrees on their number, and is a worker in each."""
    parts = _agree(life)
    life.stream, life.keys = parts.names[0], keys_of(parts.names[0])
    work(life)


def own_parts(life: Life) -> None:
    """Every script and command of a worker with an ordered handler."""
    name = _agree(life).names[0]
    life.stream = partition_assignments(life.stream)
    life.keys = keys_of(life.stream)
    scene = Owned(life, name)
    _own(life, scene)
    place = scene.place
    _, message = scene.set()
    life.say(ownership.set_aside(place, ME, 1, message, 1, extra={"_reason": "no"}))


def own(life: Life) -> None:
    """Every script and command of an owner of streams, of a listener to events, and of whoever announces and looks."""
    scene, keys, say = Owned(life, f"{life.stream}-room-1"), life.keys, life.say
    _own(life, scene)
    for delete in (True, False):
        id_, _ = scene.set()
        say(ownership.finish(scene.place, ME, 1, id_, delete=delete))
    id_, _ = scene.set()
    say(ownership.announced_names(keys))
    say(ownership.standing(scene.place))
    say(commands.groups(keys_of(scene.name)))
    say(commands.entries(keys.stream, id_.decode(), id_.decode(), 1))
    life.client.zadd(keys.beats(GROUP), {ME: 1})
    say(ownership.expired(keys, GROUP, "heir", 10, 0))
    say(ownership.claim(keys, GROUP, "heir", scene.name, 0))


class Owned:
    """A data stream with a message, announced, and in my hands."""

    def __init__(self, life: Life, name: str) -> None:
        self._life = life
        self.name = name
        self.place = place_of(life.stream, GROUP, name)

    def set(self) -> tuple[bytes, bytes]:
        """Afresh: (its announcement, the message)."""
        life, client = self._life, self._life.client
        life.scene(0)
        for key in client.scan_iter(f"*{self.name}*"):
            client.delete(key)
        life.link_of_worker().call(ownership.announce(life.keys, self.name, b"{}"))
        ((_, ((id_, _),)),) = client.xreadgroup(GROUP, ME, {life.stream: ">"})
        client.zadd(life.keys.beats(GROUP), {ME: 2**50})
        life.link_of_worker().call(ownership.take(self.place, id_, 1, ME))
        return id_, client.xadd(self.name, {"payload": "{}"})


def _own(life: Life, scene: Owned) -> None:
    """What owners of announced streams and of ordered partitions have in common."""
    keys, say, client, name, place = life.keys, life.say, life.client, scene.name, scene.place
    life.scene(0)
    client.delete(life.stream)
    say(scripts.ensure_group(keys, GROUP))
    life.scene(0)
    say(scripts.join(keys, GROUP, ME, "abc", 1_000))
    say(scripts.stay(keys, GROUP, ME, "abc"))
    say(ownership.announce(keys, name, b"{}"))
    say(ownership.announce(keys, name, b"{}"))
    say(ownership.beat(keys, GROUP, ME, 1_000))
    say(commands.read(keys, GROUP, ME, 1))
    client.delete(name, place.own)
    say(ownership.take(place, b"5-0", 1, ME))
    client.delete(place.own)
    say(ownership.take(place, b"5-0", 1, ME))  # the mirror remembers the position
    _, message = scene.set()
    say(ownership.read_after([(name, b"0-0")], 1))
    say(ownership.begin(place, ME, 1, 1))
    say(ownership.trimmed(place, ME, 1, (message, 1), (b"0-0", 0)))
    say(ownership.pos_ack(place, ME, 1, message, 1))
    say(ownership.give_up(place, ME, 1))
    id_, _ = scene.set()
    say(scripts.park(keys, GROUP, ME, 0, "waiting", [(id_, 1, 1)]))
    say(scripts.due(keys, GROUP, ME, 1))
    id_, _ = scene.set()
    say(commands.pending_rows(keys, GROUP, owner=ME))
    say(scripts.mine(keys, GROUP, ME, 10, []))
    say(ownership.lift(keys, GROUP, ME, id_, 1, 5))
    say(ownership.end_lease(keys, GROUP, ME))
    say(commands.server_ms())
    say(ownership.inherit(keys, GROUP, "heir", 10, 0))
    id_, _ = scene.set()
    say(ownership.id_of(keys, name))
    say(ownership.finished(keys, GROUP, ME, id_, 1, name))
    id_, _ = scene.set()
    say(scripts.bury(keys, GROUP, ME, id_, 1, extra={"_group": GROUP}))
    say(commands.consumers(keys, GROUP))
    say(commands.owner_entries(keys, GROUP))
    client.execute_command("XGROUP", "CREATECONSUMER", life.stream, GROUP, "old")
    say(scripts.remove_owner(keys, GROUP, "old"))


def speak_go(life: Life) -> None:
    """Every call of a GoClient on one server."""
    from headrace.goclient import calls
    from headrace.goclient.protocol import Announcement, GoNames

    names, data, say, client = GoNames(life.stream), f"{life.stream}-room-1", life.say, life.client
    seat = calls.Seat(names, ME, f"{ME}#a", 60_000)

    def held() -> str:
        """An announcement in my hands, and locked."""
        for key in client.scan_iter(f"*{life.stream}*"):
            client.delete(key)
        client.xgroup_create(names.stream, names.group, "0", mkstream=True)
        id_: str = client.xadd(names.stream, {"lbs-input": Announcement(data).json()}).decode()
        client.xreadgroup(names.group, ME, {names.stream: ">"})
        life.link_of_worker().call(calls.hold(seat, data, id_))
        return id_

    client.delete(names.stream)
    say(scripts.ensure_group(keys_of(names.stream), names.group))
    id_ = held()
    say(scripts.ensure_group(keys_of(names.stream), names.group))  # it is there
    say(calls.announce(names, Announcement(data)))
    say(calls.read(seat, 1, 0))
    say(calls.hold(seat, data, id_))
    say(calls.pending(seat, "-", 10))
    say(calls.entry(seat, id_))
    say(calls.done(seat, data, id_))
    say(calls.requeue(seat, data, held(), "release", max_retries=3))
    say(calls.requeue(seat, "", held(), "unparseable"))
    id_ = held()
    client.delete(names.lock(data, id_))
    say(calls.requeue(seat, data, id_, "retry", max_retries=0))


LIVES: dict[str, Callable[[Life], None]] = {
    "producer": produce,
    "worker": work,
    "operator": operate,
    "owner": own,
    "parts-producer": produce_parts,
    "parts-worker": work_parts,
    "parts-owner": own_parts,
    "go": speak_go,
    "spark-source": read_with_spark,
    "spark-sink": write_with_spark,
}
