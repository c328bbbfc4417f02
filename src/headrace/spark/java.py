"""The Java that Spark will start, and whether Spark runs on it. Spark itself would answer with a stack trace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError

LEAST: Final = 17
PATIENCE_S: Final = 30.0
ADVICE: Final = "install a JRE (Debian: apt-get install openjdk-17-jre-headless, or 21) or set JAVA_HOME to one"


def need_java() -> None:
    """Raise ConfigError, with what to do, unless the Java that Spark will start is 17 or newer.

    As for Spark's own scripts, JAVA_HOME counts before PATH, also where it is wrong.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(Path(home, "bin", "java") if home else "java")
    if program is None and home:
        raise ConfigError(f"Spark needs Java 17 or 21, and JAVA_HOME is {home}, where there is no bin/java: {ADVICE}")
    if program is None:
        raise ConfigError(f"Spark needs Java 17 or 21, and none was found: {ADVICE}")
    version = _version(program)
    if version < LEAST:
        raise ConfigError(f"Spark needs Java 17 or 21, and {program} is Java {version}: {ADVICE}")


def _version(program: str) -> int:
    """The number of a Java, as it says it; the least that Spark needs where it says none."""
    try:
        ended = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Spark needs Java 17 or 21, and {program} does not start: {error}; {ADVICE}") from None
    found = re.search(r'version "(?:1\.)?([0-9]+)', ended.stderr + ended.stdout)  # before 9 it was 1.8
    return int(found.group(1)) if found else LEAST
