"""effects: with the ack or not at all (SPEC 33)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from headrace.errors import EffectRefused, MissingRight
from headrace.redis import scripts
from headrace.redis.calls import OK, Wire, Word
from tests.support.lab import Lab, Pair


class Effect(NamedTuple):
    """An effect as nobody's constructor checked it."""

    command: str
    key: str
    args: tuple[Wire, ...]


def key(lab: Lab, name: str) -> str:
    return f"{lab.keys.prefix}:{name}"


def send(lab: Lab, pair: Pair, *effects: tuple[Any, ...], **options: Any) -> Word | EffectRefused:
    """Like link.call, with the refusal as a value."""
    wanted = [Effect(command, key(lab, name), tuple(args)) for command, name, *args in effects]
    (answer,) = lab.link.pipe([scripts.effects(lab.keys, lab.group, "me", *pair, wanted, **options)])
    assert isinstance(answer, (Word, EffectRefused)), answer
    return answer


def test_every_kind_of_effect_is_written_with_the_ack(lab: Lab) -> None:
    (pair,) = lab.held()
    answer = send(
        lab,
        pair,
        ("SET", "s", b"\0\xff"),
        ("HSET", "h", "a", "1", "b", "x"),
        ("HINCRBY", "h", "a", "41"),
        ("HINCRBY", "h", "new", -5),
        ("ZADD", "z", "1.5", "m", "-inf", "low", "inf", "high", "1e3", "e"),
        ("XADD", "x", "f", "1", "f", "2"),
        ("XADD", "x", "g", "3"),
        ("SET", "s", "last"),
    )
    assert answer == OK
    assert lab.pending() == {}
    assert lab.raw("GET", key(lab, "s")) == b"last"
    assert lab.raw("HMGET", key(lab, "h"), "a", "b", "new") == [b"42", b"x", b"-5"]
    assert lab.raw("ZRANGE", key(lab, "z"), 0, -1) == [b"low", b"m", b"e", b"high"]
    assert [fields for _, fields in lab.raw("XRANGE", key(lab, "x"), "-", "+")] == [
        [b"f", b"1", b"f", b"2"],
        [b"g", b"3"],
    ]


def test_effects_on_keys_that_exist_and_on_the_stream_itself(lab: Lab) -> None:
    (pair,) = lab.held()
    lab.raw("HSET", key(lab, "h"), "n", "9200000000000000000")
    lab.raw("ZADD", key(lab, "z"), 1, "m")
    assert send(lab, pair, ("HINCRBY", "h", "n", "-9200000000000000000"), ("ZADD", "z", 2, "m")) == OK
    assert lab.raw("HGET", key(lab, "h"), "n") == b"0"
    (pair,) = lab.held()
    again = Effect("XADD", lab.keys.stream, ("payload", "follow-up"))
    assert lab.call(scripts.effects(lab.keys, lab.group, "me", *pair, [again])) == OK
    assert lab.read()[0][1] == [b"payload", b"follow-up"]


BAD: dict[str, list[tuple[Any, ...]]] = {
    "unknown command": [("DEL", "k")],
    "lower case": [("set", "k", "v")],
    "wrong type for SET": [("SET", "zset", "v")],
    "wrong type for HSET": [("HSET", "string", "f", "v")],
    "wrong type for HINCRBY": [("HINCRBY", "string", "f", "1")],
    "wrong type for ZADD": [("ZADD", "hash", "1", "m")],
    "wrong type for XADD": [("XADD", "string", "f", "v")],
    "type made by an effect before": [("SET", "new", "v"), ("HSET", "new", "f", "v")],
    "no value": [("SET", "k")],
    "option": [("SET", "k", "v", "NX")],
    "no fields": [("HSET", "k")],
    "odd fields": [("HSET", "k", "f")],
    "odd fields of an entry": [("XADD", "k", "f", "v", "g")],
    "an entry without fields": [("XADD", "k")],
    "HINCRBY without a number": [("HINCRBY", "k", "f")],
    "increment is no integer": [("HINCRBY", "k", "f", "1.5")],
    "increment with a blank": [("HINCRBY", "k", "f", " 1")],
    "increment with a zero in front": [("HINCRBY", "k", "f", "01")],
    "increment with a plus": [("HINCRBY", "k", "f", "+1")],
    "increment is minus zero": [("HINCRBY", "k", "f", "-0")],
    "increment is empty": [("HINCRBY", "k", "f", "")],
    "increment beyond 64 bits": [("HINCRBY", "k", "f", "9223372036854775808")],
    "increment of a thousand digits": [("HINCRBY", "k", "f", "9" * 1_000)],
    "field holds text": [("HINCRBY", "hash", "text", "1")],
    "field holds a number with a zero in front": [("HINCRBY", "hash", "padded", "1")],
    "field holds a float": [("HINCRBY", "hash", "float", "1")],
    "sum overflows": [("HINCRBY", "hash", "big", "9223372036854775807")],
    "sum overflows downwards": [("HINCRBY", "hash", "small", "-9223372036854775807")],
    "sum of two effects overflows": [("HINCRBY", "k", "f", "9000000000000000000")] * 2,
    "text set by an effect before": [("HSET", "k", "f", "text"), ("HINCRBY", "k", "f", "1")],
    "score is text": [("ZADD", "k", "high", "m")],
    "score is not a number": [("ZADD", "k", "nan", "m")],
    "score is empty": [("ZADD", "k", "", "m")],
    "score with a blank": [("ZADD", "k", " 1", "m")],
    "score in hex": [("ZADD", "k", "0x10", "m")],
    "score too large": [("ZADD", "k", "1e999", "m")],
    "score too small": [("ZADD", "k", "1e-999", "m")],
    "second score is bad": [("ZADD", "k", "1", "m", "x", "n")],
    "odd pairs": [("ZADD", "k", "1", "m", "2")],
    "ZADD option": [("ZADD", "k", "NX", "1")],
    "too many arguments": [("HSET", "k", *["f"] * 7_002)],
    "a stream without ids left": [("XADD", "full", "f", "v")],
}


@pytest.mark.parametrize("name", BAD)
def test_one_bad_effect_and_nothing_is_written(lab: Lab, name: str) -> None:
    (pair,) = lab.held()
    lab.raw("SET", key(lab, "string"), "old")
    lab.raw("ZADD", key(lab, "zset"), 1, "old")
    numbers = ("big", "1", "small", "-9223372036854775807", "text", "x", "padded", "007", "float", "1.0")
    lab.raw("HSET", key(lab, "hash"), *numbers)
    lab.raw("XADD", key(lab, "full"), "18446744073709551615-18446744073709551615", "f", "v")
    ours = f"*{lab.keys.stream}*"  # a cluster is shared: what others left there may run out meanwhile
    keys = sorted(lab.raw("KEYS", ours))

    good = [("SET", "first", "v"), ("XADD", "entry", "f", "v"), ("HINCRBY", "hash", "big", "1")]
    answer = send(lab, pair, *good, *BAD[name])
    assert isinstance(answer, EffectRefused)
    assert str(answer).startswith(f"effect {3 + len(BAD[name])}: "), answer
    assert sorted(lab.raw("KEYS", ours)) == keys
    assert lab.raw("HGET", key(lab, "hash"), "big") == b"1"
    assert lab.pending() == {pair[0]: ("me", 1)}

    assert send(lab, pair, *good) == OK, "the handler may choose again"


def test_what_the_script_lets_through_the_server_takes(lab: Lab) -> None:
    """The other direction: whatever passes the checks must not fail when it is written."""
    scores = ["0", "-0", "1", "-1", "0.1", "1e300", "1E-300", "1e+5", "123456789012345678901234567890", "0e999", "0.0"]
    integers = ["0", "1", "-1", "9200000000000000000", "-9200000000000000000"]
    for at, score in enumerate(scores):
        (pair,) = lab.held()
        assert send(lab, pair, ("ZADD", f"z{at}", score, "m")) == OK, score
    for at, integer in enumerate(integers):
        (pair,) = lab.held()
        assert send(lab, pair, ("HINCRBY", f"h{at}", "f", integer)) == OK, integer


def test_a_wide_effect_passes(lab: Lab) -> None:
    (pair,) = lab.held()
    assert send(lab, pair, ("XADD", "x", *["f", "v"] * 3_500), ("HSET", "h", *map(str, range(7_000)))) == OK
    assert lab.raw("HLEN", key(lab, "h")) == 3_500


def test_a_key_in_another_slot_is_refused_and_the_delivery_stays(lab: Lab) -> None:
    (pair,) = lab.held()
    call = scripts.effects(lab.keys, lab.group, "me", *pair, [Effect("SET", "elsewhere", ("v",))])
    with pytest.raises(EffectRefused, match=r"elsewhere.*another slot"):
        lab.call(call)
    assert lab.raw("EXISTS", "elsewhere") == 0
    assert lab.pending() == {pair[0]: ("me", 1)}
    lab.steal(pair[0])
    assert lab.call(call) == Word("taken", "thief", 2)


def test_effects_with_a_completion_marker_happen_once_per_key(lab: Lab) -> None:
    """SPEC 34: of two messages with the same key the first one's effects count."""
    one, two = lab.held(2)
    once = ("order-1", b"first", 60_000)
    assert send(lab, one, ("HINCRBY", "h", "n", "1"), once=once) == OK
    assert send(lab, two, ("HINCRBY", "h", "n", "1"), once=("order-1", b"second", 60_000)) == Word("duplicate")
    assert lab.raw("HGET", key(lab, "h"), "n") == b"1"
    assert lab.raw("GET", lab.keys.once(lab.group, "order-1")) == b"first"
    assert lab.pending() == {}


def test_a_refused_effect_leaves_no_completion_marker(lab: Lab) -> None:
    (pair,) = lab.held()
    assert isinstance(send(lab, pair, ("ZADD", "z", "x", "m"), once=("k", b"", 60_000)), EffectRefused)
    assert lab.raw("EXISTS", lab.keys.once(lab.group, "k")) == 0


def test_effects_of_a_trimmed_entry_are_written_because_its_work_is_done(lab: Lab) -> None:
    (pair,) = lab.held()
    lab.trim(pair[0])
    assert send(lab, pair, ("SET", "s", "v")) == OK
    assert lab.raw("GET", key(lab, "s")) == b"v"
    assert lab.pending() == {}


@pytest.mark.servers("redis8", "valkey9", "redis6")
def test_without_the_right_to_ack_no_effect_is_written(lab: Lab) -> None:
    """SPEC 33, FAULTS 18: a right that was taken away stops the script before its first write, not in the middle."""
    (pair,) = lab.held()
    with lab.without("xack") as link:
        effect = Effect("SET", key(lab, "s"), ("x",))
        (answer,) = link.pipe([scripts.effects(lab.keys, lab.group, "me", *pair, [effect])])
    assert isinstance(answer, MissingRight)
    assert lab.raw("EXISTS", key(lab, "s")) == 0
    assert lab.pending() == {pair[0]: ("me", 1)}


@pytest.mark.servers("redis8", "valkey9")
def test_without_the_right_for_one_effect_none_is_written(lab: Lab) -> None:
    """SPEC 33, FAULTS 18: from Redis 7.0 on a script can ask for its rights beforehand."""
    (pair,) = lab.held()
    with lab.without("hset") as link:
        wanted = [Effect("SET", key(lab, "s"), ("x",)), Effect("HSET", key(lab, "h"), ("a", "1"))]
        (answer,) = link.pipe([scripts.effects(lab.keys, lab.group, "me", *pair, wanted)])
    assert isinstance(answer, MissingRight)
    assert lab.raw("EXISTS", key(lab, "s")) == 0
    assert lab.pending() == {pair[0]: ("me", 1)}
