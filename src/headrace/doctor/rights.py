"""Which commands a role needs, and a harmless way to try each of them.

ACL DRYRUN would need a right that workers rarely have, and 6.2 does not know it. So every command is tried in a form
that the server refuses after it looked at the rights: an id that is none, a group that does not exist. Nothing is
written, whatever the answer.
"""

from __future__ import annotations

from typing import Any

from headrace.doctor.facts import Missing
from headrace.errors import MissingRight
from headrace.names import Keys
from headrace.redis.calls import Call, Wire, as_is
from headrace.redis.capabilities import NOBODY

NO_ID = "no-id"
NO_NUMBER = "no-number"

_SCRIPTS = ("EVALSHA", "SCRIPT|LOAD")
_GROUPS = ("XPENDING", "XINFO|GROUPS", "XRANGE", "XLEN", "ZCARD")

_WORKER = (
    *("XADD", "XREADGROUP", "XACK", "XCLAIM", "XAUTOCLAIM", "XDEL", "XGROUP|CREATE", "XGROUP|DELCONSUMER"),
    *("XINFO|CONSUMERS", "XINFO|STREAM", "ZADD", "ZRANGE", "ZRANGEBYSCORE", "ZREM", "HGET", "HSET", "HDEL", "HVALS"),
    *("HINCRBY", "GET", "SET", "DEL", "EXISTS", "MGET", "TYPE", "TIME", *_GROUPS, *_SCRIPTS),
)

ROLES: dict[str, tuple[str, ...]] = {
    "producer": ("XADD", "GET", "SET", *_SCRIPTS),
    "worker": _WORKER,
    "owner": (*_WORKER, "XREAD", "XGROUP|SETID", "ZCOUNT", "ZSCORE", "HMGET", "HLEN", "EXPIRE", "PERSIST"),
    "operator": (
        *(
            "XADD",
            "XACK",
            "XCLAIM",
            "XDEL",
            "XREVRANGE",
            "XGROUP|CREATE",
            "XINFO|CONSUMERS",
            "ZADD",
            "ZMSCORE",
            "HGETALL",
            "TIME",
        ),
        *(*_GROUPS, *_SCRIPTS),
    ),
}


def trials(keys: Keys) -> dict[str, Call[Any]]:
    """One harmless call for each command of any role."""
    stream, due, owners, floor = keys.stream, keys.due(NOBODY), keys.owners(NOBODY), keys.floor(NOBODY)
    nothing = keys.added(NOBODY)  # no such key: deleting it changes nothing
    words: dict[str, tuple[Wire, ...]] = {
        "XADD": (stream, NO_ID, "field", "value"),
        "XREADGROUP": ("GROUP", NOBODY, NOBODY, "COUNT", 1, "STREAMS", stream, ">"),
        "XACK": (stream, NOBODY, NO_ID),
        "XCLAIM": (stream, NOBODY, NOBODY, 0, NO_ID),
        "XAUTOCLAIM": (stream, NOBODY, NOBODY, 1, NO_ID),
        "XREAD": ("COUNT", 1, "STREAMS", stream, NO_ID),
        "XPENDING": (stream, NOBODY),
        "XRANGE": (keys.dead_letters, NO_ID, NO_ID),
        "XREVRANGE": (keys.dead_letters, NO_ID, NO_ID),
        "XDEL": (keys.dead_letters, NO_ID),
        "XLEN": (stream,),
        "XGROUP|CREATE": (stream, NOBODY, NO_ID),
        "XGROUP|DELCONSUMER": (stream, NOBODY, NOBODY),
        "XGROUP|SETID": (stream, NOBODY, NO_ID),
        "XINFO|GROUPS": (stream,),
        "XINFO|CONSUMERS": (stream, NOBODY),
        "XINFO|STREAM": (stream,),
        "ZADD": (due, NO_NUMBER, "member"),
        "ZCARD": (due,),
        "ZCOUNT": (due, NO_NUMBER, NO_NUMBER),
        "ZSCORE": (due, "member"),
        "ZMSCORE": (due, "member"),
        "ZRANGE": (due, NO_NUMBER, NO_NUMBER),
        "ZRANGEBYSCORE": (due, NO_NUMBER, NO_NUMBER),
        "ZREM": (due, "member"),
        "HGET": (owners, "field"),
        "HGETALL": (owners,),
        "HMGET": (owners, "field"),
        "HLEN": (owners,),
        "HSET": (owners, "field", "value", "field"),
        "HDEL": (owners, "field"),
        "HVALS": (owners,),
        "HINCRBY": (owners, "field", NO_NUMBER),
        "GET": (floor,),
        "SET": (floor, "value", "no-option"),
        "EXISTS": (floor,),
        "DEL": (nothing,),
        "EXPIRE": (nothing, NO_NUMBER),
        "PERSIST": (nothing,),
        "MGET": (floor,),
        "TYPE": (stream,),
        "TIME": (),
        "EVALSHA": ("0" * 40, NO_NUMBER),
        "SCRIPT|LOAD": ("no script(",),
    }
    return {name: Call((*name.split("|"), *rest), as_is) for name, rest in words.items()}


def lacking(keys: Keys, answers: dict[str, Any], *, judge_keys: bool) -> tuple[Missing, ...]:
    """What each role lacks, from the answers to the trials. Keys count only if the stream was named by somebody."""
    found = []
    for role, names in ROLES.items():
        refused = {name: answers[name] for name in names if isinstance(answers[name], MissingRight)}
        commands = tuple(name for name, error in refused.items() if not about_keys(error))
        patterns = _patterns(keys, refused) if judge_keys and len(commands) < len(refused) else ()
        if commands or patterns:
            found.append(Missing(role, commands, patterns))
    return tuple(found)


def about_keys(error: MissingRight) -> bool:
    """Whether the key was refused, not the command: new servers name neither in the same words."""
    return not error.command and "command" not in str(error).partition(": grant")[0]


def _patterns(keys: Keys, refused: dict[str, MissingRight]) -> tuple[str, ...]:
    """The patterns to grant: the stream itself, and what stands beside it."""
    on_stream = {"XADD", "XREADGROUP", "XPENDING", "XLEN", "TYPE"} & {
        name for name, error in refused.items() if about_keys(error)
    }
    beside = f"{keys.prefix}:*"
    return tuple(([keys.stream] if on_stream else []) + [beside])
