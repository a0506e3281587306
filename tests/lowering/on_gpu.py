"""Kernels on the GPU that JAX uses, where there is one: memory of the host is copied there, and back at the end."""

import ctypes
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_uint, c_void_p

import jax
import numpy as np

from lowering.cuda.driver import CudaDriver
from lowering.simt.code import Launch
from lowering.simt.devices import Device, device
from lowering.tables import CACHE_LINE, FIELD, round_up
from qdtrace.analysis.index.trips import static_bounds
from qdtrace.ir.program import Task
from tests.lowering.guards import GUARD, GUARD_BYTES, guarded, untouched


class Gpu(CudaDriver):
    """The driver, with memory and launches that are waited for."""

    @functools.cached_property
    def device(self) -> Device:
        """What code is made for."""
        return device(self.architecture())

    def run(
        self, kernels: Sequence[tuple[int, Launch]], task: Task, arrays: Sequence[np.ndarray], scratch_bytes: int
    ) -> int:
        """Launches the kernels of a task on guarded arrays; gives the word of failures. Nothing beside the arrays, the
        word and the scratch may be touched."""
        start, stop = static_bounds(task) or (0, 0)
        around_word, word = guarded(np.zeros(1, np.int64))
        around_scratch, scratch = guarded(np.full(scratch_bytes, GUARD, np.uint8))
        with self._context(), self._copies([*arrays, word, scratch]) as places:
            *refs, failure, memory = places
            for kernel, launch in kernels:
                words = [*refs, start, stop, failure, memory, *[0] * launch.null_arguments]
                self._launch(kernel, launch.blocks_for(stop - start), launch.threads, launch.shared_bytes, words)
            self._call("cuCtxSynchronize")
        untouched(around_word)
        untouched(around_scratch)
        return int(word[0])

    @contextmanager
    def _copies(self, arrays: Sequence[np.ndarray]) -> Iterator[list[int]]:
        """Addresses of copies of guarded arrays, which are copied back with their guards."""
        # an empty array has no guards: NumPy does not say where it is
        sizes = [a.nbytes + 2 * GUARD_BYTES if a.size else 0 for a in arrays]
        offsets = np.cumsum([0, *(round_up(size, 2 * CACHE_LINE) for size in sizes)]).tolist()
        base = c_void_p()
        self._call("cuMemAlloc_v2", byref(base), c_size_t(offsets[-1]))
        pieces = [
            (c_void_p((base.value or 0) + offset), c_void_p(a.ctypes.data - GUARD_BYTES), c_size_t(size))
            for a, offset, size in zip(arrays, offsets, sizes, strict=False)
        ]
        try:
            for there, here, size in pieces:
                self._call("cuMemcpyHtoD_v2", there, here, size)
            yield [(there.value or 0) + GUARD_BYTES for there, _, _ in pieces]
            for there, here, size in pieces:
                self._call("cuMemcpyDtoH_v2", here, there, size)
        finally:
            self._call("cuMemFree_v2", base)

    def _launch(self, kernel: int, blocks: int, threads: int, shared_bytes: int, words: Sequence[int]) -> None:
        values = (ctypes.c_int64 * len(words))(*words)
        pointers = (c_void_p * len(words))(*(ctypes.addressof(values) + FIELD * k for k in range(len(words))))
        sizes = [c_uint(n) for n in (blocks, 1, 1, threads, 1, 1, shared_bytes)]
        self._call(self.functions.launch, c_void_p(kernel), *sizes, None, pointers, None)


@functools.cache
def gpu() -> Gpu | None:
    """The GPU of this machine, if JAX uses one."""
    return Gpu() if jax.default_backend() == "gpu" else None
