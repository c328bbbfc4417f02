"""Folders a pipeline writes to: on a disk all Spark processes share, or behind any file system Spark knows.

Few operations, chosen so that a reader never sees half of anything: a folder appears by a rename, a file too.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headrace.errors import ConfigError, HeadraceError

WHOLE: Final = "new"  # the mark of a text that waits for its place
REPLACED: Final = ".old"  # the mark of a folder that another takes the place of


class Place(Protocol):
    """What tables and the ledger need of a file system. Paths are text, as Spark takes them.

    move_folder() puts a whole folder in the place of another, by renames alone: at every moment there is the old one,
    the new one, or for an instant none. If two do it at once, one of the new folders stays and the other is removed.
    """

    def exists(self, path: str) -> bool: ...
    def remove(self, path: str) -> None: ...
    def move_folder(self, source: str, target: str) -> None: ...
    def read(self, path: str) -> str | None: ...
    def write(self, path: str, text: str) -> None: ...
    def names(self, folder: str) -> list[str]: ...
    def parquet_rows(self, folder: str) -> int: ...


def place_of(folder: str, spark: SparkSession) -> tuple[Place, str]:
    """The place for a folder, and the folder as Spark should be told it."""
    if "://" not in folder and not folder.startswith("file:"):
        return LocalPlace(), str(Path(folder).absolute())
    if folder.startswith("file:"):
        return LocalPlace(), str(Path("/" + folder.removeprefix("file:").lstrip("/")))
    if not hasattr(spark, "_jvm"):
        raise ConfigError(f"{folder}: over Spark Connect a pipeline needs a folder that this process sees as well")
    return HadoopPlace(spark), folder.rstrip("/")


def _gone(source: str, target: str) -> HeadraceError:
    return HeadraceError(
        f"{target} stays as it is: {source} was removed before it could be moved there. Another driver runs this "
        "pipeline and has gone on: end one of them"
    )


class LocalPlace:
    """A disk. Under a cluster it must be shared, as the tables themselves must be."""

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def remove(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def move_folder(self, source: str, target: str) -> None:
        new, goal, old = Path(source), Path(target), Path(f"{source}{REPLACED}")
        goal.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            goal.rename(old)
        try:
            new.rename(goal)
        except OSError as error:
            with suppress(OSError):  # another driver's is there meanwhile
                old.rename(goal)
            if not new.exists():
                raise _gone(source, target) from error
            if not goal.exists():
                raise
            self.remove(source)
        self.remove(str(old))

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        """Readers see the old text or the new one."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        half = target.with_name(f"_{target.name}.{uuid.uuid4().hex[:8]}")
        half.write_text(text, encoding="utf-8")
        half.replace(target)

    def names(self, folder: str) -> list[str]:
        return sorted(path.name for path in Path(folder).iterdir()) if Path(folder).is_dir() else []

    def parquet_rows(self, folder: str) -> int:
        """Rows of a folder, from the footers of its files alone."""
        return sum(pq.read_metadata(file).num_rows for file in Path(folder).glob("*.parquet"))


class HadoopPlace:
    """Whatever Spark's own file systems reach: HDFS, object stores."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm  # noqa: SLF001 - Spark has no other door to its file systems
        self._conf: Any = spark._jsc.hadoopConfiguration()  # noqa: SLF001

    def _at(self, path: str) -> tuple[Any, Any]:
        where = self._jvm.org.apache.hadoop.fs.Path(path)
        return where.getFileSystem(self._conf), where

    def exists(self, path: str) -> bool:
        system, where = self._at(path)
        return bool(system.exists(where))

    def remove(self, path: str) -> None:
        system, where = self._at(path)
        system.delete(where, True)

    def move_folder(self, source: str, target: str) -> None:
        """Most of these file systems move a folder into one that is there already: so they say that another driver's
        came in between."""
        (system, new), (_, goal) = self._at(source), self._at(target)
        old = self._jvm.org.apache.hadoop.fs.Path(f"{source}{REPLACED}")
        system.mkdirs(goal.getParent())
        cleared = not system.exists(goal) or self._moved(system, goal, old) or not system.exists(goal)
        if not cleared or not self._moved(system, new, goal):
            if not system.exists(goal):
                self._moved(system, old, goal)
            if not system.exists(new):
                raise _gone(source, target)
            raise HeadraceError(f"{target}: the file system refused to move the new folder here")
        inside = self._jvm.org.apache.hadoop.fs.Path(goal, new.getName())
        if system.exists(inside):
            system.delete(inside, True)
        system.delete(old, True)

    def _moved(self, system: Any, source: Any, target: Any) -> bool:
        """Rename, or answer that it could not be: some file systems say so by an error."""
        try:
            return bool(system.rename(source, target))
        except Py4JJavaError:
            return False

    def read(self, path: str) -> str | None:
        """Not as a table: Spark's readers pass over names that begin with an underscore."""
        system, where = self._at(path)
        whole = self._beside(path, WHOLE)
        for found in (where, whole, where):  # a writer may be between its last two steps, or have died there
            if system.exists(found):
                return self._text(system, found)
        return None

    def write(self, path: str, text: str) -> None:
        """Readers see the old text or the new one, wherever a writer dies.

        Few of these file systems rename onto a file that is there. So the new text waits beside the old one, whole,
        before that is deleted, and read() finds it.
        """
        system, where = self._at(path)
        half, whole = self._beside(path, uuid.uuid4().hex[:8]), self._beside(path, WHOLE)
        if system.exists(whole) and not system.exists(where):
            self._rename(system, whole, where)  # of a writer that died in between
        out = system.create(half, True)
        try:
            out.write(bytearray(text.encode()))
        finally:
            out.close()
        system.delete(whole, False)
        self._rename(system, half, whole)
        system.delete(where, False)
        self._rename(system, whole, where)

    def _text(self, system: Any, where: Any) -> str:
        stream = system.open(where)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _beside(self, path: str, mark: str) -> Any:
        """A name that neither readers of a table nor the ledger look at."""
        folder, _, name = path.rpartition("/")
        return self._jvm.org.apache.hadoop.fs.Path(f"{folder}/_{name}.{mark}")

    def _rename(self, system: Any, source: Any, target: Any) -> None:
        if not system.rename(source, target):
            raise HeadraceError(f"{target}: the file system refused to move {source.getName()} here")

    def names(self, folder: str) -> list[str]:
        system, where = self._at(folder)
        return sorted(status.getPath().getName() for status in system.listStatus(where)) if self.exists(folder) else []

    def parquet_rows(self, folder: str) -> int:
        return self._spark.read.parquet(folder).count()  # counted from the footers by Spark itself
