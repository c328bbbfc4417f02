"""The only place where a key or an owner name is made or checked (SPEC 1, 52b).

A stream name has no brace at all, or one non-empty {tag} with something outside it. Then every name Headrace
derives from it lives in the stream's slot, and no two streams, kinds, groups or keys derive the same one:

    stream            own keys                         dead letters
    orders            {orders}:hr:<kind>:<rest>        {orders}:dlq
    shop:{eu}:orders  shop:{eu}:orders:hr:<kind>:...   shop:{eu}:orders:dlq

The requeue strategy's locks are named as the founding RFC has them, because other clients look for them there:
lock:{orders}:<id>, and lock:shop:{eu}:orders:<id>. An id holds no colon, so cutting at the last one gives it back.

A stream name never holds ":hr:", so cutting an own key there gives the stream back. The kind is one of a few
words without a colon. Where a group and a key follow, the group's length in bytes comes first, because both
may hold colons. A dead-letter stream is a stream like any other: a handler may read `{orders}:dlq`, and
what that handler buries goes to `{orders}:dlq:dlq`.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import NameRefused
from headrace.options import shown

WAITING_SUFFIX = "~wait"  # the group in whose pending list a group's retries wait
OWN_MARK = ":hr:"  # in every key of ours
DEAD_LETTERS_SUFFIX = ":dlq"
NAME_LIMIT_BYTES = 512  # stream and group names and idempotency keys, in UTF-8
LOCK_MARK = "lock:"  # the requeue strategy's locks begin with it
RETRY_OWNER = "~retry"  # holds what a handler failed with until it is requeued (leave.lua)
RELEASE_OWNER = "~release"  # the same for what was handed back: the attempt does not count
OWNER_LIMIT_BYTES = 256
OWNER_PREFIX_LIMIT = 100  # characters kept of a pod or host name
_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}", re.ASCII)
OWNER_VARIABLES = ("HEADRACE_OWNER", "POD_NAME", "HOSTNAME")


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────


def check_stream(name: str) -> str:
    """Return the name if it can be a stream of ours, else raise NameRefused.

    >>> check_stream("orders"), check_stream("shop:{eu}:orders")
    ('orders', 'shop:{eu}:orders')
    """
    _check_text(name, "stream name", NAME_LIMIT_BYTES)
    if OWN_MARK in name:
        raise NameRefused(f"stream name {shown(name)} holds {OWN_MARK!r}, which marks Headrace's own keys: rename it")
    if "{" in name or "}" in name:
        _check_tag(name)
    return name


def check_group(name: str) -> str:
    """Return the name if it can be a consumer group of ours, else raise NameRefused."""
    _check_text(name, "group name", NAME_LIMIT_BYTES)
    if name.endswith(WAITING_SUFFIX):
        raise NameRefused(f"group name {shown(name)} ends in {WAITING_SUFFIX!r}, which marks waiting groups: rename it")
    return name


def is_group(name: str) -> bool:
    """Whether a group that somebody else made could be one of ours."""
    try:
        check_group(name)
    except NameRefused:
        return False
    return True


def check_owner(name: str) -> str:
    """Return the name if it can be an owner, else raise NameRefused.

    Scripts answer "taken <owner> <count>", so an owner holds no white space, nor anything a terminal obeys.
    """
    _check_text(name, "owner name", OWNER_LIMIT_BYTES)
    if any(char.isspace() or not char.isprintable() for char in name):
        raise NameRefused(
            f"owner name {shown(name)} holds white space or control characters: use letters, digits, - _ ."
        )
    if name in (RETRY_OWNER, RELEASE_OWNER):
        raise NameRefused(f"owner name {shown(name)} marks what waits to be requeued: choose another")
    return name


def check_key(key: str) -> str:
    """Return the idempotency key if it can be one, else raise NameRefused. NUL is fine here."""
    return _check_text(key, "key", NAME_LIMIT_BYTES, nul=True)


def _check_text(value: str, what: str, limit_bytes: int, *, nul: bool = False) -> str:
    if not isinstance(value, str):
        raise NameRefused(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise NameRefused(f"{what} is empty: give at least one character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise NameRefused(f"{what} {shown(value)} holds a lone surrogate, which UTF-8 cannot write") from None
    if size > limit_bytes:
        raise NameRefused(f"{what} {shown(value)} has {size} bytes: at most {limit_bytes} are allowed")
    if not nul and not value.isprintable():
        # logs, terminals and pages show names: a line end, an escape or a character nobody sees would forge them
        raise NameRefused(f"{what} {shown(value)} holds a NUL byte, a control or an invisible character: remove it")
    return value


def _check_tag(name: str) -> None:
    opening, closing = name.find("{"), name.find("}")
    if name.count("{") != 1 or name.count("}") != 1 or closing < opening:
        raise NameRefused(f"stream name {shown(name)}: braces must form one {{tag}}, as in 'shop:{{eu}}:orders'")
    if closing == opening + 1:
        raise NameRefused(f"stream name {shown(name)} has an empty {{tag}}: put something between the braces")
    if opening == 0 and closing == len(name) - 1:
        raise NameRefused(
            f"stream name {shown(name)} is nothing but its {{tag}}: "
            f"its keys would be those of {name[1:-1][:60]!r}; add something outside the braces"
        )


# ── owners ───────────────────────────────────────────────────────────────────────────────────────────


def owner_name(prefix: str | None = None, *, env: Mapping[str, str] = os.environ) -> str:
    """Make an owner name no other process start has: `<pod or host>-<pid>-<random>`.

    The prefix is the first that is set of: the argument, HEADRACE_OWNER, POD_NAME, HOSTNAME, the host name.
    Characters an owner name cannot hold become "_", because a host's name is nobody's mistake here.
    """
    chosen = prefix or next((env[name] for name in OWNER_VARIABLES if env.get(name)), "") or socket.gethostname()
    clean = "".join(char if (char.isalnum() and char.isascii()) or char in "-_." else "_" for char in chosen)
    return check_owner(f"{clean[:OWNER_PREFIX_LIMIT] or 'host'}-{os.getpid()}-{secrets.token_hex(4)}")


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────


def waiting_group(group: str) -> str:
    """Name the group in whose pending list the deliveries of `group` wait."""
    return group + WAITING_SUFFIX


def mirror_group(announcements: str, group: str) -> str:
    """Name the group of a data stream that shows how far its owner is: for lag and retention (SPEC 43b)."""
    return f"{announcements}:{group}"


@dataclass(frozen=True, slots=True)
class Keys:
    """All names derived from one stream, all in its slot. Built by keys_of(), which checks the stream.

    >>> keys = keys_of("orders")
    >>> keys.due("billing"), keys.dead_letters
    ('{orders}:hr:due:billing', '{orders}:dlq')
    """

    stream: str
    prefix: str  # what every derived name starts with: `{orders}` or `shop:{eu}:orders`

    @property
    def dead_letters(self) -> str:
        """The stream that takes the buried messages of every group."""
        return self.prefix + DEAD_LETTERS_SUFFIX

    def due(self, group: str) -> str:
        """Sorted set: id -> when it is due, in server milliseconds."""
        return f"{self.prefix}{OWN_MARK}due:{group}"

    def owners(self, group: str) -> str:
        """Hash: owner -> who holds that name, with which lease, seen when."""
        return f"{self.prefix}{OWN_MARK}owners:{group}"

    def floor(self, group: str) -> str:
        """String: the smallest id not finished, from which a vanished group resumes (SPEC 3)."""
        return f"{self.prefix}{OWN_MARK}floor:{group}"

    def looked(self, group: str) -> str:
        """String: when the group was last seen not to be ahead of its stream, and where both were (ADR 14)."""
        return f"{self.prefix}{OWN_MARK}looked:{group}"

    def lock(self, id_: str) -> str:
        """String: who works on a message of a handler that recovers by requeue (SPEC 46)."""
        return f"{LOCK_MARK}{self.prefix}:{id_}"

    def locked_id(self, key: str) -> str | None:
        """The id a lock of this stream is for; None if the key is something else."""
        head, _, id_ = key.rpartition(":")
        return id_ if head == LOCK_MARK + self.prefix and _ID.fullmatch(id_) else None

    def once(self, group: str, key: str) -> str:
        """String: completion marker of one key in one group (SPEC 34)."""
        return f"{self.prefix}{OWN_MARK}once:{len(group.encode())}:{group}:{key}"

    def batch_mark(self, group: str, token: str) -> str:
        """String: the last batch that a Spark query has claimed in one group, and its last page."""
        return f"{self.prefix}{OWN_MARK}batch:{len(group.encode())}:{group}:{token}"

    def lost(self, batch: str) -> str:
        """Hash: range -> rows that Spark's tasks lost in it, of one batch."""
        return f"{self.prefix}{OWN_MARK}lost:{batch}"

    def stage(self, query: str, batch: int, token: str) -> str:
        """List: the rows that one task of a Spark query has written for this stream, until their batch is decided."""
        return f"{self.prefix}{OWN_MARK}stage:{len(query.encode())}:{query}:{batch}:{token}"

    def sink(self, query: str) -> str:
        """Hash: what a Spark query has written to this stream, and what it is about to write."""
        return f"{self.prefix}{OWN_MARK}sink:{query}"

    def added(self, key: str) -> str:
        """String: id under which one idempotency key was added (SPEC 35)."""
        return f"{self.prefix}{OWN_MARK}added:{key}"

    @property
    def partitions(self) -> str:
        """String: into how many partitions the stream is cut (SPEC 51)."""
        return f"{self.prefix}{OWN_MARK}partitions"

    @property
    def names(self) -> str:
        """Hash of an announcement stream: data stream -> id of the announcement that is not finished (SPEC 42)."""
        return f"{self.prefix}{OWN_MARK}names"

    def beats(self, group: str) -> str:
        """Sorted set of an announcement stream: owner -> when its lease ends, in server milliseconds (SPEC 45)."""
        return f"{self.prefix}{OWN_MARK}beats:{group}"

    def ownership(self, announcements: str, group: str) -> str:
        """Hash of a data stream: who owns it for one group of an announcement stream, and up to where (SPEC 43b)."""
        return f"{self.prefix}{OWN_MARK}own:{len(announcements.encode())}:{announcements}:{group}"


def keys_of(stream: str) -> Keys:
    """Check a stream name and give the names derived from it."""
    check_stream(stream)
    return Keys(stream, stream if "{" in stream else "{" + stream + "}")


def partition_name(stream: str, number: int) -> str:
    """The stream that is one partition of another. Without a tag, so that each has a slot of its own."""
    return f"{stream}:part:{number}"


def stream_of_partition(name: str) -> str | None:
    """The stream whose partition bears this name; None if it is not the name of one."""
    stream, _, number = name.rpartition(":part:")
    return stream if stream and number.isascii() and number.isdigit() else None


def partition_assignments(stream: str) -> str:
    """The announcement stream through which the partitions of a stream are owned."""
    return f"{stream}:parts"


def claim_key(space: str, key: str) -> str:
    """String: who holds one key of a deduplicating pipeline. In no stream's slot: a claim stands for itself."""
    return f"{space}{OWN_MARK}claim:{key}"


def sink_key(query: str) -> str:
    """Hash: the same as Keys.sink() for a query whose rows choose their streams. In no stream's slot."""
    return f"{query}{OWN_MARK}sink"


def published_key(stage: str) -> str:
    """String: how many blobs of a task's list were published. In the list's slot, because it begins like it."""
    return f"{stage}:n"


# ── slots ────────────────────────────────────────────────────────────────────────────────────────────


def tag_of(key: str) -> str:
    """Return the part of a key that decides its cluster slot.

    Redis' rule: what stands between the first "{" and the first "}" after it, if that is not empty; else all.

    >>> tag_of("shop:{eu}:orders"), tag_of("orders"), tag_of("{}x")
    ('eu', 'orders', '{}x')
    """
    opening = key.find("{")
    if opening < 0:
        return key
    closing = key.find("}", opening + 1)
    return key[opening + 1 : closing] if closing > opening + 1 else key


def same_slot(key: str, stream: str) -> bool:
    """Whether a key is in the slot of a stream by its tag, whatever the cluster's map says.

    Two tags can hash to one slot by chance; that is not counted, because renaming either would break it.
    """
    return tag_of(key) == tag_of(stream)
