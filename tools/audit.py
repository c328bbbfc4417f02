"""`make audit`: the installed runtime dependencies, and what they pull in, against known advisories.

    python -m tools.audit

Two questions, answered apart. Are the versions at least those that pyproject.toml asks for, whose known holes are
closed (FLOORS)? That needs no network. Is anything newer known? That is pip-audit's to say; where it is not installed,
or the advisory service does not answer, this says so and fails: an audit that did not happen is no clean one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
EXTRAS = ("embedded", "cli", "metrics", "spark")
OK, HOLES, NOT_DONE = 0, 1, 2
PATIENCE_S = 180

# package -> (first version without the holes below, the holes). SECURITY.md repeats it; a test holds them together.
FLOORS: dict[str, tuple[str, str]] = {
    "redis": ("4.5.5", "CVE-2023-28858, CVE-2023-28859: answers of one request handed to another after a cancel"),
    "pyarrow": ("14.0.1", "CVE-2023-47248: code run by reading a hostile Arrow or Parquet file"),
    "numpy": ("1.22.2", "CVE-2021-41495, CVE-2021-41496: crashes by hostile input"),
    "pyspark": ("3.3.2", "CVE-2023-22946, CVE-2022-33891: code run as another user by proxy-user or the UI's ACLs"),
}


def requirements(project: Path = PROJECT) -> dict[str, str]:
    """Runtime dependencies by name, with the least version each may have."""
    told = tomllib.loads(project.read_text())["project"]
    lines = [*told["dependencies"], *(line for extra in EXTRAS for line in told["optional-dependencies"][extra])]
    return dict(_read(line) for line in lines)


def _read(line: str) -> tuple[str, str]:
    found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)", line)
    if found is None:
        raise SystemExit(f"audit: {line!r} in pyproject.toml names no least version: write name>=version")
    return found[1].lower(), found[2]


def version(text: str) -> tuple[int, ...]:
    """1.26 as (1, 26, 0): enough to compare releases."""
    parts = [int(part) for part in re.findall(r"[0-9]+", text)[:3]]
    return tuple(parts + [0] * (3 - len(parts)))


def too_low(least: dict[str, str]) -> list[str]:
    """Where pyproject.toml lets a version in whose holes are known."""
    return [
        f"pyproject.toml lets in {name} {least[name]}, but {floor} is the first without {what}"
        for name, (floor, what) in FLOORS.items()
        if name in least and version(least[name]) < version(floor)
    ]


def installed(names: Iterable[str]) -> dict[str, str]:
    """The versions that are here; what is not installed is left out."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def whole(project: Path = PROJECT) -> set[str]:
    """What pyproject.toml names and what that pulls in here, by what each installed distribution says it needs."""
    told = tomllib.loads(project.read_text())["project"]
    lines = [*told["dependencies"], *(line for extra in EXTRAS for line in told["optional-dependencies"][extra])]
    left, seen = [Requirement(line) for line in lines], set[tuple[str, str]]()
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras} - {of for one, of in seen if one == name}:
            seen.add((name, extra))
            left += [each for each in _needs(name) if _applies(each, extra)]
    return {name for name, _ in seen}


def _needs(name: str) -> list[Requirement]:
    try:
        return [Requirement(line) for line in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:
        return []


def _applies(wanted: Requirement, extra: str) -> bool:
    """Whether this machine needs it, for this extra of the package that asks."""
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def ask_pip_audit(here: dict[str, str]) -> tuple[int, str]:
    """Ask the advisory service about these versions: what it said, and whether it said anything."""
    pinned = "\n".join(f"{name}=={number}" for name, number in here.items()) + "\n"
    words = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*words, "--requirement", "/dev/stdin"],
            input=pinned,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NOT_DONE, f"the advisory service did not answer within {PATIENCE_S} s"
    said = f"{done.stdout}\n{done.stderr}".strip()
    if "No module named pip_audit" in said:
        return NOT_DONE, f"pip-audit is not installed: {sys.executable} -m pip install pip-audit"
    if done.returncode == 0:
        return OK, "no known vulnerabilities"
    if "known vulnerabilit" in said:
        return HOLES, said
    return NOT_DONE, f"pip-audit could not ask: {said.splitlines()[-1] if said else 'it said nothing'}"


def main() -> int:
    least = requirements()
    everything = whole()
    here = installed(sorted(everything))
    print("installed: " + ", ".join(f"{name} {number}" for name, number in here.items()))
    if absent := sorted(everything - here.keys()):
        print(f"audit: not asked about, because not installed here: {', '.join(absent)}, and what they would pull in")
    print("audit: not asked about: Python itself, Java and Spark's jars, the servers (headrace doctor knows theirs)")
    low = too_low(least)
    low += [
        f"{name} {here[name]} is older than pyproject.toml asks for"
        for name in here
        if name in least and _older(here, least, name)
    ]
    for line in low:
        print(f"audit: {line}", file=sys.stderr)
    code, said = ask_pip_audit(here)
    print(f"audit: {said}", file=sys.stdout if code == OK else sys.stderr)
    if code == NOT_DONE:
        print("audit: NOT DONE for advisories newer than this file: run it where the index answers", file=sys.stderr)
    return HOLES if low else code


def _older(here: dict[str, str], least: dict[str, str], name: str) -> bool:
    return version(here[name]) < version(least[name])


if __name__ == "__main__":
    sys.exit(main())
