"""Spark looks for modules named ``pyspark_*`` and takes their DefaultSource: ``format("redis-streams")`` just works."""

from headrace.spark.datasource import RedisStreams as DefaultSource

__all__ = ["DefaultSource"]
