"""Which code was tried. A commit's name is gone when a history is written anew; what the files say is not.

python -m tests.support.digest     that of this tree
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

PRODUCT: Final = Path(__file__).resolve().parents[2] / "src" / "headrace"
LENGTH: Final = 10


def digest(folder: Path = PRODUCT) -> str:
    """The beginning of a SHA-256 over the paths and contents of the product's files, in the order of their paths."""
    told = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        content = file.read_bytes()
        told.update(f"{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return told.hexdigest()[:LENGTH]


if __name__ == "__main__":
    print(digest())
