"""What a test found broken stays broken: `make test` runs what failed once more, and a loss that shows in one of two
runs is a loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Cache(Protocol):
    """pytest's own, which outlives a run."""

    def get(self, key: str, default: Any) -> Any: ...
    def set(self, key: str, value: object) -> None: ...


class Remembered:
    """What one test found. ``again``: this is the second run, and what the first one found counts."""

    def __init__(self, cache: Cache, name: str, *, again: bool) -> None:
        self._cache = cache
        self._key = f"headrace/broke/{name}"
        self.before: list[str] = cache.get(self._key, []) if again else []

    def note(self, found: Iterable[str]) -> None:
        self._cache.set(self._key, sorted({*self.before, *found}))

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Whatever is raised inside is remembered, and raised again by a run that goes well."""
        self.note([])
        try:
            yield
        except Exception as error:
            self.note([f"{type(error).__name__}: {error}"[:500]])
            raise
        assert self.before == [], f"alone it holds, and beside the others it did not: {self.before}"
