"""What a scenario may need from the machine: a library to preload, a small disk, an older tree of the product.

Everything raises NotAtHand where it cannot be had: the scenario is skipped then, and the table says why.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chaos.topology import NotAtHand
from tests.support.binaries import cache_folder

ROOT: Final = Path(__file__).resolve().parents[1]
FAKETIME: Final = "libfaketime.so.1"
OLDER: Final = "43ba8d7"


def environment(preload: str, folder: Path) -> dict[str, str]:
    """The environment that preloads a library: "" none, "faketime" a movable clock, "fsync" a witness of fsync."""
    if not preload:
        return {}
    if preload == "faketime":
        clock = clock_file(folder)
        set_clock(folder, 0)
        return {
            "LD_PRELOAD": str(_faketime()),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
    return {"LD_PRELOAD": str(_fsync_witness()), "FSYNC_WITNESS": str(folder / "fsync")}


def clock_file(folder: Path) -> Path:
    return folder / "clock"


def set_clock(folder: Path, seconds: int) -> None:
    """Move the clock of what was started with faketime, at once."""
    half = clock_file(folder).with_suffix(".new")
    half.write_text(f"{seconds:+d}\n")
    half.replace(clock_file(folder))


def synced(folder: Path) -> dict[int, int]:
    """Inode -> how much of that file had been written when it was last synced (fsync.c)."""
    told: dict[int, int] = {}
    witness = folder / "fsync"
    for line in witness.read_text().splitlines() if witness.exists() else []:
        inode, size = line.split()
        told[int(inode)] = int(size)
    return told


@contextmanager
def disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A folder for the server; with a size, on a file system of its own, which needs root."""
    place = folder / "server"
    place.mkdir()
    if not megabytes:
        yield place
        return
    words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "headrace-chaos", str(place)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode != 0:
        raise NotAtHand("a small disk needs the right to mount one")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


async def older_tree(folder: Path) -> tuple[Path, str]:
    """The sources of an earlier version, exported from git, and which one it is: the last tag, else an old commit."""
    target = folder / "older"
    tag = await _git("describe", "--tags", "--abbrev=0") or await _git("rev-parse", "--short", f"{OLDER}^{{commit}}")
    if not tag:
        raise NotAtHand("an older version needs the history of the repository")
    if target.exists():
        return target / "src", tag
    archive = folder / "older.tar"
    if not await _git("archive", "--format=tar", f"--output={archive}", tag, "src") and not archive.exists():
        raise NotAtHand(f"git cannot export {tag}")
    target.mkdir()
    shutil.unpack_archive(archive, target)
    return target / "src", tag


async def _git(*words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "git", *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    told, _ = await process.communicate()
    return told.decode().strip() if process.returncode == 0 else ""


# ── libraries ────────────────────────────────────────────────────────────────────────────────────────


def _faketime() -> Path:
    """libfaketime of Debian, unpacked into the cache and not installed."""
    home = cache_folder().parent / "faketime"
    found = next(home.rglob(FAKETIME), None)
    if found is not None:
        return found
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NotAtHand("a movable clock needs libfaketime, which comes from Debian's packages")
    with tempfile.TemporaryDirectory() as work:
        _run(["apt-get", "download", "-q", "libfaketime"], work, "libfaketime cannot be fetched")
        for package in Path(work).glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(home)], work, "libfaketime cannot be unpacked")
    found = next(home.rglob(FAKETIME), None)
    if found is None:
        raise NotAtHand("libfaketime cannot be fetched")
    return found


def _fsync_witness() -> Path:
    """fsync.c beside this file, compiled once."""
    source = Path(__file__).with_name("fsync.c")
    target = cache_folder().parent / "fsync" / "witness.so"
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return target
    if shutil.which("gcc") is None:
        raise NotAtHand("power loss needs gcc, for a witness of fsync")
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(f".{os.getpid()}")
    _run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(half), str(source), "-ldl"], ".", "gcc failed")
    half.replace(target)
    return target


def _run(words: list[str], folder: str, why: str) -> None:
    env: Mapping[str, str] = os.environ
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise NotAtHand(f"{why}: {done.stderr.strip()[-200:]}")
