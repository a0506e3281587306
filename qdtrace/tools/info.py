"""The commands `python -m qdtrace info` and `cache`."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

import jax
import llvmlite
import numpy as np

import qdtrace
from lowering.runtime.cache import artifact_cache
from qdtrace.backend import backend
from qdtrace.config import current
from qdtrace.trace.compat import gpu_platform

if TYPE_CHECKING:
    from lowering.runtime.cache import ArtifactCache


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
    """Prints the folder of compiled tasks, and the number and size of its files."""
    if (cache := _cache()) is None:
        return 1
    files, size = cache.size()
    print(f"{cache.folder}: {files} files, {size / 2**20:.1f} MiB")
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
