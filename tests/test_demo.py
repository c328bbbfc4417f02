"""The demo: its payments, its ledger, and the whole of it in small."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.codec import codec_for
from headrace.deadletters import DeadLetter
from headrace.demo.journal import PATH_VARIABLE, Journal, Pen
from headrace.demo.ledger import Ledger, Rescue
from headrace.demo.payments import Payment, payments, sendings
from headrace.errors import DecodeError
from tests.support.wait import wait_until_sync

ROOT = Path(__file__).resolve().parents[1]
DEMO = [sys.executable, "-m", "headrace.demo"]


# ── payments ──


def test_the_same_seed_gives_the_same_payments_and_another_seed_others() -> None:
    assert sendings(500) == sendings(500)
    assert list(payments(500, seed=1)) != list(payments(500, seed=2))


def test_payments_look_like_payments() -> None:
    made = list(payments(3_000))
    assert len({payment.id for payment in made}) == 3_000
    assert [payment.created for payment in made] == sorted(payment.created for payment in made)
    assert all(0 <= payment.score <= 1 and payment.amount > 0 for payment in made)
    assert all(payment.cents == pytest.approx(payment.amount * 100) for payment in made)
    assert 0 < sum(payment.score > 0.8 for payment in made) < 300
    assert {payment.currency for payment in made} == {"EUR", "GBP", "CHF", "DKK", "USD"}


def test_sendings_hold_every_kind_of_trouble_and_repeats_come_after_their_original() -> None:
    sent = sendings(1_000)
    assert Counter(one.kind for one in sent) == {
        "good": 996,
        "repeat": 20,
        "undecodable": 2,
        "poison": 1,
        "lethal": 1,
    }
    seen: set[str] = set()
    for one in sent:
        assert (one.key in seen) == (one.kind == "repeat")
        seen.add(one.key)


def test_only_the_undecodable_cannot_be_decoded() -> None:
    codec = codec_for(Payment)
    for one in sendings(2_000, undecodable=0.05, repeats=0):
        if one.kind == "undecodable":
            with pytest.raises(DecodeError):
                codec.decode(one.body)
        else:
            assert codec.decode(one.body) == one.payment


# ── journal ──


def test_the_journal_goes_on_where_it_stopped_and_never_reads_half_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    monkeypatch.setenv(PATH_VARIABLE, str(path))
    pen, journal = Pen(), Journal(path)
    pen.note("start", "1-0", 1)
    (note,) = journal.news()
    assert (note.what, note.id, note.attempt) == ("start", "1-0", 1)
    whole = msgspec.json.encode(note) + b"\n"
    with path.open("ab", buffering=0) as file:
        file.write(whole[:9])
        assert journal.news() == []
        file.write(whole[9:])
    assert journal.news() == [note]
    journal.close()


# ── ledger ──


def ledger(**changed: Any) -> Ledger:
    """A small ledger that adds up, with some of it changed."""
    sent = sendings(200)
    ids = {f"{at}-0": one.key for at, one in enumerate(sent) if one.kind != "repeat"}
    troubled = {one.key for one in sent if one.kind not in ("good", "repeat")}
    good = [one.payment for one in sent if one.kind == "good" and one.payment is not None]
    totals: Counter[str] = Counter()
    for payment in good:
        totals[payment.currency] += payment.cents
    letters = [letter(id_) for id_, key in ids.items() if key in troubled]
    parts: dict[str, Any] = {
        "sent": sent,
        "added": ids,
        "settled": {payment.id: 1 for payment in good},
        "totals": dict(totals),
        "letters": letters,
        "backlog": 0,
        "refused": 3,
        "taken_over": 3,
        "rescues": [Rescue("SIGKILL", 1, 3, [10.0, 20.0, 90.0])],
        "seconds": 1.0,
    }
    return Ledger(**{**parts, **changed})


def letter(original_id: str) -> DeadLetter:
    return DeadLetter("9-0", original_id, "payments", "settlement", "o", 1, 0, 0, "Error", "why", [])


def test_a_ledger_adds_up() -> None:
    found = ledger()
    assert found.problems() == []
    told = found.as_dict()
    assert told["added"] == told["handled_once"] + told["dead_letters"] == 200
    assert (told["duplicates_refused"], told["undecodable"], told["poison"], told["lethal"]) == (4, 1, 1, 1)
    assert told["rescues"] == [{"blow": "SIGKILL", "held": 3, "rescued": 3, "p50_ms": 20.0, "max_ms": 90.0}]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda whole: {"settled": dict(list(whole.settled.items())[1:])}, "are accounted for"),
        (lambda whole: {"settled": {**whole.settled, next(iter(whole.settled)): 2}}, "settled twice"),
        (lambda whole: {"letters": whole.letters[1:]}, "the dead letters are not"),
        (lambda whole: {"totals": {**whole.totals, "EUR": 1}}, "the amounts settled"),
        (lambda whole: {"added": {**whole.added, "x-0": whole.sent[0].key}}, "duplicates were added"),
        (lambda whole: {"backlog": 1}, "still unread"),
        (lambda whole: {"refused": 0}, "nothing of it was refused"),
    ],
    ids=["one lost", "one twice", "a letter lost", "money", "a duplicate", "left over", "no zombie heard"],
)
def test_what_does_not_add_up_is_said(change: Any, problem: str) -> None:
    problems = ledger(**change(ledger())).problems()
    assert any(problem in sentence for sentence in problems), problems


# ── the whole of it ──


def test_a_small_demo_tells_its_story_and_its_ledger_adds_up() -> None:
    done = subprocess.run(
        [*DEMO, "--payments", "1500", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    *lines, last = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    told = json.loads(last)
    assert told["problems"] == []
    assert told["added"] == told["handled_once"] + told["dead_letters"] == 1_500
    assert told["duplicates_refused"] == 30
    assert told["handled_twice"] == 0
    assert [rescue["blow"] for rescue in told["rescues"]] == ["SIGKILL", "SIGSTOP"]
    assert told["zombie_outcomes_refused"] > 0
    words = {line.split()[2] for line in lines if re.match(r" *\d+\.\d s  \w", line)}
    assert words >= {"killed", "paused", "woken", "rescued", "refused", "died", "buried"}


def test_an_interrupted_demo_takes_its_workers_with_it_also_one_that_is_paused() -> None:
    # In the background of a shell SIGINT is ignored, and so by whatever is started there: the demo is to hear it.
    hearing = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    words = [*DEMO, "--payments", "5000", "--plain"]
    demo = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, **hearing)
    assert demo.stdout is not None
    workers: list[int] = []
    for line in demo.stdout:
        workers += map(int, re.findall(r"started\s+worker (\d+)", line))
        if len(workers) == 3:
            break
    time.sleep(0.5)
    os.kill(workers[1], signal.SIGSTOP)
    demo.send_signal(signal.SIGINT)
    demo.stdout.read()
    assert demo.wait(20) == 130
    demo.stdout.close()
    wait_until_sync(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), what="the workers' end")


def test_too_few_payments_are_refused() -> None:
    done = subprocess.run([*DEMO, "--payments", "5"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "at least 100 payments" in done.stderr
