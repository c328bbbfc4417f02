"""Redis Streams for Spark: the source and the sink ``redis-streams``, and the pipeline built on them.

Spark finds the data source by itself through ``pyspark_headrace``, wherever this package is installed; where it does
not look (some notebooks, Spark Connect without the package on the server), register it by hand:

    import headrace.spark
    headrace.spark.register(spark)
    spark.read.format("redis-streams").option("streams", "orders").load()

Importing this package loads no Spark: everything is imported with its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NAME", "check", "register"]

NAME = "redis-streams"


def register(spark: SparkSession) -> None:
    """Make ``format("redis-streams")`` known to one session. Twice is fine."""
    from headrace.spark.datasource import RedisStreams

    spark.dataSource.register(RedisStreams)


def check(**options: str | float) -> None:
    """Raise now what Spark would tell later: a wrong option, a server that is not there, a wrong password.

    With a schema of your own load() runs nothing of this package, and start() of a streaming write never does: what is
    wrong with them is the exception of the query, in a write not before its first rows come. So, in a program that
    wants to know before it goes on:

        headrace.spark.check(url=url, stream="orders")
        frame.writeStream.format("redis-streams").options(url=url, stream="orders", ...).start()

    Options of a source are known by their ``streams`` or ``streamsPattern``; all others are those of a sink. The server
    is asked from this process, once. What hangs on columns or rows is left to Spark.
    """
    from headrace.spark.datasource import RedisStreams

    texts = {word: str(value).lower() if isinstance(value, bool) else str(value) for word, value in options.items()}
    RedisStreams(texts).check()
