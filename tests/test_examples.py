"""The examples do what their pages say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import Server

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.servers("redis8", "valkey9")
def test_the_rooms_go_on_in_order_after_their_owner_was_killed(
    own_server: object, server_key: str, tmp_path: Path
) -> None:
    """SPEC 43: examples/rooms, whole."""
    server: Server = own_server(server_key)  # type: ignore[operator]
    env = {**os.environ, "HEADRACE_URL": server.url, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, str(ROOT / "examples/rooms/show.py"), "6", "30"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "rooms 6, messages 180" in done.stdout
    assert "rooms left 0" in done.stdout
    assert "rooms taken over 0" not in done.stdout
    assert "order violations 0" in done.stdout
