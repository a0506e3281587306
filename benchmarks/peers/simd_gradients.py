"""Gradients written by hand for SIMD lanes in C++, compiled by the machine's own compiler for its own processor."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.gradients.fastest import fastest
from benchmarks.peers import Run

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).with_name("gradients.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
SHARED = ("-pthread", "-shared", "-fPIC")
VARIANTS = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4))
"""Vectors side by side, and steps between kept states."""
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CompilerError(Exception):
    """No compiler, or one that does not take the source."""


@functools.cache
def _library() -> Any:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise CompilerError("needs a C++ compiler on PATH (c++, g++ or clang++)")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "gradients.so"
        done = subprocess.run(
            [compiler, *FLAGS, *SHARED, str(SOURCE), "-o", str(target)], capture_output=True, text=True
        )
        if done.returncode:
            raise CompilerError(f"{compiler}: {(done.stderr.strip().splitlines() or ['failed'])[0]}")
        return ctypes.CDLL(str(target))


def _pointer(array: Any) -> Any:
    """The address of an array, which lives as long as it."""
    return array.ctypes.data_as(ctypes.c_void_p)


def lorenz(steps: int) -> Callable[..., Run]:
    """The fastest variant."""

    def make(rho: Any) -> Run:
        library, out = _library(), np.empty_like(rho)

        def variant(vectors: int, piece: int) -> Callable[[], Any]:
            given = vectors, piece, _pointer(rho), _pointer(out), rho.size, steps, THREADS
            return lambda: library.lorenz_adjoint(*given)

        name, call = fastest({f"{v} vectors, K = {k}": variant(v, k) for v, k in VARIANTS})
        return Run(lambda _: call(), lambda _: (out,), about=lambda: name)

    return make


def ragged(ptr: Any, col: Any, w: Any, x: Any) -> Run:
    w_bar, x_bar = np.empty_like(w), np.empty_like(x)
    arrays = [_pointer(a) for a in (ptr, col, w, x, w_bar, x_bar)]
    given = *arrays, x.size, int(np.max(np.diff(ptr))), THREADS
    library = _library()
    return Run(lambda _: library.ragged_adjoint(*given), lambda _: (w_bar, x_bar))


PROGRAMS = {"gradient_lorenz": lorenz(100), "gradient_lorenz_1000": lorenz(1000), "gradient_ragged": ragged}
