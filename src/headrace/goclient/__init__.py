"""Speaks the protocol of redis-stream-client-go, so that a fleet can move over one pod at a time (SPEC 47).

from headrace import App
from headrace.goclient import Added, Expired, GoClient

async with GoClient(App("redis://localhost:6379"), service="rooms") as client:
    async for event in client.events():
        match event:
            case Added(stream=stream, info=info): ...     # read that stream; client.done_stream(stream) when finished
            case Expired(): await client.claim(event)     # its owner died: back into the pool

What is shared with the Go client, what is not, and which of its races are closed here: docs/go-client.md.
"""

from headrace.errors import AlreadyClaimed, NotOwned
from headrace.goclient.client import GoClient
from headrace.goclient.errors import PodNameMissing
from headrace.goclient.events import Added, Disowned, Event, Expired, Terminated
from headrace.goclient.protocol import Announcement, GoNames

__all__ = [
    "Added",
    "AlreadyClaimed",
    "Announcement",
    "Disowned",
    "Event",
    "Expired",
    "GoClient",
    "GoNames",
    "NotOwned",
    "PodNameMissing",
    "Terminated",
]
