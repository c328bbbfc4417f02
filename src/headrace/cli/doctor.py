"""`headrace doctor`: what this server can do, what is promised here and what is not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from headrace.cli.ask import Session, asking
from headrace.cli.show import Show, plain
from headrace.doctor import Finding, Level, Promises, examine, gather, promises, worst

OfStream = Annotated[
    str | None,
    typer.Argument(metavar="[STREAM]", help="Also try the rights on this stream's keys.", show_default=False),
]

_MARKS = {
    Level.OK: ("✓", "green"),
    Level.NOTE: ("·", "cyan"),
    Level.WARN: ("!", "yellow"),
    Level.BAD: ("✗", "bold red"),
}


@asking
async def doctor(session: Session, stream: OfStream = None) -> None:
    """Look at the server: version, commands, persistence, memory, clock, rights, known holes; exit 1 if one is bad."""
    facts = await gather(session.app.server, session.link, stream or "")
    findings, promised = examine(facts), promises(facts)
    level = worst(findings)
    if session.show.as_json:
        session.show.json(
            {
                "server": session.where.masked,
                "level": level,
                "topology": asdict(facts.shape),
                "findings": [asdict(finding) for finding in findings],
                "promised": promised.kept,
                "not_promised": promised.not_kept,
            }
        )
    else:
        session.show.line(f"{session.where.masked} (from {session.where.source})", style="bold")
        for finding in findings:
            _print(session.show, finding)
        _print_promises(session.show, promised)
    if level is Level.BAD:
        raise typer.Exit(1)


def _print(show: Show, finding: Finding) -> None:
    mark, style = _MARKS[finding.level]
    show.out.print(
        Text.assemble((f" {mark} ", style), (f"{finding.about:12}", "dim"), plain(finding.said)), soft_wrap=True
    )
    if finding.way_out:
        show.out.print(Text.assemble(" " * 15, ("→ ", style), (plain(finding.way_out), "italic")), soft_wrap=True)


def _print_promises(show: Show, promised: Promises) -> None:
    for title, lines in (("promised here", promised.kept), ("not promised here", promised.not_kept)):
        if lines:
            show.line("")
            show.line(title, style="bold")
            for line in lines:
                show.line(f"   {line}")
