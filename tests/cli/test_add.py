"""`headrace add`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from headrace.fields import headers_of
from tests.cli.conftest import Ran, in_own_process
from tests.support.servers import Server
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.servers("redis8")


def fields(server: Server, stream: str) -> list[dict[bytes, bytes]]:
    return [entry for _, entry in server.sync().xrange(stream)]


def test_one_message_with_key_and_headers_is_added_once(
    headrace: Callable[..., Ran], server: Server, stream: str
) -> None:
    words = ("add", stream, '{"id": 1}', "--key", "k1", "--header", "tenant=a=b", "-H", "x=")
    first = headrace(*words, "--json").json
    second = headrace(*words, "--json").json
    assert first["first"] is True
    assert second == {**first, "first": False}
    assert "nothing added" in headrace(*words).out
    (entry,) = fields(server, stream)
    assert entry[b"payload"] == b'{"id":1}'
    assert entry[b"_key"] == b"k1"
    assert headers_of([word for pair in entry.items() for word in pair]) == {"tenant": "a=b", "x": ""}


def test_lines_from_stdin_are_added_in_order_and_keys_come_from_a_field(server: Server, stream: str) -> None:
    lines = b"".join(b'{"id": %d}\n' % at for at in range(3_000)) + b'\n{"id": 0}'
    ran = in_own_process("add", stream, "-", "--key-field", "id", "--json", stdin=lines, HEADRACE_URL=server.url)
    assert ran.json == {"stream": stream, "added": 3_000, "duplicates": 1}
    found = fields(server, stream)
    assert [entry[b"payload"] for entry in found[:3]] == [b'{"id":0}', b'{"id":1}', b'{"id":2}']
    assert len(found) == 3_000


def test_a_bad_line_is_named_and_those_before_it_are_added(server: Server, stream: str) -> None:
    ran = in_own_process("add", stream, "-", stdin=b'{"id": 1}\n\n{"id": 2\n{"id": 3}\n', HEADRACE_URL=server.url)
    ran.refused(2, "line 3 is not JSON", "1 message before it was added")
    assert len(fields(server, stream)) == 1


def test_a_slow_writers_line_does_not_wait_for_the_next(server: Server, stream: str) -> None:
    command = [sys.executable, "-m", "headrace.cli", "add", stream, "-", "--url", server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"id": 1}\n')
        process.stdin.flush()
        wait_until_sync(lambda: len(fields(server, stream)) == 1, what="the first line")
        out, _ = process.communicate(b'{"id": 2}')
    assert process.returncode == 0
    assert b"added 2 messages" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("{bad",), "is not JSON"),
        (("1", "--header", "x"), "NAME=VALUE"),
        (("-", "--key", "k"), "--key-field"),
        (("1", "--key-field", "id"), "--key"),
        (("1", "--key", ""), "key is empty"),
    ],
)
def test_bad_words_are_refused_before_anything_is_added(
    headrace: Callable[..., Ran], server: Server, stream: str, words: tuple[str, ...], said: str
) -> None:
    headrace("add", stream, *words).refused(2, said)
    assert not server.sync().exists(stream)


def test_a_line_without_its_key_is_refused(server: Server, stream: str) -> None:
    ran = in_own_process("add", stream, "-", "--key-field", "id", stdin=b'{"no": 1}\n', HEADRACE_URL=server.url)
    ran.refused(2, "line 1 has no text or number in field 'id'")


def test_lines_to_a_key_of_another_type_fail_with_the_servers_reason(server: Server, stream: str) -> None:
    server.sync().set(stream, "text")
    ran = in_own_process("add", stream, "-", stdin=b'{"id": 1}\n', HEADRACE_URL=server.url)
    ran.refused(1, "WRONGTYPE", "0 messages before it were added")
