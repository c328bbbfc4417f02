"""The judge of owned streams: each invariant by the smallest history that breaks it."""

from __future__ import annotations

from itertools import count
from typing import Any

from chaos.inorder import judge
from tests.support.history import Event


class Told:
    """A history of one room, an event a second."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._at = count(1)

    def note(self, op: str, kind: Any, epoch: int, n: int) -> None:
        about = {"name": "room", "epoch": epoch, "n": n}
        self.events.append(Event(float(next(self._at)), epoch, op, kind, about=about))

    def start(self, epoch: int, n: int) -> None:
        self.note("room-start", "", epoch, n)

    def said(self, epoch: int, n: int, answer: str = "ok") -> None:
        self.note("room-ack", "invoke", epoch, n)
        if answer:
            self.note("room-ack", answer, epoch, n)

    def done(self, epoch: int, *numbers: int) -> None:
        for n in numbers:
            self.start(epoch, n)
            self.said(epoch, n)

    def breaches(self, messages: int) -> set[str]:
        return {*judge(self.events, {"room": messages}).breaches}


def test_a_room_that_changes_hands_between_an_end_and_its_answer_is_in_order() -> None:
    told = Told()
    told.done(1, 0, 1)
    told.start(1, 2)
    told.said(1, 2, "")
    told.done(2, 3)
    assert told.breaches(4) == set()


def test_a_message_whose_end_was_said_in_vain_may_be_done_again() -> None:
    told = Told()
    told.done(1, 0)
    told.start(1, 1)
    told.said(1, 1, "")
    told.done(2, 1, 2)
    assert told.breaches(3) == set()


def test_s3_a_takeover_that_goes_on_behind_a_message_whose_end_was_refused() -> None:
    told = Told()
    told.done(1, 0)
    told.start(1, 1)
    told.said(1, 1, "fail")
    told.done(2, 2)
    assert told.breaches(3) == {"S1", "S3"}


def test_s1_a_message_that_nobody_ended() -> None:
    told = Told()
    told.done(1, 0, 1)
    assert told.breaches(3) == {"S1"}


def test_s3_a_message_left_out_within_an_epoch() -> None:
    told = Told()
    told.done(1, 0, 2)
    assert "S3" in told.breaches(3)


def test_s3_a_takeover_that_goes_on_behind_a_message_that_was_only_begun() -> None:
    """The message was started, and its owner died before it said anything."""
    told = Told()
    told.done(1, 0)
    told.start(1, 1)
    told.done(2, 2)
    assert told.breaches(3) == {"S1", "S3"}


def test_s3_a_word_of_a_former_owner_that_was_taken() -> None:
    told = Told()
    told.done(1, 0)
    told.start(1, 1)
    told.start(2, 1)
    told.said(1, 1)
    told.said(2, 1, "fail")
    assert told.breaches(2) == {"S3"}


def test_a_word_of_a_former_owner_that_was_refused_is_counted() -> None:
    told = Told()
    told.done(1, 0)
    told.start(1, 1)
    told.start(2, 1)
    told.said(1, 1, "fail")
    told.said(2, 1)
    verdict = judge(told.events, {"room": 2})
    assert verdict.holds
    assert verdict.figures["refused"] == 1


def test_s4_a_message_that_is_begun_again_after_its_end() -> None:
    told = Told()
    told.done(1, 0, 1)
    told.done(2, 1)
    assert told.breaches(2) == {"S4"}


def test_l2_what_is_left_is_told() -> None:
    told = Told()
    told.done(1, 0)
    assert {*judge(told.events, {"room": 1}, ["owned-0: 1 pending"]).breaches} == {"L2"}
