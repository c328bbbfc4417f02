"""How calls get to the server that holds their keys and answers come back, free of any transport.

:func:`talk` is a conversation: it yields what is to be done next (send this there, ask that node, wait a moment), is
told what came of it, and returns one reply for each call. The asyncio link and the blocking one drive the same
conversations, so redirections and unknown scripts are written once.

What is sent again, and why that is safe: MOVED, ASK, TRYAGAIN, READONLY and NOSCRIPT all say that a call was *not*
executed, and so does a connection that could not be made. A call whose answer was cut is never sent again here: it may
have happened, and only the caller knows whether it may be repeated.

A call without a key goes with the keyed call before it in the same pipe (else with the first one): WAIT must speak of
the connection that wrote, and is sent again with the write that was redirected.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import hiredis
from redis.exceptions import NoScriptError, ReadOnlyError, TryAgainError

from headrace.errors import HeadraceError
from headrace.redis.calls import Call, Wire
from headrace.redis.topology import Node, redirection

pack: Callable[[tuple[Wire, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub says 1-tuple
ASKING: Final = pack(("ASKING",))
TURNS: Final = 12  # how often a call is sent before its redirection is given back as an error
PAUSE_S: Final = (0.0, 0.005, 0.01, 0.02, 0.05)  # before each next turn of what the server could not do just now


class Send(NamedTuple):
    """Send this over the link's own connection to a node. ``of`` says which call each reply belongs to."""

    node: Node
    packed: list[bytes]
    of: list[int]
    passing: bool = False  # this node was named for these calls alone (ASK): the next ones go elsewhere again

    def add(self, words: bytes, index: int = -1) -> None:
        """One more command, of the call with this index; -1: it only prepares the next one."""
        self.packed.append(words)
        self.of.append(index)


class Ask(NamedTuple):
    """Ask a node over a connection made for it, closed afterwards. Told: the raw replies, or what failed."""

    node: Node
    packed: list[bytes]
    sentinel: bool = False
    within_s: float | None = None


class Pause(NamedTuple):
    seconds: float


class Failed(NamedTuple):
    """No answer. If it was not sent, it has not happened."""

    error: HeadraceError
    sent: bool


Step = list[Send] | Ask | Pause
Steps = Generator[Step, Any, Any]


class Route(Protocol):
    """Where calls go, and what becomes of the knowledge when a server says otherwise. Shared by threads."""

    spreads: bool  # whether keys are on several servers
    moves: bool  # whether what one node does may be another one's tomorrow
    asks_role: bool  # whether a node has to say that it is a master before it is believed

    def node(self, key: Any) -> Steps:
        """Generator: the node that holds a key; without one, the node for calls that hold none."""

    def masters(self) -> Steps:
        """Generator: all nodes that hold keys."""

    def moved(self, slot: int, node: Node) -> None:
        """A server said that the slot is somewhere else."""

    def lost(self, node: Node) -> None:
        """A node cannot be reached, or says that it is no master."""


def packed(call: Call[Any]) -> bytes:
    if call.script is None:
        return pack(call.words)
    return pack(("EVALSHA", call.script.sha, *call.words))


def talk(calls: Sequence[Call[Any]], route: Route, at: str = "") -> Generator[Step, Any, list[Any]]:
    """Send calls until each has a reply: raw, an error reply, or Failed. ``at``: all of them go where this key is."""
    talked = _Talk(calls, route, at)
    left = list(range(len(calls)))
    for turn in range(TURNS):
        sends = yield from talked.sends(left)
        answers = (yield sends) if sends else []
        left = talked.again(sends, answers)
        if not left:
            break
        if talked.slow:
            yield Pause(PAUSE_S[min(turn, len(PAUSE_S) - 1)])
    return talked.replies


class _Talk:
    """What is known in the middle of a conversation."""

    def __init__(self, calls: Sequence[Call[Any]], route: Route, at: str) -> None:
        self._calls = calls
        self._route = route
        self._keys = [at] * len(calls) if at or not route.moves else deciding_keys(calls)
        self._asked: dict[int, Node] = {}  # calls that belong to the node their slot is moving to
        self._unloaded: set[int] = set()  # calls whose script the server did not know
        self._failed: dict[int, Node] = {}  # calls that could not be sent, and where to
        self.replies: list[Any] = [None] * len(calls)
        self.slow = False  # the server asks for a moment

    def sends(self, left: Sequence[int]) -> Generator[Step, Any, list[Send]]:
        """One write for each node, in the order of the calls."""
        sends: dict[Node, Send] = {}
        loading: set[tuple[Node, str]] = set()
        for index in left:
            call = self._calls[index]
            try:
                node = self._asked.get(index) or (yield from self._route.node(call.at or self._keys[index]))
            except HeadraceError as error:
                self.replies[index] = Failed(error, sent=False)
                continue
            if self._failed.get(index) == node:
                continue  # nobody has taken over from it yet: what failed is the answer
            send = sends.setdefault(node, Send(node, [], [], passing=index in self._asked))
            script = call.script
            if index in self._unloaded and script is not None and (node, script.sha) not in loading:
                loading.add((node, script.sha))
                send.add(pack(("SCRIPT", "LOAD", script.text)))
            if index in self._asked:
                send.add(ASKING)
            send.add(packed(call), index)
        return list(sends.values())

    def again(self, sends: Sequence[Send], answers: Sequence[list[Any] | Failed]) -> list[int]:
        """Note the replies of one turn; answers which calls have to go again."""
        again: set[int] = set()
        self.slow = False
        for send, answer in zip(sends, answers, strict=True):
            if isinstance(answer, Failed):
                again.update(self._unanswered(send, answer))
                continue
            for index, reply in zip(send.of, answer, strict=True):
                if index >= 0:
                    self.replies[index] = reply
                    self._asked.pop(index, None)
                    if isinstance(reply, Exception) and self._goes_again(index, reply, send.node):
                        again.add(index)
        return _with_followers(self._calls, again)

    def _unanswered(self, send: Send, answer: Failed) -> list[int]:
        self._route.lost(send.node)
        calls = [index for index in send.of if index >= 0]
        for index in calls:
            self.replies[index] = answer
            self._failed[index] = send.node
        return calls if self._route.moves and not answer.sent else []

    def _goes_again(self, index: int, reply: Exception, node: Node) -> bool:
        """Whether an error reply means: not executed, but it can be."""
        if isinstance(reply, NoScriptError):
            first = index not in self._unloaded
            self._unloaded.add(index)
            return first
        if not self._route.moves:
            return False
        moved = redirection(reply, node)
        if moved is not None:
            if moved.for_good:
                self._route.moved(moved.slot, moved.node)
            else:
                self._asked[index] = moved.node
            return True
        if isinstance(reply, ReadOnlyError):
            self._route.lost(node)
        elif not isinstance(reply, TryAgainError):
            return False
        self.slow = True
        return True


def deciding_keys(calls: Sequence[Call[Any]]) -> list[Wire | None]:
    """The key that decides for each call. A call without one goes with the one before it, else with the first."""
    own = [call.key for call in calls]
    last = next((key for key in own if key is not None), None)
    found = []
    for key in own:
        last = last if key is None else key
        found.append(last)
    return found


def _with_followers(calls: Sequence[Call[Any]], again: set[int]) -> list[int]:
    """What goes again, with the keyless calls behind each: WAIT after a write; all of a transaction."""
    if not again:
        return []
    if calls[0].words[0] == "MULTI":
        return list(range(len(calls)))
    found, follows = [], False
    for index, call in enumerate(calls):
        follows = index in again or (follows and call.key is None)
        if follows:
            found.append(index)
    return found
