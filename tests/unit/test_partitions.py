"""Partitions: which key goes where, and which names are refused (SPEC 51)."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import App, ConfigError, NameRefused
from headrace.names import keys_of
from headrace.partitions import Partitions

KEYS = st.text(min_size=1, max_size=100).filter(lambda key: not any("\ud800" <= char <= "\udfff" for char in key))


@given(KEYS, st.integers(1, 1_024))
def test_a_key_always_goes_to_the_same_partition_and_others_can_compute_it(key: str, count: int) -> None:
    parts = Partitions("orders", count)
    assert parts.of(key) == Partitions("orders", count).of(key) == crc32(key.encode()) % count


def test_keys_spread_evenly() -> None:
    parts = Partitions("orders", 16)
    found = Counter(parts.of(f"customer-{number}") for number in range(16_000))
    assert len(found) == 16
    assert max(found.values()) < 1.2 * min(found.values())


def test_every_partition_is_a_stream_with_keys_of_its_own() -> None:
    names = Partitions("orders", 16).names
    assert len({keys_of(name).dead_letters for name in names}) == 16
    assert len({keys_of(name).due("billing") for name in names}) == 16


@pytest.mark.parametrize("count", [0, -1, 1_025, 1.5, True, "16"])
def test_a_number_of_partitions_that_cannot_be_is_refused(count: object) -> None:
    with pytest.raises(ConfigError, match="partitions"):
        App("redis://localhost").stream("orders", partitions=count)  # type: ignore[call-overload]


def test_a_tagged_stream_is_refused_because_a_tag_keeps_all_partitions_on_one_master() -> None:
    with pytest.raises(ConfigError, match="tag"):
        App("redis://localhost").stream("shop:{eu}:orders", partitions=4)


def test_a_bad_name_is_refused_as_everywhere() -> None:
    with pytest.raises(NameRefused):
        App("redis://localhost").stream("a:hr:b", partitions=4)


def test_concurrency_is_shared_by_the_partitions() -> None:
    app = App("redis://localhost")
    orders = app.stream("orders", partitions=16)

    @orders.handler(group="billing", concurrency=100)
    async def bill(order: dict[str, int]) -> None: ...

    assert [job.concurrency for job in app.jobs] == [7] * 16
    assert [job.concurrency for job in app.sized(8)] == [1] * 16
