"""Writes docs/spark/options.md from the option tables of the code.

python -m tools.spark_options            writes the page
python -m tools.spark_options --print    prints it instead

tests/spark/test_docs.py compares the page with what this makes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from headrace.spark.options import SERVER_OPTIONS, OptionTable
from headrace.spark.pipeline.expressions import FUNCTIONS
from headrace.spark.pipeline.spec import SPARK_OPTIONS
from headrace.spark.schema import DEFAULT
from headrace.spark.sink_options import SINK_OPTIONS
from headrace.spark.source_checks import NOT_OF_TABLES, ONLY_STREAMS
from headrace.spark.source_options import SOURCE_OPTIONS, TABLES
from headrace.spark.tables import schema_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "spark" / "options.md"
WIDTH = 116  # of a line of words

HEAD = """\
# Options of `redis-streams`

<!-- Made by `python -m tools.spark_options` from the code. Do not edit. -->

Names are read in any case. An unknown name is refused, with the nearest known one; so is a value that does not fit.
Durations are seconds, or numbers with units: `500ms`, `10s`, `1h30m`, `7d`. Sizes are bytes, or a number with a unit:
`4MB`, `4MiB`. What the options promise is in [semantics.md](semantics.md).

A wrong option, a server that is not there or a wrong password is one error, without the password, as early as Spark
runs anything of ours:

| | told by |
|---|---|
| `read`, `readStream` | `load()`; over Spark Connect, where that asks nobody, the first action or `start()` |
| an option that is for the other of the two, as `endingOffsets` in a stream, `table` in a stream or `mode` = `group` \
in a batch read, which `load()` cannot tell apart | the first action; the exception of the query, at once after \
`start()` |
| `read` with a schema of your own | the first action |
| `readStream` with a schema of your own | the exception of the query, at once after `start()` |
| `write` | `save()` |
| `writeStream` | the exception of the query, with its first batch: while there is nothing to write, nothing is said |
| `headrace.spark.check(**options)` | itself: call it before `load()` or `start()` where you want to know |"""

SOURCE = """\
## Source

For `spark.read` and `spark.readStream`, beside the options of the server. One of `streams` and `streamsPattern` is
needed; a stream whose name holds a comma is written as a JSON list, `["a,b"]`.

A stream and a batch often share their options. These do nothing in a batch read, and a line `spark.unused` in the log
`headrace.spark` says so; `onCommit` = `trim` is refused there, and `groupId` chooses rows of a `table`:

{unused}

Beside `table` these are refused:

{refused}"""

COLUMNS = """\
Columns without a schema of your own: {columns}.
A schema may take any of these, and names fields of the messages otherwise, as `string` or `binary`; a field that is
called like one of the four is named `fields.id` and so on. A field that a message lacks is null, so a column that must
not be null is refused. So are other types than these: cast afterwards, where you can say what bad values mean."""

SINK = """\
## Sink

For `df.write` (mode `append`) and `df.writeStream`, beside the options of the server. A target is needed: the option
`stream`, or a column `stream` of type string."""

QUEUE = """\
## Tables about the queue

`option("table", ...)`, in batch reads. The columns are fixed."""

PIPELINE = """\
## What a pipeline file may say to Spark

Options under `[spark]`; any other is refused:"""

CALLS = "Functions and words that an expression may use; any other, and every query inside an expression, is refused:"


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        "## Server\n\nFor source, sink and the tables about the queue alike.",
        OptionTable("", SERVER_OPTIONS).markdown(),
        SOURCE.format(unused=_wrapped(ONLY_STREAMS), refused=_wrapped(NOT_OF_TABLES)),
        _own(SOURCE_OPTIONS),
        COLUMNS.format(columns=_columns(DEFAULT)),
        SINK,
        _own(SINK_OPTIONS),
        QUEUE,
        "\n".join(["| table | columns |", "|---|---|", *(_row(name) for name in TABLES)]),
        PIPELINE,
        _wrapped(SPARK_OPTIONS),
        CALLS,
        _wrapped(FUNCTIONS),
    ]
    return "\n\n".join(parts) + "\n"


def _own(table: OptionTable) -> str:
    """The options of a table without those of the server, which stand in their own section."""
    shared = {option.name for option in SERVER_OPTIONS}
    return OptionTable(table.what, (option for option in table.options if option.name not in shared)).markdown()


def _row(table: str) -> str:
    return f"| `{table}` | {_columns(schema_of(table))} |"


def _columns(schema: Iterable[object]) -> str:
    return ", ".join(f"`{column.name} {column.dataType.simpleString()}`" for column in schema)  # type: ignore[attr-defined]


def _wrapped(words: Iterable[str]) -> str:
    """Words in order, in lines that a diff can be read in."""
    lines, line = [], ""
    for word in sorted(words):
        if line and len(line) + len(word) + 3 > WIDTH:
            lines.append(line)
            line = ""
        line += f"{' ' if line else ''}`{word}`"
    return "\n".join([*lines, line])


if __name__ == "__main__":
    if "--print" in sys.argv:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
