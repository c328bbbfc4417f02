"""Reads an answer of XRANGE with numpy: no Python object for any entry, field or value.

An answer is lines: ``*2``, ``$15``, an id, ``*10``, then a length and a word in turn. Where no word holds a line end
(text hardly ever does), the lines are found all at once, every declared length is compared with the line that follows,
and Arrow takes the words straight out of the buffer. All lengths matching from the first line to the last is a proof
that the answer was read as it was meant. Anything else (line ends inside values, errors, nils) is a doubt, and the
same buffer goes to hiredis instead; after a doubt the next 2, 4, ... 64 chunks are not tried at all.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.chunks import Chunk, Listed, listed
from headrace.spark.rows import Columns, timestamps
from headrace.spark.wire import Reply, Wire

Numbers = npt.NDArray[np.int64]

LEAST_BYTES: Final = 8_192  # below that numpy costs more than it saves
LARGE_BYTES: Final = 4_000  # an entry; of larger ones there are too few for it to save anything
SKIP_AT_MOST: Final = 64
DIGITS_AT_MOST: Final = 10
BYTES_AT_MOST: Final = 2**31 - 1  # places are numbers of 32 bits
STAR, DOLLAR, ZERO, NINE, LF, CR = b"*$09\n\r"


class Doubt(Exception):
    """Not an answer that can be read this way."""


# Words of users stand where a misread line is looked for. Whatever they make numpy and Arrow stumble over is a doubt:
# an error would end every attempt of the task, and hiredis reads the same buffer without a question.
DOUBTS: Final = (Doubt, ValueError, OverflowError, IndexError, pa.ArrowException)


class Vectored:
    """Entries as places in a buffer."""

    def __init__(self, reply: Reply, lines: pa.Array, entries: Numbers, counts: Numbers, *, skipped: int = 0) -> None:
        self._reply = reply
        self._skipped = skipped
        self.lines = lines  # every line of the answer, and every line end, in turn
        self.entries = entries  # the line each entry begins with
        self.counts = counts  # words of each entry: names and values
        self.count = len(entries)

    def id_at(self, at: int) -> str:
        return str(self.lines[int(2 * (self.entries[at] + 2))].as_py().decode())

    def without_first(self) -> Vectored:
        return Vectored(self._reply, self.lines, self.entries[1:], self.counts[1:], skipped=self._skipped + 1)

    def listed(self) -> list[Any]:
        """The same entries as hiredis reads them."""
        entries: list[Any] = self._reply.values()[0]
        return entries[self._skipped :]

    @property
    def ids(self) -> pa.Array:
        """Digits and a dash, as was checked."""
        return _as_text(self.lines.take(pa.array(2 * (self.entries + 2))))

    def words(self) -> Numbers:
        """The line of every word."""
        before = np.cumsum(self.counts) - self.counts
        return _spread(self.entries + 5 - 2 * before, self.counts) + 2 * np.arange(int(self.counts.sum()))


class Fast:
    """Decodes answers and makes batches of them, for one layout."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._skip = 0  # chunks not to try
        self._next_skip = 2

    def decode(self, wire: Wire, reply: Reply) -> Chunk:
        if self._skip:
            self._skip -= 1
            return listed(wire, reply)
        if reply.size < LEAST_BYTES:
            return listed(wire, reply)
        try:
            return listed(wire, reply) if _large(reply) else parse(reply)
        except DOUBTS:
            self._doubt()
            return listed(wire, reply)

    def batch(self, key: str, chunk: Chunk) -> pa.RecordBatch:
        if isinstance(chunk, Vectored):
            try:
                made = self._batch(key, chunk)
                self._next_skip = 2
                return made
            except DOUBTS:
                self._doubt()
                return self._columns.batch([(key, chunk.listed())])
        assert isinstance(chunk, Listed)
        return self._columns.batch([(key, chunk.entries)])

    def _doubt(self) -> None:
        self._skip, self._next_skip = self._next_skip, min(self._next_skip * 2, SKIP_AT_MOST)

    def _batch(self, key: str, chunk: Vectored) -> pa.RecordBatch:
        layout, schema = self._columns.layout, self._columns.schema
        ids = chunk.ids
        words = chunk.words()
        arrays = []
        for at, own in enumerate(layout.own):
            kind = schema.field(at).type
            if own is None:
                arrays.append(_field(chunk, words, layout.fields[at], kind))
            elif own == "stream":
                arrays.append(pa.array([key], kind).take(pa.array(np.zeros(chunk.count, np.int64))))
            elif own == "id":
                arrays.append(ids)
            elif own == "timestamp":
                arrays.append(timestamps(ids).cast(kind))
            else:
                arrays.append(_map(chunk, words, kind))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _large(reply: Reply) -> bool:
    head = bytes(reply.data[1 : reply.data.find(b"\r")])
    return _is_number(head) and int(head) * LARGE_BYTES < reply.size


def _is_number(digits: bytes) -> bool:
    return len(digits) <= DIGITS_AT_MOST and digits.isdigit()


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────


def parse(reply: Reply) -> Vectored:
    """Find every entry and word of an answer, and check that it says what it seems to say. Raises Doubt."""
    if reply.size > BYTES_AT_MOST:
        raise Doubt
    data = np.frombuffer(reply.data, np.uint8, reply.size)
    starts, ends = _lines(data)
    total = _declared(data, starts[:1], ends[:1], STAR)[0]
    if total == 0:
        raise Doubt
    entries, counts = _entries(data, starts, ends, int(total))
    _check_headers(data, starts, ends, entries)
    before = np.cumsum(counts) - counts
    heads = _spread(entries + 4 - 2 * before, counts) + 2 * np.arange(int(counts.sum()))
    lengths = _declared(data, starts[heads], ends[heads], DOLLAR)
    if not np.array_equal(lengths, ends[heads + 1] - starts[heads + 1]):
        raise Doubt
    places = np.empty(2 * len(starts) + 1, np.int32)
    places[0:-1:2], places[1::2], places[-1] = starts, ends, reply.size
    buffers = [None, pa.py_buffer(places), pa.py_buffer(reply.data)]
    return Vectored(reply, pa.Array.from_buffers(pa.binary(), 2 * len(starts), buffers), entries, counts)


def _lines(data: npt.NDArray[np.uint8]) -> tuple[Numbers, Numbers]:
    """Where each line begins and ends, without its end."""
    breaks = np.flatnonzero(data == LF)
    if not len(breaks) or breaks[-1] != len(data) - 1 or breaks[0] == 0:
        raise Doubt
    ends = breaks[data[breaks - 1] == CR] - 1
    if not len(ends) or ends[-1] != len(data) - 2:
        raise Doubt
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 2
    return starts, ends


def _entries(data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers, total: int) -> tuple[Numbers, Numbers]:
    """The first line and the number of words of each entry: at once if all have as many as the first, else in turn."""
    if len(starts) < max(5, 1 + 4 * total):
        raise Doubt
    words = int(_declared(data, starts[4:5], ends[4:5], STAR)[0])
    if len(starts) == 1 + total * (4 + 2 * words):
        entries = 1 + np.arange(total) * (4 + 2 * words)
        counts = _declared(data, starts[entries + 3], ends[entries + 3], STAR)
        if (counts == words).all():
            return entries, counts
    entries = np.empty(total, np.int64)
    counts = np.empty(total, np.int64)
    line = 1
    for at in range(total):
        if line + 4 > len(starts):
            raise Doubt
        head = bytes(data[starts[line + 3] : ends[line + 3]])
        if head[:1] != b"*" or not _is_number(head[1:]):
            raise Doubt
        entries[at], counts[at] = line, int(head[1:])
        line += 4 + 2 * int(counts[at])
    if line != len(starts):
        raise Doubt
    return entries, counts


def _check_headers(data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers, entries: Numbers) -> None:
    """Every entry is a pair of an id and words."""
    pairs = _declared(data, starts[entries], ends[entries], STAR)
    lengths = _declared(data, starts[entries + 1], ends[entries + 1], DOLLAR)
    if not (pairs == 2).all() or not np.array_equal(lengths, ends[entries + 2] - starts[entries + 2]):
        raise Doubt


def _declared(data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers, mark: int) -> Numbers:
    """The numbers that header lines declare; each begins with its mark and is digits otherwise."""
    digits = ends - starts - 1
    most = int(digits.max(initial=0))
    if digits.min(initial=1) < 1 or most > DIGITS_AT_MOST or not (data[starts] == mark).all():
        raise Doubt
    found = np.zeros(len(starts), np.int64)
    for place in range(most):
        has = digits > place
        digit = data[np.where(has, ends - 1 - place, ends - 1)].astype(np.int64) - ZERO
        if ((digit < 0) | (digit > NINE - ZERO)).any():
            raise Doubt
        found += np.where(has, digit, 0) * 10**place
    return found


def _spread(values: Numbers, counts: Numbers) -> Numbers:
    return np.repeat(values, counts)


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────


def _map(chunk: Vectored, words: Numbers, kind: pa.DataType) -> pa.Array:
    names = _utf8(chunk.lines.take(pa.array(2 * words[::2])))
    values = chunk.lines.take(pa.array(2 * words[1::2]))
    offsets = np.concatenate(([0], np.cumsum(chunk.counts // 2))).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), names, values, type=kind)


def _field(chunk: Vectored, words: Numbers, name: bytes, kind: pa.DataType) -> pa.Array:
    """One field, if every entry has it in the same place."""
    width = int(chunk.counts[0])
    if not (chunk.counts == width).all():
        raise Doubt
    for at in range(0, width, 2):
        if chunk.lines[int(2 * words[at])].as_py() == name:
            names = chunk.lines.take(pa.array(2 * words[at::width]))
            if not pc.all(pc.equal(names, pa.scalar(name, pa.binary()))).as_py():
                raise Doubt
            values = chunk.lines.take(pa.array(2 * words[at + 1 :: width]))
            return _utf8(values) if pa.types.is_string(kind) else values
    raise Doubt  # perhaps others have it


def _utf8(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raise Doubt from None


def _as_text(values: pa.Array) -> pa.Array:
    return pa.StringArray.from_buffers(len(values), values.buffers()[1], values.buffers()[2])
