"""The quarantine's stream: entries as they came, whatever they are, and why they are there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.demo.payments import sendings
from headrace.spark.pipeline.quarantine import FROM, PACKED, REASON
from tests.spark.test_pipeline_payments import Shop
from tests.support.servers import Server

pytestmark = [pytest.mark.timeout(180), pytest.mark.servers("redis8")]

NO_PAYLOAD = b"the entry has no field payload"
RAW = "return redis.call('XRANGE', KEYS[1], '-', '+')"  # a client's own XRANGE makes dicts of fields


class Guarded(Shop):
    """The shop with a stream for its quarantine."""

    def __init__(self, spark: SparkSession, server: Server, prefix: str, folder: Path) -> None:
        super().__init__(spark, server, prefix, folder)
        self.bad = f"{prefix}-bad"
        self.pipeline = dataclasses.replace(self.pipeline, quarantine=self.bad)

    def add(self, *words: bytes) -> bytes:
        """An entry of these names and values, which is no payment; answers where it is, as the stream will say it."""
        self.must["in"] += 1
        self.must["quarantined"] += 1
        id_: Any = self.client.execute_command("XADD", self.stream, "*", *words)
        return f"{self.stream}/{id_.decode()}".encode()

    def quarantined(self) -> list[list[bytes]]:
        """Names and values of the stream's entries, in turn."""
        entries: Any = self.client.eval(RAW, 1, self.bad)
        return [fields for _, fields in entries]


@pytest.fixture
def shop(spark: SparkSession, server: Server, prefix: str, tmp_path: Path) -> Iterator[Guarded]:
    yield Guarded(spark, server, prefix, tmp_path)
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def numbered(count: int) -> Sequence[bytes]:
    return [word for number in range(count) for word in (b"f%d" % number, b"v")]


def test_an_entry_with_a_field_twice_or_with_very_many_is_quarantined_as_it_came(shop: Guarded) -> None:
    shop.feed(sendings(40, undecodable=0, poison=0, lethal=0))
    twice = shop.add(b"a", b"1", b"b", b"\xff", b"a", b"2")
    wide = shop.add(*numbered(4_000))
    shop.check(shop.run())
    assert shop.quarantined() == [
        [b"a", b"1", b"b", b"\xff", b"a", b"2", REASON.encode(), NO_PAYLOAD, FROM.encode(), twice],
        [PACKED.encode(), packed(numbered(4_000)), REASON.encode(), NO_PAYLOAD, FROM.encode(), wide],
    ]


def packed(words: Sequence[bytes]) -> bytes:
    return b"".join(b"%d:%s" % (len(word), word) for word in words)


def test_what_was_quarantined_and_is_sent_again_says_the_newer_reason_alone(shop: Guarded) -> None:
    shop.feed(sendings(40, undecodable=0, poison=0, lethal=0))
    shop.add(b"note", b"1")
    shop.check(shop.run())
    (fields,) = shop.quarantined()
    again = shop.add(*fields)
    shop.check(shop.run())
    assert shop.quarantined()[1:] == [[b"note", b"1", REASON.encode(), NO_PAYLOAD, FROM.encode(), again]]
    (row,) = shop.table("quarantine").where(f"entry_id = '{again.decode().partition('/')[2]}'").collect()
    assert set(row["raw"]) == {"note", REASON, FROM}  # the table keeps them all
