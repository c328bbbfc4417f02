"""The demo: ``python -m headrace.demo``. Thousands of payments, three workers, one killed, one paused, and a ledger."""
