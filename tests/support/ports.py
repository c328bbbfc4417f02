"""Ports of this machine's loopback that no other test has."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import tempfile
from pathlib import Path

LOOPBACK = "127.0.0.1"
BUS = 10_000  # a cluster node talks to the others on its port and this much more

_kept: list[int] = []  # descriptors whose locks keep our ports from other test processes, until this one ends


def free_port() -> int:
    """A port that is free now, and so is the one of its cluster bus; no other process of the tests is given it.

    Both lie below those that a system gives to outgoing connections: one of these would take it before the server does.
    """
    while True:
        port = 10_000 + secrets.randbelow(10_000)
        if _is_free(port) and _is_free(port + BUS) and _is_ours(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _is_ours(port: int) -> bool:
    folder = Path(tempfile.gettempdir(), f"headrace-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _kept.append(descriptor)
    return True
