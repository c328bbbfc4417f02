"""Somebody else's hands on our keys: entries deleted, streams trimmed, groups destroyed, other types in their place.

What was pending and lost its body cannot come back; it must be counted and named, and that is checked (S8).
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from chaos.faults.healing import put_right
from chaos.worker import GROUP
from headrace.names import keys_of, waiting_group
from tests.support.setback import set_ahead, set_back

if TYPE_CHECKING:
    from chaos.stage import Stage

BACK_S = 0.5  # in which the last messages that a group is set back by were read
FLOOR_S = 1.5  # a group that vanished comes back where it was so long ago, at most (janitor.FLOOR_MS and its way)

# Deletes some pending entries and says which. KEYS 1 stream · ARGV 1 group 2 how many 3 owner "" or one to spare
_DELETE_HELD = """
local ids = {}
for _, row in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[2])) do
  ids[#ids + 1] = row[1]
end
if #ids > 0 then redis.call('XDEL', KEYS[1], unpack(ids)) end
return ids
"""

# Cuts a stream and says what was cut and how much of it was pending. KEYS 1 stream · ARGV 1 how many stay 2.. groups
_TRIM = """
local before, held, cut = redis.call('XRANGE', KEYS[1], '-', '+'), {}, {}
for i = 2, #ARGV do
  local rows = redis.pcall('XPENDING', KEYS[1], ARGV[i], '-', '+', 100000)
  if not rows.err then
    for _, row in ipairs(rows) do held[row[1]] = true end
  end
end
redis.call('XTRIM', KEYS[1], 'MAXLEN', ARGV[1])
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local pending = {}
for _, entry in ipairs(before) do
  if first and entry[1] == first[1] then break end
  cut[#cut + 1] = entry[1]
  if held[entry[1]] then pending[#pending + 1] = entry[1] end
end
return {pending, cut}
"""


# Puts a string where a stream was, and takes it away again: at once, so that no entry falls in between and is
# overwritten. Both may be repeated: an answer can be lost. KEYS 1 the stream 2 its place meanwhile
_HIDE = """
if redis.call('TYPE', KEYS[1]).ok == 'string' then return end
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('RENAME', KEYS[1], KEYS[2]) end
redis.call('SET', KEYS[1], 'no stream')
"""
_SHOW = """
if redis.call('TYPE', KEYS[1]).ok == 'string' then redis.call('DEL', KEYS[1]) end
if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], KEYS[1]) end
"""


async def delete_entries(stage: Stage, rng: random.Random, /, *, count: int = 5) -> None:
    """XDEL of entries that are pending just now."""
    stage.note_fault("XDEL")
    admin: Any = stage.topology.admin
    found = await asyncio.to_thread(admin.eval, _DELETE_HELD, 1, stage.stream, GROUP, count)
    ids = [stage.id_of(id_) for id_ in found]
    stage.pen.note("trim", ids=ids, held=ids)


async def trim(stage: Stage, rng: random.Random, /, *, stay: int = 200) -> None:
    """XTRIM to a length that cuts what is unread and what is pending."""
    stage.note_fault("XTRIM")
    admin: Any = stage.topology.admin
    held, ids = admin.eval(_TRIM, 1, stage.stream, stay, GROUP, waiting_group(GROUP))
    stage.pen.note("trim", ids=[stage.id_of(id_) for id_ in ids], held=[stage.id_of(id_) for id_ in held])


async def delete_stream(stage: Stage, rng: random.Random, /) -> None:
    """DEL of the stream: everything in it is gone, groups and all. Workers make it again and go on."""
    stage.note_fault("DEL", forgets=True, before_s=FLOOR_S)
    admin: Any = stage.topology.admin
    _, ids = admin.eval(_TRIM.replace("redis.call('XTRIM', KEYS[1], 'MAXLEN', ARGV[1])", "redis.call('DEL', KEYS[1])"),
                        1, stage.stream, 0, GROUP, waiting_group(GROUP))  # fmt: skip
    stage.pen.note("trim", ids=[stage.id_of(id_) for id_ in ids], held=[])
    stage.healed_fault("DEL")


async def destroy_group(stage: Stage, rng: random.Random, /) -> None:
    """XGROUP DESTROY while workers run: it comes back just below its lowest unfinished message."""
    stage.note_fault("XGROUP DESTROY", forgets=True, before_s=FLOOR_S)
    stage.topology.admin.xgroup_destroy(stage.stream, GROUP)
    stage.healed_fault("XGROUP DESTROY")


async def wrong_type(stage: Stage, rng: random.Random, /, *, s: float = 0.6, of: str = "dead letters") -> None:
    """A string in the place of the dead letters, or of the stream: burials fail, or everything does, and must lose
    nothing."""
    stage.note_fault("WRONGTYPE")
    admin: Any = stage.topology.admin
    key = stage.stream if of == "stream" else keys_of(stage.stream).dead_letters
    aside = f"bystander:{key}"
    await asyncio.to_thread(admin.eval, _HIDE, 2, key, aside)
    await asyncio.sleep(s * rng.uniform(0.7, 1.3))
    await put_right(admin.eval, _SHOW, 2, key, aside)
    stage.healed_fault("WRONGTYPE")


async def set_stream_back(stage: Stage, rng: random.Random, /, *, ahead_s: int = 60, s: float = 0.5) -> None:
    """Ids of the future, as a wrong clock gives them, for a moment; then they are cut away and XSETID puts the stream
    back: what is added now comes below what the group has read, and the server would never hand it out."""
    admin: Any = stage.topology.admin
    stage.note_fault("XSETID back", forgets=True, before_s=s)
    future_ms = set_ahead(admin, stage.stream, ahead_s)
    await asyncio.sleep(s * rng.uniform(0.7, 1.3))
    cut = set_back(admin, stage.stream, f"{future_ms}-0", GROUP, waiting_group(GROUP))
    ids, held = ([stage.id_of(id_) for id_ in found] for found in (cut.ids, cut.held))
    stage.pen.note("trim", ids=ids, held=held)
    stage.healed_fault("XSETID back")


async def set_id_back(stage: Stage, rng: random.Random, /, *, back: int = 50) -> None:
    """XGROUP SETID to a place that was read already: what is done is handed out again, and robs who holds it."""
    stage.note_fault("SETID back", forgets=True, before_s=BACK_S)
    admin: Any = stage.topology.admin
    reached = {row["name"]: row["last-delivered-id"] for row in admin.xinfo_groups(stage.stream)}[GROUP.encode()]
    # From where the group has come to, not from the end of the stream: that may be ahead, and skip what is unread.
    last = [id_ for id_, _ in admin.xrevrange(stage.stream, max=reached, count=back)]
    if last:
        admin.xgroup_setid(stage.stream, GROUP, last[-1])
    stage.healed_fault("SETID back")
