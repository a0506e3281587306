"""Facts about backends that `python -m qdtrace info` prints."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import jax
import llvmlite
import numpy as np

from lowering.llvm.target import LLVM_VERSION
from lowering.runtime.keys import compiler_version

if TYPE_CHECKING:
    from lowering.llvm.target import Target
    from lowering.runtime.cache import ArtifactCache


def describe(target: Target, cache: ArtifactCache | None, num_threads: int | None) -> dict[str, str]:
    """Returns facts about the CPU backend: names and values, in the order to print them."""
    wanted = [f for f in target.features.split(",") if f.startswith("+")]
    facts = {
        "target": f"{target.name} ({target.triple}, {target.cpu})",
        "vectors": f"{target.vector_bits} bits, {target.registers} registers" if target.vector_bits else "none",
        "features": " ".join(f[1:] for f in wanted) or "those of the processor named",
        "threads": f"{num_threads or usable_cores()} of {usable_cores()}",
    }
    return facts | about_compiler(cache)


def about_compiler(cache: ArtifactCache | None) -> dict[str, str]:
    """Returns facts that all backends have: the cache, versions, and the hash of the compiler's source."""
    kept = "off"
    if cache is not None:
        count, size = cache.size()
        kept = f"{cache.folder} ({count} files, {size / 1024:.0f} KiB)"
    numbers = ", ".join(f"{name} {number}" for name, number in versions().items())
    return {"artifact cache": kept, "versions": numbers, "compiler": compiler_version()}


def versions() -> dict[str, str]:
    """Returns the versions of the packages that generated code and its calls depend on."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "llvmlite": llvmlite.__version__,
        "LLVM": ".".join(map(str, LLVM_VERSION)),
    }


def usable_cores() -> int:
    """Returns the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
