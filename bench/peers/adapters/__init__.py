"""One program a peer, run in the peer's own environment: ``python -m bench.peers.adapters.NAME worker|add ORDER``."""
