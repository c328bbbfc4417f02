"""Sends the demo's payments, with their repeats and spoilt ones, to the stream `payments`.

python examples/payments/feed.py 20000        to HEADRACE_URL
"""

from __future__ import annotations

import asyncio
import os
import sys

from headrace import App
from headrace.demo.payments import sendings
from headrace.fields import pack_fields
from headrace.names import keys_of
from headrace.producer import Addition

AT_ONCE = 1_000


async def feed(count: int, stream: str = "payments") -> None:
    """As a careless producer would: repeats are sent without their key, so they arrive twice."""
    sent = sendings(count)
    async with App(os.environ.get("HEADRACE_URL")) as app:
        for start in range(0, len(sent), AT_ONCE):
            part = sent[start : start + AT_ONCE]
            await app.producer.add_many([Addition(keys_of(stream), pack_fields(one.body), None) for one in part])
    print(f"{len(sent):,} messages sent to {stream}, {count:,} of them different payments")


if __name__ == "__main__":
    asyncio.run(feed(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
