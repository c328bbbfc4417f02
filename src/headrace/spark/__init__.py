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

__all__ = ["NAME", "register"]

NAME = "redis-streams"


def register(spark: SparkSession) -> None:
    """Make ``format("redis-streams")`` known to one session. Twice is fine."""
    from headrace.spark.datasource import RedisStreams

    spark.dataSource.register(RedisStreams)
