"""A Spark Connect server for tests, beside a Redis of its own: what reads HEADRACE_URL reads the server's."""

from __future__ import annotations

from pathlib import Path

from tests.support import spark_archive
from tests.support.servers import Server
from tests.support.spark_cluster import Child, spark_env


class ConnectServer:
    """Listens on a port of its own choice. `remote` is its address, `redis` the server that it knows."""

    def __init__(self, folder: Path, redis: Server) -> None:
        self.redis = redis
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        words = [str(spark_archive.home() / "bin" / "spark-submit"), "--master", "local[2]"]
        words += ["--properties-file", str(spark_archive.defaults())]
        words += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self._child = Child(words, folder / "connect.log", spark_env(HEADRACE_URL=redis.url))

    @property
    def remote(self) -> str:
        return "sc://127.0.0.1:" + self._child.said(r"Spark Connect server started at: \S*?:(\d+)")

    def stop(self) -> None:
        self._child.stop()
