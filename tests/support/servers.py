"""Real servers for tests: one class, every version of the matrix.

python -m tests.support.servers fetch     find, fetch or build every server of the matrix
python -m tests.support.servers list      say what is at hand
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from headrace.embedded import ConfigLines, Embedded, version_of
from tests.support.binaries import MATRIX, NotToBeHad, cache_folder, find, obtain
from tests.support.ports import free_port
from tests.support.tls import TlsFiles, TlsFront
from tests.support.wait import wait_until_sync

if TYPE_CHECKING:
    from redis import Redis

KEYS = tuple(MATRIX)
NATIVE = ("redis8",)
"""Servers with XREADGROUP CLAIM; the others take the fallback path."""
WITH_TLS = ("redis7",)
"""Servers whose program was compiled with TLS; before the others stands a TlsFront."""


class ServerMissing(Exception):
    """A server of the matrix is not at hand. `required` says whether CI may do without it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} is not at hand: `make servers` fetches it")
        self.required = MATRIX[key].required


@dataclass
class Server:
    """One running server. It ends with stop(), and with the process that started it."""

    key: str
    embedded: Embedded
    folder: Path | None = None  # ours to remove
    tls: TlsFiles | None = None
    tls_port: int | None = None
    front: TlsFront | None = None
    _client: Redis | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """How a program under test reaches it. A TLS server's URL names its authority."""
        if self.tls is not None:
            return f"rediss://127.0.0.1:{self.tls_port}?ca_cert={self.tls.ca}"
        return self.embedded.url

    @property
    def pid(self) -> int:
        return self.embedded.pid

    @property
    def socket(self) -> Path:
        return self.embedded.socket

    @property
    def port(self) -> int | None:
        return self.tls_port or self.embedded.port

    @property
    def directory(self) -> Path:
        return self.embedded.directory

    @property
    def alive(self) -> bool:
        return self.embedded.alive

    def sync(self) -> Redis:
        """A plain client for looking at the server, over its unix socket. One a server; stop() closes it."""
        if self._client is None:
            password = self.embedded._config.get("requirepass")
            self._client = redis.Redis(unix_socket_path=str(self.socket), password=password)  # type: ignore[arg-type]
        return self._client

    def kill(self) -> None:
        """SIGKILL, and return when it is dead. restart() brings it back."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until_sync(lambda: not self.alive, what="the server's end")

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Start again at the same address after kill(). What the append-only file held is there again."""
        self.embedded.start()

    def stop(self) -> None:
        """End it and everything it left. Twice is fine, and so is a paused or a dead one."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self.front is not None:
            self.front.stop()
        self.embedded.stop()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def start_server(
    key: str,
    *,
    config: ConfigLines | None = None,
    tls: TlsFiles | None = None,
    aof: bool = False,
    dir: Path | None = None,  # noqa: A002 - the word the server uses
    tcp: bool = False,
) -> Server:
    """Start a server of the matrix, without persistence unless `aof`. Raises ServerMissing.

    The unix socket is there in any case; `tcp` or `tls` adds a loopback port, which is then the URL's.
    """
    binary = find(key)
    if binary is None:
        raise ServerMissing(key)
    folder = Path(tempfile.mkdtemp(prefix="headrace-test-")) if dir is None else None
    lines: dict[str, str | int | Sequence[str]] = {"appendonly": "yes" if aof else "no"}
    tls_port = free_port() if tls and key in WITH_TLS else None
    if tls is not None and tls_port is not None:
        lines.update(tls.server_config(tls_port))
    lines.update(config or {})
    port = 0 if tcp and tls is None else None
    embedded = Embedded(dir or folder, port=port, config=lines, binary=binary)
    server = Server(key, embedded, folder=folder, tls=tls, tls_port=tls_port)
    try:
        embedded.start()
        if tls is not None and tls_port is None:
            server.front = TlsFront(tls, embedded.socket)
            server.tls_port = server.front.port
    except BaseException:
        server.stop()
        raise
    return server


# ── command line ─────────────────────────────────────────────────────────────────────────────────────


def versions() -> dict[str, str]:
    """Every key of the matrix with its version, or MISSING."""
    found = {key: find(key) for key in KEYS}
    return {key: ".".join(map(str, version_of(at))) if at else "MISSING" for key, at in found.items()}


def fetch() -> int:
    """Get every server. A missing one is loud; under CI=true a required one is a failure."""
    missing = []
    for key in KEYS:
        if find(key) is None:
            print(f"servers: fetching {key} into {cache_folder()}", flush=True)
        try:
            obtain(key, lambda line: print(f"servers: {line}", flush=True))
        except NotToBeHad as why:
            print(f"servers: WITHOUT {key}, its tests will be skipped: {why}", file=sys.stderr, flush=True)
            missing.append(key)
    print("servers: " + ", ".join(f"{key} {version}" for key, version in versions().items()))
    return int(in_ci() and any(MATRIX[key].required for key in missing))


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() == "true"


def main(words: Sequence[str]) -> int:
    if list(words) == ["fetch"]:
        return fetch()
    if list(words) == ["list"]:
        print("\n".join(f"{key}  {version}" for key, version in versions().items()))
        return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
