"""Names inside a pipeline: which are taken, which are used, and what is known of the columns behind them.

Spark does not tell `id` from `ID`, so neither do these checks: what differs in that alone would end the first batch, or
one column would hide the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError
from headrace.options import did_you_mean, shown
from headrace.spark.pipeline.expressions import check_bare_words

if TYPE_CHECKING:
    from headrace.spark.pipeline.spec import Aggregate, Pipeline, Route

ENTRY: Final = {"entry_stream": "string", "entry_id": "string", "entry_at": "timestamp"}  # columns that every row has
RAW_ROUTE: Final = "quarantine"  # what the ledger calls the quarantine's stream, among the routes
PARTS_LIMIT: Final = 500  # rules, columns, routes, aggregates: more than that and Spark plans for hours
# what an aggregate makes itself
WINDOW: Final = frozenset(["window_start", "window_end", "rows", "rows_per_s", "total", "least", "most", "hour"])
TIMES: Final = ("date", "timestamp")
NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")

Kinds = dict[str, str]
"""The type of each column; "" where only Spark knows it."""


def check_pipeline(pipeline: Pipeline) -> None:
    """Raise ConfigError where names do not fit each other, or a column cannot be what it is used for."""
    parts = (pipeline.decode.columns, pipeline.validate, pipeline.enrich, pipeline.routes, pipeline.aggregates)
    if any(len(part) > PARTS_LIMIT for part in parts):
        raise ConfigError(f"more than {PARTS_LIMIT} columns, rules, routes or aggregates: split the pipeline")
    tables = [pipeline.table_name, "duplicates", "quarantine", *(one.name for one in pipeline.aggregates)]
    _check_once("table", tables)
    _check_once("route", [*(one.name for one in pipeline.routes), *([RAW_ROUTE] if pipeline.quarantine else [])])
    _check_once("rule", [one.name for one in pipeline.validate])
    _check_once("column", [*ENTRY, *pipeline.decode.columns, *(one.name for one in pipeline.enrich)])
    kinds = _kinds(pipeline)
    for enrich in pipeline.enrich:
        _check_kind(f"enrich.{enrich.name}.tier_of", enrich.tier_of, kinds, (*NUMBERS, "string"), "a number")
        _check_kind(f"enrich.{enrich.name}.part_of_day_of", enrich.part_of_day_of, kinds, (*TIMES, "string"), "a time")
    for route in pipeline.routes:
        _check_route(route, kinds)
    for aggregate in pipeline.aggregates:
        _check_aggregate(aggregate, kinds)
    _check_expressions(pipeline)


def _check_once(what: str, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(name.lower())
        if other is not None:
            also = "" if other == name else f" and {other!r}, which Spark does not tell apart"
            raise ConfigError(f"two things are called {what} {name!r}{also}: rename one")
        seen[name.lower()] = name


def _kinds(pipeline: Pipeline) -> Kinds:
    decoded = {name: str(kind).strip().lower() for name, kind in pipeline.decode.columns.items()}
    return {**ENTRY, **decoded, **{one.name: "" if one.expression else "string" for one in pipeline.enrich}}


def _check_known(what: str, column: str, kinds: Kinds) -> None:
    if column not in kinds:
        raise ConfigError(f"{what} uses the column {shown(column)}: {did_you_mean(column, kinds)}")


def _check_kind(what: str, column: str, kinds: Kinds, allowed: Iterable[str], word: str) -> None:
    if not column:
        return
    _check_known(what, column, kinds)
    kind = kinds[column]
    if kind and kind.partition("(")[0] not in allowed:
        raise ConfigError(f"{what} uses the column {column}, which is a {kind}: give one that is {word}")


def _check_route(route: Route, kinds: Kinds) -> None:
    _check_once(f"column of route {route.name}", route.columns)
    for column in route.columns:
        _check_known(f"route {route.name}", column, kinds)
    for column in route.columns or kinds:
        if kinds[column].startswith("array"):
            raise ConfigError(
                f"route {route.name} sends the column {column}, which is an {kinds[column]} and has no one text: name "
                f"the columns to send, and instead of this one an [enrich] with to_json({column})"
            )
        if column == "stream":
            raise ConfigError(
                f"route {route.name} sends the column stream, which the sink takes for a target and leaves out: rename "
                "it, or name the columns to send"
            )


def _check_aggregate(how: Aggregate, kinds: Kinds) -> None:
    what = f"aggregate {how.name}"
    _check_kind(f"{what}.time", how.time, kinds, TIMES, "a date or a timestamp")
    _check_kind(f"{what}.of", how.of, kinds, NUMBERS, "a number")
    made = {*WINDOW, *how.share_names}
    _check_once(f"percentile of {what}", how.share_names)
    _check_once(f"column of {what}.by", how.by)
    for column in how.by:
        _check_known(f"{what}.by", column, kinds)
    for column in (*how.by, how.of):
        if column.lower() in made and (column in how.by or column.lower() == "window_start"):
            raise ConfigError(f"{what} uses the column {column}, and makes one of that name itself: rename yours")


def _check_expressions(pipeline: Pipeline) -> None:
    """Each with the columns that are there when it is computed."""
    columns = [*ENTRY, *pipeline.decode.columns]
    for rule in pipeline.validate:
        check_bare_words(rule.rule, columns, name=f"rule {rule.name}")
    if pipeline.deduplicate is not None:
        check_bare_words(pipeline.deduplicate.key, columns, name="deduplicate.key")
    for one in pipeline.enrich:
        check_bare_words(one.expression, columns, name=f"enrich.{one.name}.expression")
        columns.append(one.name)
    for route in pipeline.routes:
        check_bare_words(route.when, columns, name=f"route {route.name}.when")
