"""Runs the kernels of tasks: on the GPU where there is one, else on the host's processor.

There each thread of a block is a thread, and blocks come one after another. What is emitted is what a GPU gets, but for
the spelling of a few intrinsics; so its meaning is tested without one.
"""

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import llvmlite.binding as llvm
import numpy as np

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.runtime import compile
from lowering.simt.devices import CUDA, Device
from lowering.simt.emit import emit_kernels
from lowering.tables import FAILURE_BITS
from qdtrace.analysis.index.trips import trip_count
from qdtrace.analysis.machine import GPU
from qdtrace.ir.faults import checks_of, fault_of
from qdtrace.ir.program import Program, Task, Var
from tests.lowering.guards import GUARD, STRICT, guarded, guarded_memory, untouched
from tests.lowering.on_gpu import gpu

THREADS = 4
"""Of a block."""
_MOST_THREADS = 64
"""Of a block whose threads wait for each other."""
_SEATS = 1024
_HELPERS = f"""
declare i32 @gettid()
@seats = global [{_SEATS} x i32] zeroinitializer
@block = global i32 0

define i32 @host_thread() {{
entry:
  %me = call i32 @gettid()
  br label %look
look:
  %k = phi i32 [ 0, %entry ], [ %k1, %look ]
  %place = getelementptr i32, ptr @seats, i32 %k
  %who = load i32, ptr %place
  %k1 = add i32 %k, 1
  %found = icmp eq i32 %who, %me
  br i1 %found, label %done, label %look
done:
  ret i32 %k
}}
define i32 @host_block() {{
  %number = load i32, ptr @block
  ret i32 %number
}}
declare i32 @pthread_barrier_wait(ptr)
@barrier = global [64 x i8] zeroinitializer, align 64
@ended = global [64 x i8] zeroinitializer, align 64
define void @host_barrier() {{
  %first = call i32 @pthread_barrier_wait(ptr @barrier)
  ret void
}}
"""
_RUN = """
declare i32 @gettid()
declare i32 @pthread_barrier_wait(ptr)

; runs threads of all blocks, one after another; one that waits for others ends a block with them
define void @run(ptr %kernel, ptr %words, i32 %blocks, i32 %first, i32 %last, i1 %waits, ptr %seats, ptr %block,
                 ptr %ended) {{
entry:
  %me = call i32 @gettid()
  {loads}
  br label %next_block
next_block:
  %k = phi i32 [ 0, %entry ], [ %k1, %end_block ]
  %more = icmp slt i32 %k, %blocks
  br i1 %more, label %next_thread, label %done
next_thread:
  %t = phi i32 [ %first, %next_block ], [ %t1, %next_thread ]
  store i32 %k, ptr %block
  %seat = getelementptr i32, ptr %seats, i32 %t
  store i32 %me, ptr %seat
  call void %kernel({words})
  store i32 0, ptr %seat
  %t1 = add i32 %t, 1
  %another = icmp slt i32 %t1, %last
  br i1 %another, label %next_thread, label %end_threads
end_threads:
  br i1 %waits, label %wait, label %end_block
wait:
  %all = call i32 @pthread_barrier_wait(ptr %ended)
  br label %end_block
end_block:
  %k1 = add i32 %k, 1
  br label %next_block
done:
  ret void
}}
"""
_names = itertools.count()
_libc = ctypes.CDLL(None)
# A thread has the floating point modes of the one that starts it, and calls of XLA take small numbers for zeros.
_pool = ThreadPoolExecutor(_MOST_THREADS, initializer=lambda: _libc.fesetenv(ctypes.c_void_p(-1)))
_kept: list[object] = []


@cache
def host_device(blocks: int = 2, threads: int = THREADS) -> Device:
    """A device of one multiprocessor that runs so many blocks at a time."""
    family = replace(
        CUDA, name="host", convention="", thread="host_thread", block="host_block", barrier="host_barrier",
        threads_attribute="", scope="", most="", active="", has_approximations=False,
    )  # fmt: skip
    target = replace(Target.named("scalar"), machine=GPU)
    return Device(family, target, 1, blocks * threads, 1)


def _linked(
    jit: llvm.LLJIT, text: str, target: Target, exports: Sequence[str], imports: Mapping[str, int]
) -> llvm.ResourceTracker:
    builder = llvm.JITLibraryBuilder().add_object_img(compile.machine_code(text, target)).add_current_process()
    for name in exports:
        builder.export_symbol(name)
    for name, address in imports.items():
        builder.import_symbol(name, address)
    return builder.link(jit, f"kernels{next(_names)}")


@cache
def _helpers() -> dict[str, int]:
    """Addresses of what is in `_HELPERS`."""
    target = Target.named("scalar")
    jit = llvm.create_lljit_compiler(target.llvm_machine(), use_jit_link=True)
    exports = ("seats", "block", "barrier", "ended", "host_thread", "host_block", "host_barrier")
    library = _linked(jit, _HELPERS, target, exports, {})
    _kept.append((jit, library))
    return {name: library[name] for name in exports}


def intrinsics() -> dict[str, int]:
    """Addresses of what kernels of a `host_device` call."""
    helpers = _helpers()
    return {name: helpers[name] for name in ("host_thread", "host_block", "host_barrier")}


@cache
def _runner(count: int) -> Callable[..., None]:
    """What runs threads of a kernel with so many arguments."""
    target = Target.named("scalar")
    jit = llvm.create_lljit_compiler(target.llvm_machine(), use_jit_link=True)
    loads = "".join(
        f"""
  %p{k} = getelementptr i64, ptr %words, i32 {k}
  %w{k} = load i64, ptr %p{k}"""
        for k in range(count)
    )
    text = _RUN.format(loads=loads.strip(), words=", ".join(f"i64 %w{k}" for k in range(count)))
    library = _linked(jit, text, target, ["run"], {})
    _kept.append((jit, library))
    number, pointer = ctypes.c_int32, ctypes.c_void_p
    kinds = (pointer, pointer, number, number, number, ctypes.c_bool, pointer, pointer, pointer)
    return ctypes.CFUNCTYPE(None, *kinds)(library["run"])


def launch_on_host(address: int, blocks: int, threads: int, words: Sequence[int], waits: bool) -> None:
    """Runs a kernel on arguments; `waits`: its threads wait for each other."""
    helpers, run = _helpers(), _runner(len(words))
    given = (ctypes.c_int64 * len(words))(*words)
    shared = [helpers[name] for name in ("seats", "block", "ended")]
    if not waits:
        run(address, given, blocks, 0, threads, False, *shared)
        return
    barriers = [ctypes.c_void_p(helpers[name]) for name in ("barrier", "ended")]
    for barrier in barriers:
        _libc.pthread_barrier_init(barrier, None, threads)
    list(_pool.map(lambda k: run(address, given, blocks, k, k + 1, True, *shared), range(threads)))  # one for each
    for barrier in barriers:
        _libc.pthread_barrier_destroy(barrier)


class Kernels:
    """The compiled kernels of a task."""

    def __init__(
        self, task: Task, device: Device | None = None, options: EmitOptions = STRICT, threads: int = THREADS
    ) -> None:
        """For a GPU, and a `device` that gives its numbers only, or for a `host_device` and so many `threads`."""
        self.task = task
        self._gpu = gpu()
        if self._gpu is not None:
            found = self._gpu.device
            if device is not None:
                found = replace(found, multiprocessors=device.multiprocessors, threads=device.threads)
            self.code = emit_kernels(task, found, options, None if device is None else threads)
            library = self._gpu.load(self._gpu.code(self.code.text, found))
            self._kernels = [(self._gpu.kernel(library, launch.name), launch) for launch in self.code.launches]
            return
        device = device or host_device()
        self.code = emit_kernels(task, device, options, threads)
        self._jit = llvm.create_lljit_compiler(device.target.llvm_machine(), use_jit_link=True)
        names = sorted({launch.name for launch in self.code.launches})
        self._library = _linked(self._jit, self.code.text, device.target, names, intrinsics())
        self._waits = "host_barrier" in self.code.text

    def run(self, memory: dict[Var, np.ndarray]) -> None:
        """Runs the whole task. Raises the error of a check that failed."""
        count = trip_count(self.task.start, self.task.stop)
        if count == 0 and self.task.kind == "range_for":
            return
        arrays = [memory[r] for r in self.code.refs]
        if self._gpu is not None:
            raise_failure(self._gpu.run(self._kernels, self.task, arrays, self.code.scratch_bytes), self.task)
            return
        failure = ctypes.c_int64(0)
        raw, scratch = guarded(np.full(self.code.scratch_bytes, GUARD, np.uint8))
        words = [*(a.ctypes.data for a in arrays), 0, 0, ctypes.addressof(failure), scratch.ctypes.data]
        for launch in self.code.launches:
            blocks = launch.blocks_for(count or 0)
            launch_on_host(self._library[launch.name], blocks, launch.threads, words, self._waits)
        untouched(raw)
        raise_failure(failure.value, self.task)


def raise_failure(word: int, task: Task) -> None:
    """Raises the error of a check that failed, as the word of a task says it."""
    if not word:
        return
    number, value = word >> FAILURE_BITS, word & ((1 << FAILURE_BITS) - 1)
    value -= (value >> (FAILURE_BITS - 1)) << FAILURE_BITS
    raise fault_of(checks_of(task.all_eqns)[number - 1], str(value), in_a_word=True)


def execute_kernels(
    program: Program, args: Sequence[np.ndarray], options: EmitOptions = STRICT, device: Device | None = None
) -> list[np.ndarray]:
    """Results of a program, task after task; nothing beside the arrays may be touched."""
    raws, memory = guarded_memory(program, args)
    try:
        for task in program.tasks:
            Kernels(task, device, options).run(memory)
    finally:
        for raw in raws:
            untouched(raw)
    return [memory[r].copy() for r in program.results]
