"""The texts of a program as a compressed file, and the folder where those of a tree are kept between runs.

The folder is named by the content of the package in that tree and of all that decides which texts there are, so a
commit that changes neither has the folder of its parent.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

from tests.replay.normalise import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KEPT = 8
"""Folders of trees, the newest."""
_DUMPER = ("tests/replay", "tests/differential", "tests/importer", "tests/api", "tests/autodiff", "benchmarks")
_USED_TESTS = {"test_bodies.py"}
_HEADER = re.compile(r"^==== (.*) ====\n", re.MULTILINE)


def save(path: Path, texts: dict[str, str]) -> None:
    """Writes the file, at once and whole."""
    content = "".join(f"==== {name} ====\n{text}\n" for name, text in texts.items())
    beside = path.with_suffix(".part")
    beside.write_bytes(gzip.compress(content.encode(), 1, mtime=0))
    beside.replace(path)


def load(path: Path) -> dict[str, str]:
    """What `save` wrote."""
    _, *parts = _HEADER.split(gzip.decompress(path.read_bytes()).decode())
    return {name: text[:-1] for name, text in zip(parts[::2], parts[1::2], strict=True)}


def path_in(folder: Path, program: str) -> Path:
    """The file of a program."""
    return folder / f"{program}.txt.gz"


def folder_of(tree: Path, root: Path) -> Path:
    """Where texts of a tree are kept: `root` is the checkout whose tests and benchmarks have the programs."""
    versions = sys.version, *map(version, ("jax", "jaxlib", "llvmlite", "numpy"))
    made = hashlib.sha256(repr(versions).encode())
    files = [p for package in PACKAGES for p in (tree / package).rglob("*.py")]
    _add(made, tree, files)
    _add(made, root, (p for folder in _DUMPER for p in (root / folder).rglob("*") if _decides(p)))
    return root / "build" / "replay" / made.hexdigest()[:16]


def tidy(folder: Path) -> None:
    """Removes all but the newest folders beside this one, which counts as the newest."""
    folder.touch()
    beside = sorted((p for p in folder.parent.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    for old in beside[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _decides(path: Path) -> bool:
    is_test = path.name.startswith("test_") and path.name not in _USED_TESTS
    return path.suffix == ".qd" or (path.suffix == ".py" and not is_test)


def _add(made: hashlib._Hash, root: Path, files: Iterable[Path]) -> None:
    for path in sorted(files):
        content = path.read_bytes()
        made.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
