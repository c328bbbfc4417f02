"""A canary for a password: a pipeline and its report write it nowhere (SPEC 53)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.spark.pipeline import pipeline_of
from headrace.spark.pipeline.run import Runner
from headrace.spark.report import gather
from headrace.spark.report_page import page

CANARY = "CANARY-7f3a"


@pytest.mark.servers("redis8")
def test_a_pipeline_and_its_report_tell_no_password(
    spark: SparkSession, own_server: Any, server_key: str, stream: str, tmp_path: Path
) -> None:
    """Tables, ledger, checkpoint, page and JSON, with a dead letter and a row in quarantine."""
    server = own_server(server_key, config={"requirepass": CANARY})
    client, url = server.sync(), f"unix://{server.socket}?password={CANARY}"
    for body in ('{"id": "a"}', '{"id": "b"}', "no json"):
        client.xadd(stream, {"payload": body})
    about = {"_original_id": "1-1", "_group": "g", "_attempts": "5", "_error": "LookupError", "_reason": "no rate"}
    client.xadd(f"{{{stream}}}:dlq", {"payload": "{}", "_n": "2", **about})
    told: dict[str, Any] = {"name": stream, "folder": str(tmp_path), "decode": {"columns": {"id": "string"}}}
    pipeline = pipeline_of({**told, "source": {"url": url, "streams": stream, "startingOffsets": "earliest"}})
    runner = Runner(pipeline, spark)
    try:
        runner.start(once=True)
        assert runner.wait().rows_in == 3
    finally:
        runner.close()
    found = gather(spark, pipeline)
    assert found["dead_letters"]["count"] == 1
    assert CANARY not in page(found) + json.dumps(found, default=str)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert [path.name for path in written if CANARY.encode() in path.read_bytes()] == []
