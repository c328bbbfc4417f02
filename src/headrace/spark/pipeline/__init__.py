"""Pipelines: stages with names, from a TOML file or from Python, run as one query with one ledger.

    from headrace.spark.pipeline import read_toml
    from headrace.spark.pipeline.run import open_session, run

    pipeline = read_toml("examples/payments/payments.toml")
    totals = run(pipeline, open_session(pipeline))

Importing this package loads no Spark.
"""

from headrace.spark.pipeline.spec import Aggregate, Decode, Deduplicate, Enrich, Pipeline, Route, Rule
from headrace.spark.pipeline.toml import pipeline_of, read_toml

__all__ = [
    "Aggregate",
    "Decode",
    "Deduplicate",
    "Enrich",
    "Pipeline",
    "Route",
    "Rule",
    "pipeline_of",
    "read_toml",
]
