"""The connection that rows come over: requests ahead of their answers, answers whole in one buffer.

A :class:`Wire` sends its commands with an ECHO of a random word behind them and reads until that word has come back:
so it knows the end of an answer without parsing it, and the answer can be parsed in whatever way is quickest. Errors,
time-outs and authentication are those of the core's link, whose socket it uses.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from socket import socket
from typing import Any, Final

import hiredis

from headrace.errors import HeadraceError, Unavailable
from headrace.redis.calls import Call, as_is, key_of
from headrace.redis.calls import Wire as Word
from headrace.redis.connect import Server
from headrace.redis.faults import translate
from headrace.redis.synclink import SyncLink
from headrace.spark.options import Address

_pack: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub says 1-tuple

FIRST_BYTES: Final = 1 << 18
READ_BYTES: Final = 1 << 18  # at least so much room before each read
TOKEN_BYTES: Final = 16
SPARE: Final = 4  # times what the last answer took: a buffer that is larger than that is given back
ONLY_OURS: Final = 2  # references to the buffer: the attribute's and that of the question


class AnswerTooLarge(HeadraceError):
    """An answer grew beyond what there is room for. It was not read to its end: ask for less."""


class Reply:
    """One answer, unparsed: ``data[:size]`` is what the server sent, without the echo."""

    __slots__ = ("data", "size", "words")

    def __init__(self, data: bytearray, size: int, words: Sequence[tuple[Word, ...]]) -> None:
        self.data = data
        self.size = size
        self.words = words

    def values(self) -> list[Any]:
        """Parse it with hiredis: one value for each command."""
        reader = hiredis.Reader()
        reader.feed(self.data, 0, self.size)  # type: ignore[arg-type]  # takes any buffer
        found = [reader.gets() for _ in self.words]
        if any(value is False for value in found):
            raise Unavailable("the server's answer ended early: the connection is in doubt")
        return found


class Wire:
    """One connection of one task. Not shared between threads."""

    def __init__(
        self, address: Address, name: str = "headrace-spark", *, wait_ms: int = 0, server: Server | None = None
    ) -> None:
        self._server = address.server() if server is None else server  # one that others use too knows the way already
        self.timeout_s = (address.command_ms + wait_ms) / 1000
        self._link: SyncLink = self._server.sync_link(name, timeout_ms=address.command_ms + wait_ms)
        self._sent: list[tuple[bytes, Sequence[tuple[Word, ...]], Any]] = []
        self._room = bytearray(FIRST_BYTES)
        self._took = 0  # bytes of the last answer
        self._may_echo = False

    def place(self, key: str) -> object:
        """What streams of one server have in common: their commands may be sent together."""
        return self._server.place(key)

    @property
    def waiting(self) -> int:
        """How many requests have no answer yet."""
        return len(self._sent)

    @property
    def socket(self) -> socket:
        """Where the oldest answer that is outstanding will come, for who waits for one of several."""
        found: socket = self._sent[0][2]._sock  # noqa: SLF001 - as in _fill()
        return found

    def send(self, commands: Sequence[tuple[Word, ...]]) -> None:
        """Send commands of one server; receive() takes their answers, in the order of the requests."""
        if not self._may_echo:  # where an ACL forbids it, the end of an answer would never come
            self._link.call(Call(("ECHO", "headrace"), as_is))
            self._may_echo = True
        key, epoch = key_of(commands[0]), self._link.epoch
        connection = self._link.ready(key)
        if self._sent and self._link.epoch != epoch:  # the connection that owed answers has gone
            self.close()
            connection = self._link.ready(key)
        token = secrets.token_hex(TOKEN_BYTES).encode()
        packed = b"".join(map(_pack, commands)) + _pack(("ECHO", token))
        self._sent.append((b"$%d\r\n%b\r\n" % (len(token), token), commands, connection))
        self._guard(lambda: connection.send_packed_command([packed], check_health=False))

    def receive(self, most_bytes: int | None = None) -> Reply:
        """Read the oldest answer that is outstanding. Nothing else may be sent behind it until it has come.

        Raises AnswerTooLarge, and drops the connection, when more comes than ``most_bytes``.
        """
        end, commands, connection = self._sent.pop(0)
        fitting = 1 << (self._took + READ_BYTES - 1).bit_length()  # of few sizes: memory of the same is used again
        looked_at = sys.getrefcount(self._room) > ONLY_OURS  # somebody still has the last answer
        if looked_at or len(self._room) > SPARE * fitting:  # one very large row must not make all that follow as large
            self._room = bytearray(fitting)
        self._took = self._guard(lambda: self._fill(connection, end, most_bytes))
        return Reply(self._room, self._took - len(end), commands)

    def drop(self) -> None:
        """Read and forget the answers that nobody wants any more, so that the connection can be used again."""
        while self._sent:
            self.receive()

    def ask(self, commands: Sequence[tuple[Word, ...]], most_bytes: int | None = None) -> list[Any]:
        """Send, and return the parsed answers; an error of the server raises."""
        self.send(commands)
        return self.checked(self.receive(most_bytes))

    def checked(self, reply: Reply) -> list[Any]:
        """Parse an answer. An error in it is asked for again over the link, which knows what it means."""
        values = reply.values()
        for words, value in zip(reply.words, values, strict=True):
            if isinstance(value, Exception):
                self.link.call(Call(tuple(words), as_is))
                raise Unavailable(f"the server refused a read once: {value}")
        return values

    @property
    def link(self) -> SyncLink:
        """The link below, for calls that are not about speed. Only while nothing is outstanding."""
        if self._sent:
            self.close()
        return self._link

    def close(self) -> None:
        self._sent.clear()
        self._link.close()

    def _fill(self, connection: Any, end: bytes, most_bytes: int | None) -> int:
        """Read into the buffer until it ends with the echo."""
        sock = connection._sock  # noqa: SLF001 - the one place that needs the socket below the link
        size: int = 0
        while True:
            if len(self._room) - size < READ_BYTES:
                self._room.extend(bytes(max(len(self._room), READ_BYTES)))
            with memoryview(self._room) as view:
                got = sock.recv_into(view[size:])
            if not got:
                raise ConnectionError("the server closed the connection")
            size += got
            if self._room.endswith(end, max(0, size - len(end)), size):
                return size
            if most_bytes is not None and size > most_bytes:
                raise AnswerTooLarge(f"an answer has more than {most_bytes:,} bytes")

    def _guard(self, step: Callable[[], Any]) -> Any:
        """Any failure on the way drops the connection: where in the answers it stood is in doubt."""
        try:
            return step()
        except BaseException as error:
            self.close()
            if isinstance(error, HeadraceError) or not isinstance(error, Exception):
                raise
            raise translate(error) from error
