"""The options of the sink, read from what Spark hands over: words of any case, values that are all text.

    url          redis://, rediss://, ...; never printed with its password (default: HEADRACE_URL)
    stream       the target, where the rows have no column `stream`; where they have one, the target of nulls in it
    delivery     exactly-once (staged and published once a batch) or at-least-once (appended by the tasks)
    durability   received, or replicated: a batch is finished only when a replica has it
    txnAppId     with txnVersion: who writes, for writes inside foreachBatch and repeated batch writes; a version that
    txnVersion     was written before is dropped, as in Delta
    maxlen       keep about so many entries; or, exactly, with trim = exact
    minid        drop entries older than this id; the same
    trim         approximate or exact
    nulls        skip (the entry lacks the field) or empty (an empty value)
    badRows      dead-letter (default) or fail, for rows that no stream can take
    deadLetters  where those go (default: the dead letters of `stream`)
    acceptGap    true, once: go on although the server does not know the batch before this one
    stagingTtl   how long an abandoned batch stays in the server (default 1d)
    retryTimeout how long a server that does not answer is asked again (default 30s)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.config import duration_ms
from headrace.endpoint import parse_url
from headrace.errors import ConfigError
from headrace.names import check_stream, keys_of
from headrace.options import did_you_mean, shown

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
VARIABLE: Final = "HEADRACE_URL"
VERSION_LIMIT: Final = 2**53 - 1  # what Lua's numbers hold exactly

_CHOICES: Final[dict[str, tuple[str, ...]]] = {  # the first is the default
    "delivery": (EXACTLY_ONCE, AT_LEAST_ONCE),
    "durability": ("received", "replicated"),
    "trim": ("approximate", "exact"),
    "nulls": ("skip", "empty"),
    "badRows": ("dead-letter", "fail"),
    "acceptGap": ("false", "true"),
}
_OTHERS: Final = (
    *("url", "stream", "txnAppId", "txnVersion", "maxlen", "minid", "deadLetters", "stagingTtl", "retryTimeout"),
)
KNOWN: Final = (*_CHOICES, *_OTHERS)
_BY_LOWER: Final = {word.lower(): word for word in KNOWN}
_FROM_SPARK: Final = frozenset({"path", "checkpointlocation", "querystarttime", "__partition_columns"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a write was told, checked. It goes to the executors, so it keeps the URL as text."""

    url: str = field(repr=False)
    stream: str = ""  # "": every row must name its own
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


def read_options(options: Mapping[str, str], *, overwrite: bool = False, env: Mapping[str, str] = os.environ) -> SinkOptions:
    """Check the options of one write. Raises ConfigError, which never holds the password.

    >>> read_options({"url": "redis://localhost", "stream": "orders", "maxLen": "1000"}).trim
    ('MAXLEN', '~', '1000')
    """
    if overwrite:
        raise ConfigError('a stream only grows: write with mode("append"), or delete the stream yourself first')
    given = _given(options)
    chosen = {word: _choice(word, given.get(word)) for word in _CHOICES}
    app, version = _transaction(given)
    stream = check_stream(given["stream"]) if given.get("stream") else ""
    return SinkOptions(
        url=_url(given.get("url"), env),
        stream=stream,
        exactly_once=chosen["delivery"] == EXACTLY_ONCE,
        replicated=chosen["durability"] == "replicated",
        app=app,
        version=version,
        trim=_trim(given, "~" if chosen["trim"] == "approximate" else "="),
        nulls_empty=chosen["nulls"] == "empty",
        dead_letters=_dead_letters(given.get("deadLetters"), stream, chosen["badRows"] == "fail"),
        accept_gap=chosen["acceptGap"] == "true",
        staging_ttl_s=max(60, duration_ms(given.get("stagingTtl", "1d"), name="stagingTtl") // 1000),
        retry_ms=duration_ms(given.get("retryTimeout", "30s"), name="retryTimeout"),
    )


def _given(options: Mapping[str, str]) -> dict[str, str]:
    """The options by the names above, whatever the case they were written in."""
    given: dict[str, str] = {}
    for word, value in options.items():
        if word.lower() in _FROM_SPARK:
            continue
        known = _BY_LOWER.get(word.lower())
        if known is None:
            near = did_you_mean(word, KNOWN)
            raise ConfigError(f"the redis-streams sink has no option {shown(word)}: {near}")
        given[known] = value
    return given


def _choice(word: str, value: str | None) -> str:
    if value is None:
        return _CHOICES[word][0]
    if value.lower() not in _CHOICES[word]:
        raise ConfigError(f"{word} is {shown(value)}: give one of {', '.join(_CHOICES[word])}")
    return value.lower()


def _url(given: str | None, env: Mapping[str, str]) -> str:
    url = given or env.get(VARIABLE, "")
    if not url:
        raise ConfigError('no server is known: give option("url", "redis://host:6379") or set HEADRACE_URL')
    parse_url(url)
    return url


def _transaction(given: Mapping[str, str]) -> tuple[str, int]:
    app, version = given.get("txnAppId", ""), given.get("txnVersion")
    if version is None:
        return app, -1
    if not app:
        raise ConfigError("txnVersion needs txnAppId: give both")
    if not re.fullmatch(r"[0-9]{1,16}", version, re.ASCII) or int(version) > VERSION_LIMIT:
        raise ConfigError(f"txnVersion is {shown(version)}: give a whole number from 0 to 2^53 - 1")
    return app, int(version)


def _trim(given: Mapping[str, str], about: str) -> tuple[str, str, str]:
    maxlen, minid = given.get("maxlen"), given.get("minid")
    if maxlen is not None and minid is not None:
        raise ConfigError("maxlen and minid exclude each other: give one")
    if maxlen is not None:
        if not re.fullmatch(r"[1-9][0-9]{0,17}", maxlen, re.ASCII):
            raise ConfigError(f"maxlen is {shown(maxlen)}: give a whole number of entries, at least 1")
        return "MAXLEN", about, maxlen
    if minid is not None:
        if not re.fullmatch(r"[0-9]{1,19}(-[0-9]{1,19})?", minid, re.ASCII):
            raise ConfigError(f"minid is {shown(minid)}: give an id such as 1718000000000 or 1718000000000-0")
        return "MINID", about, minid
    return "", "", ""


def _dead_letters(given: str | None, stream: str, fail: bool) -> str:
    if fail:
        if given:
            raise ConfigError("badRows = fail sends nothing to dead letters: remove the option deadLetters")
        return ""
    if given:
        return check_stream(given)
    return keys_of(stream).dead_letters if stream else ""
