"""Servers, and the code that was tried, as pages call them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any


def short(version: str) -> str:
    """`redis 8.10.2` is 8.10 in a table, `valkey 9.1.2` is V9.1."""
    name, _, number = version.partition(" ")
    return ("V" if name == "valkey" else "") + ".".join(number.split(".")[:2])


def full(key: str, number: str) -> str:
    """What a server of the matrix is called: ("redis8", "8.10.2") is `redis 8.10.2`."""
    return f"{re.sub('[0-9]+$', '', key)} {number}"


def in_order(versions: Iterable[str]) -> list[str]:
    """Redis before Valkey, the older before the newer."""
    return sorted(set(versions), key=lambda each: (each.partition(" ")[0], _numbers(each)))


def joined(versions: Iterable[str], every: Iterable[str] = ()) -> str:
    """Short, in order; `all` where it is every one of several."""
    these, those = in_order(versions), in_order(every)
    return "all" if len(those) > 1 and these == those else ", ".join(map(short, these))


def of(servers: Mapping[str, str]) -> list[str]:
    """The versions of a run's servers, without those that were not at hand."""
    return in_order(full(key, number) for key, number in servers.items() if number[:1].isdigit())


def code_of(run: Mapping[str, Any]) -> str:
    """The product's code at a run (tests/support/digest.py)."""
    return f"code {run['code']}" if run.get("code") else "code before digests"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
