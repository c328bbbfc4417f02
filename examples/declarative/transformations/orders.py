"""Orders from a Redis stream go on to two others: the large ones, and those whose amount is no number.

Source and sinks take the server's address from HEADRACE_URL.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

LARGE = 500

dp.create_sink("large_orders", "redis-streams", {"stream": "orders-large"})
dp.create_sink("refused_orders", "redis-streams", {"stream": "orders-refused"})


@dp.temporary_view
def orders() -> DataFrame:
    """The stream as Spark sees it: a field that the schema names is a column of text, its type is ours to give."""
    reader = SparkSession.active().readStream.format("redis-streams").option("streams", "orders")
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100_000)
    entries = reader.schema("id string, order string, amount string").load()
    return entries.withColumn("value", col("amount").try_cast("double"))


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    return SparkSession.active().readStream.table("orders").where(col("value") >= LARGE).select("order", "amount")


@dp.append_flow(target="refused_orders")
def refused() -> DataFrame:
    rows = SparkSession.active().readStream.table("orders").where(col("value").isNull())
    return rows.select(col("id").alias("entry"), "order", "amount")
