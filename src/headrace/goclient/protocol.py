"""The names and the payload of redis-stream-client-go, as its sources have them.

    <service>-input                              the load balancer stream
    <service>-group                              its consumer group
    <service>-input-dlq                          dead letters: all fields, _retry_count, _dlq_reason
    redis-consumer-<POD_NAME or POD_IP>          a consumer
    <data stream><MUTEX_KEY_SEP><id>             a lock; the middle is these fifteen characters, as they stand here

    lbs-input    {"DataStreamName": "room:42", "Info": {"tenant": "a"}}
    _retry_count 1                               on copies alone

Go reads JSON names in any case and ignores what it does not know; so does this. Go puts U+FFFD for every byte that is
no UTF-8 and for half a surrogate pair; so does this, because a Go pod's lock has that name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import DecodeError, EncodeError
from headrace.fields import find_field
from headrace.goclient.errors import PodNameMissing
from headrace.names import check_group, check_owner, check_stream
from headrace.options import shown
from headrace.redis.letters import retry_count

FIELD = "lbs-input"
RETRY_COUNT = "_retry_count"
LOCK_SEPARATOR = "<MUTEX_KEY_SEP>"
CONSUMER_PREFIX = "redis-consumer-"
LOCK_MS = 2_000  # the Go client's heartbeat interval: how long a lock lives
INTERVAL_MS = 60_000
MIN_IDLE_MS = 30_000
BATCH = 50
MAX_RETRIES = 3
DEAD_LETTERS_MAXLEN = 10_000
_NAME = FIELD.encode()
_COUNT = RETRY_COUNT.encode()
_NO_TEXT = re.compile("[\ud800-\udfff]")  # half a surrogate pair, or a byte that is no UTF-8 (surrogateescape)


@dataclass(frozen=True, slots=True)
class GoNames:
    """Every key of one service.

    >>> GoNames("rooms").stream, GoNames("rooms").lock("room:42", "5-0")
    ('rooms-input', 'room:42<MUTEX_KEY_SEP>5-0')
    """

    service: str

    def __post_init__(self) -> None:
        check_stream(self.stream)
        check_group(self.group)

    @property
    def stream(self) -> str:
        return f"{self.service}-input"

    @property
    def group(self) -> str:
        return f"{self.service}-group"

    @property
    def dead_letters(self) -> str:
        return f"{self.stream}-dlq"

    def lock(self, data_stream: str, id_: str) -> str:
        return f"{data_stream}{LOCK_SEPARATOR}{id_}"


def read_lock(key: str) -> tuple[str, str] | None:
    """(data stream, id) of a lock; None if the key is something else."""
    stream, found, id_ = key.rpartition(LOCK_SEPARATOR)
    return (stream, id_) if found and stream and id_ else None


def consumer_name(env: Mapping[str, str] = os.environ) -> str:
    """The Go client's rule: POD_NAME, else POD_IP. Raises PodNameMissing."""
    pod = env.get("POD_NAME") or env.get("POD_IP")
    if not pod:
        raise PodNameMissing("neither POD_NAME nor POD_IP is set: set one, or give GoClient(consumer='...')")
    return check_owner(CONSUMER_PREFIX + pod)


@dataclass(frozen=True, slots=True)
class Announcement:
    """What an entry of the load balancer stream says."""

    stream: str  # the data stream
    info: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0

    def json(self) -> str:
        """As Go's json.Marshal writes it, which also sorts Info and escapes <, > and &. Raises EncodeError."""
        try:
            told = json.dumps(
                {"DataStreamName": self.stream, "Info": dict(self.info) or None},
                separators=(",", ":"),
                ensure_ascii=False,
                allow_nan=False,
            )
            told.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(f"name or info of {shown(self.stream)} is no JSON: {error}") from error
        return told

    @classmethod
    def read(cls, fields: list[bytes]) -> Announcement:
        """Raises DecodeError: no lbs-input, no JSON, no data stream. The Go client ends its reading on these."""
        raw = find_field(fields, _NAME)
        if raw is None:
            raise DecodeError(f"an entry without the field {FIELD!r}")
        try:
            told = json.loads(_as_go_reads(raw.decode("utf-8", "surrogateescape")))
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"{FIELD} is no JSON: {error}") from error
        words = {name.lower(): value for name, value in told.items()} if isinstance(told, dict) else {}
        stream, info = words.get("datastreamname"), words.get("info") or {}
        if not isinstance(stream, str) or not stream or not isinstance(info, dict):
            raise DecodeError(f"{FIELD} names no data stream, or its Info is no object")
        return cls(_as_go_reads(stream), info, retry_count(find_field(fields, _COUNT) or b""))


def _as_go_reads(text: str) -> str:
    return _NO_TEXT.sub("\ufffd", text)
