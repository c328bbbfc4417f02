"""How calls get to the server that holds their keys and answers come back, free of any transport.

:func:`talk` is a conversation: it yields what is to be done next (send this there, ask that node, wait a moment), is
told what came of it, and returns one reply for each call. The asyncio link and the blocking one drive the same
conversations, so redirections and unknown scripts are written once.

What is sent again, and why that is safe: MOVED, ASK, TRYAGAIN, READONLY and NOSCRIPT all say that a call was *not*
executed, and so does a connection that could not be made. A call whose answer was cut is never sent again here: it may
have happened, and only the caller knows whether it may be repeated.

A call without a key goes with the keyed call before it in the same pipe: WAIT must speak of the connection that wrote,
and is sent again with the write that was redirected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import hiredis
from redis.exceptions import NoScriptError, ReadOnlyError, TryAgainError

from headrace.errors import HeadraceError, Unavailable
from headrace.redis.calls import Call, Script, Wire
from headrace.redis.topology import Node, redirection

pack: Callable[[tuple[Wire, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub says 1-tuple
ASKING: Final = pack(("ASKING",))
NOWHERE: Final = Node("", 0)
TURNS: Final = 12  # how often a call is sent before its redirection is given back as an error
PAUSE_S: Final = (0.0, 0.005, 0.01, 0.02, 0.05)  # before each next turn of what the server could not do just now


class Send(NamedTuple):
    """Send this over the link's own connection to a node. ``of`` says which call each reply belongs to."""

    node: Node
    packed: list[bytes]
    of: list[int]
    passing: bool = False  # this node was named for these calls alone (ASK): the next ones go elsewhere again
    aimed: bool = False  # the caller named this node, whatever it is
    ahead: tuple[Script, ...] = ()  # what the node must know first: their calls stand before one that may block

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

    def settled(self, key: str) -> Node | None:
        """The same without asking anybody; None if somebody has to be asked first."""

    def masters(self) -> Steps:
        """Generator: all nodes that hold keys."""

    def serves(self, node: Node) -> bool:
        """Whether a node is a master, as far as is known without asking."""

    def moved(self, slot: int, node: Node) -> None:
        """A server said that the slot is somewhere else."""

    def lost(self, node: Node) -> None:
        """A node cannot be reached, or says that it is no master."""

    def doubted(self, node: Node) -> None:
        """A node is slow to answer: ask others about it before the next call. Nobody's silence makes it worse."""


def packed(call: Call[Any]) -> bytes:
    if call.script is None:
        return pack(call.words)
    return pack(("EVALSHA", call.script.sha, *call.words))


def talk(
    calls: Sequence[Call[Any]],
    route: Route,
    at: str = "",
    begun: tuple[Send, list[Any] | Failed] | None = None,
    patience_s: float = math.inf,
    *,
    blocks: bool = False,
) -> Generator[Step, Any, list[Any]]:
    """Send calls until each has a reply: raw, an error reply, or Failed. ``at``: all of them go where this key is.

    ``begun`` is a first turn that has been done already, with its answer. No more than ``patience_s`` is spent waiting
    between turns: a thread that renews leases must not stand before a slot that is half moved. ``blocks``: the server
    may block on the last call, so that nothing before it may have to be sent again.
    """
    talked = _Talk(calls, route, at, blocks=blocks)
    left = list(range(len(calls)))
    waited_s = 0.0
    for turn in range(TURNS):
        if begun is not None and turn == 0:
            sends, answers = [begun[0]], [begun[1]]
        else:
            sends = yield from talked.sends(left)
            answers = (yield sends) if sends else []
        left = talked.again(sends, answers)
        if not left:
            return talked.replies
        if talked.slow or turn > 1:
            pause_s = PAUSE_S[min(turn, len(PAUSE_S) - 1)]
            waited_s += pause_s
            if waited_s > patience_s:
                break
            yield Pause(pause_s)
    return talked.given_up(left)


def opening(route: Route, key: Any) -> Generator[Step, Any, Node]:
    """Connect to the node that holds a key, or to whoever has taken over from it. Raises what failed."""
    node: Node = yield from route.node(key)
    while True:
        (answer,) = yield [Send(node, [], [])]
        if not isinstance(answer, Failed):
            return node
        route.lost(node)
        before, node = node, (yield from route.node(key))
        if node == before:
            raise answer.error


class _Talk:
    """What is known in the middle of a conversation."""

    def __init__(self, calls: Sequence[Call[Any]], route: Route, at: str, *, blocks: bool) -> None:
        self._blocks = blocks
        self._calls = calls
        self._route = route
        self._leaders = units(calls) if route.moves else list(range(len(calls)))
        self._keys = self._unit_keys() if route.spreads and not at else dict.fromkeys(self._leaders, at)
        self._asked: dict[int, Node] = {}  # calls that belong to the node their slot is moving to
        self._unloaded: set[tuple[int, Node]] = set()  # calls whose script a server did not know
        self._failed: dict[int, Node] = {}  # calls that could not be sent, and where to
        self.replies: list[Any] = [None] * len(calls)
        self.slow = False  # the server asks for a moment

    def _unit_keys(self) -> dict[int, Any]:
        """The key that decides for each unit."""
        found: dict[int, Any] = {}
        for leader, call in zip(self._leaders, self._calls, strict=True):
            if found.get(leader) is None:
                found[leader] = call.key
        return found

    def _asks(self, index: int) -> bool:
        """ASKING holds for one command, or for the transaction that begins with it."""
        leader = self._calls[self._leaders[index]]
        if leader.script is None and leader.words[0] == "MULTI":
            return index == self._leaders[index]
        return self._calls[index].key is not None

    def sends(self, left: Sequence[int]) -> Generator[Step, Any, list[Send]]:
        """One write for each node, in the order of the calls."""
        sends: dict[Node, Send] = {}
        loading: set[tuple[Node, str]] = set()
        for index in left:
            call = self._calls[index]
            try:
                key = call.at or self._keys[self._leaders[index]]
                node = self._asked.get(index) or (yield from self._route.node(key))
            except HeadraceError as error:
                self.replies[index] = Failed(error, sent=False)
                continue
            if self._failed.get(index) == node:
                continue  # nobody has taken over from it yet: what failed is the answer
            send = sends.setdefault(node, Send(node, [], [], index in self._asked, isinstance(key, Node)))
            script = call.script
            if (index, node) in self._unloaded and script is not None and (node, script.sha) not in loading:
                loading.add((node, script.sha))
                send.add(pack(("SCRIPT", "LOAD", script.text)))
            if index in self._asked and self._asks(index):
                send.add(ASKING)
            send.add(packed(call), index)
        if self._blocks:
            return [send._replace(ahead=ahead(self._calls, send.of)) for send in sends.values()]
        return list(sends.values())

    def again(self, sends: Sequence[Send], answers: Sequence[list[Any] | Failed]) -> list[int]:
        """Note the replies of one turn; answers which calls have to go again."""
        again: set[int] = set()
        self.slow = False
        for send, answer in zip(sends, answers, strict=True):
            if isinstance(answer, Failed):
                again.update(self._unanswered(send, answer))
                continue
            for index in send.of:
                self._asked.pop(index, None)
            unloadable: Exception | None = None
            for index, reply in zip(send.of, answer, strict=True):
                if index < 0:
                    unloadable = reply if isinstance(reply, Exception) else unloadable
                    continue
                # Who may not load a script hears that, not that it is missing.
                said = unloadable if unloadable is not None and isinstance(reply, NoScriptError) else reply
                self.replies[index] = said
                if isinstance(said, Exception) and self._goes_again(index, said, send.node):
                    again.add(index)
        leaders = {self._leaders[index] for index in again}
        return [index for index, leader in enumerate(self._leaders) if leader in leaders]

    def given_up(self, left: Sequence[int]) -> list[Any]:
        """The replies, with an outage in the place of redirections that lead nowhere: a slot that is half moved."""
        for index in left:
            if redirection(self.replies[index], NOWHERE) is not None:
                moving = "the slot is being moved, and after several tries it is neither here nor there"
                self.replies[index] = Failed(Unavailable(f"{moving}: nothing was done; try again"), sent=False)
        return self.replies

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
            first = (index, node) not in self._unloaded
            self._unloaded.add((index, node))
            return first
        if not self._route.moves:
            return False
        moved = redirection(reply, node)
        if moved is not None:
            if moved.for_good:
                self._route.moved(moved.slot, moved.node)
            else:
                unit = (other for other, leader in enumerate(self._leaders) if leader == self._leaders[index])
                self._asked.update(dict.fromkeys(unit, moved.node))
            return True
        if isinstance(reply, ReadOnlyError):
            self._route.lost(node)
        elif not isinstance(reply, TryAgainError):
            return False
        self.slow = True
        return True


def ahead(calls: Sequence[Call[Any]], of: Sequence[int]) -> tuple[Script, ...]:
    """The scripts of all but the last of these calls."""
    return tuple({calls[at].script: None for at in of[:-1] if at >= 0 and calls[at].script is not None})  # type: ignore[misc]


def units(calls: Sequence[Call[Any]]) -> list[int]:
    """For each call the index of the one that leads it: those of one leader go together, to one server.

    A call without a key follows the keyed one before it (at the beginning, the first one that comes); a transaction
    follows its MULTI.

    >>> units([Call(words, print) for words in (("XADD", "a"), ("WAIT", 1, 0), ("XADD", "b"))])
    [0, 0, 2]
    """
    leaders: list[int] = []
    lead, led, inside = 0, False, False
    for index, call in enumerate(calls):
        name = call.words[0] if call.script is None else ""
        if name == "MULTI" or (call.key is not None and not inside):
            if led or name == "MULTI":
                lead = index
            led, inside = True, name == "MULTI"
        leaders.append(lead)
        inside = inside and name != "EXEC"
    return leaders
