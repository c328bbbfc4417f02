"""What the Spark benches share: a session on two cores, streams to read, and a look at Spark's Python processes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bench.arena import Arena

# Fills a stream far quicker than a client could. KEYS 1 stream · ARGV 1 first number 2 last number 3 kind 4 padding
_FILL: Final = """
local binary = '\\0\\1\\r\\n\\255'
for number = ARGV[1], ARGV[2] do
  if ARGV[3] == 'large' then
    redis.call('XADD', KEYS[1], '*', 'id', number, 'blob', ARGV[4])
  elseif ARGV[3] == 'binary' then
    redis.call('XADD', KEYS[1], '*', 'id', struct.pack('>l', number), 'merchant', binary .. number % 1000,
      'amount', struct.pack('>d', number), 'currency', binary, 'note', binary .. 'abcdefghijklmnopqrstuvwx')
  else
    redis.call('XADD', KEYS[1], '*', 'id', number, 'merchant', 'merchant-' .. number % 1000,
      'amount', number % 10000 / 100, 'currency', 'EUR', 'note', 'abcdefghijklmnopqrstuvwxyz')
  end
end
"""
LARGE_BYTES: Final = 100_000
_AT_ONCE: Final = 5_000


def fill(arena: Arena, stream: str, count: int, kind: str = "text") -> None:
    """Append entries of five fields, or of one large one."""
    script = arena.client.register_script(_FILL)
    padding = "x" * LARGE_BYTES if kind == "large" else ""
    at_once = _AT_ONCE if kind != "large" else 200
    for first in range(0, count, at_once):
        script(keys=[stream], args=[first, min(first + at_once, count) - 1, kind, padding])


@contextmanager
def session(**settings: str) -> Iterator[SparkSession]:
    """Spark on two cores of this machine."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory() as home:
        plain = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": home,
            "spark.sql.warehouse.dir": f"{home}/warehouse",
            "spark.sql.shuffle.partitions": "2",
            "spark.python.unix.domain.socket.enabled": "true",
        }
        spark = SparkSession.builder.master("local[2]").config(map={**plain, **settings}).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        try:
            yield spark
        finally:
            spark.stop()


def source(spark: SparkSession, arena: Arena, **options: Any) -> DataFrame:
    """A batch read."""
    texts = {word: str(value) for word, value in options.items()}
    return spark.read.format("redis-streams").option("url", arena.url).options(**texts).load()


# ── Spark's Python processes ─────────────────────────────────────────────────────────────────────────


def worker_pids() -> list[int]:
    """The Python processes below this one that run tasks."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                if b"pyspark.daemon" in (place / "cmdline").read_bytes() and _below(int(place.name)):
                    found.append(int(place.name))
            except OSError:
                continue
    return found


def _below(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def cpu_s(pids: list[int]) -> float:
    """CPU time used so far by processes."""
    ticks = 0
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def forget_peaks(pids: list[int]) -> None:
    """Let the peaks of processes begin anew at what they hold now. Linux does that for one's own (proc(5))."""
    for pid in pids:
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:
            continue


def peak_mb(pids: list[int]) -> float:
    """The largest peak of resident memory among processes."""
    peaks = [0.0]
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        peaks += [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")]
    return max(peaks)
