"""What somebody trimmed or deleted from an owned stream before its owner read it, to the message (take, trimmed)."""

from __future__ import annotations

import pytest

from headrace.names import keys_of
from headrace.redis import commands, ownership
from headrace.redis.ownership import Gap, Place, Trimmed
from tests.support.lab import Lab
from tests.support.wait import wait_until_sync

COUNTING = ("redis7", "redis8", "valkey9")  # servers that know how many entries were ever added
UNSURE = Trimmed(False, 0, 0, 0, "")


class Owned:
    """A data stream, and an owner that has read and acknowledged some of it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        keys = keys_of(f"{lab.keys.stream}-room")
        self.place = Place(keys.stream, keys.ownership(lab.keys.stream, lab.group), f"{lab.keys.stream}:{lab.group}")
        self.ids: list[bytes] = []
        self.count = self.epoch = 0
        self.acked = (b"0-0", 0)

    def fill(self, count: int) -> None:
        self.ids += [self.lab.raw("XADD", self.place.data, "*", "payload", "{}") for _ in range(count)]

    def take(self) -> Gap | None:
        self.count += 1
        took = self.lab.call(ownership.take(self.place, b"5-0", self.count, "me"))
        again = self.lab.call(ownership.take(self.place, b"5-0", self.count, "me"))
        assert took == again  # its first answer may have been lost
        self.epoch, self.acked = took.epoch, (took.position.encode(), took.read)
        return took.gap

    def ack(self, upto: int, messages: int) -> None:
        """Up to the message of that index, so many since the last ack."""
        word = ownership.pos_ack(self.place, "me", self.epoch, self.ids[upto], messages)
        assert self.lab.call(word).kind == "ok"
        self.acked = (self.ids[upto], self.acked[1] + messages)

    def trim(self, left: int) -> None:
        self.lab.raw("XTRIM", self.place.data, "MAXLEN", left)

    def look(self, cursor: int, read: int, most: int | None = None) -> Trimmed:
        at = self.ids[cursor] if cursor >= 0 else b"0-0"
        return self.lab.call(ownership.trimmed(self.place, "me", self.epoch, (at, read), self.acked, most=most))

    @property
    def lag(self) -> int | None:
        (group,) = self.lab.call(commands.groups(keys_of(self.place.data)))
        return group.lag

    def id(self, at: int) -> str:
        return self.ids[at].decode()


@pytest.fixture
def owned(lab: Lab) -> Owned:
    return Owned(lab)


@pytest.mark.servers(*COUNTING)
def test_a_take_tells_what_was_trimmed_behind_the_position_once(owned: Owned) -> None:
    owned.fill(10)
    assert owned.take() is None
    owned.ack(2, 3)
    owned.trim(4)  # 6 to 9 are left, 3 to 5 are gone
    assert owned.take() == Gap(3, owned.id(2), owned.id(6))
    assert owned.lag == 4
    assert owned.take() is None
    owned.ack(9, 4)
    assert (owned.lag, owned.take()) == (0, None)
    owned.trim(0)
    assert owned.take() is None  # all of it was read
    owned.fill(5)
    owned.trim(0)
    assert owned.take() == Gap(5, owned.id(9), owned.id(14))
    assert owned.lag == 0


@pytest.mark.servers(*COUNTING)
def test_what_was_trimmed_before_anybody_owned_the_stream_is_nobodys_loss(owned: Owned) -> None:
    owned.fill(10)
    owned.trim(4)
    assert owned.take() is None
    assert owned.lag == 4
    assert owned.look(-1, 0) == Trimmed(True, 0, 6, 0, owned.id(6))
    owned.ack(9, 4)
    assert owned.lag == 0


@pytest.mark.servers(*COUNTING)
def test_a_position_trimmed_exactly_up_to_its_end_has_no_gap(owned: Owned) -> None:
    """Retention cuts what is acknowledged."""
    owned.fill(10)
    owned.take()
    owned.ack(4, 5)
    owned.trim(5)
    assert owned.take() is None
    assert owned.look(4, 5).gone == 0


@pytest.mark.servers(*COUNTING)
def test_what_seems_to_be_gone_is_noted_when_it_is_said_again_and_never_twice(owned: Owned) -> None:
    owned.fill(10)
    owned.take()
    assert owned.look(3, 4) == UNSURE  # in the middle of what is there
    owned.trim(2)
    assert owned.look(3, 4) == Trimmed(True, 0, 4, 4, owned.id(8))
    assert owned.look(5, 6, most=4) == Trimmed(True, 2, 2, 0, owned.id(8))  # two were on their way
    assert owned.look(5, 6, most=4) == Trimmed(True, 0, 2, 0, owned.id(8))
    assert owned.take() == Gap(6, "0-0", owned.id(8))  # another owner: the six were never acknowledged
    owned.ack(9, 2)
    assert owned.take() is None


@pytest.mark.servers(*COUNTING)
def test_single_messages_that_were_deleted_unread_are_found_when_all_is_read(owned: Owned) -> None:
    owned.fill(10)
    owned.take()
    owned.lab.raw("XDEL", owned.place.data, owned.ids[6], owned.ids[7])
    assert owned.look(9, 8) == Trimmed(True, 0, 2, 2, owned.id(9))
    assert owned.look(9, 8, most=2).noted == 2
    owned.lab.raw("XDEL", owned.place.data, *owned.ids[:5])
    assert owned.look(9, 8).gone == 2  # those were read


@pytest.mark.servers(*COUNTING)
def test_what_a_dead_owner_passed_unnoticed_is_found_by_the_next_take(owned: Owned) -> None:
    owned.fill(10)
    owned.take()
    owned.lab.raw("XDEL", owned.place.data, owned.ids[6], owned.ids[7])
    owned.ack(9, 8)
    assert owned.take() == Gap(2, "0-0", owned.id(9))
    assert owned.take() is None


@pytest.mark.servers(*COUNTING)
def test_a_stream_that_was_replaced_is_counted_afresh(owned: Owned) -> None:
    """How much of the old one was unread, nobody knows any more."""
    owned.fill(10)
    owned.take()
    owned.ack(4, 5)
    owned.lab.raw("DEL", owned.place.data)
    last_ms = int(owned.id(9).partition("-")[0])
    wait_until_sync(lambda: owned.lab.call(commands.server_ms()) > last_ms)  # ids begin anew within a millisecond
    owned.fill(3)
    assert owned.take() is None
    owned.fill(3)
    owned.trim(2)
    assert owned.take() == Gap(4, owned.id(4), owned.id(14))


@pytest.mark.servers(*COUNTING)
def test_what_a_failover_lost_is_not_taken_for_trimmed_by_the_next_owner(owned: Owned, lab: Lab) -> None:
    """The stream and the hash went back together; the owner, who lives on, has read what nobody knows any more."""
    owned.fill(10)
    owned.take()
    owned.ack(9, 10)
    lab.raw("DEL", owned.place.data)
    for id_ in owned.ids[:5]:
        lab.raw("XADD", owned.place.data, id_, "payload", "{}")
    lab.raw("XGROUP", "CREATE", owned.place.data, owned.place.mirror, owned.ids[4])
    lab.raw("HSET", owned.place.own, "pos", owned.ids[4], "read", 5)
    owned.fill(3)
    assert owned.look(12, 13) == UNSURE  # the two count differently until the next ack
    owned.ack(12, 3)
    assert owned.look(12, 13) == Trimmed(True, 0, -5, 0, owned.id(12))
    assert (owned.lag, owned.take()) == (0, None)


@pytest.mark.servers(*COUNTING)
def test_an_ack_that_was_counted_twice_hides_nothing(owned: Owned) -> None:
    """Its answer was lost, and a later one stood for both."""
    owned.fill(10)
    owned.take()
    owned.ack(4, 5)
    owned.acked = (b"0-0", 0)  # as its owner sees it
    owned.ack(9, 10)
    assert owned.look(9, 10) == Trimmed(True, 0, 0, 0, owned.id(9))
    assert owned.lag == 0
    owned.fill(5)
    owned.trim(2)
    assert owned.take() == Gap(3, owned.id(9), owned.id(13))


def test_only_the_owner_counts_and_only_where_the_server_does(owned: Owned, lab: Lab, server_key: str) -> None:
    owned.fill(10)
    owned.take()
    owned.ack(2, 3)
    owned.trim(4)
    if server_key == "redis6":  # it does not say how many were ever added
        assert owned.look(2, 3, most=9) == UNSURE
        assert owned.take() is None
    owned.epoch -= 1
    assert owned.look(2, 3, most=9) == UNSURE
    lab.raw("DEL", owned.place.data)
    owned.epoch += 1
    assert owned.look(2, 3, most=9) == UNSURE
