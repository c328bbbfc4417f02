"""Headrace: self-healing workers for Redis Streams.

from headrace import App

app = App("redis://localhost:6379")
orders = app.stream("orders")

@orders.handler(group="billing")
async def bill(order):
    ...                                   # return = ack · raise = retry · raise Bury("why") = dead letter
"""

from headrace.app import App
from headrace.assignments import Assignments
from headrace.codec import FieldsCodec
from headrace.deadletters import DeadLetter
from headrace.effects import Effect
from headrace.errors import (
    AddUnknown,
    AlreadyClaimed,
    AssignmentRefused,
    AssignmentTaken,
    AuthFailed,
    Bury,
    ConfigError,
    DecodeError,
    DeliveryLost,
    DurabilityUnmet,
    EffectRefused,
    EncodeError,
    HandlerRefused,
    HeadraceError,
    MissingRight,
    NameRefused,
    NotOwned,
    OwnerTaken,
    PayloadTooLarge,
    Release,
    Retry,
    ServerError,
    ServerRefused,
    ServerTooOld,
    Unavailable,
    UrlRefused,
    WrongType,
)
from headrace.message import Delivery, SyncDelivery
from headrace.partitioned import PartitionedStream
from headrace.policy import Backoff
from headrace.producer import Added
from headrace.recorder import CountingRecorder, Recorder
from headrace.recovery import InPlace, Requeue
from headrace.room import OwnedMessage, Room
from headrace.stream import Stream
from headrace.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AddUnknown",
    "Added",
    "AlreadyClaimed",
    "App",
    "AssignmentRefused",
    "AssignmentTaken",
    "Assignments",
    "AuthFailed",
    "Backoff",
    "Bury",
    "ConfigError",
    "CountingRecorder",
    "DeadLetter",
    "DecodeError",
    "Delivery",
    "DeliveryLost",
    "DurabilityUnmet",
    "Effect",
    "EffectRefused",
    "EncodeError",
    "FieldsCodec",
    "HandlerRefused",
    "HeadraceError",
    "InPlace",
    "MissingRight",
    "NameRefused",
    "NotOwned",
    "OwnedMessage",
    "OwnerTaken",
    "PartitionedStream",
    "PayloadTooLarge",
    "Recorder",
    "Release",
    "Requeue",
    "Retry",
    "Room",
    "ServerError",
    "ServerRefused",
    "ServerTooOld",
    "Stream",
    "SyncDelivery",
    "Unavailable",
    "UrlRefused",
    "Worker",
    "WrongType",
    "__version__",
]
