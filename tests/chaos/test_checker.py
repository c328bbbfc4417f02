"""The checker on histories made by hand: each invariant breaks when it must, and only then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chaos.checker import judge
from chaos.facts import Facts, Left, Letter, Promise
from chaos.verdict import Verdict
from tests.support.history import Event, Kind


class Tale:
    """A history told line by line; every line is a second later."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, op: str, kind: Kind = "", id: str = "", owner: str = "", attempt: int = 0, **about: Any) -> Tale:  # noqa: A002
        pid = int(about.pop("by", 0)) or (ord(owner[0]) if owner else 1)
        self.events.append(Event(float(len(self.events)), pid, op, kind, id, owner, attempt, about))
        return self

    def add(self, id_: str = "1-0", n: int = 1) -> Tale:
        return self.tell("add", "ok", id_, n=n)

    def start(self, owner: str, attempt: int, id_: str = "1-0", n: int = 1) -> Tale:
        return self.tell("start", "", id_, owner, attempt, n=n)

    def ends(self, op: str, kind: Kind, owner: str, attempt: int, id_: str = "1-0") -> Tale:
        return self.tell(op, "invoke", id_, owner, attempt).tell(op, kind, id_, owner, attempt)

    def dies(self, owner: str) -> Tale:
        """Killed by the nemesis, which says so itself."""
        return self.tell("died", pid=ord(owner[0]), code=-9, by=ord(owner[0]))

    def judged(self, left: Left | None = None, **about: Any) -> Verdict:
        found = left or Left(ids={"1-0"})
        facts = Facts(about.pop("promise", Promise(burns=1)), self.events, found)
        return judge(replace(facts, **about))


def handled() -> Tale:
    return Tale().add().start("a", 1).ends("ack", "ok", "a", 1)


def broken(verdict: Verdict) -> set[str]:
    return set(verdict.breaches)


def test_a_message_that_was_added_started_and_acked_breaks_nothing() -> None:
    assert broken(handled().judged()) == set()


def test_s1_an_add_without_effect_or_dead_letter_is_lost() -> None:
    assert broken(Tale().add().judged()) == {"S1"}
    assert Tale().add().judged().figures["lost"] == 1


def test_s1_an_ack_that_was_refused_is_no_effect() -> None:
    assert broken(Tale().add().start("a", 1).ends("ack", "fail", "a", 1).judged()) == {"S1"}
    unanswered = Tale().add().start("a", 1).tell("ack", "invoke", "1-0", "a", 1)
    assert broken(unanswered.judged()) == set()


def test_s1_one_delivery_may_be_given_twice_where_a_group_was_set_back_and_be_acked_the_second_time() -> None:
    def tale() -> Tale:
        return Tale().tell("fault", "invoke", what="SETID back", forgets=True).add()

    twice = tale().start("a", 2).ends("ack", "fail", "a", 2).start("a", 2).ends("ack", "ok", "a", 2)
    assert broken(twice.judged(promise=Promise(burns=1, keeps=False))) == set()
    refused = tale().start("a", 2).ends("ack", "fail", "a", 2).start("a", 2).ends("ack", "fail", "a", 2)
    assert broken(refused.judged(promise=Promise(burns=1, keeps=False))) == {"S1"}


def test_s1_an_effect_that_goes_with_the_ack_is_there() -> None:
    tale = Tale().add().tell("start", "", "1-0", "a", 1, n=1, do="sink").ends("ack", "ok", "a", 1)
    assert broken(tale.judged(Left(ids={"1-0"}, sink=[("1-0", 1)]))) == set()
    assert broken(tale.judged(Left(ids={"1-0"}))) == {"S1"}


def test_s2_an_id_that_brings_what_was_added_under_another() -> None:
    tale = Tale().add("1-0", 1).add("2-0", 2)
    tale.start("a", 1, "1-0", 2).ends("ack", "ok", "a", 1, "1-0").start("a", 1, "2-0", 1).ends(
        "ack", "ok", "a", 1, "2-0"
    )
    assert broken(tale.judged(Left(ids={"1-0", "2-0"}))) == {"S2"}


def test_s4_an_add_that_was_sent_twice() -> None:
    tale = Tale().add("1-0", 1).start("a", 1, "1-0", 1).ends("ack", "ok", "a", 1, "1-0")
    tale.start("a", 1, "2-0", 1).ends("ack", "ok", "a", 1, "2-0")
    assert broken(tale.judged(Left(ids={"1-0", "2-0"}))) == {"S4"}


def test_l2_what_nobody_counts_and_nobody_gets() -> None:
    assert broken(handled().judged(Left(ids={"1-0"}, waiting={"2-0"}))) == {"L2"}
    assert broken(handled().judged(Left(ids={"1-0"}, pending={"2-0": "a"}))) == {"L2"}


def test_x_a_process_that_ends_although_nobody_killed_it() -> None:
    tale = handled().tell("died", pid=77, code=1)
    assert broken(tale.judged()) == {"X"}
    assert broken(handled().tell("told", pid=77).tell("died", pid=77, code=1).judged()) == {"X"}
    killed = handled().tell("fault", "invoke", what="kill", pids=[77], excuses=True).tell("died", pid=77, code=-9)
    assert broken(killed.judged()) == set()
    assert broken(handled().judged(Left(ids={"1-0"}, stuck=["77"]))) == {"X"}


def test_x_a_process_that_ends_in_peace_although_nobody_had_told_it_to() -> None:
    assert broken(handled().tell("died", pid=77, code=0).judged()) == {"X"}
    assert broken(handled().tell("died", pid=77, code=0).tell("told", pid=77).judged()) == {"X"}
    assert broken(handled().tell("told", pid=77).tell("died", pid=77, code=0).judged()) == set()


def test_x_one_that_is_told_to_end_before_it_has_begun_may_die_of_it() -> None:
    tale = handled().tell("told", pid=77)
    assert broken(tale.tell("died", pid=77, code=-15).judged()) == set()
    at_work = handled().tell("took", ids=["1-0"], by=77).tell("told", pid=77)
    assert broken(at_work.tell("died", pid=77, code=-15).judged()) == {"X"}


def test_x_an_error_in_a_log_that_nobody_asked_for() -> None:
    outcry = Left(ids={"1-0"}, outcries=["worker-1.log: headrace.errors.WrongType: a string"])
    assert broken(handled().judged(outcry)) == {"X"}
    assert broken(handled().judged(outcry, promise=Promise(ends=("WrongType",)))) == set()


def test_x_one_that_may_end_by_itself_says_why() -> None:
    def ended(word: str) -> set[str]:
        promise = Promise(ends=("MissingRight", "AuthFailed"))
        return broken(handled().tell("died", pid=77, code=1, word=word).judged(promise=promise))

    assert ended("headrace.errors.MissingRight: NOPERM this user has no permissions to run 'xack'") == set()
    assert ended("headrace.errors.AuthFailed: WRONGPASS") == set()
    assert ended("AttributeError: 'NoneType' object has no attribute 'MissingRight'") == {"X"}
    assert ended("") == {"X"}


def test_a_run_without_the_fault_it_was_for_does_not_count() -> None:
    assert broken(handled().judged(unhappened=["kill"])) == {"run"}


def test_s1_an_unknown_add_may_be_gone() -> None:
    assert broken(Tale().tell("add", "info", n=1).judged(Left())) == set()


def test_s2_an_effect_that_nobody_added() -> None:
    assert "S2" in broken(handled().start("a", 1, "2-0", n=9).ends("ack", "ok", "a", 1, "2-0").judged())


def test_s3_an_ack_of_a_former_owner_that_was_taken() -> None:
    tale = Tale().add().start("a", 1).dies("a").start("b", 2)
    assert broken(tale.ends("ack", "ok", "a", 1).judged()) == {"S3"}


def test_s3_an_ack_of_a_former_owner_that_was_refused_is_as_it_should_be() -> None:
    tale = Tale().add().start("a", 1).dies("a").start("b", 2).ends("ack", "fail", "a", 1)
    verdict = tale.ends("ack", "ok", "b", 2).judged()
    assert broken(verdict) == set()
    assert verdict.figures["refused"] == 1


def test_s3_a_retry_of_a_former_owner_that_was_taken() -> None:
    tale = Tale().add().start("a", 1).dies("a").start("b", 2).ends("retry", "ok", "a", 1)
    assert "S3" in broken(tale.start("c", 3).ends("ack", "ok", "c", 3).judged())


def test_s3_a_retry_before_the_next_start_is_as_it_should_be() -> None:
    tale = Tale().add().start("a", 1).ends("retry", "ok", "a", 1).start("b", 2)
    assert broken(tale.ends("ack", "ok", "b", 2).judged()) == set()


def test_s3_one_attempt_given_to_two_owners() -> None:
    tale = Tale().add().start("a", 1).start("b", 1).ends("ack", "ok", "b", 1)
    assert "S3" in broken(tale.judged())


def test_s4_two_committed_effects() -> None:
    tale = handled().start("b", 1).ends("ack", "ok", "b", 1)
    assert "S4" in broken(tale.judged())
    assert tale.judged().figures["duplicates"] == 1


def test_s4_an_effect_and_a_dead_letter() -> None:
    assert "S4" in broken(handled().judged(Left(ids={"1-0"}, letters=[Letter("1-0", b"x")]), mortal=frozenset({1})))


def test_s4_an_effect_in_the_sink_twice() -> None:
    assert "S4" in broken(handled().judged(Left(ids={"1-0"}, sink=[("1-0", 1), ("1-0", 1)])))


def test_s4_is_not_judged_where_the_server_forgot_what_it_answered() -> None:
    tale = Tale().tell("fault", "invoke", what="kill server", forgets=True)
    tale.add().start("a", 1).ends("ack", "ok", "a", 1).start("a", 1).ends("ack", "ok", "a", 1)
    verdict = tale.judged(promise=Promise(keeps=False))
    assert broken(verdict) == set()
    assert verdict.figures["duplicates"] == 1


def test_s4_is_judged_of_everything_where_the_server_might_have_forgotten_and_did_not() -> None:
    verdict = handled().start("a", 1).ends("ack", "ok", "a", 1).judged(promise=Promise(keeps=False))
    assert "S4" in broken(verdict)
    assert verdict.figures["judged_share"] == 1


def test_s4_what_was_not_touched_while_the_server_forgot_is_judged() -> None:
    def twice(*, before: int) -> Tale:
        tale = handled().start("a", 1).ends("ack", "ok", "a", 1)
        for _ in range(before):
            tale.tell("noise")
        tale.tell("fault", "invoke", what="failover", forgets=True, before_s=2.0)
        return tale.tell("fault", "ok", what="failover")

    assert broken(twice(before=0).judged(promise=Promise(keeps=False))) == set()
    assert twice(before=0).judged(promise=Promise(keeps=False)).figures["judged_share"] == 0
    assert "S4" in broken(twice(before=5).judged(promise=Promise(keeps=False)))


def test_s4_what_was_done_once_the_server_was_back_is_judged() -> None:
    tale = Tale().tell("fault", "invoke", what="failover", forgets=True).tell("fault", "ok", what="failover")
    tale.add().start("a", 1).ends("ack", "ok", "a", 1).start("a", 1).ends("ack", "ok", "a", 1)
    assert "S4" in broken(tale.judged(promise=Promise(keeps=False)))


def test_s4_a_shard_that_forgot_excuses_no_other() -> None:
    def twice(stream: str) -> Verdict:
        id_ = f"{stream}/1-0"
        tale = Tale().tell("fault", "invoke", what="failover", forgets=True, stream="hurt").add(id_).start("a", 1, id_)
        tale.ends("ack", "ok", "a", 1, id_).start("a", 1, id_).ends("ack", "ok", "a", 1, id_)
        return tale.tell("fault", "ok", what="failover").judged(Left(ids={id_}), promise=Promise(keeps=False))

    assert broken(twice("hurt")) == set()
    assert "S4" in broken(twice("whole"))
    assert twice("whole").figures["judged_share"] == 1


def test_s5_an_attempt_that_nobody_started() -> None:
    assert broken(Tale().add().start("a", 2).ends("ack", "ok", "a", 2).judged()) == {"S5"}


def test_s5_a_release_gives_its_attempt_back() -> None:
    tale = Tale().add().start("a", 1).ends("release", "ok", "a", 1)
    assert broken(tale.start("b", 1).ends("ack", "ok", "b", 1).judged()) == set()


def test_s5_a_release_that_burnt_its_attempt() -> None:
    tale = Tale().add().start("a", 1).ends("release", "ok", "a", 1)
    assert broken(tale.start("b", 2).ends("ack", "ok", "b", 2).judged()) == {"S5"}


def test_s5_a_message_taken_from_a_live_owner() -> None:
    tale = Tale().add().start("a", 1).start("b", 2).ends("ack", "ok", "b", 2)
    assert broken(tale.judged()) == {"S5"}
    assert tale.judged().figures["robbed"] == 1


def test_s5_a_robbery_is_not_undone_by_what_the_robbed_one_says_later() -> None:
    for op in ("retry", "release"):
        for answer in ("ok", "fail", "info"):
            tale = Tale().add().start("a", 1).start("b", 2).ends(op, answer, "a", 1).ends("ack", "ok", "b", 2)
            assert "S5" in broken(tale.judged())
            assert tale.judged().figures["robbed"] == 1


def test_s5_a_retry_that_was_refused_before_the_next_start_lets_nobody_go_on() -> None:
    tale = Tale().add().start("a", 1).ends("retry", "fail", "a", 1).start("b", 2).ends("ack", "ok", "b", 2)
    assert broken(tale.judged()) == {"S5"}


def test_s5_a_retry_may_be_answered_after_the_next_start_and_refused_when_it_was_sent_twice() -> None:
    late = Tale().add().start("a", 1).tell("retry", "invoke", "1-0", "a", 1).start("b", 2)
    assert broken(late.tell("retry", "ok", "1-0", "a", 1).ends("ack", "ok", "b", 2).judged()) == set()
    twice = Tale().add().start("a", 1).tell("retry", "invoke", "1-0", "a", 1).start("b", 2)
    twice.tell("retry", "fail", "1-0", "a", 1, resent=True)
    assert broken(twice.ends("ack", "ok", "b", 2).judged()) == set()
    unanswered = Tale().add().start("a", 1).tell("retry", "info", "1-0", "a", 1).start("b", 2)
    assert broken(unanswered.ends("ack", "ok", "b", 2).judged()) == set()


def test_s5_one_that_slept_starts_what_it_had_read_before_and_robs_nobody() -> None:
    def late(**about: Any) -> Tale:
        tale = Tale().add().tell("fault", "invoke", what="pause", pids=[ord("a")], **about).start("b", 2)
        return tale.start("a", 1).ends("ack", "fail", "a", 1).ends("ack", "ok", "b", 2)

    assert broken(late(excuses=True).tell("died", pid=1, code=-9, by=1).judged()) == set()
    assert late(excuses=True).judged().figures["excused"] == 1
    assert "S5" in broken(late(excuses=False).tell("died", pid=1, code=-9, by=1).judged())


def test_s5_an_excuse_ends_soon_after_the_fault() -> None:
    def robbed(*, later: int) -> Tale:
        tale = Tale().add().tell("fault", "invoke", what="pause", pids=[ord("a")], excuses=True)
        tale.tell("fault", "ok", what="pause", pids=[ord("a")])
        for _ in range(later):
            tale.tell("noise")
        return tale.start("a", 1).start("b", 2).ends("ack", "ok", "b", 2)

    assert broken(robbed(later=0).judged(lease_s=1.0)) == set()
    assert robbed(later=0).judged(lease_s=1.0).figures["excused"] == 1
    assert broken(robbed(later=2).judged(lease_s=1.0)) == {"S5"}
    assert broken(robbed(later=2).judged(lease_s=3.0)) == set()
    assert broken(robbed(later=5).judged(lease_s=10.0)) == {"S5"}


def test_s5_one_that_fails_for_good_loses_what_it_has_while_it_ends() -> None:
    def failed(*, after: int) -> Verdict:
        tale = Tale().add().start("a", 1).start("b", 2).ends("ack", "ok", "b", 2)
        for _ in range(after):
            tale.tell("noise")
        tale.tell("died", pid=ord("a"), code=1, word="headrace.errors.WrongType: a string")
        return tale.judged(promise=Promise(ends=("WrongType",)))

    assert broken(failed(after=0)) == set()
    assert failed(after=0).figures["excused"] == 1
    assert broken(failed(after=2)) == {"S5"}


def test_s5_where_nobody_could_run_for_a_part_of_the_lease_nobody_is_a_robber() -> None:
    def robbed(seconds: float) -> Tale:
        tale = Tale().add().start("a", 1).tell("stood", seconds=seconds)
        return tale.start("b", 2).ends("ack", "ok", "b", 2)

    assert broken(robbed(0.3).judged(lease_s=1.0)) == set()
    assert broken(robbed(0.2).judged(lease_s=1.0)) == {"S5"}


def test_s5_however_many_a_death_may_burn_without_one_it_is_none() -> None:
    any_number = Promise(burns=float("inf"))
    tale = Tale().add().start("a", 2).ends("ack", "ok", "a", 2)
    assert broken(tale.judged(promise=any_number)) == {"S5"}
    assert broken(Tale().dies("z").add().start("a", 9).ends("ack", "ok", "a", 9).judged(promise=any_number)) == set()
    slept = Tale().tell("fault", "invoke", what="pause", pids=[7], excuses=True)
    assert broken(slept.add().start("a", 2).ends("ack", "ok", "a", 2).judged(promise=any_number)) == set()


def test_s5_more_starts_than_allowed() -> None:
    tale = Tale().add()
    for attempt in range(1, 5):
        tale.start("a", attempt).ends("retry", "ok", "a", attempt)
    tale.start("a", 5).ends("ack", "ok", "a", 5)
    assert broken(tale.judged(promise=Promise(max_attempts=4))) == {"S5"}


def test_s6_what_is_no_poison_is_not_buried() -> None:
    tale = Tale().add().start("a", 1).ends("bury", "ok", "a", 1)
    assert "S6" in broken(tale.judged(Left(ids={"1-0"}, letters=[Letter("1-0", b"x")])))


def test_s6_poison_is_buried_once_and_byte_for_byte() -> None:
    tale = Tale().add().start("a", 1).ends("bury", "ok", "a", 1)
    about = {"poison": {1: b"x"}, "mortal": frozenset({1})}
    assert broken(tale.judged(Left(ids={"1-0"}, letters=[Letter("1-0", b"x")]), **about)) == set()
    assert broken(tale.judged(Left(ids={"1-0"}, letters=[Letter("1-0", b"y")]), **about)) == {"S6"}
    assert broken(tale.judged(Left(ids={"1-0"}, letters=[Letter("1-0", b"x")] * 2), **about)) == {"S6"}
    assert "S6" in broken(tale.judged(Left(ids={"1-0"}), **about))


def test_s7_an_entry_that_is_acked_and_did_nothing() -> None:
    assert broken(handled().judged(Left(ids={"1-0", "2-0"}))) == {"S7"}


def test_s8_the_counter_of_what_was_trimmed_is_the_truth() -> None:
    tale = Tale().add().tell("trim", ids=["1-0"], held=["1-0"])
    assert broken(tale.judged(Left(), promise=Promise(trims=True))) == {"S8"}
    assert broken(tale.tell("count", name="trimmed_total", n=1).judged(Left(), promise=Promise(trims=True))) == set()


def test_s9_what_is_left_behind() -> None:
    assert broken(handled().judged(Left(ids={"1-0"}, keys={"x"}))) == {"S9"}
    assert broken(handled().judged(Left(ids={"1-0"}, clients=["headrace:a:read"]))) == {"S9"}
    assert broken(handled().judged(Left(ids={"1-0"}, owners={"a"}))) == {"S9"}
    assert broken(handled().judged(Left(ids={"1-0"}, connections={"a": 3}))) == {"S9"}
    assert broken(handled().judged(Left(ids={"1-0"}, connections={"a": 1}))) == set()
    assert broken(handled().dies("a").judged(Left(ids={"1-0"}, owners={"a"}))) == set()


def test_s10_the_canary() -> None:
    assert broken(handled().judged(Left(ids={"1-0"}, secrets=["worker-1.log"]))) == {"S10"}


def test_l1_a_rescue_that_took_too_long() -> None:
    tale = Tale().add().start("a", 1).dies("a")
    for _ in range(5):
        tale.tell("noise")
    tale.start("b", 2).ends("ack", "ok", "b", 2)
    assert broken(tale.judged(promise=Promise(rescue_s=3.0))) == {"L1"}
    assert broken(tale.judged(promise=Promise(rescue_s=10.0))) == set()
    assert tale.judged().figures["rescue_max_ms"] == 6_000


def test_l1_begins_with_the_death_of_the_last_one_that_held_it() -> None:
    """Its second owner read ahead and died before it had started the message."""
    tale = Tale().add().start("a", 1).dies("a").tell("noise").tell("noise").dies("b").start("c", 3)
    verdict = tale.ends("ack", "ok", "c", 3).judged(promise=Promise(rescue_s=1.0, burns=1))
    assert broken(verdict) == set()
    assert verdict.figures["rescue_max_ms"] == 1_000


def late(tale: Tale) -> Tale:
    for _ in range(5):
        tale.tell("noise")
    return tale


def test_l1_what_a_dead_one_had_read_and_not_started() -> None:
    tale = Tale().add().tell("took", owner="a", ids=["1-0"]).dies("a")
    late(tale).start("b", 2).ends("ack", "ok", "b", 2)
    assert broken(tale.judged(promise=Promise(rescue_s=1.0, burns=1))) == {"L1"}
    assert broken(tale.judged(promise=Promise(rescue_s=10.0, burns=1))) == set()
    assert tale.judged().figures["rescued"] == 1
    given_back = Tale().add().tell("took", owner="a", ids=["1-0"]).dies("a")
    late(given_back).start("b", 1).ends("ack", "ok", "b", 1)
    assert broken(given_back.judged(promise=Promise(rescue_s=1.0))) == {"L1"}


def test_l1_what_a_dead_one_had_read_again_after_it_had_ended_its_first_try() -> None:
    tale = Tale().add().start("a", 1).ends("retry", "ok", "a", 1).tell("took", owner="c", ids=["1-0"]).dies("c")
    late(tale).start("b", 3).ends("ack", "ok", "b", 3)
    assert broken(tale.judged(promise=Promise(rescue_s=1.0, burns=1))) == {"L1"}


def test_l1_what_nobody_noted_is_timed_from_the_last_death_of_anybody() -> None:
    tale = Tale().add().dies("a")
    late(tale).start("b", 2).ends("ack", "ok", "b", 2)
    assert broken(tale.judged(promise=Promise(rescue_s=1.0, burns=1))) == {"L1"}
    sooner = late(Tale().add().dies("a")).dies("c").start("b", 2).ends("ack", "ok", "b", 2)
    assert broken(sooner.judged(promise=Promise(rescue_s=1.0, burns=1))) == set()


def test_l1_is_not_measured_from_the_death_of_one_that_cannot_have_had_it() -> None:
    promise = Promise(rescue_s=1.0, burns=1)
    before = late(Tale().dies("a").add()).start("b", 2).ends("ack", "ok", "b", 2)
    assert broken(before.judged(promise=promise)) == set()
    first = late(Tale().add().dies("a")).start("b", 1).ends("ack", "ok", "b", 1)
    assert broken(first.judged(promise=promise)) == set()
    alive = late(Tale().add().tell("took", owner="b", ids=["1-0"]).dies("a")).start("b", 1).ends("ack", "ok", "b", 1)
    assert broken(alive.judged(promise=promise)) == set()


def test_l1_a_later_death_of_another_excuses_nobody_who_left_a_message_that_was_noted() -> None:
    tale = Tale().add().tell("took", owner="a", ids=["1-0"]).dies("a")
    late(tale).dies("c").start("b", 2).ends("ack", "ok", "b", 2)
    assert broken(tale.judged(promise=Promise(rescue_s=1.0, burns=1))) == {"L1"}


def test_l2_what_is_not_drained_is_late_and_not_lost() -> None:
    left = Left(drained=False, drain_s=60.0, ids={"1-0"}, pending={"1-0": "a"})
    assert broken(Tale().add().judged(left)) == {"L2"}


def test_l3_a_shard_that_was_not_hurt_stood_still() -> None:
    def played(*, during: str) -> Verdict:
        tale = Tale()
        for n, stream in enumerate(["b/", "b/", "b/", "", during, during, "", "b/", "b/"]):
            if n in (3, 6):
                tale.tell("fault", "invoke" if n == 3 else "ok", what="failover", stream="a")
            if stream:
                id_ = f"{stream}{n}-0"
                tale.add(id_, n).start("o", 1, id_, n).ends("ack", "ok", "o", 1, id_)
        return tale.judged(Left(), begun=0.0, ended=float(len(tale.events)))

    assert broken(played(during="b/")) == set()
    assert broken(played(during="a/")) == {"L3"}


def test_l4_a_spin_and_a_flood() -> None:
    assert broken(handled().judged(Left(ids={"1-0"}, idle_commands_per_s=5_000.0))) == {"L4"}
    assert broken(handled().judged(Left(ids={"1-0"}, log_lines_per_s={"reader.waits": 100.0}))) == {"L4"}


def test_a_replayed_message_has_a_second_life() -> None:
    tale = Tale().add().start("a", 1).ends("bury", "ok", "a", 1).tell("replay", id="1-0")
    tale.start("b", 1).ends("ack", "ok", "b", 1)
    assert broken(tale.judged(poison={1: b"x"}, mortal=frozenset({1}))) == set()
