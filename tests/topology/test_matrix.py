"""The wide run really is wide: every test of a topology runs on every server that has it."""

from __future__ import annotations

import pytest

from tests.support.moves import ATOMIC
from tests.support.servers import KEYS, WITH_TLS
from tests.topology.conftest import COVERED

ONLY = {
    "test_every_master_of_a_cluster_is_reached_over_tls": WITH_TLS,
    "test_a_slot_moved_atomically_under_load_loses_nothing_and_starts_nothing_twice": ATOMIC,
    "test_rooms_go_on_in_order_while_their_slot_and_their_announcements_move_atomically": ATOMIC,
    "test_what_is_requeued_is_started_once_more_and_what_is_locked_is_not_while_a_slot_moves_atomically": ATOMIC,
}
"""Tests of what only some servers can do."""


def test_the_wide_run_covers_every_server(request: pytest.FixtureRequest) -> None:
    """Of the tests that were collected, whichever of their servers are run now. The scripts' suite names its own."""
    allowed = request.config.getoption("--servers").split(",")
    for place, servers in request.config.stash[COVERED].items():
        file, _, name = place.partition("::")
        if file != "test_scripts":
            assert servers == set(ONLY.get(name, KEYS)) & set(allowed), place
