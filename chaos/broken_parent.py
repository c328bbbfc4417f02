"""`headrace` with a mutant in the supervising parent. That never loads the app, so the worker's program breaks none."""

from __future__ import annotations

import runpy

from chaos import mutants
from chaos.worker import from_environment

if __name__ == "__main__":
    mutants.apply(from_environment()["mutant"])
    runpy.run_module("headrace.cli", run_name="__main__", alter_sys=True)
