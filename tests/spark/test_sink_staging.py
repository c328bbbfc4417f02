"""The staged commit without Spark: every script and every way a batch can be interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest

from headrace.errors import MissingRight, ServerRefused, WrongType
from headrace.names import keys_of
from headrace.spark import staging
from headrace.spark.options import Address
from headrace.spark.staging import Batch, PatientLink, SinkConflict, StagedList, StagingLost
from tests.support.servers import Server

pytestmark = pytest.mark.timeout(60)


class Bench:
    """A target, a query that writes to it, and tasks that stage rows."""

    def __init__(self, server: Server, stream: str, prefix: str) -> None:
        self.server, self.stream, self.query = server, stream, f"{prefix}-query"
        self.client = server.sync()
        self.link = self.dial()
        self._tokens = 0

    def dial(self) -> PatientLink:
        return PatientLink(Address(self.server.url, 5_000, 10_000), 0)

    def batch(self, number: int, **rules: object) -> Batch:
        return Batch(self.query, number, staging.decision_name(self.stream, self.query), **rules)  # type: ignore[arg-type]

    def staged(self, batch: int, numbers: Sequence[int], blob_rows: int = 10, target: str = "") -> StagedList:
        """What one task leaves: its rows in a list of its own."""
        self._tokens += 1
        name = keys_of(target or self.stream).stage(self.query, batch, f"token{self._tokens}")
        parts = [numbers[at : at + blob_rows] for at in range(0, len(numbers), blob_rows)]
        blobs = [msgspec.msgpack.encode([["n"], len(part), [str(n) for n in part]]) for part in parts]
        assert self.link.call(staging.stage(name, 0, 60, blobs)) == len(blobs)
        return StagedList(target or self.stream, name, len(blobs), len(numbers))

    def numbers(self, stream: str = "") -> list[int]:
        return [int(fields[b"n"]) for _, fields in self.client.xrange(stream or self.stream)]

    def left(self) -> list[str]:
        """Keys that are neither streams nor the decision nor counters that expire."""
        names = [key.decode() for key in self.client.scan_iter(f"*{self.stream}*")]
        return [name for name in names if ":hr:stage:" in name and not name.endswith(":n")]


@pytest.fixture
def bench(server: Server, stream: str, prefix: str) -> Iterator[Bench]:
    bench = Bench(server, stream, prefix)
    yield bench
    bench.link._link.close()


def test_a_batch_is_published_once_whoever_repeats_it(bench: Bench) -> None:
    lists = [bench.staged(0, range(95)), bench.staged(0, range(95, 130))]
    receipt = staging.finish(bench.link, bench.batch(0, strict=True), lists)
    assert (receipt.batch, receipt.rows) == (0, {bench.stream: 130})
    again = staging.finish(bench.link, bench.batch(0, strict=True), [bench.staged(0, range(130))])
    assert again == receipt
    assert bench.numbers() == list(range(130))
    assert bench.left() == []


def test_staging_again_after_a_cut_answer_puts_nothing_twice(bench: Bench) -> None:
    name = keys_of(bench.stream).stage(bench.query, 0, "token")
    assert bench.link.call(staging.stage(name, 0, 60, [b"a", b"b"])) == 2
    assert bench.link.call(staging.stage(name, 0, 60, [b"a", b"b"])) == 2
    assert bench.link.call(staging.stage(name, 1, 60, [b"x", b"y"])) == -3
    assert bench.client.lrange(name, 0, -1) == [b"a", b"b"]
    assert 0 < bench.client.ttl(name) <= 60


def test_a_driver_that_died_inside_publish_is_followed_by_one_that_goes_on(bench: Bench) -> None:
    mine = bench.staged(0, range(100))
    batch = bench.batch(0, strict=True)
    words = bench.link.call(staging.decide(batch.decision, 0, staging.manifest_of([mine]), strict=True, expire_s=0))
    assert words[0] == "chosen"
    for _ in range(4):  # and here it died
        bench.link.call(staging.publish(mine, ("", "", "")))
    assert bench.numbers() == list(range(40))
    other = bench.staged(0, range(100), blob_rows=7)  # the second driver has split the rows otherwise
    assert staging.finish(bench.link, batch, [other]).rows == {bench.stream: 100}
    assert bench.numbers() == list(range(100))
    assert bench.left() == []


def test_a_batch_given_up_after_its_decision_keeps_its_lists_and_is_finished_later(bench: Bench) -> None:
    mine, batch = bench.staged(0, range(100)), bench.batch(0, strict=True)
    bench.link.call(staging.decide(batch.decision, 0, staging.manifest_of([mine]), strict=True, expire_s=0))
    bench.link.call(staging.publish(mine, ("", "", "")))
    other = bench.staged(0, range(100))
    staging.abandon(bench.link, batch, [mine])
    staging.abandon(bench.link, batch, [other])  # of a driver that was not chosen
    assert bench.left() == [mine.name]
    staging.finish(bench.link, batch, [bench.staged(0, range(100))])
    assert bench.numbers() == list(range(100))
    assert bench.left() == []


def test_a_batch_given_up_before_its_decision_cannot_be_decided_any_more(bench: Bench) -> None:
    """The driver was interrupted and its commit was not: that one comes too late, and the batch is written again."""
    mine, batch = bench.staged(0, range(100)), bench.batch(0, strict=True)
    staging.abandon(bench.link, batch, [mine])
    assert bench.left() == []
    late = staging.decide(batch.decision, 0, staging.manifest_of([mine]), strict=True, expire_s=0)
    assert bench.link.call(late) == ["forsaken", ""]
    assert 0 < bench.client.ttl(batch.decision) <= staging.FORSAKEN_S  # of a query that wrote nothing, nothing stays
    staging.finish(bench.link, batch, [bench.staged(0, range(100))])
    assert bench.numbers() == list(range(100))
    assert bench.client.ttl(batch.decision) == -1


def test_a_batch_is_given_up_while_the_server_has_no_memory(
    own_server: Callable[..., Server], server_key: str, stream: str, prefix: str
) -> None:
    bench = Bench(own_server(server_key), stream, prefix)
    staging.finish(bench.link, bench.batch(0, strict=True), [bench.staged(0, range(10))])
    mine = bench.staged(1, range(100))
    bench.client.config_set("maxmemory", "1")
    with pytest.raises(ServerRefused):
        staging.finish(bench.link, bench.batch(1, strict=True), [mine])
    staging.abandon(bench.link, bench.batch(1), [mine])
    assert bench.left() == []
    assert bench.client.ttl(bench.batch(1).decision) == -1, "what the query wrote before is remembered"
    bench.client.config_set("maxmemory", "0")
    late = staging.decide(bench.batch(1).decision, 1, staging.manifest_of([mine]), strict=True, expire_s=0)
    assert bench.link.call(late)[0] == "forsaken"
    bench.link._link.close()


@pytest.mark.parametrize("right", ["lpop", "incr"])
def test_a_driver_without_the_right_to_remove_or_to_count_publishes_nothing(bench: Bench, right: str) -> None:
    """Rows that were appended and whose blob stays in its list would be appended again, once the right is there."""
    lists, batch = [bench.staged(0, range(20))], bench.batch(0, strict=True)
    bench.client.execute_command("ACL", "SETUSER", "default", f"-{right}")
    try:
        with pytest.raises(MissingRight, match=f"(?i){right}"):
            staging.finish(bench.link, batch, lists)
        assert bench.numbers() == []
    finally:
        bench.client.execute_command("ACL", "SETUSER", "default", "+@all")
    staging.finish(bench.link, batch, lists)
    assert bench.numbers() == list(range(20))


def test_two_drivers_at_once_publish_every_row_once(bench: Bench) -> None:
    failed: list[Exception] = []
    for number in range(20):
        rows = range(number * 100, number * 100 + 100)
        both = [[bench.staged(number, rows, blob_rows=3)], [bench.staged(number, rows, blob_rows=11)]]
        gate = threading.Barrier(2)

        def drive(lists: list[StagedList], number: int = number, gate: threading.Barrier = gate) -> None:
            with bench.dial() as link:
                gate.wait()
                try:
                    staging.finish(link, bench.batch(number, strict=True), lists)
                except Exception as error:
                    failed.append(error)

        threads = [threading.Thread(target=drive, args=(lists,)) for lists in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
    assert sorted(bench.numbers()) == list(range(2000))
    assert bench.left() == []


def test_several_targets_are_sealed_before_the_first_is_published(bench: Bench) -> None:
    wrong = f"{bench.stream}-wrong"
    bench.client.set(wrong, "no stream")
    lists = [bench.staged(0, range(10)), bench.staged(0, range(10), target=wrong)]
    with pytest.raises(WrongType, match="holds a string"):
        staging.finish(bench.link, bench.batch(0), lists)
    assert bench.numbers() == []
    assert bench.left() == []


def test_a_list_that_expired_fails_before_anything_is_written(bench: Bench) -> None:
    lists = [bench.staged(0, range(10)), bench.staged(0, range(10, 20))]
    bench.client.delete(lists[1].name)
    with pytest.raises(StagingLost, match="0 of 1 staged blobs"):
        staging.finish(bench.link, bench.batch(0), lists)
    assert bench.numbers() == []


def test_a_list_that_vanished_half_way_fails_loudly(bench: Bench) -> None:
    mine = bench.staged(0, range(100))
    batch = bench.batch(0)
    bench.link.call(staging.decide(batch.decision, 0, staging.manifest_of([mine]), strict=False, expire_s=0))
    bench.link.call(staging.publish(mine, ("", "", "")))
    bench.client.delete(mine.name)
    with pytest.raises(StagingLost, match="1 of 10 blobs"):
        staging.finish(bench.link, batch, [bench.staged(0, range(100))])


def test_a_gap_and_an_open_batch_fail_loudly(bench: Bench) -> None:
    with pytest.raises(SinkConflict, match="acceptGap"):
        staging.finish(bench.link, bench.batch(5, strict=True), [bench.staged(5, range(3))])
    staging.finish(bench.link, bench.batch(5), [bench.staged(5, range(3))])
    mine = bench.staged(6, range(3))
    batch = bench.batch(6, strict=True)
    bench.link.call(staging.decide(batch.decision, 6, staging.manifest_of([mine]), strict=True, expire_s=0))
    with pytest.raises(SinkConflict, match="batch 6 was begun and not finished"):
        staging.finish(bench.link, bench.batch(7, strict=True), [bench.staged(7, range(3))])
    assert bench.left() == [mine.name]
    assert bench.client.ttl(mine.name) > 0  # undecided lists do not stay for ever


def test_a_write_that_nobody_can_repeat_leaves_nothing_for_ever(bench: Bench) -> None:
    batch = bench.batch(0, forget_s=100)
    staging.finish(bench.link, batch, [bench.staged(0, range(3))])
    kept = [key for key in bench.client.scan_iter(f"*{bench.stream}*") if bench.client.ttl(key) < 0]
    assert kept == [bench.stream.encode()]


def test_a_batch_without_rows_is_a_batch(bench: Bench) -> None:
    assert staging.finish(bench.link, bench.batch(0, strict=True), []).rows == {}
    staging.finish(bench.link, bench.batch(1, strict=True), [bench.staged(1, range(3))])
    assert bench.numbers() == [0, 1, 2]


def test_a_server_that_restarts_in_between_costs_time_and_nothing_else(
    own_server: Callable[..., Server], stream: str, prefix: str
) -> None:
    server = own_server("redis8", aof=True, config={"appendfsync": "always"})
    bench = Bench(server, stream, prefix)
    mine = bench.staged(0, range(1000))
    server.kill()
    back = threading.Timer(0.5, server.restart)
    back.start()
    with PatientLink(Address(server.url, 5_000, 10_000), 20_000) as link:
        receipt = staging.finish(link, bench.batch(0, strict=True), [mine])
    back.join()
    assert receipt.rows == {stream: 1000}
    assert Bench(server, stream, prefix).numbers() == list(range(1000))
