"""A virtual environment for each peer, in $XDG_CACHE_HOME/headrace/peers (by default under ~/.cache).

Made when first needed, from the pins in the roster, with the Python that runs the bench; made anew when either changes.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.peers.roster import Peer

INSTALL_S: Final = 600


class NotInstalled(Exception):
    """A peer that could not be installed, and what pip said."""


def folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "headrace" / "peers"


def at_hand(peer: Peer) -> Path | None:
    """The Python that runs the peer's programs, if it is there now and in the right versions. Never fetches."""
    if not peer.pins:
        return Path(sys.executable)
    home = folder() / peer.module
    try:
        fits = (home / "pins.txt").read_text() == _stamp(peer)
    except OSError:
        return None
    return home / "bin" / "python" if fits else None


def python_of(peer: Peer) -> Path:
    """The same, installed if it is not there. Raises NotInstalled."""
    found = at_hand(peer)
    if found is not None:
        return found
    home = folder() / peer.module
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(home)])
    _run([str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *peer.pins])
    (home / "pins.txt").write_text(_stamp(peer))  # last: what is half made does not count
    return home / "bin" / "python"


def _stamp(peer: Peer) -> str:
    return "\n".join([f"# Python {platform.python_version()}", *peer.pins, ""])


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise NotInstalled(f"{' '.join(words[:4])} took more than {INSTALL_S} s") from late
    if done.returncode:
        raise NotInstalled((done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:300])
