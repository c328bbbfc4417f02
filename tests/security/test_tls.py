"""TLS: whoever cannot prove who it is gets no password, and the error has one line with a way out (SPEC 48, 54).

A front speaks TLS for the server, so every certificate can be tried (tests/support/tls.py). Both links are asked: the
asyncio one of workers and the blocking one of threads, the supervisor and Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from headrace.errors import AuthFailed, HeadraceError, Unavailable, Verdict, classify
from headrace.redis import commands
from headrace.redis.connect import Server as Connect
from tests.cli.conftest import Ran, in_own_process
from tests.support.servers import Server
from tests.support.tls import TlsFiles, TlsFront, make_tls

OwnServer = Callable[..., Server]

pytestmark = pytest.mark.servers("redis8")


@pytest.fixture
def fronted(server: Server) -> Iterator[Callable[..., int]]:
    """fronted(files): the port of a TLS front with these certificates."""
    fronts: list[TlsFront] = []

    def start(files: TlsFiles) -> int:
        front = TlsFront(files, server.socket)
        fronts.append(front)
        return front.port

    yield start
    for front in fronts:
        front.stop()


def _self_signed(folder: Path) -> TlsFiles:
    """A certificate that nobody signed but itself."""
    files = make_tls(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = (Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    files.key.write_bytes(key.private_bytes(*private))
    files.cert.write_bytes(cert.public_bytes(Encoding.PEM))
    return files


def _strange(folder: Path) -> TlsFiles:
    """Signed by an authority that nobody here trusts."""
    files, other = make_tls(folder / "self"), make_tls(folder / "other")
    return TlsFiles(other.ca, files.cert, files.key, files.client_cert, files.client_key)


def _expired(folder: Path) -> TlsFiles:
    """Signed by whom we trust, and a day too old."""
    files = make_tls(folder)
    authority = trustme.CA()
    past = datetime.now(UTC) - timedelta(days=1)
    cert = authority.issue_cert("localhost", "127.0.0.1", not_after=past)
    files.ca.write_bytes(authority.cert_pem.bytes())
    files.key.write_bytes(cert.private_key_pem.bytes())
    files.cert.write_bytes(b"".join(part.bytes() for part in cert.cert_chain_pems))
    return files


WRONG: dict[str, tuple[Callable[[Path], TlsFiles], str]] = {
    "another host": (lambda folder: make_tls(folder, hosts=("elsewhere.test",)), "mismatch"),
    "a stranger": (_strange, "unable to get local issuer|self-signed"),
    "self-signed": (_self_signed, "self-signed|self signed"),
    "expired": (_expired, "expired"),
}


def _path(folder: Path) -> str:
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


async def _refused(url: str) -> list[HeadraceError]:
    """What both links say."""
    server, found = Connect(url), []
    link, sync = server.link(), server.sync_link()
    with pytest.raises(HeadraceError) as caught:
        await link.call(commands.server_ms())
    found.append(caught.value)
    with pytest.raises(HeadraceError) as caught:
        sync.call(commands.server_ms())
    found.append(caught.value)
    await link.close()
    sync.close()
    return found


@pytest.mark.parametrize("name", WRONG)
async def test_a_certificate_that_proves_nothing_is_refused_by_both_links(
    fronted: Callable[..., int], tmp_path: Path, name: str
) -> None:
    """SPEC 48: FATAL, because the next try would say the same."""
    make, why = WRONG[name]
    files = make(tmp_path)
    port = fronted(files)
    for error in await _refused(f"rediss://:CANARY@127.0.0.1:{port}?ca_cert={files.ca}"):
        assert isinstance(error, AuthFailed), error
        assert classify(error) is Verdict.FATAL
        assert re.search(why, str(error)), error
        assert "ca_cert" in str(error)
        assert "CANARY" not in str(error)
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_without_its_client_certificate_nothing_gets_through_and_the_error_names_it(
    own_server: OwnServer, tls_files: TlsFiles, version: str
) -> None:
    """SPEC 48, 54: with TLS 1.3 the server's no comes after the handshake, and mostly as a connection that is reset."""
    server = own_server("redis7", tls=tls_files, config={"tls-auth-clients": "yes", "tls-protocols": version})
    for url in (server.url, f"{server.url}&password=CANARY", server.url.replace("rediss:", "rediss+cluster:")):
        for error in [error for _ in range(5) for error in await _refused(url)]:
            assert isinstance(error, AuthFailed), error
            assert classify(error) is Verdict.FATAL
            assert "client_cert" in str(error)
            assert "CANARY" not in str(error)
            assert len(str(error).splitlines()) == 1
    shown = f"{server.url}&client_cert={tls_files.client_cert}&client_key={tls_files.client_key}"
    link = Connect(shown).sync_link()
    assert link.call(commands.server_ms()) > 0
    link.close()


async def test_a_tls_server_that_goes_away_at_the_first_words_is_away_and_not_refused(tls_files: TlsFiles) -> None:
    """SPEC 20: nothing is said against us, so the next try may well get through."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(1)
        writer.transport.abort()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls_files.cert, tls_files.key)
    front = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
    async with front:
        link = Connect(f"rediss://127.0.0.1:{front.sockets[0].getsockname()[1]}?ca_cert={tls_files.ca}").link()
        with pytest.raises(Unavailable):
            await link.call(commands.server_ms())
        await link.close()


@pytest.mark.parametrize("word", ["ca_cert", "client_cert", "client_key"])
async def test_a_file_that_is_not_there_or_no_certificate_is_named_by_its_option(
    fronted: Callable[..., int], tls_files: TlsFiles, tmp_path: Path, word: str
) -> None:
    """SPEC 54: not retried for ever, and the path, which may tell secrets, is not repeated."""
    port = fronted(tls_files)
    rubbish = tmp_path / "CANARY.pem"
    for exists in (False, True):
        if exists:
            rubbish.write_text("no certificate")
        given = {"ca_cert": tls_files.ca, "client_cert": tls_files.client_cert, "client_key": tls_files.client_key}
        given[word] = rubbish
        url = f"rediss://127.0.0.1:{port}?" + "&".join(f"{name}={path}" for name, path in given.items())
        for error in await _refused(url):
            assert isinstance(error, AuthFailed), error
            assert classify(error) is Verdict.FATAL
            assert "check the paths ca_cert, client_cert and client_key" in str(error), error
            assert "CANARY" not in str(error)


async def test_not_verifying_is_logged_each_time_a_server_is_named(
    fronted: Callable[..., int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 48: it works, and nobody can say they were not told."""
    port = fronted(_expired(tmp_path))
    link = Connect(f"rediss://:CANARY@127.0.0.1:{port}?verify=none").sync_link()
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage().startswith("tls.unverified")
    assert "CANARY" not in caplog.text
    with pytest.raises(AuthFailed, match="password"):  # the server behind has none: TLS let us through
        link.call(commands.server_ms())
    link.close()


@pytest.mark.parametrize("url", ["given", "of the environment"])
def test_what_the_app_says_about_its_connections_reaches_the_supervising_parent(
    fronted: Callable[..., int], tmp_path: Path, server: Server, stream: str, url: str
) -> None:
    """SPEC 48: the parent looks after what its children hold, at the same server, let in by the same settings."""
    address = f"rediss://127.0.0.1:{fronted(_expired(tmp_path))}"
    (tmp_path / "shop.py").write_text(
        "import headrace\nimport headrace.config\n"
        f"app = headrace.App({address if url == 'given' else None!r}, "
        "connect=headrace.config.ConnectSettings(tls_insecure=True))\n"
        f"@app.stream({stream!r}).handler(group='g', lease='2s')\n"
        "async def bill(order): ...\n"
    )
    server.sync().xadd(stream, {"payload": "{}"})
    ran = in_own_process("run", "shop:app", "--burst", HEADRACE_URL=address, PYTHONPATH=_path(tmp_path))
    assert ran.code == 0, ran.err
    assert "tls.unverified" in ran.err
    assert server.sync().xpending(stream, "g")["pending"] == 0


@pytest.mark.parametrize("name", WRONG)
def test_a_command_says_it_in_one_line_with_a_way_out(
    fronted: Callable[..., int], run_here: Callable[..., Ran], tmp_path: Path, name: str
) -> None:
    """SPEC 60."""
    files = WRONG[name][0](tmp_path)
    port = fronted(files)
    url = f"rediss://:CANARY@127.0.0.1:{port}?ca_cert={files.ca}"
    for command in ("groups", "doctor"):
        ran = run_here(command, "orders", "--url", url)
        ran.refused(1, "TLS", "ca_cert")
        assert "CANARY" not in ran.err
