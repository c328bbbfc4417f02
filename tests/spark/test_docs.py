"""The pages in docs/spark say what is true: the options are those of the code, and what they show runs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from headrace.cli.pipeline import program
from headrace.spark.pipeline import Pipeline, pipeline_of, read_toml
from headrace.spark.sink_options import SINK_OPTIONS
from headrace.spark.source_options import SOURCE_OPTIONS
from tests.support.servers import Server
from tools.spark_options import PAGE, page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "spark"
PAGES = sorted(DOCS.glob("*.md"))
EXAMPLE_URL = "redis://localhost:6379"


def blocks(name: str, language: str) -> list[str]:
    """The code of one language in a page, in order."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


# ── without Spark ────────────────────────────────────────────────────────────────────────────────────


def test_the_page_of_options_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.spark_options"


def test_every_option_has_a_line_on_the_page() -> None:
    told = PAGE.read_text(encoding="utf-8")
    for table in (SOURCE_OPTIONS, SINK_OPTIONS):
        for option in table.options:
            assert f"| `{option.name}`" in told


def _heads(text: str) -> set[str]:
    """What a link may point to in a page, as GitHub makes it."""
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_every_link_leads_somewhere(file: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", file.read_text(encoding="utf-8")):
        path, _, head = target.partition("#")
        goal = (file.parent / path).resolve() if path else file
        assert goal.exists(), f"{file.name} links to {target}"
        if head:
            assert head in _heads(goal.read_text(encoding="utf-8")), f"{file.name} links to {target}"


def test_every_test_that_the_pages_name_exists() -> None:
    there = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    named = {name for file in PAGES for name in re.findall(r"`(test_\w+)`", file.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert named - there == set()


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_python_on_the_pages_can_be_read(file: Path) -> None:
    for code in blocks(file.name, "python"):
        compile(code, file.name, "exec")


def test_the_pipeline_file_of_the_page_is_one() -> None:
    (told,) = blocks("pipeline.md", "toml")
    pipeline = pipeline_of(tomllib.loads(told))
    assert isinstance(pipeline, Pipeline)
    assert [one.name for one in pipeline.enrich] == ["tier", "part_of_day", "abroad"]


def test_the_check_on_the_page_fits_the_example() -> None:
    example = read_toml(ROOT / "examples" / "payments" / "payments.toml")
    (shown,) = blocks("pipeline.md", "console")
    assert f"{len(example.decode.columns)} columns from {example.decode.format}, {len(example.validate)} rules" in shown
    assert ", ".join(one.name for one in example.enrich) in shown


def test_every_option_of_pipeline_run_is_in_the_table_of_the_page() -> None:
    told = (DOCS / "pipeline.md").read_text(encoding="utf-8")
    named = {word for line in told.splitlines() if line.startswith("| `--") for word in re.findall(r"--[a-z-]+", line)}
    command: Any = typer.main.get_command(program)
    options = {word for param in command.commands["run"].params for word in (*param.opts, *param.secondary_opts)}
    assert "--remote" in options
    assert {word for word in options if word.startswith("--")} - named == set()


def test_ids_of_a_spark_redis_checkpoint_become_starting_offsets(tmp_path: Path) -> None:
    for batch, id_ in enumerate(("1548083485000-0", "1548083485360-0", "1548083485999-0")):
        (tmp_path / "offsets").mkdir(exist_ok=True)
        told = {"offsets": {"sensors": {"groupName": "spark-source", "offset": id_}}}
        (tmp_path / "offsets" / str(batch)).write_text("v1\n{}\n" + json.dumps(told))
    (tmp_path / "commits").mkdir()
    for batch in range(2):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    known: dict[str, Any] = {}
    exec(blocks("migration.md", "python")[1], known)
    assert json.loads(known["ids_of"](tmp_path)) == {"sensors": "1548083485360-0"}


# ── on Spark ─────────────────────────────────────────────────────────────────────────────────────────


def run(code: str, server: Server, prefix: str, folder: Path, known: dict[str, Any]) -> None:
    """Run what a page shows: on the server of the test, with streams and a folder of its own."""
    code = code.replace(EXAMPLE_URL, server.url).replace('"data/', f'"{folder}/')
    for name in ("orders", "large", "sensors"):
        code = code.replace(f'"{name}"', f'"{prefix}-{name}"')
    exec(code, known)


@pytest.mark.timeout(180)
@pytest.mark.servers("redis8")
def test_the_quick_start_runs_and_its_last_part_adds_nothing_again(
    spark: SparkSession, server: Server, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = blocks("README.md", "python")[0]
    assert len([line for line in code.splitlines() if line]) <= 15
    known: dict[str, Any] = {"spark": spark}
    run(code, server, prefix, tmp_path, known)
    assert "|3     |5.25  |" in capsys.readouterr().out
    assert [about[b"number"] for _, about in server.sync().xrange(f"{prefix}-large")] == [b"1", b"2"]
    run("news =" + code.split("news =")[1], server, prefix, tmp_path, known)
    assert server.sync().xlen(f"{prefix}-large") == 2


@pytest.mark.servers("redis8")
def test_the_query_of_the_migration_has_the_old_columns(
    spark: SparkSession, server: Server, prefix: str, tmp_path: Path
) -> None:
    known: dict[str, Any] = {"spark": spark}
    run(blocks("migration.md", "python")[0], server, prefix, tmp_path, known)
    assert known["sensors"].isStreaming
    assert known["sensors"].dtypes == [("_id", "string"), ("temperature", "float")]
