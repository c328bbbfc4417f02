"""Fixtures: a matrix of real servers, one key prefix a test, and a check that nothing leaks.

    server        a running server; the test runs once for each of the matrix
    server_key    its key alone, for tests that start their own: own_server(server_key)
    servers       servers["redis8"]: a session's server by key, started when first asked for
    own_server    own_server("redis8", aof=True): a private server, for tests that kill, pause or fill it
    prefix        unique for the test; every key it makes must contain it
    stream        a fresh stream name with that prefix
    tls_files     an authority and certificates
    remembered    what was found broken, so that the second run of `make test` does not mend it

`@pytest.mark.servers("redis8", "valkey9")` narrows the matrix for one test, `--servers redis8` for one run.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.leaks import leaked
from tests.support.remembered import Remembered
from tests.support.servers import KEYS, Server, ServerMissing, in_ci, start_server, versions
from tests.support.tls import TlsFiles, make_tls

SAID_LIMIT = 200_000  # characters of output and log kept of one test

# Beside seven other processes an example may take long for no reason of its own.
hypothesis.settings.register_profile(
    "beside others", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("beside others")

issued: set[str] = set()
"""Every prefix given out in this session."""


class Servers:
    """The session's servers by key, started when first asked for. A dead one is replaced."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        self.running: dict[str, Server] = {}

    def __getitem__(self, key: str) -> Server:
        if key not in self._allowed:
            pytest.skip(f"--servers leaves out {key}")
        if key in self.running and not self.running[key].alive:
            self.running.pop(key).stop()
        if key not in self.running:
            self.running[key] = present(start_server, key)
        return self.running[key]

    def stop(self) -> None:
        for server in self.running.values():
            server.stop()
        self.running.clear()


def present(start: Callable[..., Server], key: str, **options: object) -> Server:
    """Start a server; a missing one is a loud skip here, and a failure in CI."""
    try:
        return start(key, **options)
    except ServerMissing as missing:
        if in_ci() and missing.required:
            pytest.fail(str(missing))
        pytest.skip(f"MISSING SERVER: {missing}")


# ── failures that are run once more (make test) ─────────────────────────────────────────────────────────


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """pytest-xdist writes a test's group behind its name, and `--last-failed` would not know it any more without."""
    cache = getattr(session.config, "cache", None)
    if cache is None or hasattr(session.config, "workerinput"):
        return
    failed = cache.get("cache/lastfailed", {})
    cache.set("cache/lastfailed", {re.sub(r"@[\w.-]+$", "", name): True for name in failed})


@pytest.fixture
def remembered(request: pytest.FixtureRequest) -> Remembered:
    """What a second run does not mend."""
    cache = request.config.cache
    assert cache is not None
    return Remembered(cache, request.node.name, again=bool(request.config.getoption("lf")))


# ── the matrix ───────────────────────────────────────────────────────────────────────────────────────


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--servers", default=",".join(KEYS), help=f"comma-separated, of {','.join(KEYS)}")
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="add to a file how the tests that promises name end")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "jvm: runs Spark; in `make test` apart from the others")
    config.addinivalue_line("markers", "long: takes long; `make long` runs them, `make test` does not")
    config.addinivalue_line("markers", "servers(*keys): run this test on these servers of the matrix only")
    unknown = set(_allowed(config)) - set(KEYS)
    if unknown:
        raise pytest.UsageError(f"--servers: no such server: {', '.join(unknown)}; there are {', '.join(KEYS)}")
    if file := config.getoption("--outcomes"):
        from tests.support.outcomes import Watch  # it needs chaos/, which is no part of what is published

        config.pluginmanager.register(Watch(file.absolute()))


def pytest_report_header(config: pytest.Config) -> str:
    return "servers: " + ", ".join(f"{key} {version}" for key, version in versions().items())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What hostile messages leave in the log is no text that could be sent from one process to another."""
    report = yield
    report.sections = [(name, _sendable(said)) for name, said in report.sections]
    return report


def _sendable(said: str) -> str:
    return said[-SAID_LIMIT:].encode("utf-8", "backslashreplace").decode()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_key" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("servers")
        wanted = marker.args if marker else KEYS
        allowed = _allowed(metafunc.config)
        metafunc.parametrize("server_key", [key for key in wanted if key in allowed])


def _allowed(config: pytest.Config) -> tuple[str, ...]:
    return tuple(key.strip() for key in config.getoption("--servers").split(",") if key.strip())


# ── servers ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    running = Servers(_allowed(request.config))
    yield running
    running.stop()


@pytest.fixture
def server(servers: Servers, server_key: str) -> Server:
    return servers[server_key]


@pytest.fixture
def own_server() -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(key: str = "redis8", **options: object) -> Server:
        server = present(start_server, key, **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_tls(Path(tmp_path_factory.mktemp("tls")))


# ── names and leaks ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def prefix() -> str:
    # Not from `random`: every test starts with the same seed.
    name = f"t{secrets.token_hex(5)}"
    issued.add(name)
    return name


@pytest.fixture
def stream(prefix: str) -> str:
    return f"{prefix}-orders"


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test: its keys go; a key that carries no test's prefix fails it."""
    if "servers" not in request.fixturenames:
        yield
        return
    shared: Servers = request.getfixturevalue("servers")
    yield
    stray = {key: leaked(server, issued) for key, server in shared.running.items()}
    stray = {key: names for key, names in stray.items() if names}
    assert not stray, f"keys without a test's prefix were left behind: {stray}"
