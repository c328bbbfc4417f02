"""For your tests: handlers without a server, apps on a server of their own, workers that die.

result = await deliver(bill, Order(id=7))            no server: one delivery through the real steps
assert result.acked

async with running(app) as shop:                     a private embedded server and a worker on it
    await orders.add(Order(id=7))
    await shop.settled()

await crash(shop.worker)                             it dies without a word, as by SIGKILL
"""

from headrace.testing.dry import Result, deliver, deliver_batch
from headrace.testing.live import Running, crash, on_embedded, running

__all__ = ["Result", "Running", "crash", "deliver", "deliver_batch", "on_embedded", "running"]
