"""The options of the sink: a table that the docs are made from, and the checked values of one write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.names import check_stream, keys_of
from headrace.options import shown
from headrace.spark.options import (
    SERVER_OPTIONS,
    Address,
    Option,
    OptionTable,
    address_of,
    as_ms,
    as_text,
    as_truth,
    one_of,
    whole,
)

VERSION_LIMIT: Final = 2**53 - 1  # what Lua's numbers hold exactly
LEAST_TTL_MS: Final = 60_000
_FROM_SPARK: Final = frozenset({"path", "checkpointlocation", "querystarttime", "queryname"})  # not ours to judge


def _as_stream(text: str, name: str) -> str:
    return check_stream(as_text(text, name))


def _as_id(text: str, name: str) -> str:
    if not re.fullmatch(r"[0-9]{1,19}(-[0-9]{1,19})?", text.strip(), re.ASCII):
        raise ConfigError(f"{name} is {shown(text)}: give an id such as 1718000000000 or 1718000000000-0")
    return text.strip()


SINK_OPTIONS: Final = OptionTable(
    "the sink redis-streams",
    (
        *SERVER_OPTIONS,
        Option(
            "stream",
            "the target of all rows; without it a column `stream` chooses row by row",
            _as_stream,
        ),
        Option(
            "partitionKey",
            "the column whose value chooses the partition, where the stream is partitioned; without it in turn",
            as_text,
        ),
        Option(
            "delivery",
            "`exactly-once`: staged by the tasks, published once a batch. `at-least-once`: appended by the tasks",
            one_of("exactly-once", "at-least-once"),
            "exactly-once",
        ),
        Option(
            "durability",
            "`received`, or `replicated`: a batch is finished only when a replica has it",
            one_of("received", "replicated"),
            "received",
        ),
        Option("txnAppId", "who writes: makes batch writes and writes in foreachBatch repeatable", as_text),
        Option(
            "txnVersion",
            "which write of that writer this is; a version up to the last one written is dropped, as in Delta",
            whole(0, VERSION_LIMIT),
        ),
        Option("maxlen", "keep about so many entries of the stream", whole(1, 10**18)),
        Option("minid", "drop entries of the stream that are older than this id", _as_id),
        Option("trim", "`approximate` or `exact`, for maxlen and minid", one_of("approximate", "exact"), "approximate"),
        Option("nulls", "`skip`: the entry lacks the field. `empty`: an empty value", one_of("skip", "empty"), "skip"),
        Option(
            "badRows",
            "`dead-letter` or `fail`, for rows that no stream can take",
            one_of("dead-letter", "fail"),
            "dead-letter",
        ),
        Option("deadLetters", "where bad rows go. Default: the dead letters of the option `stream`", _as_stream),
        Option(
            "acceptGap",
            "`true`, once: go on although the server does not know the batch before this one",
            as_truth,
            "false",
        ),
        Option("stagingTtl", "how long an abandoned batch stays in the server", as_ms, "1d"),
        Option("retryTimeout", "for how long a server that does not answer is asked again", as_ms, "30s"),
    ),
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a write was told, checked. It goes to the executors."""

    address: Address
    stream: str = ""  # "": every row must name its own
    partition_key: str = ""  # the column that chooses the partition; "": they take turns
    partitions: int = 0  # of the stream, as the server says; 0: it has none
    exactly_once: bool = True
    replicated: bool = False
    app: str = ""  # txnAppId
    version: int = -1  # txnVersion
    trim: tuple[str, str, str] = ("", "", "")  # MAXLEN or MINID, ~ or =, threshold
    nulls_empty: bool = False
    dead_letters: str = ""  # "": bad rows fail the write
    accept_gap: bool = False
    staging_ttl_s: int = 86_400
    retry_ms: int = 30_000


def read_options(options: Mapping[str, str], *, overwrite: bool = False) -> SinkOptions:
    """Check the options of one write. Raises ConfigError, which never holds the password.

    >>> read_options({"url": "redis://localhost", "stream": "orders", "maxLen": "1000"}).trim
    ('MAXLEN', '~', '1000')
    """
    if overwrite:
        raise ConfigError('a stream only grows: write with mode("append"), or delete the stream yourself first')
    given = SINK_OPTIONS.read({word: text for word, text in options.items() if word.lower() not in _FROM_SPARK})
    app, version = _transaction(given)
    return SinkOptions(
        address=address_of(given),
        stream=given["stream"] or "",
        partition_key=given["partitionKey"] or "",
        exactly_once=given["delivery"] == "exactly-once",
        replicated=given["durability"] == "replicated",
        app=app,
        version=version,
        trim=_trim(given),
        nulls_empty=given["nulls"] == "empty",
        dead_letters=_dead_letters(given),
        accept_gap=given["acceptGap"],
        staging_ttl_s=max(LEAST_TTL_MS, given["stagingTtl"]) // 1000,
        retry_ms=given["retryTimeout"],
    )


def _transaction(given: Mapping[str, Any]) -> tuple[str, int]:
    app, version = given["txnAppId"], given["txnVersion"]
    if (app is None) != (version is None):
        raise ConfigError("txnAppId and txnVersion belong together: give both or none")
    if app is not None and given["delivery"] == "at-least-once":
        raise ConfigError("delivery = at-least-once remembers no versions: remove txnAppId and txnVersion, or delivery")
    return app or "", -1 if version is None else version


def _trim(given: Mapping[str, Any]) -> tuple[str, str, str]:
    if given["maxlen"] is not None and given["minid"] is not None:
        raise ConfigError("maxlen and minid exclude each other: give one")
    about = "~" if given["trim"] == "approximate" else "="
    if given["maxlen"] is not None:
        return "MAXLEN", about, str(given["maxlen"])
    return ("MINID", about, given["minid"]) if given["minid"] is not None else ("", "", "")


def _dead_letters(given: Mapping[str, Any]) -> str:
    named: str | None = given["deadLetters"]
    if given["badRows"] == "fail":
        if named:
            raise ConfigError("badRows = fail sends nothing to dead letters: remove the option deadLetters")
        return ""
    if named and named == given["stream"]:
        raise ConfigError(f"deadLetters is {shown(named)}, the stream of the good rows: give another, or leave it out")
    return named or (keys_of(given["stream"]).dead_letters if given["stream"] else "")
