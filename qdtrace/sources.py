"""The version of this package's source, for caches on disk."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION_LENGTH = 32


@functools.cache
def version_of(*folders: str) -> str:
    """Returns a hash of all Python files, and tables that they read, below the folders."""
    sources = hashlib.sha256()
    for folder in folders:
        for name, path in sorted(_files(folder)):
            with open(path, "rb") as file:
                sources.update(name.encode() + b"\0" + file.read())
    return sources.hexdigest()[:VERSION_LENGTH]


def _files(folder: str, inside: str = "") -> Iterator[tuple[str, str]]:
    """Yields name and path of each Python file and table; this takes a third of the time of `Path.rglob`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{inside}{entry.name}"
            if entry.name.endswith((".py", ".txt")):
                yield name, entry.path
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _files(entry.path, f"{name}/")
