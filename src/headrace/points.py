"""Named points between two steps of a message's life, where the fault programme may end the process.

A point stands where something has happened that somebody else may see, and the process does not act on it yet: an
answer arrived, a command went out. In production a point is one call of an empty function for a whole batch, never for
a message. ``python -m chaos crash-points`` kills a worker at each of them, at each of its first occurrences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

NAMES: Final = (
    "link.sent",  # a command is on its way over a link of the event loop, nobody has heard its answer
    "thread.sent",  # the same for a link of a thread: the lifeline's
    "worker.joined",  # the owner is entered, nothing is read
    "reader.answered",  # acks and read are answered: the acks are not settled, the entries in nobody's hands
    "reader.due",  # what was due is taken, and not accepted
    "reader.rescued",  # the same for what another owner left
    "reader.turn",  # a message that must run alone is reserved, and not taken
    "reader.alone",  # it is taken, and not accepted
    "reader.found",  # what this owner held unknowingly is known, and not accepted
    "outbox.sending",  # outcomes are chosen, and not sent
    "outbox.answered",  # gathered acks are answered, and not settled
    "outbox.ended",  # other outcomes are answered, and not settled
    "lifeline.renewed",  # leases are renewed
    "janitor.pulled",  # a group that was ahead of its stream is set back, and nobody was told
    "janitor.kept",  # the floor is noted
    "worker.stopping",  # nothing is read any more
    "worker.released",  # the last outcomes are answered, the owner is still in its group
    # recovery by requeue
    "locks.taken",  # locks are there, and no handler started
    "locks.removing",  # outcomes are answered, and their locks still there
    "requeuer.moving",  # messages without a lock are chosen, and nothing is sent
    "requeuer.moved",  # their copies are appended and they are acked, and nobody was told
    # owned streams
    "announcements.announced",  # a stream is announced, and whoever announced it does not know
    "holding.joined",  # an owner is entered and its lease begun, nothing is taken
    "heartbeat.renewed",  # its one lease is renewed
    "acquirer.read",  # assignments that nobody had are in this owner's hands, their streams in nobody's
    "acquirer.due",  # the same for those that were handed back
    "acquirer.inherited",  # and for those that the dead have left
    "acquirer.found",  # what this owner held unknowingly has a new count, and no room
    "takeover.answered",  # a data stream is taken, and has no room
    "takeover.raised",  # a count is raised above that of a former take, and not taken with
    "takeover.ended",  # the announcement of a stream that was finished is ended
    "holding.begun",  # a try is noted, and no handler has its message
    "positions.sending",  # acks are chosen, and not sent
    "positions.answered",  # they are answered, and not settled
    "handover.left",  # a data stream is given up, its announcement still in this owner's name
    "handover.parked",  # its announcement is free for others, and here not forgotten
    "handover.done",  # a data stream is finished and deleted, its announcement still there
    "handover.finished",  # both are ended, and here not forgotten
    "handover.buried",  # an announcement is among the dead letters, and here not forgotten
    "handover.set_aside",  # a message is among the dead letters, and its room was not told
    "holding.leaving",  # an owner has said that it leaves, and holds everything yet
    "guardian.adopting",  # in the parent: a child has died, what it held is still in its name
    "guardian.adopted",  # what it held is handed back, its owner not removed
)


def _pass(name: str) -> None:
    """Nothing happens here."""


reached: Callable[[str], None] = _pass
"""Called as ``points.reached("outbox.answered")``, so that what :func:`watch` puts here is what is called."""


def watch(told: Callable[[str], None]) -> None:
    """Be told of every point that is reached from now on, in the thread that reaches it. For the fault programme."""
    global reached  # noqa: PLW0603 - one per process, set before anything runs
    reached = told
