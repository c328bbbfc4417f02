"""Start, share and end one embedded server."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from headrace.embedded.binary import ServerStartFailed, find_binary
from headrace.embedded.conf import LOOPBACK, ConfigLines, conf_text
from headrace.embedded.launch import END_SECONDS, Plan, launch
from headrace.embedded.place import Answer, Hold, Place
from headrace.errors import ConfigError

START_SECONDS = 30.0
HOME = ".headrace"
"""Where programs started in the same directory find their common server, unless they say otherwise."""

_left_behind: list[subprocess.Popen[bytes]] = []
"""Guards of shared servers that outlived our use of them: asked now and then, so that none stays a zombie."""


class Embedded:
    """One server for this program alone: `with Embedded() as server: ... server.url ...`.

    It ends with stop(), at the end of the `with` block, or when this process dies, however it dies. Starting
    a started one and stopping a stopped one are fine. start() after the server died brings it back at the
    same address, with what its append-only file held.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        config: ConfigLines | None = None,
        binary: str | os.PathLike[str] | None = None,
        shared: bool = False,
        timeout: float = START_SECONDS,
    ) -> None:
        """Say what to start; nothing is started yet.

        `path`: the directory to keep data in; None is a temporary one, and nothing is kept.
        `port`: None for the unix socket alone, 0 for a free loopback port.
        `config`: further configuration lines, which win over ours. `binary`: the server program.
        `shared`: join the server that runs in `path`, as shared() does. `timeout`: seconds to wait for it.
        """
        if shared and path is None:
            raise ConfigError("a shared server needs a path: that is what its users have in common")
        self._path = None if path is None else Path(path)
        self._port = port
        self._config = dict(config or {})
        self._binary = None if binary is None else Path(binary)
        self._shared = shared
        self._timeout = timeout
        self._place: Place | None = None
        self._user: Hold | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._starter = 0
        conf_text(self._config)  # a bad line is refused here, before anything is started

    # ── what it is ────────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        """The URL to give to `App`: the loopback port when one was asked for, else the unix socket."""
        place = self._here()
        password = self._config.get("requirepass")
        login = f":{quote(str(password), safe='')}@" if password else ""
        if self._port:
            return f"redis://{login}{LOOPBACK}:{self._port}"
        return f"unix://{login}{quote(str(place.socket))}"

    @property
    def pid(self) -> int:
        """Process id of the server."""
        self._here()
        return self._pid

    @property
    def socket(self) -> Path:
        """The unix socket; it is there in any case."""
        return self._here().socket

    @property
    def port(self) -> int | None:
        """The loopback port, or None."""
        return self._port

    @property
    def directory(self) -> Path:
        """Where the server keeps its files."""
        return self._here().folder

    @property
    def alive(self) -> bool:
        """Whether the server answers now."""
        return self._place is not None and self._place.ask() is Answer.READY

    def __repr__(self) -> str:
        where = self._place.folder if self._place else "not started"
        return f"<{type(self).__name__} {where} pid={self._pid or None}>"

    # ── start and stop ────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Start the server, or for a shared one find the running one. Returns when it answers."""
        _left_behind[:] = [guarding for guarding in _left_behind if guarding.poll() is None]
        if self._user is not None and self.alive:
            return self
        until = time.monotonic() + self._timeout
        self._starter = os.getpid()
        atexit.register(self.stop)
        try:
            self._place = self._place or Place(self._folder())
            self._user = self._user or self._use(self._place, until)
            self._enter(self._place, until)
        except OSError as error:
            self.stop()
            raise ServerStartFailed(f"an embedded server cannot start: {error}") from error
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server; of a shared one, end our use of it: the last user's end is the server's."""
        if self._user is not None:
            self._user.release()
            self._user = None
        if os.getpid() != self._starter:
            return  # a forked child: the server is its parent's
        atexit.unregister(self.stop)
        if self._guard is not None:
            self._leave(self._guard)
            self._guard = None
        if self._place is not None and self._path is None:
            # The guard did this already, unless the server died before it was asked to end.
            shutil.rmtree(self._place.folder, ignore_errors=True)
            self._place = None
        self._pid = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def _here(self) -> Place:
        if self._place is None or not self._pid:
            raise ServerStartFailed("the embedded server is not started: call start() or use `with`")
        return self._place

    def _folder(self) -> Path:
        if self._path is None:
            return Path(tempfile.mkdtemp(prefix="headrace-"))
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._path.resolve()

    def _use(self, place: Place, until: float) -> Hold:
        """Become a user. A guard that is just ending the server makes us wait until it is gone."""
        user = Hold.take(place.users, fcntl.LOCK_SH, until=until)
        if user is None:
            raise ServerStartFailed(f"the server in {place.folder} is ending and does not end: try again")
        return user

    def _enter(self, place: Place, until: float) -> None:
        """Attach to the server that runs, or start one. `life` decides: two never run on the same files."""
        while not self._launched(place, until):
            if not self._shared and self._guard is None:
                raise ConfigError(f"a server runs in {place.folder} already: shared(path) would join it")
            pid = place.pid()
            if pid is not None and place.ask() is Answer.READY:
                self._pid = pid
                return
            if time.monotonic() >= until:
                raise ServerStartFailed(f"the server in {place.folder} (pid {pid}) does not answer")
            time.sleep(0.02)

    def _launched(self, place: Place, until: float) -> bool:
        """Start the server unless one lives."""
        life = Hold.take(place.life, fcntl.LOCK_EX)
        if life is None:
            return False
        try:
            if self._guard is not None:
                self._guard.wait(END_SECONDS)  # its server died, or `life` would not be ours
                self._guard = None
            plan = Plan(self._binary or find_binary(), self._config, self._port, keep=self._path is not None)
            running = launch(place, life, plan, until)
        finally:
            life.release()
        self._guard, self._pid, self._port = running.guard, running.pid, running.port
        return True

    def _leave(self, guarding: subprocess.Popen[bytes]) -> None:
        """End a private server now, even if forked children hold our lock; a shared one may have users."""
        if self._shared:
            _left_behind.append(guarding)
            return
        guarding.terminate()
        guarding.wait(END_SECONDS)


def shared(
    path: str | os.PathLike[str] = HOME,
    *,
    config: ConfigLines | None = None,
    binary: str | os.PathLike[str] | None = None,
    timeout: float = START_SECONDS,
) -> Embedded:
    """The server of a directory, for every process that asks: the first one starts it, the last one ends it.

    Without a path it is `.headrace` in the current directory. A server that died is started anew by the next
    one who asks, with its append-only file. `config` and `binary` count for whoever starts it.
    """
    return Embedded(path, config=config, binary=binary, shared=True, timeout=timeout).start()
