"""A command in this process, and one in its own; a hand on the server to set the scene with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.names import Keys, keys_of
from headrace.redis import commands, scripts
from headrace.redis.connect import Server as RedisServer
from tests.support.servers import Server


@dataclass(frozen=True)
class Ran:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on stdout, where nothing else may be."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def refused(self, code: int, *words: str) -> None:
        """Nothing on stdout, one line on stderr that holds these words, and this exit code."""
        assert self.code == code, self
        assert self.out == ""
        assert len(self.err.splitlines()) == 1, self.err
        assert self.err.startswith("headrace: ")
        for word in words:
            assert word in self.err


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory of its own, without a URL in the environment."""
    monkeypatch.delenv("HEADRACE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process."""

    def run(*words: str) -> Ran:
        capsys.readouterr()
        code = main(words)
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run


@pytest.fixture
def headrace(run_here: Callable[..., Ran], server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """The same, with the server under test as HEADRACE_URL."""
    monkeypatch.setenv("HEADRACE_URL", server.url)
    return run_here


def in_own_process(*words: str, stdin: bytes | None = None, **env: str) -> Ran:
    """Run a command as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", *words],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env={**os.environ, **env},
        timeout=30,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


class Scene:
    """A stream with a group, and what a worker would do to it, step by step."""

    def __init__(self, server: Server, stream: str, group: str = "billing") -> None:
        self.link = RedisServer(server.url).sync_link()
        self.keys: Keys = keys_of(stream)
        self.group = group
        self.link.call(commands.create_group(self.keys, group))

    def add(self, number: int = 1) -> list[str]:
        calls = [scripts.add(self.keys, ["payload", f'{{"id": {at}}}']) for at in range(number)]
        return [added.id for added in self.link.pipe(calls)]

    def read(self, owner: str, number: int = 1) -> list[tuple[bytes, int]]:
        """Take messages as an owner: (id, attempt) each."""
        taken = self.link.call(commands.read(self.keys, self.group, owner, number))
        return [(id_, attempt) for id_, _, attempt, _ in taken]

    def wait(self, owner: str, delay_ms: int, mark: str, *, alone: bool = False) -> None:
        """Take the next message and let it wait."""
        ((id_, attempt),) = self.read(owner)
        self.link.call(
            scripts.park(self.keys, self.group, owner, delay_ms, mark, [(id_, attempt, attempt)], alone=alone)
        )

    def bury(self, owner: str, error: str = "ValueError", reason: str = "no such order") -> str:
        """Take the next message and bury it; returns the dead letter's id."""
        ((id_, attempt),) = self.read(owner)
        about = {
            "_original_id": id_,
            "_stream": self.keys.stream,
            "_group": self.group,
            "_owner": owner,
            "_attempts": str(attempt),
            "_first_ms": id_.partition(b"-")[0],
            "_last_ms": id_.partition(b"-")[0],
            "_error": error,
            "_reason": reason,
        }
        word = self.link.call(scripts.bury(self.keys, self.group, owner, id_, attempt, extra=about))
        return word.id

    def join(self, owner: str, lease_ms: int = 10_000) -> None:
        self.link.call(scripts.join(self.keys, self.group, owner, "abc", lease_ms, '{"host": "h1", "pid": 7}'))


@pytest.fixture
def scene(server: Server, stream: str) -> Iterator[Scene]:
    made = Scene(server, stream)
    yield made
    made.link.close()
