"""Partitions: one stream cut into several, so that it spreads over the masters of a cluster (SPEC 51).

Partition 3 of `orders` is the stream `orders:part:3`. Its name has no tag, so each partition has a slot of its own, and
each is a stream like any other: with groups, dead letters and helper keys. A key always goes to the same partition:

    partition = crc32(key in UTF-8) modulo the number of partitions

which any other language can compute too. How many there are is kept on the server, because two programs that disagree
would tear keys apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from headrace.errors import ConfigError
from headrace.names import check_key, keys_of, partition_name
from headrace.options import shown, whole_number

PARTITIONS_LIMIT = 1_024


@dataclass(frozen=True, slots=True)
class Partitions:
    """A stream's name and into how many it is cut.

    >>> parts = Partitions("orders", 4)
    >>> parts.names[:2], parts.of("customer-7")
    (('orders:part:0', 'orders:part:1'), 0)
    """

    stream: str
    count: int

    def __post_init__(self) -> None:
        keys_of(self.stream)
        whole_number(self.count, name="partitions", least=1, most=PARTITIONS_LIMIT)
        if "{" in self.stream:
            raise ConfigError(
                f"stream {shown(self.stream)} has a {{tag}}, which would put all of its partitions on one master: "
                "partition a stream whose name has no braces"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(partition_name(self.stream, number) for number in range(self.count))

    def of(self, key: str) -> int:
        """The partition of a key."""
        return crc32(check_key(key).encode()) % self.count
