"""Spark Connect: what the package adds stands on the server; the client knows nothing but its name."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.demo.payments import sendings
from tests.support.servers import Server
from tests.support.spark_cluster import ROOT, Child, spark_env
from tests.support.spark_connect import ConnectServer
from tests.support.wait import wait_until_sync

LACKING = [name for name in ("grpc", "grpc_status", "pandas", "zstandard") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.servers("redis8"),
    pytest.mark.jvm,
    pytest.mark.xdist_group("spark-connect"),
    pytest.mark.skipif(bool(LACKING), reason=f"MISSING for Spark Connect: {', '.join(LACKING)}"),
]

ROWS = 500
CLIENT = """
import json, sys
from pyspark.sql import SparkSession
remote, job = sys.argv[1], json.loads(sys.argv[2])
spark = SparkSession.builder.remote(remote).getOrCreate()
options = {"url": job["url"], "streams": job["source"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": "200"}
frame = spark.readStream.format("redis-streams").schema("n string").options(**options).load()
writing = frame.repartition(3, "n").writeStream.format("redis-streams").option("url", job["url"])
writing = writing.option("stream", job["target"]).option("checkpointLocation", job["checkpoint"])
query = writing.trigger(availableNow=True).start()
query.awaitTermination()
found = spark.read.format("redis-streams").option("url", job["url"]).option("streams", job["target"]).load()
found.select("fields").limit(10).write.format("redis-streams").mode("append").option("url", job["url"]).option(
    "stream", job["target"] + "-ten").save()
error = ""
try:
    spark.read.format("redis-streams").option("url", job["url"]).option("stream", "x").load().count()
except Exception as failure:
    error = str(failure)
started = ""
wrong = spark.readStream.format("redis-streams").option("url", job["url"]).option("stream", "x").load()  # asks nobody
try:
    wrong.writeStream.format("noop").option("checkpointLocation", job["checkpoint"] + "-wrong").start()
except Exception as failure:
    started = str(failure)
print("@" + json.dumps({"count": found.count(), "columns": found.columns, "error": error, "started": started}))
spark.stop()
"""


def client(remote: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run a client by itself: a process holds either a session of its own or a remote one."""
    words = [sys.executable, "-c", CLIENT, remote, json.dumps(job)]
    ended = subprocess.run(words, env=spark_env(), capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout.partition("@")[2])
    return answer


def test_a_remote_client_reads_a_stream_and_writes_another_exactly_once(
    connect: ConnectServer, server: Server, prefix: str, tmp_path: Path
) -> None:
    source, target = f"{prefix}-in", f"{prefix}-out"
    pipe = server.sync().pipeline(transaction=False)
    for number in range(ROWS):
        pipe.xadd(source, {"n": number})
    pipe.execute()
    job = {"url": server.url, "source": source, "target": target, "checkpoint": str(tmp_path / "checkpoint")}
    told = client(connect.remote, job)
    assert sorted(int(fields[b"n"]) for _, fields in server.sync().xrange(target)) == list(range(ROWS))
    assert server.sync().xlen(f"{target}-ten") == 10
    assert told["count"] == ROWS
    assert told["columns"] == ["stream", "id", "timestamp", "fields"]
    assert "did you mean 'streams'" in told["started"]
    # a wrong option is explained on the client, not only in the server's log
    assert "did you mean 'streams'" in told["error"]


def pipeline(remote: str, server: Server, folder: Path, log: Path, *words: str) -> Child:
    """The example, with a stream for its quarantine, which is written by a function of ours on the server."""
    program, file = [sys.executable, "-m", "headrace.cli", "pipeline"], log.with_suffix(".toml")
    example = (ROOT / "examples" / "payments" / "payments.toml").read_text()
    rule = '[[validate]]\nname = "null_where_it_cannot_be_computed"\nrule = "score / 0 is null"\n'
    file.write_text(f'{example}\n{rule}\n[quarantine]\nstream = "payments-bad"\n')
    words = ("run", str(file), "--remote", remote, "--json", *words)
    return Child([*program, *words, "--folder", str(folder)], log, spark_env(HEADRACE_URL=server.url))


def told(child: Child) -> list[dict[str, Any]]:
    return [json.loads(line) for line in child.log.splitlines() if line.startswith("{")]


def test_a_pipeline_runs_to_its_end_on_a_connect_server_and_its_books_balance(
    connect: ConnectServer, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, sent = own_server("redis8"), sendings(60, undecodable=0.05)
    for one in sent:
        server.sync().xadd("payments", {"payload": one.body})
    child = pipeline(connect.remote, server, tmp_path / "data", tmp_path / "once.log", "--once")
    try:
        assert child.popen.wait(200) == 0, child.log[-3000:]
    finally:
        child.stop()
    (batch, totals) = told(child)
    assert batch["rows_in"] == totals["rows_in"] == len(sent)
    assert totals["exact"]
    rows = {name: pq.read_table(tmp_path / "data" / "tables" / name).num_rows for name in ("payments", "quarantine")}
    assert rows == {"payments": totals["out"], "quarantine": totals["quarantined"]}
    assert server.sync().xlen("payments-bad") == totals["routes"]["quarantine"] == totals["quarantined"] > 0


@pytest.mark.long
def test_the_payments_pipeline_runs_on_and_on_on_a_connect_server_and_its_books_balance(
    connect: ConnectServer, own_server: Callable[..., Server], tmp_path: Path
) -> None:
    """Once to the end; then on and on, until SIGTERM, which ends it after a batch."""
    server, folder = own_server("redis8"), tmp_path / "data"
    sent = sendings(200)
    for one in sent[:150]:
        server.sync().xadd("payments", {"payload": one.body})
    child = pipeline(connect.remote, server, folder, tmp_path / "once.log", "--once")
    try:
        assert child.popen.wait(200) == 0, child.log[-3000:]
    finally:
        child.stop()
    (*batches, totals) = told(child)
    assert totals["rows_in"] == sum(batch["rows_in"] for batch in batches) == 150
    assert totals["exact"]
    child = pipeline(connect.remote, server, folder, tmp_path / "on.log")
    try:
        for one in sent[150:]:
            server.sync().xadd("payments", {"payload": one.body})
        wait_until_sync(lambda: sum(batch["rows_in"] for batch in told(child)) == len(sent) - 150, 200, what="the rest")
        child.popen.send_signal(signal.SIGTERM)
        assert child.popen.wait(60) == 0, child.log[-3000:]
    finally:
        child.stop()
    totals = told(child)[-1]
    assert totals["rows_in"] == len(sent)
    assert totals["exact"]
    assert min(totals["out"], totals["duplicates"], totals["quarantined"]) > 0
    assert server.sync().xlen("payments-review") == totals["routes"]["review"]
    assert server.sync().xlen("payments-bad") == totals["routes"]["quarantine"] == totals["quarantined"]


def test_a_pipeline_says_that_no_connect_server_is_there(own_server: Callable[..., Server], tmp_path: Path) -> None:
    child = pipeline("sc://127.0.0.1:1", own_server("redis8"), tmp_path / "data", tmp_path / "log", "--once")
    try:
        assert child.popen.wait(120) != 0
    finally:
        child.stop()
    assert "127.0.0.1:1" in child.log
    assert "Traceback" not in child.log
