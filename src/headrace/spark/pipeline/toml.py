"""Reads a pipeline from a TOML file. Whatever is not understood is refused, with the nearest word that would be."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.options import duration_ms, refuse_unknown, shown
from headrace.spark.pipeline.spec import Aggregate, Decode, Deduplicate, Enrich, Pipeline, Route, Rule

FILE_LIMIT = 1 << 18  # bytes
LINE_LIMIT = 4_000  # characters: a key of many parts, which stands on one line, costs the square of its length
_TOP = (
    *("name", "folder", "source", "decode", "validate", "deduplicate", "enrich", "route", "aggregate", "table"),
    *("quarantine", "spark"),
)


def read_toml(path: str | Path) -> Pipeline:
    """Read and check a file. Raises ConfigError that names the file."""
    file = Path(path)
    try:
        return pipeline_of(tomllib.loads(_content(file)))
    except ConfigError as error:
        raise type(error)(f"{file}: {error}") from error
    except (OSError, ValueError) as error:  # not UTF-8, not TOML, or a number nobody can read
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{file} cannot be read: it is nested too deeply") from error


def _content(file: Path) -> str:
    """The text of a file that is small enough to be a pipeline: a bomb is not worth parsing."""
    if file.stat().st_size > FILE_LIMIT:
        raise ConfigError("larger than 256 KiB, which is no pipeline")
    text = file.read_text(encoding="utf-8")
    if any(len(line) > LINE_LIMIT for line in text.splitlines()):
        raise ConfigError(f"a line has more than {LINE_LIMIT:,} characters: break it, lists may span lines")
    return text


def pipeline_of(told: Mapping[str, Any]) -> Pipeline:
    """Make a pipeline of what a TOML file says."""
    refuse_unknown(told, _TOP, what="the pipeline")
    for word in ("name", "folder", "source", "decode"):
        if word not in told:
            raise ConfigError(f"the pipeline has no {word}: it needs name, folder, [source] and [decode]")
    dedupe = told.get("deduplicate")
    return Pipeline(
        name=told["name"],
        folder=_text(told["folder"], "folder"),
        source={word: _option(word, value) for word, value in _flat(told["source"], "[source]").items()},
        decode=_decode(_table(told["decode"], "[decode]")),
        validate=tuple(_rule(one) for one in _tables(told, "validate")),
        deduplicate=None if dedupe is None else _deduplicate(_table(dedupe, "[deduplicate]")),
        enrich=tuple(_enrich(name, one) for name, one in _table(told.get("enrich", {}), "[enrich]").items()),
        routes=tuple(_route(one) for one in _tables(told, "route")),
        aggregates=tuple(_aggregate(one) for one in _tables(told, "aggregate")),
        table=_only(told, "table", "name"),
        quarantine=_only(told, "quarantine", "stream"),
        spark={word: _option(word, value) for word, value in _flat(told.get("spark", {}), "[spark]").items()},
    )


# ── the parts ────────────────────────────────────────────────────────────────────────────────────────


def _decode(told: Mapping[str, Any]) -> Decode:
    refuse_unknown(told, ("columns", "format", "field", "mode", "required"), what="[decode]")
    given = dict(told)
    given["columns"] = dict(_table(given.get("columns", {}), "[decode.columns]"))
    given["required"] = _texts(given.get("required", ()), "decode.required")
    return Decode(**given)


def _rule(told: Mapping[str, Any]) -> Rule:
    refuse_unknown(told, ("name", "rule"), what="[[validate]]")
    return Rule(told.get("name", ""), told.get("rule", ""))


def _deduplicate(told: Mapping[str, Any]) -> Deduplicate:
    refuse_unknown(told, ("key", "window", "by"), what="[deduplicate]")
    window = duration_ms(told.get("window", "24h"), name="deduplicate.window")
    return Deduplicate(told.get("key", ""), window, told.get("by", "redis"))


def _enrich(name: str, told: Any) -> Enrich:
    table = _table(told, f"[enrich.{name}]")
    refuse_unknown(table, ("expression", "tier_of", "edges", "labels", "part_of_day_of"), what=f"[enrich.{name}]")
    given = dict(table)
    given["edges"] = _numbers(given.get("edges", ()), f"enrich.{name}.edges")
    given["labels"] = _texts(given.get("labels", ()), f"enrich.{name}.labels")
    return Enrich(name, **given)


def _route(told: Mapping[str, Any]) -> Route:
    refuse_unknown(told, ("name", "when", "stream", "columns", "maxlen"), what="[[route]]")
    given = {"name": "", "when": "", "stream": "", **told}
    given["columns"] = _texts(given.get("columns", ()), "route.columns")
    return Route(**given)


def _aggregate(told: Mapping[str, Any]) -> Aggregate:
    refuse_unknown(told, ("name", "time", "window", "by", "of", "percentiles"), what="[[aggregate]]")
    given = {"name": "", "time": "", **told}
    given["window_ms"] = duration_ms(given.pop("window", "1h"), name="aggregate.window")
    given["by"] = _texts(given.get("by", ()), "aggregate.by")
    if "percentiles" in given:
        given["percentiles"] = _numbers(given["percentiles"], "aggregate.percentiles")
    return Aggregate(**given)


# ── small readings ───────────────────────────────────────────────────────────────────────────────────


def _table(told: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(told, dict):
        raise ConfigError(f"{what} is {shown(told)}: write it as a table")
    return told


def _tables(told: Mapping[str, Any], word: str) -> list[Mapping[str, Any]]:
    found = told.get(word, [])
    if not isinstance(found, list):
        raise ConfigError(f"[{word}] is one table: write [[{word}]], as there may be several")
    return [_table(one, f"[[{word}]]") for one in found]


def _only(told: Mapping[str, Any], word: str, key: str) -> str:
    table = _table(told.get(word, {}), f"[{word}]")
    refuse_unknown(table, (key,), what=f"[{word}]")
    return _text(table.get(key, ""), f"{word}.{key}")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {shown(value)}: write it in quotes")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{name} is {shown(value)}: write a list in [ ]")
    return list(value)


def _texts(value: Any, name: str) -> tuple[str, ...]:
    return tuple(_text(one, name) for one in _list(value, name))


def _numbers(value: Any, name: str) -> tuple[float, ...]:
    found = _list(value, name)
    if not all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in found):
        raise ConfigError(f"{name} is {shown(value)}: write a list of numbers")
    return tuple(found)


def _option(word: str, value: Any) -> str:
    """An option of Spark is text: numbers and true or false become what Spark reads."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):  # as JSON: a name in it may hold a comma
        return json.dumps(_texts(value, word), ensure_ascii=False)
    if isinstance(value, int) and abs(value) >= 10**18:
        raise ConfigError(f"{shown(word)} is a huge number: give one below 10^18")
    if not isinstance(value, (str, int, float)):
        raise ConfigError(f"{word} is {shown(value)}: write a text, a number, true or false")
    return str(value)


def _flat(told: Any, what: str, before: str = "") -> dict[str, Any]:
    """Names with dots that TOML read as nested tables, put together again."""
    found: dict[str, Any] = {}
    for word, value in _table(told, what).items():
        if isinstance(value, dict):
            found.update(_flat(value, what, f"{before}{word}."))
        else:
            found[before + word] = value
    return found
