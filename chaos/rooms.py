"""The owner of streams under test: the crash tests' own, with the mutant that its settings name."""

from __future__ import annotations

import json
import os

from chaos import mutants


def main() -> None:
    mutants.apply(json.loads(os.environ["HEADRACE_ROOMS"])["mutant"])
    from tests.support import rooms

    rooms.main()
