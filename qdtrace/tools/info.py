"""The commands `python -m qdtrace info` and `cache`."""

from __future__ import annotations

import platform
import time
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

import jax
import llvmlite
import numpy as np

import qdtrace
from lowering.runtime.cache import VERSION_LENGTH, artifact_cache
from lowering.runtime.keys import compiler_version
from qdtrace.backend import backend
from qdtrace.config import current
from qdtrace.trace.compat import gpu_platform

if TYPE_CHECKING:
    from lowering.runtime.cache import ArtifactCache, Kept


def show() -> int:
    """Prints versions, devices and facts about the backends."""
    rows = {
        "qdtrace": qdtrace.__version__,
        "python": platform.python_version(),
        "jax": f"{jax.__version__} (jaxlib {version('jaxlib')})",
        "llvmlite": llvmlite.__version__,
        "numpy": np.__version__,
        "devices": ", ".join(str(d) for d in jax.devices()),
    }
    rows |= backend("cpu").info(current())
    if jax.default_backend() == "gpu":
        facts = backend(gpu_platform()).info(current())
        rows |= {"GPU code for" if name == "device" else name: fact for name, fact in facts.items()}
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
    return 0


def show_cache() -> int:
    """Prints the folder of compiled tasks, and number, size and last use of its files by version of the compiler."""
    if (cache := _cache()) is None:
        return 1
    files = cache.files()
    limit = "without a limit" if cache.limit is None else f"of at most {cache.limit >> 20}"
    print(f"{cache.folder}: {len(files)} files, {_mebibytes(files)} MiB {limit}")
    by_maker: dict[str, list[Kept]] = {}
    for file in sorted(files, key=lambda file: -file.used):
        by_maker.setdefault(file.version, []).append(file)
    now, own = time.time(), compiler_version()[:VERSION_LENGTH]
    for maker, kept in by_maker.items():
        name = f"compiler {maker}" if maker else "other files"
        this = ", this version" if maker == own else ""
        print(f"  {name}: {len(kept)} files, {_mebibytes(kept)} MiB, used {_in_words(now - kept[0].used)} ago{this}")
    return 0


def _mebibytes(files: list[Kept]) -> str:
    return f"{sum(file.nbytes for file in files) / 2**20:.1f}"


def _in_words(seconds: float) -> str:
    """Returns an age in its largest unit, rounded down; one in the future counts as none."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(int(seconds), 0)} seconds"


def prune_cache() -> int:
    """Deletes compiled tasks of other versions of the compiler, and beyond the limit those unused for longest."""
    if (cache := _cache()) is None:
        return 1
    print(f"{cache.folder}: {cache.prune(cache.limit, compiler_version())} files removed")
    return 0


def clear_cache() -> int:
    """Deletes compiled tasks from the disk."""
    if (cache := _cache()) is None:
        return 1
    print(f"{cache.folder}: {cache.clear()} files removed")
    return 0


def _cache() -> ArtifactCache | None:
    """Returns the cache, whether the option is on or not, or None with a warning if no home directory is known."""
    return artifact_cache(replace(current(), offline_cache=True))
