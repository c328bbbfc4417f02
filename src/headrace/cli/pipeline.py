"""`headrace pipeline`: a pipeline file checked and run. Needs `headrace[spark]` and Java 17 or 21 to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.ask import AsJson, Url
from headrace.cli.show import Bar, Show, many
from headrace.cli.where import find
from headrace.errors import ConfigError
from headrace.spark.java import need_java
from headrace.spark.pipeline import Pipeline, read_toml

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.pipeline.ledger import Totals
    from headrace.spark.pipeline.progress import Progress
    from headrace.spark.pipeline.run import Runner

program = typer.Typer(help="Pipelines: streams to tables with Spark.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's TOML file.", show_default=False)]
Master = Annotated[str, typer.Option("--master", help="Where Spark runs.")]
Remote = Annotated[str, typer.Option("--remote", help="A Spark Connect server instead: sc://host:15002.")]
Once = Annotated[bool, typer.Option("--once/--continuous", help="End when all there is was read, or go on.")]
Folder = Annotated[str, typer.Option("--folder", help="Where checkpoint, tables and ledger go, instead of the file's.")]
Adopt = Annotated[bool, typer.Option("--adopt-tables", help="Let tables of another checkpoint take new rows.")]


@program.callback(invoke_without_command=True)
def pipelines(context: typer.Context) -> None:
    """Pipelines: streams to tables with Spark."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@program.command("check")
def check_file(file: File, url: Url = None, as_json: AsJson = False) -> None:
    """Say what a pipeline file means, or what is wrong with it. Nothing is run, and no Java is needed."""
    pipeline = read_file(file, url, "")
    _need_packages()
    from headrace.spark.pipeline.run import check

    address = check(pipeline)
    show = Show(as_json=as_json)
    if as_json:
        show.json({"name": pipeline.name, "folder": pipeline.folder, "server": address.masked, "ok": True})
        return
    rules = many(len(pipeline.validate), "rule")
    show.pair("pipeline", f"{pipeline.name}, from {address.masked}")
    show.pair("decode", f"{many(len(pipeline.decode.columns), 'column')} from {pipeline.decode.format}, {rules}")
    show.pair("deduplicate", pipeline.deduplicate.key if pipeline.deduplicate else "no")
    show.pair("enrich", ", ".join(one.name for one in pipeline.enrich) or "no")
    for one in pipeline.routes:
        show.pair("route", f"{one.name}: {one.when} to {one.stream}")
    tables = [pipeline.table_name, "duplicates", "quarantine", *(each.name for each in pipeline.aggregates)]
    show.pair("tables", f"{', '.join(tables)} in {pipeline.folder}/tables")


@program.command("run")
def run_file(
    file: File,
    master: Master = "local[*]",
    remote: Remote = "",
    once: Once = False,
    folder: Folder = "",
    adopt_tables: Adopt = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline. SIGTERM and Ctrl-C end it after the batch; run it again to go on."""
    pipeline = read_file(file, url, folder)
    need_spark(remote=bool(remote))
    from headrace.spark.pipeline.run import check, check_server, ending_softly

    (check if remote else check_server)(pipeline)  # a Connect server may reach what this process does not
    show = Show(as_json=as_json)
    spark, kind = _session(pipeline, master, remote)
    try:
        with show.progress(pipeline.name, None) as bar:
            runner = kind(pipeline, spark, told=_teller(show, bar), adopt_tables=adopt_tables)
            runner.start(once=once)
            with ending_softly(runner):
                totals = runner.wait()
    finally:
        spark.stop()
    _conclude(show, pipeline, totals)


def _session(pipeline: Pipeline, master: str, remote: str) -> tuple[SparkSession, type[Runner]]:
    """Spark, in this process, on a master or behind Connect, and who runs a pipeline there."""
    if remote:
        from headrace.spark.pipeline.remote import RemoteRunner, open_remote_session

        return open_remote_session(pipeline, remote), RemoteRunner
    from headrace.spark.pipeline.run import Runner, open_session

    return open_session(pipeline, master=master), Runner


def need_spark(*, remote: bool = False) -> None:
    """Raise ConfigError, with what to install, where Spark cannot run. A Connect server brings its own Java."""
    _need_packages()
    if remote:
        lacking = [name for name in ("grpc", "grpc_status", "pandas", "zstandard") if find_spec(name) is None]
        if lacking:
            raise ConfigError(f"--remote: {lacking[0]} is missing: pip install 'pyspark[connect]'")
        return
    need_java()


def _need_packages() -> None:
    missing = [name for name in ("pyspark", "pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{missing[0]} is missing: pip install 'headrace[spark]'")


def read_file(file: Path, url: str | None, folder: str) -> Pipeline:
    """The pipeline of a file, with the server the command line names unless the file does."""
    pipeline = read_toml(file)
    where = find(url)
    if where is not None and (url is not None or "url" not in pipeline.source):
        pipeline = dataclasses.replace(pipeline, source={**pipeline.source, "url": where.url})
    return dataclasses.replace(pipeline, folder=folder) if folder else pipeline


def _teller(show: Show, bar: Bar) -> Callable[[Progress], None]:
    def tell(progress: Progress) -> None:
        if show.as_json:
            show.json(dataclasses.asdict(progress))
        else:
            bar.step(progress.rows_in, progress.as_text())
            if progress.rows_in:
                show.line(progress.as_text())

    return tell


def _conclude(show: Show, pipeline: Pipeline, totals: Totals) -> None:
    told: dict[str, Any] = {"pipeline": pipeline.name, **dataclasses.asdict(totals), "exact": totals.exact}
    if show.as_json:
        show.json(told)
        return
    show.line(
        f"{many(totals.batches, 'batch', 'batches')}: {totals.rows_in:,} in = {totals.out:,} out + "
        f"{totals.duplicates:,} duplicates + {totals.quarantined:,} quarantined"
    )
    for name, rows in totals.routes.items():
        show.line(f"{rows:,} to {name}")
    show.line(f"tables are in {pipeline.folder}/tables")
