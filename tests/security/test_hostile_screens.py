"""What strangers wrote is shown, never obeyed: on terminals, in logs, in the report, in tables (SPEC 57, 60)."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.show import trace
from headrace.logs import FORMAT, MESSAGE_LIMIT, TRACE_LIMIT, PlainFormatter
from tests.cli.conftest import Ran, Scene
from tests.security.test_hostile_keys import _spoil
from tests.spark.test_pipeline_report import FOUND
from tests.support.servers import Server
from tests.support.workers import Workers

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e<script>alert(1)</script>[red]x[/red]\r\n2026-01-01 INFO forged\x9b31m"


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.servers("redis8")
def test_a_dead_letter_full_of_escapes_is_printed_harmlessly(
    scene: Scene, server: Server, headrace: Callable[..., Ran]
) -> None:
    """SPEC 60: on the screen and as JSON."""
    server.sync().xadd(scene.keys.stream, {"payload": EVIL, EVIL: EVIL, f"_h:{EVIL}": EVIL})
    id_ = scene.bury("w1", error=EVIL, reason=EVIL)
    for words in (("dlq", "list"), ("dlq", "show"), ("dlq", "list", "--json"), ("dlq", "show", "--json")):
        ran = headrace(*words[:2], scene.keys.stream, *((id_,) if words[1] == "show" else ()), *words[2:])
        assert ran.code == 0
        assert ran.out.replace("\n", "").isprintable(), words
        assert not re.search("^2026", ran.out, re.MULTILINE)
    assert "[red]" in headrace("dlq", "show", scene.keys.stream, id_).out, "markup is shown, not read"


@pytest.mark.parametrize(
    "words",
    [
        ("groups", "a", "--url", "redis://\x1b[2J"),
        ("groups", "a", "--url", "unix:///tmp/%1b%5b2J%0aforged"),
        ("groups", "a", "--url", "redis://%1b%5b2J%0aforged:1"),
        ("pipeline", "check", "\x1b[2J\n.toml"),
        ("report", "/no/\x1b[2J.toml"),
        ("run", "os:\x1b[2J"),
        ("\x1b[2J",),
        ("groups", "--\x1b[2J"),
        ("dlq", "show", "a", "\x1b[2J", "--url", "redis://127.0.0.1:1"),
        ("add", "a", '"\x1b[2J', "--url", "redis://127.0.0.1:1"),
    ],
    ids=ascii,
)
def test_an_argument_full_of_escapes_is_refused_harmlessly(
    run_here: Callable[..., Ran], words: tuple[str, ...]
) -> None:
    """SPEC 60: one line, also with --debug where there is such a thing."""
    ran = run_here(*words)
    assert ran.code in (1, 2)
    assert len(ran.err.splitlines()) == 1
    assert (ran.out + ran.err).replace("\n", "").isprintable()


@pytest.mark.parametrize("url", ["unix:///tmp/%1b%5b2J%0aforged", "redis://%1b%5b2J%0aforged:1"])
def test_a_host_or_path_that_could_forge_a_line_is_refused(run_here: Callable[..., Ran], url: str) -> None:
    run_here("groups", "a", "--url", url).refused(2, "invisible")


def test_a_traceback_of_debug_is_harmless_too(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        trace()
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.replace("\n", "").isprintable()


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────


def _logged(message: str, error: BaseException | None = None) -> str:
    record = logging.LogRecord("headrace", logging.INFO, __file__, 1, "%s", (message,), None)
    record.exc_info = (type(error), error, None) if error else None
    return PlainFormatter(FORMAT).format(record)


def test_a_message_is_one_line_of_a_log() -> None:
    line = _logged(EVIL)
    assert line.isprintable()
    assert "forged" in line
    assert len(_logged("x" * (8 << 20))) < MESSAGE_LIMIT + 200


def test_a_traceback_cannot_pass_for_lines_of_the_log() -> None:
    lines = _logged("raised", ValueError(EVIL)).split("\n")
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])
    assert len(_logged("raised", ValueError("x" * (8 << 20)))) < TRACE_LIMIT + MESSAGE_LIMIT


@pytest.mark.servers("redis8")
def test_a_supervised_worker_logs_a_hostile_error_harmlessly(server: Server, stream: str, tmp_path: Path) -> None:
    """The children's log is the terminal of whoever started `headrace run`."""
    workers = Workers(tmp_path, server.url, stream)
    try:
        parent = workers.supervise(1, handler={"max_attempts": 1})
        workers.add(server, do="raise", why=EVIL)
        workers.until(lambda _: "message.buried" in parent.log)
        assert parent.log.replace("\n", "").isprintable()
    finally:
        workers.end()


# ── the report ───────────────────────────────────────────────────────────────────────────────────────

HTML = [
    "<script>alert(1)</script>",
    "</text></svg><img src=x onerror=alert(1)>",
    '"onload="x',
    "'><a href=javascript:x>",
    "&lt;b&gt;",
    "]]>",
    "-->",
]


class Parts(HTMLParser):
    """Every tag and attribute of a page, and all its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def _parts(found: dict[str, Any]) -> Parts:
    from headrace.spark.report_page import page

    parts = Parts()
    parts.feed(page(found))
    return parts


@pytest.mark.parametrize("evil", HTML)
def test_hostile_merchants_and_dead_letters_are_text_in_the_report(evil: str) -> None:
    """SPEC 57: the same tags as with harmless words, and the words are there to be read."""
    told = []
    for word in ("harmless", evil):
        found = copy.deepcopy(FOUND)
        found["pipeline"] = found["headrace"] = word
        found["totals"]["routes"] = {word: 1}
        found["columns"] = {word: [{"what": word, "rows": 1}], "merchant": [{"what": word, "rows": 2}]}
        found["quarantine"] = [{"what": word, "rows": 3}]
        found["dead_letters"]["ranking"] = [{"what": word, "rows": 2}]
        found["attempts"]["buried"] = [{"attempts": word, "rows": 2}]
        told.append(_parts(found))
    harmless, hostile = told
    assert hostile.tags == harmless.tags
    assert hostile.text.count(evil[:40]) >= 6
    assert not [tag for tag, names in hostile.tags if tag == "script" or any(name.startswith("on") for name in names)]


def test_the_report_forbids_scripts_even_if_somebody_forgets_to_escape() -> None:
    from headrace.spark.report_page import page

    assert "Content-Security-Policy" in page(FOUND)
    assert "default-src 'none'" in page(FOUND)


# ── Spark's tables ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.servers("redis8")
@pytest.mark.parametrize("table", ["groups", "pending", "owners", "dead-letters"])
def test_a_spoilt_stream_can_be_read_as_a_table(server: Server, stream: str, table: str) -> None:
    """What a report reads: a forged dead letter is a row, not the end of the query. Without Spark: its reader alone."""
    from headrace.spark.plan import Share
    from headrace.spark.source_options import SourceSettings
    from headrace.spark.tables import TableReader, schema_of

    _spoil(server, stream)
    options = {"url": server.url, "streams": stream, "table": table}
    settings = SourceSettings.of(options, streaming=False)
    rows = [row for batch in TableReader(settings, schema_of(table)).read(Share(())) for row in batch.to_pylist()]
    assert len(rows) >= 4
