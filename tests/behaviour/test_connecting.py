"""One URL for TCP, unix socket and TLS; what is verified, and what it takes not to (SPEC 48)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import App, AuthFailed
from headrace.config import ConnectSettings
from tests.support.servers import Server
from tests.support.tls import TlsFiles, make_tls
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, counted

MakeApp = Callable[..., App]
OwnServer = Callable[..., Server]


async def _one_message_goes_through(app: App, stream: str) -> None:
    orders = app.stream(stream)

    @orders.handler(group=GROUP, lease="2s")
    async def bill(order: Any) -> None:
        pass

    async with app.worker():
        await orders.add({"n": 1})
        await wait_until(lambda: counted(app, "handled_total", outcome="ack") == 1)
    await app.close()


@pytest.mark.servers("redis8", "valkey9")
async def test_a_message_goes_through_a_unix_socket_and_through_tcp(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp
) -> None:
    """SPEC 48: with a database number as well."""
    server = own_server(server_key, tcp=True)
    for url in (f"unix://{server.socket}", f"redis://127.0.0.1:{server.port}", f"redis://localhost:{server.port}/3"):
        await _one_message_goes_through(make_app(url), stream)
    assert server.sync().xlen(stream) == 2
    assert server.sync().info("keyspace")["db3"]["keys"] >= 1


@pytest.mark.servers("redis8", "redis7")
async def test_tls_verifies_the_chain_and_goes_through(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp, tls_files: TlsFiles
) -> None:
    """SPEC 48: the lifeline's own connection included."""
    server = own_server(server_key, tls=tls_files)
    await _one_message_goes_through(make_app(server.url), stream)


@pytest.mark.servers("redis8", "redis7")
async def test_a_certificate_of_a_stranger_is_refused_at_once(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp, tls_files: TlsFiles, tmp_path: Path
) -> None:
    """SPEC 48, 54: one clear error, for a worker and for an add."""
    server = own_server(server_key, tls=tls_files)
    stranger = make_tls(tmp_path)
    for url in (f"rediss://127.0.0.1:{server.port}?ca_cert={stranger.ca}", f"rediss://127.0.0.1:{server.port}"):
        app = make_app(url)
        orders = app.stream(stream)
        orders.handler(group=GROUP, lease="2s")(_nothing)
        with pytest.raises(AuthFailed, match="ca_cert"):
            async with app.worker():
                pass
        with pytest.raises(AuthFailed, match="ca_cert"):
            await orders.add({})
        await app.close()


@pytest.mark.servers("redis8", "redis7")
async def test_a_certificate_for_another_host_is_refused(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp, tmp_path: Path
) -> None:
    """SPEC 48: the host name is verified, not the chain alone."""
    files = make_tls(tmp_path, hosts=("elsewhere.test",))
    server = own_server(server_key, tls=files)
    for host in ("127.0.0.1", "localhost"):
        app = make_app(f"rediss://{host}:{server.port}?ca_cert={files.ca}")
        with pytest.raises(AuthFailed):
            await app.stream(stream).add({})
        await app.close()


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("by", ["url", "setting"])
async def test_not_verifying_needs_an_explicit_option_and_is_logged(
    own_server: OwnServer,
    server_key: str,
    stream: str,
    make_app: MakeApp,
    tls_files: TlsFiles,
    caplog: pytest.LogCaptureFixture,
    by: str,
) -> None:
    """SPEC 48: by `verify=none` in the URL or by ConnectSettings(tls_insecure=True)."""
    server = own_server(server_key, tls=tls_files)
    plain = f"rediss://127.0.0.1:{server.port}"
    app = (
        make_app(plain + "?verify=none") if by == "url" else make_app(plain, connect=ConnectSettings(tls_insecure=True))
    )
    await _one_message_goes_through(app, stream)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line for line in warnings if line.startswith("tls.unverified")], warnings


@pytest.mark.servers("redis7")
async def test_a_client_certificate_is_shown_where_the_server_asks_for_one(
    own_server: OwnServer, server_key: str, stream: str, make_app: MakeApp, tls_files: TlsFiles
) -> None:
    """SPEC 48."""
    server = own_server(server_key, tls=tls_files, config={"tls-auth-clients": "yes"})
    shown = f"{server.url}&client_cert={tls_files.client_cert}&client_key={tls_files.client_key}"
    await _one_message_goes_through(make_app(shown), stream)


async def _nothing(order: Any) -> None:
    pass
