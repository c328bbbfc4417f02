"""Points of the product at which a worker is killed: armed in its own process, before the app starts."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

from headrace import points
from tests.support.history import Pen


def arm(pen: Pen, point: str, occurrence: int) -> None:
    """SIGKILL this process when it reaches a point for the nth time. Occurrence 0: only note what is reached."""
    reached: Counter[str] = Counter()
    lock = threading.Lock()

    def told(name: str) -> None:
        with lock:
            reached[name] += 1
            number = reached[name]
        if occurrence == 0:
            pen.note("point", name=name, number=number)
        elif name == point and number == occurrence:
            pen.note("died", pid=os.getpid(), code=-signal.SIGKILL, point=name, number=number)
            os.kill(os.getpid(), signal.SIGKILL)

    points.watch(told)
