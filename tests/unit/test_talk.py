"""Conversations without a server: what is sent where, what is sent again, and what never is."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import AskError, MovedError, NoScriptError, ReadOnlyError, ResponseError, TryAgainError

from headrace.errors import Unavailable
from headrace.redis.calls import Call, Script, as_is
from headrace.redis.talk import TURNS, Failed, Pause, Send, opening, pack, talk, units
from headrace.redis.topology import Node

A, B, C = Node("a", 1), Node("b", 1), Node("c", 1)
SCRIPT = Script("any", "return 1", "0" * 40)


class Route:
    """Keys go to the node of their name until somebody says otherwise."""

    spreads = moves = True
    asks_role = False

    def __init__(self, **nodes: Node) -> None:
        self.nodes = nodes
        self.lost_nodes: list[Node] = []

    def node(self, key: Any) -> Any:
        yield from ()
        return key if isinstance(key, Node) else self.nodes.get(key, A)

    def masters(self) -> Any:
        yield from ()
        return (A, B)

    def moved(self, slot: int, node: Node) -> None:
        self.nodes = dict.fromkeys(self.nodes, node)

    def lost(self, node: Node) -> None:
        self.lost_nodes.append(node)


def call(*words: Any) -> Call[Any]:
    return Call(words, as_is)


def converse(calls: list[Call[Any]], route: Any, *turns: Any, at: str = "") -> tuple[list[list[Send]], list[Any]]:
    """Play the turns of a conversation; answers what was sent in each, and what it came to."""
    steps, sent = talk(calls, route, at), []
    left = list(turns)
    try:
        step: Any = next(steps)
        while True:
            if isinstance(step, Pause):
                step = steps.send(None)
                continue
            sent.append(step)
            step = steps.send(left.pop(0))
    except StopIteration as end:
        assert not left
        return sent, end.value


def test_calls_go_where_their_keys_are_and_answers_come_in_order() -> None:
    calls = [call("XADD", "x"), call("XADD", "y"), call("XADD", "x")]
    sent, replies = converse(calls, Route(x=A, y=B), [[1, 3], [2]])
    assert [(send.node, send.of) for send in sent[0]] == [(A, [0, 2]), (B, [1])]
    assert replies == [1, 2, 3]


def test_a_call_without_a_key_goes_with_the_one_before_it() -> None:
    """SPEC 37: WAIT speaks of the connection that wrote."""
    calls = [call("XADD", "y"), call("WAIT", 1, 0), call("XADD", "x"), call("TIME")]
    sent, _ = converse(calls, Route(x=A, y=B), [[1, 2], [3, 4]])
    assert [(send.node, send.of) for send in sent[0]] == [(B, [0, 1]), (A, [2, 3])]
    assert units([call("PING"), call("XADD", "x"), call("XADD", "y")]) == [0, 0, 2]


def test_what_moved_is_sent_again_with_what_belongs_to_it_and_nothing_else() -> None:
    calls = [call("XADD", "x"), call("XADD", "y"), call("WAIT", 1, 0)]
    moved = MovedError("1 b:1")
    sent, replies = converse(calls, Route(x=A, y=A), [["done", moved, 1]], [["added", 0]])
    assert [(send.node, send.of) for send in sent[1]] == [(B, [1, 2])]
    assert replies == ["done", "added", 0]


def test_a_transaction_is_sent_again_as_a_whole() -> None:
    calls = [call("MULTI"), call("XINFO", "STREAM", "x"), call("EXEC"), call("MULTI"), call("XLEN", "y"), call("EXEC")]
    assert units(calls) == [0, 0, 0, 3, 3, 3]
    sent, _ = converse(
        calls,
        Route(x=A, y=B),
        [["OK", AskError("1 c:1"), ResponseError()], ["OK", "QUEUED", [1]]],
        [["OK", "OK", "Q", [2]]],
    )
    assert [(send.node, send.of, send.passing) for send in sent[1]] == [(C, [-1, 0, 1, 2], True)]
    assert sent[1][0].packed[0] == pack(("ASKING",))


def test_ask_is_for_one_call_and_the_next_one_goes_home() -> None:
    route = Route(x=A)
    sent, replies = converse([call("XADD", "x")], route, [[AskError("1 b:1")]], [["OK", "added"]])
    assert (sent[1][0].node, sent[1][0].packed[0], sent[1][0].passing) == (B, pack(("ASKING",)), True)
    assert replies == ["added"]
    assert route.nodes == {"x": A}


def test_a_script_is_loaded_at_each_server_that_does_not_know_it() -> None:
    calls = [Call((1, "x"), as_is, SCRIPT), Call((1, "x", 2), as_is, SCRIPT)]
    sent, replies = converse(
        calls, Route(x=A), [[NoScriptError(), NoScriptError()]], [["sha", AskError("1 b:1"), 2]],
        [["OK", NoScriptError()]], [["sha", AskError("1 b:1")]], [["sha", "OK", 1]],
    )  # fmt: skip
    assert [len(turn[0].packed) for turn in sent] == [2, 3, 2, 2, 3]
    assert replies == [1, 2]


def test_a_script_that_cannot_be_loaded_is_an_error_and_no_endless_loop() -> None:
    refused = ResponseError("NOPERM")
    _, replies = converse(
        [Call((1, "x"), as_is, SCRIPT)], Route(x=A), [[NoScriptError()]], [[refused, NoScriptError()]]
    )
    assert replies == [refused]


def test_a_cut_answer_is_never_sent_again() -> None:
    route, cut = Route(x=A), Failed(Unavailable("cut"), sent=True)
    sent, replies = converse([call("XADD", "x")], route, [cut])
    assert len(sent) == 1
    assert replies == [cut]
    assert route.lost_nodes == [A]


def test_what_was_never_sent_goes_to_whoever_took_over() -> None:
    class Promoted(Route):
        def lost(self, node: Node) -> None:
            self.nodes = {"x": B}

    refused = Failed(Unavailable("refused"), sent=False)
    sent, replies = converse([call("XADD", "x")], Promoted(x=A), [refused], [["added"]])
    assert [turn[0].node for turn in sent] == [A, B]
    assert replies == ["added"]


def test_a_connection_is_made_to_whoever_took_over() -> None:
    class Promoted(Route):
        def lost(self, node: Node) -> None:
            self.nodes = {"x": B}

    refused = Failed(Unavailable("refused"), sent=False)
    steps = opening(Promoted(x=A), "x")
    assert next(steps) == [Send(A, [], [])]
    assert steps.send([refused]) == [Send(B, [], [])]
    with pytest.raises(Unavailable):
        steps.send([refused])


def test_what_was_never_sent_is_an_error_while_nobody_took_over() -> None:
    refused = Failed(Unavailable("refused"), sent=False)
    sent, replies = converse([call("XADD", "x"), call("XADD", "y")], Route(x=A, y=B), [refused, ["added"]])
    assert len(sent) == 1
    assert replies == [refused, "added"]


def test_a_replica_that_refuses_to_write_is_asked_again_elsewhere() -> None:
    class Promoted(Route):
        def lost(self, node: Node) -> None:
            self.nodes = {"x": B}

    sent, replies = converse([call("XADD", "x")], Promoted(x=A), [[ReadOnlyError()]], [["added"]])
    assert [turn[0].node for turn in sent] == [A, B]
    assert replies == ["added"]


def test_redirections_that_lead_nowhere_end_as_an_outage() -> None:
    """FACTS: a slot that is half moved; nothing was done, so the caller may try again."""
    turns: list[Any] = [[[AskError("1 b:1")]], [["OK", TryAgainError()]]] * (TURNS // 2 - 1)
    _, replies = converse([call("XADD", "x")], Route(x=A), *turns, [[AskError("1 b:1")]], [["OK", MovedError("1 a:1")]])
    assert isinstance(replies[0], Failed)
    assert isinstance(replies[0].error, Unavailable)
    assert not replies[0].sent


def test_a_server_on_its_own_is_believed_whatever_it_says() -> None:
    """A MOVED from a server that was given as a single one is an error that says what to write in the URL."""
    route = Route(x=A)
    route.moves = route.spreads = False
    moved = MovedError("1 b:1")
    sent, replies = converse([call("XADD", "x")], route, [[moved]])
    assert len(sent) == 1
    assert replies == [moved]


def test_all_calls_of_a_stream_go_to_its_server() -> None:
    sent, _ = converse([call("XADD", "x"), call("TIME")], Route(x=A, y=B), [[1, 2]], at="y")
    assert [send.node for send in sent[0]] == [B]


def test_a_conversation_waits_no_longer_than_its_patience() -> None:
    """SPEC 49: a lifeline that stands before a half-moved slot for longer than a lease would lose what it holds."""
    steps, turns, waited = talk([call("GET", "k")], Route(k=A), patience_s=0.1), 0, 0.0
    try:
        step: Any = next(steps)
        while True:
            if isinstance(step, Pause):
                waited += step.seconds
                step = steps.send(None)
            else:
                turns += 1
                step = steps.send([[TryAgainError("in the middle of a move")]])
    except StopIteration as end:
        (reply,) = end.value
    assert isinstance(reply, TryAgainError)
    assert 1 < turns < TURNS
    assert waited <= 0.1
