"""The scripts as files: a header that says what, with what, and what then; every key in KEYS; constant text."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from headrace.redis import scripts
from headrace.redis.calls import load
from tests.support.lab import Lab

NAMES = sorted(
    path.name.removesuffix(".lua")
    for path in resources.files("headrace.redis").joinpath("lua").iterdir()
    if path.name.endswith(".lua")
)


@pytest.mark.parametrize("name", NAMES)
def test_the_header_says_what_with_what_what_then_and_whether_it_repeats(name: str) -> None:
    text = load(name).text
    header = text[: text.index("\nlocal ")]
    assert header.startswith(f"-- {name}: ")
    at = [header.find(mark) for mark in ("\n-- KEYS 1", "\n-- Answers ")]
    repeat = re.search(r"\n-- (Safe to repeat|Not repeatable)", header)
    assert repeat is not None
    assert 0 < at[0] < at[1] < repeat.start()
    assert all(line.startswith("--") for line in header.splitlines())
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", NAMES)
def test_no_key_is_made_inside_a_script(name: str) -> None:
    """SPEC 53: a key built from text would be missing in KEYS."""
    text = load(name).text
    assert ":hr:" not in text
    assert ":dlq" not in text


def test_every_script_is_known_by_its_digest_to_every_server(lab: Lab) -> None:
    for name in NAMES:
        script = load(name)
        assert lab.raw("SCRIPT", "LOAD", script.text).decode() == script.sha


def test_a_flushed_script_is_loaded_again_without_anybody_noticing(lab: Lab) -> None:
    """FACTS: NOSCRIPT after SCRIPT FLUSH or a failover."""
    (pair,) = lab.held()
    lab.raw("SCRIPT", "FLUSH")
    assert lab.call(scripts.renew(lab.keys, lab.group, "me", [pair]))[0].kind == "ok"
