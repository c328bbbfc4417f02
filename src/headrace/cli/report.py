"""`headrace report`: what a pipeline did, as one HTML page and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.ask import AsJson, Url
from headrace.cli.pipeline import File, Folder, Master, need_spark, read_file
from headrace.cli.show import Show

Out = Annotated[Path, typer.Option("--out", help="The page to write; the same as JSON goes beside it.")]
JournalFile = Annotated[Path | None, typer.Option("--journal", help="The demo's journal, for attempts and rescues.")]


def report(
    file: File,
    out: Out = Path("report.html"),
    journal: JournalFile = None,
    folder: Folder = "",
    master: Master = "local[*]",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write a page about a pipeline's tables, its ledger and the dead letters of its streams."""
    pipeline = read_file(file, url, folder)
    need_spark()
    from headrace.spark.pipeline.run import open_session
    from headrace.spark.report import check_server, gather
    from headrace.spark.report_page import page

    check_server(pipeline)
    spark = open_session(pipeline, master=master)
    try:
        found = gather(spark, pipeline, journal=journal)
    finally:
        spark.stop()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(found), encoding="utf-8")
    beside = out.with_suffix(".json")
    beside.write_text(json.dumps(found, indent=1, default=str), encoding="utf-8")
    show = Show(as_json=as_json)
    if as_json:
        show.json({"page": str(out.absolute()), "json": str(beside.absolute()), **found["totals"]})
    else:
        show.line(f"the report is in {out.absolute()}, and as JSON in {beside.name}")
