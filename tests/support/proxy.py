"""A small TCP proxy before a server, or several: delay, throttle, cut, hold, refuse, and cut in mid-reply."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import hiredis

Behind = Path | int
"""A unix socket, or a port of this machine."""


class Proxy:
    """Lives in the test's event loop. `async with Proxy(server.socket) as proxy: ... proxy.url`

    Before several servers it has a port for each (`ports`, in their order), and what happens happens to all.

    delay_s         every byte arrives so much later, each way
    refusing        new connections are closed at once
    bytes_per_s     no more than so many bytes pass in a second, each way; 0: as many as there are
    holding         nothing is passed on, each way, until it is False again; connections stay open
    hold_replies    the same for what the server says alone: it hears everything, and nobody hears it
    refusal         an error reply that every command gets instead of the server's own ("-LOADING ...")
    on_request      told every piece of data from a client, before it is passed on; False: it is not, and the
                    connection is cut
    cut_reply       asked about every piece of a reply: how many bytes of it still pass before the connection is
                    cut; None lets all pass
    """

    def __init__(self, *behind: Behind) -> None:
        self._behind = behind
        self._calls: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._pass = asyncio.Event()
        self._pass.set()
        self._pass_replies = asyncio.Event()
        self._pass_replies.set()
        self.delay_s = 0.0
        self.bytes_per_s = 0
        self.refusal: bytes | None = None
        self.refusing = False
        self.on_request: Callable[[bytes], bool | None] | None = None
        self.cut_reply: Callable[[bytes], int | None] | None = None
        self.connected = 0  # connections made since the beginning
        self.ports: list[int] = []

    async def __aenter__(self) -> Self:
        for behind in self._behind:
            server = await asyncio.start_server(functools.partial(self._accept, behind), "127.0.0.1", 0)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.close()
        await self.cut()

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """How many connections are open now."""
        return len(self._calls)

    async def cut(self) -> None:
        """Reset every connection."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    @property
    def holding(self) -> bool:
        return not self._pass.is_set()

    @holding.setter
    def holding(self, value: bool) -> None:
        self._pass.clear() if value else self._pass.set()

    @property
    def hold_replies(self) -> bool:
        return not self._pass_replies.is_set()

    @hold_replies.setter
    def hold_replies(self, value: bool) -> None:
        self._pass_replies.clear() if value else self._pass_replies.set()

    # ── one connection ──

    async def _accept(self, behind: Behind, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        self.connected += 1
        with suppress(OSError, asyncio.CancelledError):
            await self._join(behind, reader, writer)
        self._calls.discard(call)
        writer.transport.abort()

    async def _join(self, behind: Behind, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(behind, Path):
            inner_reader, inner_writer = await asyncio.open_unix_connection(str(behind))
        else:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", behind)
        ways = [
            asyncio.ensure_future(self._carry(reader, inner_writer, request=True, back=writer)),
            asyncio.ensure_future(self._carry(inner_reader, writer, request=False)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            inner_writer.transport.abort()  # before anything that may be cancelled
            for way in ways:
                way.cancel()
            inner_writer.transport.abort()  # before anything that a cut could end
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        *,
        request: bool,
        back: asyncio.StreamWriter | None = None,
    ) -> None:
        """Pass data on in order, each piece after its delay; the end of the source arrives as late as its data."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        parser = hiredis.Reader()
        taking = asyncio.ensure_future(self._take(source, pieces, request=request))
        try:
            while True:
                due, data = await pieces.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self._pass.wait()
                if not request:
                    await self._pass_replies.wait()
                if self.bytes_per_s:
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                if back is not None and data and self.refusal is not None:
                    back.write(self.refusal * _commands_in(parser, data))
                    continue
                cut = None if request or self.cut_reply is None or not data else self.cut_reply(data)
                if data:
                    target.write(data if cut is None else data[:cut])
                    with suppress(OSError):
                        await target.drain()
                if not data or cut is not None:
                    return
        finally:
            taking.cancel()

    async def _take(
        self, source: asyncio.StreamReader, pieces: asyncio.Queue[tuple[float, bytes]], *, request: bool
    ) -> None:
        data = b"-"
        while data:
            try:
                data = await source.read(65536)
            except OSError:
                data = b""
            if request and data and self.on_request is not None and self.on_request(data) is False:
                data = b""
            pieces.put_nowait((time.monotonic() + self.delay_s, data))


def _commands_in(parser: hiredis.Reader, data: bytes) -> int:
    """How many whole commands have arrived with this piece of data."""
    found = 0
    parser.feed(data)
    while parser.gets() is not False:
        found += 1
    return found
