"""Spark's classes, loaded and checked once for all the JVMs of the tests: each starts with half the work.

    python -m tests.support.spark_archive

makes the archive (Java's class data sharing) in this environment, if it is not there. Without it the tests take longer.
A JVM uses it only with the very classpath it was made with, in which no folder may hold anything: so the settings of
the tests come by a file that is named, and not from a conf folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

SPARK_CONF = Path(__file__).parent / "spark_conf"
PLACE = Path(sys.prefix) / "headrace-spark"
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:CICompilerCount=1"  # starts with half the work, too
PATIENCE_S = 180

# What most tests have Spark do, so that the classes of it are loaded.
WORK = """
from pyspark.sql import SparkSession
import sys
spark = SparkSession.builder.master("local[2]").getOrCreate()
frame = spark.range(100).selectExpr("id % 7 as k", "cast(id as string) as v", "timestamp_millis(id) as t")
frame.write.mode("overwrite").partitionBy("k").parquet(sys.argv[1] + "/table")
spark.read.parquet(sys.argv[1] + "/table").groupBy("k").count().collect()
frame.mapInArrow(lambda batches: batches, frame.schema).collect()
def each(some, number):
    some.persist().count()
    some.write.mode("overwrite").json(sys.argv[1] + "/out")
stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
query = stream.writeStream.foreachBatch(each).option("checkpointLocation", sys.argv[1] + "/marks").start()
while len(query.recentProgress) < 2 and query.isActive:
    query.awaitTermination(0.2)
query.stop()
spark.stop()
"""


def home() -> Path:
    """The installed Spark without its zipped Python: a worker imports pyspark from where it is installed, compiled
    already, and starts in half the time."""
    found = PLACE / "home"
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    found.mkdir(parents=True, exist_ok=True)
    for part in ("bin", "jars", "sbin"):
        with suppress(FileExistsError):
            (found / part).symlink_to(Path(spec.origin).parent / part)
    return found


def archive() -> Path:
    """Where the archive of this Spark and this Java is, or will be."""
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    told = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    return PLACE / f"classes-{version('pyspark')}-{hashlib.sha1(told).hexdigest()[:8]}.jsa"


def jvm_options() -> str:
    """For every JVM of the tests."""
    found = archive()
    return f"{QUICK_JVM} -XX:SharedArchiveFile={found} -Xlog:disable" if found.exists() else QUICK_JVM


def defaults(options: str = "") -> Path:
    """The settings that every Spark process of the tests starts with, as a file."""
    options = options or jvm_options()
    lines = [(SPARK_CONF / "spark-defaults.conf").read_text()]
    lines += [f"spark.{who}.extraJavaOptions {options}\n" for who in ("driver", "executor")]
    text = "".join(lines)
    file = PLACE / f"{hashlib.sha1(text.encode()).hexdigest()[:8]}.conf"
    if not file.exists():
        half = file.with_suffix(f".{os.getpid()}")
        half.write_text(text)
        half.rename(file)
    return file


def submit_arguments(options: str = "") -> str:
    """What PYSPARK_SUBMIT_ARGS is to be for a driver."""
    return f"--properties-file {defaults(options)} pyspark-shell"


def make() -> None:
    made = archive()
    if made.exists():
        return
    half = made.with_suffix(".half")
    half.unlink(missing_ok=True)
    options = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={half} -Xlog:disable"
    own = {word: value for word, value in os.environ.items() if not word.startswith(("SPARK_", "PYSPARK_"))}
    env = {**own, "SPARK_HOME": str(home()), "PYSPARK_SUBMIT_ARGS": submit_arguments(options)}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with tempfile.TemporaryDirectory(prefix="headrace-spark-") as folder:
        words = [sys.executable, "-c", WORK, folder]
        done = subprocess.run(words, env=env, cwd=folder, capture_output=True, timeout=PATIENCE_S, check=False)
    if done.returncode == 0 and half.exists():
        half.rename(made)
        print(f"spark: the classes of Spark {version('pyspark')} are archived for the tests", flush=True)
    else:
        print("spark: no archive of its classes could be made; its tests take longer", flush=True)
        print(done.stderr.decode()[-2000:], file=sys.stderr)


if __name__ == "__main__":
    if shutil.which("java") or os.environ.get("JAVA_HOME"):
        make()
