"""How the tests are run: those of one group in one process, which starts what they share once."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("together")
def test_the_tests_of_a_group_stay_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist reads the group from the end of a test's id, and says nothing where it finds none."""
    grouped = request.config.getoption("loadgroup", False)
    assert not grouped or request.node.nodeid.endswith("@together")
