"""The conformance suite of the scripts, once more on a cluster: the same tests, another lab (SPEC 49, 52b).

A script that asks for keys of two slots, or for one that is not declared, is refused by a cluster and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.redis.calls import Call, Wire, as_is, key_of
from headrace.redis.synclink import SyncLink
from tests import conformance
from tests.conformance import test_lua_assignments, test_lua_gaps
from tests.support.lab import Lab
from tests.support.topologies import Cluster, every
from tests.topology.conftest import Kept

T = TypeVar("T")

pytestmark = pytest.mark.servers(*every("redis8"))

SUITE = sorted(path.stem for path in Path(conformance.__path__[0]).glob("test_lua_*.py"))
ELSEWHERE = (
    "test_ten_thousand_in_flight_finish_in_random_order_without_a_refusal",  # measures the server
    "test_without_the_right_to_ack_nothing_is_buried",  # makes a user at one node
    "test_without_the_right_to_ack_no_effect_is_written",
    "test_without_the_right_for_one_effect_none_is_written",
)

place = test_lua_assignments.place  # fixtures of theirs: a data stream in another slot than its announcement's
owned = test_lua_gaps.owned

for module in SUITE:
    for name, test in list(vars(import_module(f"{conformance.__name__}.{module}")).items()):
        if (
            name.startswith("test_")
            and name not in ELSEWHERE
            and {"lab", "owned"} & {*getattr(test, "__annotations__", ())}
        ):
            globals()[f"{name}__{module}"] = test


class ClusterLab(Lab):
    """All connections at the master of the lab's stream, so that what has no key is asked there too.

    Whatever has a key goes where that is: an owned stream is in another slot than its announcement.
    """

    cluster: Cluster

    def dial(self) -> SyncLink:
        return self._address.sync_link("lab", at=self.keys.stream, timeout_ms=30_000)

    def call(self, call: Call[T]) -> T:
        return self.link.call(call.aimed(call.key))

    def raw(self, *words: Wire) -> Any:
        return self.link.call(Call(words, as_is, at=key_of(words)))

    @contextmanager
    def memory_full(self) -> Iterator[None]:
        """At every master: a script writes where its stream is."""
        for member in self.cluster.members:
            member.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
            member.ask("CONFIG", "SET", "maxmemory", 1)
        try:
            yield
        finally:
            for member in self.cluster.members:
                member.ask("CONFIG", "SET", "maxmemory", 0)


@pytest.fixture
def lab(clusters: Kept, server_key: str, stream: str) -> Iterator[Lab]:
    lab = ClusterLab(clusters[server_key], stream)
    lab.cluster = clusters[server_key]
    yield lab
    lab.close()
