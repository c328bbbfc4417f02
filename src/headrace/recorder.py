"""What the services report, and to whom. Every service has a Recorder; the default one drops it all.

NAMES is the whole list (SPEC 55). Exporters put `headrace_` in front. Labels never hold ids, keys or
payloads: a label value makes a time series of its own, and those are kept for ever.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Literal, NamedTuple, Protocol

Kind = Literal["counter", "histogram", "gauge"]
GROUP = ("stream", "group")


class Metric(NamedTuple):
    """One line of NAMES."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = GROUP


NAMES: dict[str, Metric] = {
    # producing
    "added_total": Metric("counter", "Messages added", ("stream",)),
    "add_duplicate_total": Metric("counter", "Adds answered with the id of an earlier add of the key", ("stream",)),
    "add_unknown_total": Metric("counter", "Adds that got no answer", ("stream",)),
    # reading
    "read_total": Metric("counter", "Deliveries read as new messages"),
    "rescued_total": Metric("counter", "Deliveries taken over because their lease ran out"),
    "due_total": Metric("counter", "Deliveries taken from the waiting group when they were due"),
    "skipped_total": Metric("counter", "Replayed copies that were meant for another group"),
    "alone_total": Metric("counter", "Deliveries taken to run alone, because their earlier attempts crashed"),
    "found_total": Metric("counter", "Deliveries held by this owner that it did not know of"),
    "trimmed_total": Metric("counter", "Pending messages that were trimmed or deleted: lost"),
    "group_recreated_total": Metric("counter", "Times the group had vanished and was created again"),
    "group_pulled_back_total": Metric("counter", "Times the stream had been set back, and its group after it"),
    # outcomes
    "handled_total": Metric("counter", "Handler runs by how they ended", (*GROUP, "outcome")),
    "acked_total": Metric("counter", "Deliveries acknowledged"),
    "retried_total": Metric("counter", "Deliveries sent to wait for another attempt"),
    "released_total": Metric("counter", "Deliveries handed back untouched"),
    "buried_total": Metric("counter", "Deliveries sent to the dead letters"),
    "parked_total": Metric("counter", "Exhausted deliveries parked because dead letters are off"),
    "replayed_total": Metric("counter", "Dead letters replayed"),
    "refused_total": Metric("counter", "Outcomes of former owners that were refused", (*GROUP, "outcome")),
    "duplicate_total": Metric("counter", "Deliveries acked unhandled because their key was done"),
    "undecodable_total": Metric("counter", "Deliveries whose payload could not be decoded"),
    # leases
    "renewed_total": Metric("counter", "Leases renewed"),
    "renew_failed_total": Metric("counter", "Renewal calls that failed"),
    "lost_total": Metric("counter", "Deliveries lost to another owner while a handler ran"),
    "stalled_total": Metric("counter", "Times the event loop stood still for longer than a lease"),
    "owner_removed_total": Metric("counter", "Owners removed because they were gone with nothing pending"),
    # connections
    "reconnected_total": Metric("counter", "Connections made again", ("role",)),
    "server_error_total": Metric("counter", "Errors of the server or the way to it", ("role", "error")),
    # levels
    "pel_depth": Metric("gauge", "Deliveries pending in the group"),
    "lag": Metric("gauge", "Messages the group has not read yet"),
    "waiting": Metric("gauge", "Deliveries waiting to be due"),
    "in_flight": Metric("gauge", "Deliveries in the hands of this owner"),
    "oldest_idle_seconds": Metric("gauge", "Idle time of the delivery idle longest"),
    # times
    "handle_seconds": Metric("histogram", "How long a handler ran"),
    "time_in_stream_seconds": Metric("histogram", "From the add to the start of the handler"),
    "rescue_latency_seconds": Metric("histogram", "From the end of a lease to the rescue"),
    # the founding RFC's names
    "recovery_keyspace_requeued_total": Metric("counter", "Messages requeued after a keyspace hint"),
    "recovery_scan_requeued_total": Metric("counter", "Messages recovered by a scan"),
    "recovery_scan_skipped_alive_total": Metric("counter", "Messages a scan left to their live owner"),
    "recovery_duplicate_ack_total": Metric("counter", "Acks of messages that were done or recovered already"),
    "recovery_dlq_total": Metric("counter", "Messages that recovery sent to the dead letters"),
    "recovery_scan_duration_seconds": Metric("histogram", "How long one recovery scan took"),
}


class Recorder(Protocol):
    """Takes what happened. Called from the event loop and from threads, so it neither blocks nor raises."""

    def count(self, name: str, n: int = 1, **labels: str) -> None:
        """Add n to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put one value into a histogram."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a level."""


class NoRecorder:
    """The default: drops everything."""

    __slots__ = ()

    def count(self, name: str, n: int = 1, **labels: str) -> None:
        """Drop it."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Drop it."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Drop it."""


_Labels = tuple[tuple[str, str], ...]


class CountingRecorder:
    """Keeps everything, for tests. Refuses a name or a label that NAMES does not know.

    >>> recorder = CountingRecorder()
    >>> recorder.count("handled_total", stream="orders", group="billing", outcome="ack")
    >>> recorder.total("handled_total", outcome="ack"), recorder.total("handled_total", outcome="bury")
    (1, 0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the lifeline reports from its own thread
        self._counters: dict[str, dict[_Labels, int]] = defaultdict(lambda: defaultdict(int))
        self._values: dict[str, list[tuple[_Labels, float]]] = defaultdict(list)

    def count(self, name: str, n: int = 1, **labels: str) -> None:
        """Add n to a counter."""
        _check(name, "counter", labels)
        with self._lock:
            self._counters[name][tuple(sorted(labels.items()))] += n

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Keep one value of a histogram."""
        self._keep(name, "histogram", value, labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Keep one level, after the earlier ones."""
        self._keep(name, "gauge", value, labels)

    def total(self, name: str, **labels: str) -> int:
        """Return the sum of a counter over every series that has these labels."""
        _check(name, "counter", labels)
        with self._lock:
            series = list(self._counters[name].items())
        return sum(n for found, n in series if labels.items() <= dict(found).items())

    def values(self, name: str, **labels: str) -> list[float]:
        """Return all values of a histogram or gauge with these labels, in order."""
        _check(name, None, labels)
        with self._lock:
            kept = list(self._values[name])
        return [value for found, value in kept if labels.items() <= dict(found).items()]

    def _keep(self, name: str, kind: Kind, value: float, labels: dict[str, str]) -> None:
        _check(name, kind, labels)
        with self._lock:
            self._values[name].append((tuple(sorted(labels.items())), value))


def _check(name: str, kind: Kind | None, labels: dict[str, str]) -> None:
    metric = NAMES.get(name)
    if metric is None:
        raise LookupError(f"no metric is called {name!r}: add it to NAMES in headrace/recorder.py")
    if kind is not None and metric.kind != kind:
        raise LookupError(f"metric {name!r} is a {metric.kind}, not a {kind}")
    unknown = labels.keys() - set(metric.labels)
    if unknown:
        raise LookupError(f"metric {name!r} has no label {sorted(unknown)}: it has {list(metric.labels)}")
