"""The lab: one stream and one group on each server of the matrix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.lab import Lab
from tests.support.servers import Server


@pytest.fixture
def lab(server: Server, stream: str) -> Iterator[Lab]:
    lab = Lab(server, stream)
    yield lab
    lab.close()
