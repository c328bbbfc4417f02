"""The app of the demo: what every worker process does with a payment.

The settlement is counted by effects that are written together with the acknowledgement, or not at all. A zombie that
wakes up and finishes its work is refused with everything it wanted to write.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

from headrace import App, Delivery, DeliveryLost, Effect
from headrace.demo.journal import Pen
from headrace.demo.payments import LETHAL_CHANNEL, NO_RATE, Payment

STREAM: Final = "payments"
GROUP: Final = "settlement"
LEASE_S: Final = 2.0
MAX_ATTEMPTS: Final = 3
CONCURRENCY: Final = 16
SETTLED: Final = "{payments}:settled"  # hash: payment -> how often it was settled
TOTALS: Final = "{payments}:totals"  # hash: currency -> cents

app = App(grace="5s")
pen = Pen()
payments = app.stream(STREAM, Payment)


@payments.handler(group=GROUP, concurrency=CONCURRENCY, lease=LEASE_S, max_attempts=MAX_ATTEMPTS, backoff="400ms")
async def settle(payment: Payment, delivery: Delivery[Payment]) -> None:
    """Take between 20 and 100 ms for one payment, then write what follows from it."""
    pen.note("start", delivery.id, delivery.attempt)
    if payment.channel == LETHAL_CHANNEL:
        pen.note("lethal", delivery.id, delivery.attempt)
        os.kill(os.getpid(), signal.SIGKILL)  # as a crash in native code would end it
    if payment.currency == NO_RATE:
        pen.note("failed", delivery.id, delivery.attempt)
        raise LookupError(f"no exchange rate for {payment.currency}")
    await asyncio.sleep(0.02 + 0.08 * (payment.cents % 100) / 100)
    effects = [
        Effect.hincrby(SETTLED, payment.id),
        Effect.hincrby(TOTALS, payment.currency, payment.cents),
    ]
    try:
        await delivery.ack(effects=effects)
    except DeliveryLost:
        pen.note("refused", delivery.id, delivery.attempt)
        raise
    pen.note("done", delivery.id, delivery.attempt)
