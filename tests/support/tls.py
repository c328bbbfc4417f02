"""TLS at test time: an authority and certificates, and a front for servers compiled without TLS."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trustme

HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of one set of PEM files. Two sets do not trust each other."""

    ca: Path
    cert: Path
    key: Path
    client_cert: Path
    client_key: Path

    def server_config(self, port: int, *, client_certs: bool = False) -> dict[str, str | int]:
        """Configuration lines of a server that speaks TLS on `port`, and nothing else on TCP."""
        return {
            "port": 0,
            "tls-port": port,
            "tls-cert-file": str(self.cert),
            "tls-key-file": str(self.key),
            "tls-ca-cert-file": str(self.ca),
            "tls-auth-clients": "yes" if client_certs else "no",
        }


def make_tls(folder: Path, *, hosts: tuple[str, ...] = HOSTS) -> TlsFiles:
    """Make an authority and certificates under it. `hosts`: what the server certificate is good for."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    server = authority.issue_cert(*hosts)
    client = authority.issue_cert("client@headrace.test")
    files = TlsFiles(*(folder / f"{name}.pem" for name in ("ca", "cert", "key", "client-cert", "client-key")))
    files.ca.write_bytes(authority.cert_pem.bytes())
    files.key.write_bytes(server.private_key_pem.bytes())
    files.cert.write_bytes(b"".join(part.bytes() for part in server.cert_chain_pems))
    files.client_key.write_bytes(client.private_key_pem.bytes())
    files.client_cert.write_bytes(b"".join(part.bytes() for part in client.cert_chain_pems))
    return files


class TlsFront:
    """Speaks TLS on a loopback port and hands the bytes to a server's unix socket.

    Most programs of the matrix are compiled without TLS; what is tested is our client's side of it.
    """

    def __init__(self, files: TlsFiles, behind: Path) -> None:
        self._behind = behind
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(files.cert, files.key)
        self._loop = asyncio.new_event_loop()
        self._calls: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port: int = self._listener.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Cut every connection and end the thread. Twice is fine."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._context)

    async def _end(self) -> None:
        self._listener.close()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        with suppress(OSError, asyncio.CancelledError):
            inner_reader, inner_writer = await asyncio.open_unix_connection(str(self._behind))
            ways = (_copy(reader, inner_writer), _copy(inner_reader, writer))
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                inner_writer.transport.abort()
        writer.transport.abort()
        self._calls.discard(call)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
