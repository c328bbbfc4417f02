"""Somebody sets a stream back: its newest entries are gone, and so is their place in the order (XSETID)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# Removes every entry above an id and makes the highest that stays the stream's last id, all at once.
# XSETID refuses an id below the top entry, and from 7.2 on one below any entry that XDEL removed: so the stream is
# emptied by XTRIM, set back, and what stays is added again under its old ids. Groups and what is pending are untouched.
# Servers that count adds (7.0) are told how many the group has read and has still to read: else its lag is wrong.
# KEYS 1 stream · ARGV 1 the highest id that may stay 2.. groups, the first of which lag is measured by
# Answers {ids that were pending, ids that were cut}
_SET_BACK: Final = """
local stay, cut = redis.call('XRANGE', KEYS[1], '-', ARGV[1]), redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+')
local held, ids, pending = {}, {}, {}
for i = 2, #ARGV do
  local rows = redis.pcall('XPENDING', KEYS[1], ARGV[i], '-', '+', 1000000)
  if not rows.err then
    for _, row in ipairs(rows) do held[row[1]] = true end
  end
end
for _, entry in ipairs(cut) do
  ids[#ids + 1] = entry[1]
  if held[entry[1]] then pending[#pending + 1] = entry[1] end
end
local read, reached
for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local about = {}
  for i = 1, #info, 2 do about[info[i]] = info[i + 1] end
  if about.name == ARGV[2] then read, reached = about['entries-read'], about['last-delivered-id'] end
end
redis.call('XTRIM', KEYS[1], 'MAXLEN', 0)
redis.call('XSETID', KEYS[1], '0-1')
for _, entry in ipairs(stay) do redis.call('XADD', KEYS[1], entry[1], unpack(entry[2])) end
if read then
  local unread = #redis.call('XRANGE', KEYS[1], '(' .. reached, '+')
  local last = #stay > 0 and stay[#stay][1] or '0-1'
  redis.call('XSETID', KEYS[1], last, 'ENTRIESADDED', math.max(#stay, read + unread), 'MAXDELETEDID', '0-0')
end
return {pending, ids}
"""


class Cut(NamedTuple):
    held: list[bytes]  # of those, what was pending
    ids: list[bytes]


def set_back(client: Any, stream: str, highest: str, *groups: str) -> Cut:
    """Let nothing above an id stay in a stream. What is added next gets the server's time as its id again."""
    return Cut(*client.eval(_SET_BACK, 1, stream, highest, *groups))


def set_ahead(client: Any, stream: str, seconds: int) -> int:
    """From now on ids are of the future, as after a clock that was wrong. Answers the time that they begin with, ms."""
    now, _ = client.time()
    future_ms = (now + seconds) * 1000
    client.execute_command("XSETID", stream, f"{future_ms}-0")
    return int(future_ms)
