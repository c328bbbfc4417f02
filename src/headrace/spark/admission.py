"""How far the next batch goes: the driver's side of a streaming query.

Spark asks again and again for the latest offset after a committed one. Asked so, this waits inside the server for
news, looks at the streams that have some, judges losses, shares the batch's limit among them, and writes down the
result as an offset. Nothing it keeps between two questions is needed for being right: a restarted driver knows the
offset alone.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from headrace.redis.calls import Call, as_is, text
from headrace.spark.arrivals import FEW, Arrivals
from headrace.spark.counting import Top, begin, count_after, top_of
from headrace.spark.keyspace import Streams
from headrace.spark.losses import Losses
from headrace.spark.mirror import Mirror
from headrace.spark.offsets import START, ZERO, Offset, Position, before_ms, parse_id
from headrace.spark.plan import Range, Share, water_fill
from headrace.spark.planner import Marks, Planner, range_of
from headrace.spark.source_options import SourceSettings
from headrace.spark.start import first_offset
from headrace.spark.state import Look, looks, states
from headrace.spark.tally import collect
from headrace.spark.wire import Wire

SWEEP_S: Final = 10.0  # how often all are looked at in any case: a stream that was rewound has no news


@dataclass(slots=True)
class Plan:
    """What latest() found out and partitions() can use, if it is asked about the same batch."""

    start: str
    ranges: list[Range]
    marks: dict[str, Marks]


class Admission:
    """One streaming query's view of its streams."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._wire = Wire(settings.address, "headrace-spark-driver", wait_ms=settings.block_ms)
        self._wire.link.open()
        self._arrivals = Arrivals(settings.address, self._wire.link)
        self._streams = Streams(settings)
        self._planner = Planner(self._wire, settings)
        mirrors = settings.group is not None and settings.on_commit != "none"
        self._mirror = Mirror(settings.group or "", settings.on_commit) if mirrors else None
        self._targets: dict[str, Top] | None = None  # with AvailableNow
        self._plans: dict[str, Plan] = {}
        self._tops: dict[str, Position] = {}
        self._swept_at = self._batch_at = time.monotonic()
        self._served = ""  # the last stream that had its turn in a batch too small for all
        self._losses = Losses(fail=settings.fail_on_loss)
        self._refusals: set[str] = set()  # told already
        self._token = secrets.token_hex(6)
        self._reading: tuple[str, str, list[str]] | None = None  # the batch that tasks read: end, name, its streams

    def initial(self) -> Offset:
        return first_offset(self._wire.link, self._settings, self._streams.now(self._wire.link, afresh=True))

    def prepare_available_now(self) -> None:
        """Remember where the streams end now: nothing behind that belongs to this run."""
        found = states(self._wire.link, self._streams.now(self._wire.link, afresh=True))
        self._targets = {key: top_of(state) for key, state in found.items()}

    def report(self) -> Offset | None:
        """Where the streams ended when they were last looked at."""
        return Offset(dict(self._tops)) if self._tops else None

    # ── the next batch ──

    def latest(self, start: Offset, limit: int | None) -> Offset:
        """The end of the next batch; ``start`` itself if there is none yet."""
        if start.pin:
            return replace(start, pin=False)
        gone = self._publish(start)
        self._collect_losses(start)
        positions = self._positions(start)
        news = self._news(positions)
        seen = looks(self._wire.link, {key: positions[key].id for key in positions if key in news or key in gone})
        tops = {key: self._top(key, look) for key, look in seen.items()}
        begun = self._losses.settle(positions, seen, tops, gone)
        again = looks(self._wire.link, {key: begin(one).id for key, one in begun.items() if one.after is not None})
        seen |= again
        tops |= {key: self._top(key, look) for key, look in again.items()}
        self._tops.update((key, Position(top.id, top.n)) for key, top in tops.items())
        ends, marks = self._admit(begun, seen, tops, limit)
        self._losses.write_down(positions, begun, ends)
        if not ends:
            return start
        if self._mirror is not None:
            fresh = [key for key in ends if key not in start.streams or positions[key].id == ZERO]
            self._mirror.make(self._wire.link, {key: positions[key] for key in fresh})
        carried = {key: position.carried() for key, position in start.streams.items()}
        end = Offset({**carried, **ends}, group=self._settings.group if self._mirror else None)
        self._remember(start, end, begun, seen, marks)
        return end

    def _positions(self, start: Offset) -> dict[str, Position]:
        """The streams of this question and where each stands. One that a pattern found once is never forgotten: if its
        key has gone, that is a loss."""
        keys = set(self._streams.now(self._wire.link))
        if self._settings.pattern is not None:
            keys |= start.streams.keys()
        if self._targets is not None:  # what appears during such a run belongs to the next one
            keys &= self._targets.keys() | start.streams.keys()
        return {key: start.streams.get(key, START).carried() for key in sorted(keys)}

    def _publish(self, start: Offset) -> set[str]:
        """Show what is committed. Answers the streams whose group has gone, which had one."""
        if self._mirror is None:
            return set()
        first = start.group != self._settings.group
        if first:
            self._mirror.make(self._wire.link, start.streams)
        gone = self._mirror.publish(self._wire.link, start.streams)
        # A missing group is the evidence of a loss. It is made again only when there was none, or it is written down.
        settled = {
            key for key in gone if first or start.streams[key].id == ZERO or start.streams[key].after is not None
        }
        self._mirror.make(self._wire.link, {key: start.streams[key] for key in settled})
        return set(gone) - settled

    def _news(self, positions: Mapping[str, Position]) -> set[str]:
        """Wait for entries behind the positions; answers the streams to look at."""
        blocks = self._settings.block_ms if self._targets is None else 0
        if not positions:
            time.sleep(blocks / 1000)
            return set()
        news = self._arrivals.wait({key: position.id for key, position in positions.items()}, blocks)
        now = time.monotonic()
        # Of few streams all are looked at every time; of more, only those with news.
        if len(positions) <= FEW or now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            return set(positions)
        return news

    def _top(self, key: str, look: Look) -> Top:
        """Where this run may read to in a stream."""
        top = top_of(look.state)
        target = self._targets.get(key) if self._targets is not None else None
        return target if target is not None and parse_id(target.id) < parse_id(top.id) else top

    def _admit(
        self, begun: Mapping[str, Position], seen: Mapping[str, Look], tops: Mapping[str, Top], limit: int | None
    ) -> tuple[dict[str, Position], dict[str, Marks]]:
        """Share the limit among the streams that have rows, and find the end of each."""
        ends: dict[str, Position] = {}
        marks: dict[str, Marks] = {}
        waiting: dict[str, Range] = {}
        bounds: dict[str, Top] = {}
        for key, position in begun.items():
            bound = self._within_span(key, position, seen[key], tops[key])
            start = begin(position)
            part = range_of(key, start, bound, seen[key])
            if part is not None:
                waiting[key], bounds[key] = part, bound
            elif parse_id(tops[key].id) > start.number:  # what was there has been deleted, or nothing was: XSETID
                ends[key] = position.at(tops[key].id, tops[key].n, told=tops[key].told)
        total = sum(part.rows for part in waiting.values())
        if self._hold_back(waiting):
            return ends, marks
        shares = self._share(waiting, limit if limit is not None else total)
        step = self._planner.step(min(total, limit or total), len(waiting))
        for key, part in waiting.items():
            if shares[key] >= part.rows:
                ends[key] = begun[key].at(bounds[key].id, bounds[key].n, told=bounds[key].told)
            elif shares[key]:
                scan = self._planner.scan(part, step, shares[key])
                n = bounds[key].n if scan.last_id == bounds[key].id else count_after(begun[key], seen[key], scan.rows)
                ends[key] = begun[key].at(scan.last_id, n)
                marks[key] = scan.marks
            if key in ends and begun[key].after is not None:
                ends[key] = replace(ends[key], after=begun[key].after)
        return ends, marks

    def _share(self, waiting: Mapping[str, Range], limit: int) -> dict[str, int]:
        shares = water_fill({key: part.rows for key, part in waiting.items()}, limit, self._served)
        if waiting:
            self._batch_at = time.monotonic()
        if limit < len(waiting):
            self._served = [key for key, rows in shares.items() if rows][-1]
        return shares

    def _within_span(self, key: str, position: Position, look: Look, top: Top) -> Top:
        """Bound the stream's own time: an id is a timestamp, so the last entry in time is one command away."""
        if self._settings.max_span_ms is None or look.next_id is None:
            return top
        bound = before_ms(parse_id(look.next_id)[0] + self._settings.max_span_ms)
        if parse_id(bound) >= parse_id(top.id):
            return top
        words = ("XREVRANGE", key, bound, f"({begin(position).id}", "COUNT", 1)
        last = self._wire.link.call(Call(words, as_is))
        return Top(text(last[0][0]), None) if last else top

    def _hold_back(self, waiting: Mapping[str, Range]) -> bool:
        """Whether there are too few rows for a batch, and they have not waited long enough."""
        least = self._settings.min_rows
        if least is None or not waiting or self._targets is not None:
            return False
        if time.monotonic() - self._batch_at >= self._settings.max_delay_ms / 1000 or self._enough(waiting, least):
            return False
        time.sleep(self._settings.block_ms / 1000)
        return True

    def _enough(self, waiting: Mapping[str, Range], least: int) -> bool:
        """Whether there are so many rows. Where the server does not tell, they are counted, up to that number."""
        rows = 0
        for part in waiting.values():
            known = part.start.n is not None or part.start.id == ZERO
            rows += part.rows if known else self._planner.scan(part, least, min(least, part.rows)).rows
        return rows >= least

    # ── the tasks of a batch ──

    def _remember(
        self,
        start: Offset,
        end: Offset,
        begun: Mapping[str, Position],
        seen: Mapping[str, Look],
        marks: dict[str, Marks],
    ) -> None:
        ranges = []
        for key, position in begun.items():
            if key in end.streams:
                top = Top(end.streams[key].id, end.streams[key].n)
                walked = sum(rows for _, rows in marks[key]) if key in marks else None
                part = range_of(key, begin(position), top, seen[key], walked)
                ranges += [part] if part is not None and part.start.id != top.id else []
        self._plans = {_told(end): Plan(_told(start), ranges, marks)}

    def shares(self, start: Offset, end: Offset) -> list[Share]:
        """What the tasks of a batch read. After a restart the same rows, found anew."""
        shares, name = self._planned(start, end), f"{self._token}-{secrets.token_hex(3)}"
        for share in shares:
            share.batch = name
        self._reading = (_told(end), name, sorted({part.key for share in shares for part in share.ranges}))
        return shares

    def _collect_losses(self, start: Offset) -> None:
        """A batch is committed: what its tasks have lost is counted with the next one."""
        if self._reading is None or self._settings.fail_on_loss or self._reading[0] != _told(start):
            return
        self._losses.found(collect(self._wire.link, *self._reading[1:], self._refusals))
        self._reading = None

    def _planned(self, start: Offset, end: Offset) -> list[Share]:
        plan = self._plans.get(_told(end))
        if plan is not None and plan.start == _told(start):
            return self._planner.shares(plan.ranges, plan.marks)
        begun = {
            key: replace(start.streams.get(key, START), after=position.after)
            for key, position in end.streams.items()
            if start.streams.get(key, START).id != position.id or position.after is not None
        }
        seen = looks(self._wire.link, {key: begin(position).id for key, position in begun.items()})
        ranges = []
        for key, position in begun.items():
            self._losses.found_again(key, start.streams.get(key, START), end.streams[key], seen[key])
            top = Top(end.streams[key].id, end.streams[key].n)
            part = range_of(key, begin(position), top, seen[key])
            ranges += [part] if part is not None else []
        return self._planner.shares(ranges)

    def close(self) -> None:
        self._arrivals.close()
        self._wire.close()


def _told(offset: Offset) -> str:
    return json.dumps(offset.as_json())
