"""Whatever a producer writes, it is handled or buried, and the worker goes on to the next message (SPEC 17, 27, 53)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace import App, Delivery
from headrace.codec import codec_for
from headrace.errors import CodecError, DecodeError, EncodeError, NameRefused
from headrace.fields import FieldsCodec, pack_fields
from tests.support.servers import Server
from tests.support.wait import wait_until
from tests.support.workshop import GROUP, counted

MakeApp = Callable[..., App]
Fields = list[bytes]


class Order(msgspec.Struct):
    n: int
    name: str = ""


# What no codec of the stream can read: each of these is buried, with its bytes as they came.
UNREADABLE: dict[str, Fields] = {
    "not UTF-8": [b"payload", b"\xff\xfe\x00\x80"],
    "NUL": [b"payload", b"\x00"],
    "nothing": [b"payload", b""],
    "no payload field": [b"\x00\xff", b"\x1b[2J"],
    "RESP": [b"payload", b"*1\r\n$7\r\nFLUSHDB\r\n"],
    "RESP names": [b"*2\r\n$3\r\nDEL\r\n", b"$6\r\norders\r\n"],
    "nested lists": [b"payload", b"[" * 200_000 + b"]" * 200_000],
    "nested objects": [b"payload", b'{"a":' * 100_000 + b"1" + b"}" * 100_000],
    "a huge number": [b"payload", b'{"n": ' + b"9" * 10_000 + b"}"],
    "an infinite number": [b"payload", b'{"n": 1e999}'],
    "not a number": [b"payload", b'{"n": NaN}'],
    "a lone surrogate": [b"payload", rb'{"n": "\ud800"}'],
    "a text that never ends": [b"payload", b'{"n": "' + b"x" * 100_000],
    "markup": [b"payload", b"<script>alert(1)</script>"],
    "escape sequences": [b"payload", b"\x1b]0;owned\x07\x1b[31m"],
    "pickle": [b"payload", b"cos\nsystem\n(S'touch /tmp/owned'\ntR."],
    "ten thousand fields": [word for n in range(10_000) for word in (b"f%d" % n, b"\xff")],
    "a copy of nobody": [b"_original_id", b"\xff\xfe", b"_only", b"billing"],
    "a copy with a bad pack": [b"_original_id", b"1-1", b"_only", b"billing", b"_packed", b"no length"],
    "a copy whose pack goes back": [b"_original_id", b"1-1", b"_only", b"billing", b"_packed", b"-3:xx"],
    "a copy whose pack is short": [b"_original_id", b"1-1", b"_only", b"billing", b"_packed", b"99:x"],
    "a copy whose pack is odd": [b"_original_id", b"1-1", b"_only", b"billing", b"_packed", b"1:x"],
    "a copy with a long length": [b"_original_id", b"1-1", b"_only", b"billing", b"_packed", b"9" * 5_000 + b":"],
}

# What looks dangerous and is only data: handled like any other.
READABLE: dict[str, Fields] = {
    "repeated fields": [b"payload", b'{"n": 1}', b"payload", b'{"n": 2}'],
    "repeated members": [b"payload", b'{"n": 1, "n": 2}'],
    "forged fields": [b"_retry_count", b"1e308", b"_n", b"-1", b"_owner", b"root", b"payload", b'{"n": 1}'],
    "forged headers": [b"payload", b'{"n": 1}', b"_h:\xff", b"\x1b[2J", b"_traceparent", b"\x00" * 300],
    "forged key": [b"payload", b'{"n": 1}', b"_key", b"\xff" * 1_000],
    "braces and marks": [b"payload", b'{"n": 1}', b"{x}:hr:due:y", b"~wait"],
    "a surrogate pair": [b"payload", rb'{"n": 1, "name": "\ud83d\ude00"}'],
    "a copy for another group": [b"_original_id", b"\xff", b"_only", b"\xff\x00", b"payload", b"x"],
}


@pytest.mark.timeout(30)
async def test_every_hostile_entry_is_buried_or_handled_and_the_worker_goes_on(
    server: Server, stream: str, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC 17, 27: byte for byte in the dead letters, and nobody behind it waits."""
    app = make_app(server)
    orders = app.stream(stream, Order)
    seen: list[int] = []

    @orders.handler(group=GROUP, lease="2s", concurrency=4)
    async def bill(order: Order, delivery: Delivery[Any]) -> None:
        assert isinstance(delivery.headers, dict)
        assert delivery.key is None
        assert repr(delivery).isprintable()
        seen.append(order.n)

    client = server.sync()
    bad = {_append(client, stream, fields): name for name, fields in UNREADABLE.items()}
    for fields in READABLE.values():
        _append(client, stream, fields)
    async with app.worker() as worker:
        await orders.add(Order(1_000))
        await wait_until(lambda: 1_000 in seen and counted(app, "buried_total") >= len(bad), 20, what="all ended")
        await wait_until(lambda: not any(lane.slots.held for lane in worker.lanes))
        letters = await orders.dead_letters.listed()
    assert {bad.get(letter.original_id, "good") for letter in letters} == set(bad.values())
    for letter in letters:
        name = bad[letter.original_id]
        if "copy" not in name:
            assert letter.fields == UNREADABLE[name], name
        assert letter.error == "DecodeError", name
        assert len(letter.reason) < 400, name
        assert letter.reason.isprintable(), name
    assert len(seen) == len(READABLE)  # one copy is for another group; one more was added
    assert client.xpending(stream, GROUP)["pending"] == 0
    assert "a runner of Headrace died" not in caplog.text


def _append(client: Any, stream: str, fields: Fields) -> str:
    id_: bytes = client.execute_command("XADD", stream, "*", *fields)
    return id_.decode()


@pytest.mark.parametrize("model", [None, dict, bytes, str, Order, list[Order], dict[str, int]])
@pytest.mark.parametrize("fields", [*UNREADABLE.values(), *READABLE.values()], ids=[*UNREADABLE, *READABLE])
def test_a_codec_raises_nothing_but_a_decode_error(model: Any, fields: Fields) -> None:
    """SPEC 17: of one bounded, printable line."""
    data = dict(zip(fields[::2], fields[1::2], strict=True)).get(b"payload", b"\xff\x1b[2J" * 1_000)
    said = ""
    try:
        codec_for(model).decode(data)
    except DecodeError as error:
        said = str(error)
    assert len(said) < 400
    assert said.isprintable()


def test_a_payload_above_the_limit_is_refused_on_both_ways() -> None:
    """SPEC 53: 64 MiB unless set lower; nothing of that size is quoted."""
    codec = codec_for(bytes)
    assert len(codec.encode(bytes(64 << 20))) == 64 << 20
    for way in (codec.encode, codec.decode):
        with pytest.raises(CodecError, match="limit") as caught:
            way(bytes((64 << 20) + 1))
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "words",
    [
        {"headers": {"\ud800": "x"}},
        {"headers": {"x": "\udfff"}},
        {"headers": {"": "x"}},
        {"headers": {"x" * 201: "x"}},
        {"headers": {"x": "y" * 16_385}},
        {"headers": {str(n): "" for n in range(101)}},
        {"headers": {"x": 1}},
        {"traceparent": "0" * 201},
        {"traceparent": ""},
        {"traceparent": b"00-"},
        {"key": ""},
        {"key": "k" * 513},
        {"key": "\ud800"},
    ],
    ids=repr,
)
def test_bad_headers_traces_and_keys_are_refused_before_anything_is_sent(words: Any) -> None:
    """SPEC 41."""
    with pytest.raises((EncodeError, NameRefused)) as caught:
        pack_fields(b"{}", **words)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("payload", [{}, [], {"a": None}, {"a": "\ud800"}, {"\ud800": 1}, {"a": 10**5_000}])
def test_fields_that_cannot_be_written_are_refused(payload: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        FieldsCodec().encode_entry(payload)
    assert len(str(caught.value)) < 300
