"""The conformance suite of the scripts, once more on a cluster: the same tests, another lab (SPEC 49, 52b).

A script that asks for keys of two slots, or for one that is not declared, is refused by a cluster and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from headrace.redis.calls import Call, Wire, as_is, key_of
from headrace.redis.link import SyncLink
from tests.conformance import (
    test_lua_ack,
    test_lua_burial,
    test_lua_effects,
    test_lua_fence,
    test_lua_life,
    test_lua_memory,
    test_lua_owners,
    test_lua_rescue,
    test_lua_waiting,
)
from tests.support.lab import Lab
from tests.topology.conftest import Kept

pytestmark = pytest.mark.servers("redis8", "redis6")

SUITE: tuple[ModuleType, ...] = (
    *(test_lua_ack, test_lua_burial, test_lua_effects, test_lua_fence, test_lua_life),
    *(test_lua_memory, test_lua_owners, test_lua_rescue, test_lua_waiting),
)
ELSEWHERE = (
    "test_ten_thousand_in_flight_finish_in_random_order_without_a_refusal",  # measures the server
    "test_without_the_right_to_ack_nothing_is_buried",  # makes a user at one node
    "test_without_the_right_to_ack_no_effect_is_written",
    "test_without_the_right_for_one_effect_none_is_written",
)

for module in SUITE:
    for name, test in list(vars(module).items()):
        if name.startswith("test_") and name not in ELSEWHERE and callable(test):
            globals()[f"{name}__{module.__name__.rpartition('.')[2]}"] = test


class ClusterLab(Lab):
    """All connections at the master of the lab's stream, so that what has no key is asked there too."""

    def dial(self) -> SyncLink:
        return self._address.sync_link("lab", at=self.keys.stream, timeout_ms=30_000)

    def raw(self, *words: Wire) -> Any:
        return self.link.call(Call(words, as_is, at=key_of(words)))


@pytest.fixture
def lab(clusters: Kept, server_key: str, stream: str) -> Iterator[Lab]:
    lab = ClusterLab(clusters[server_key], stream)
    yield lab
    lab.close()
