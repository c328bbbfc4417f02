"""A way around: what a worker would dial, it reaches through a proxy instead, wherever it learnt the address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.redis.connect import Server
from headrace.redis.topology import Node


def take(ports: Mapping[str, int]) -> None:
    """In this process connections to these ports go to those of the proxy."""
    dial = Server._dial  # noqa: SLF001

    def around(self: Server, module: Any, node: Node, **words: Any) -> Any:
        port = ports.get(str(node.port))
        return dial(self, module, node if port is None else Node(node.host, port), **words)

    Server._dial = around  # type: ignore[method-assign]  # noqa: SLF001
