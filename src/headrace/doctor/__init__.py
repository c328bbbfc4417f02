"""What a server means for the promises (SPEC 58): asked for in gather.py, judged without any I/O in judge.py.

>>> from headrace.doctor import Facts, examine, worst
>>> worst(examine(Facts(too_old="Redis 5.0 has no XAUTOCLAIM")))
<Level.BAD: 'bad'>
"""

from headrace.doctor.facts import Facts, Finding, Kept, Level, Missing, keeps
from headrace.doctor.gather import gather
from headrace.doctor.judge import examine, worst
from headrace.doctor.promises import Promises, promises

__all__ = [
    "Facts",
    "Finding",
    "Kept",
    "Level",
    "Missing",
    "Promises",
    "examine",
    "gather",
    "keeps",
    "promises",
    "worst",
]
