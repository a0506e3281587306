"""Runs tasks through the emitter, LLVM's passes and its linker, without JAX, and compares with the reference."""

import ctypes
import itertools
import struct
from collections.abc import Callable, Sequence

import llvmlite.binding as llvm
import numpy as np

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.plan.renewal import large, sources_of
from lowering.runtime import compile
from lowering.simd.emit import TaskCode, emit_task
from lowering.tables import FAILURE
from qdtrace.analysis.index.trips import static_bounds
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, scalar_var
from qdtrace.ir.faults import checks_of, fault_of
from qdtrace.ir.program import Atom, Literal, Program, Task, Var, literal
from qdtrace.ir.types import DType
from tests.lowering.guards import GUARD, STRICT, guarded, guarded_memory, untouched
from tests.lowering.kernels import execute_kernels
from tests.lowering.on_gpu import gpu

TARGETS = Target.here()
"""Kinds of processors whose code this machine runs, the widest vectors first."""
KERNELS = "kernels"
"""As a target: the kernels of a GPU, on one or on the host (see `kernels`)."""
SIZES = (0, 1, 15, 16, 17, 31, 33, 100)
_names = itertools.count()


def nearest(target: str) -> str:
    """The name itself, or that of the machine's widest vectors if it cannot run such code."""
    return target if target in TARGETS else TARGETS[0]


def runnable(target: str) -> Target:
    """The kind of processor of that name, or the machine's widest one."""
    return Target.named(nearest(target))


class Kernel:
    """A compiled task."""

    def __init__(self, task: Task, target: Target, options: EmitOptions = STRICT) -> None:
        self.task = task
        self.code: TaskCode = emit_task(task, target, options)
        self.sources = sources_of(task, large(self.code.refs))
        code = compile.machine_code(self.code.text, target)
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        builder.export_symbol("qd_task")
        self._known = static_bounds(task)
        if self._known is None:
            builder.export_symbol("qd_bounds")
        if self.code.copies.nbytes:
            builder.export_symbol("qd_merge")
        if self.code.slot_bytes:
            builder.export_symbol("qd_combine")
        self._jit = llvm.create_lljit_compiler(target.llvm_machine(), use_jit_link=True)
        self._library = builder.link(self._jit, f"kernel{next(_names)}")
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._task = ctypes.CFUNCTYPE(None, pointer, number, number, pointer)(self._library["qd_task"])
        combine = self._library["qd_combine"] if self.code.slot_bytes else 0
        self._combine = ctypes.CFUNCTYPE(None, pointer, pointer, number)(combine)
        merge = self._library["qd_merge"] if self.code.copies.nbytes else 0
        self._merge = ctypes.CFUNCTYPE(None, pointer, number, number, pointer)(merge)
        bounds = 0 if self._known else self._library["qd_bounds"]
        self._bounds = ctypes.CFUNCTYPE(None, pointer, pointer)(bounds)

    def run(
        self, memory: dict[Var, np.ndarray], cuts: Sequence[float] = (), backward: bool = False, alone: bool = False
    ) -> None:
        """Runs the whole range, cut into chunks at these fractions, as the launcher does; without locks if alone.

        Raises the error of the check that failed first, when all chunks have run, as threads do.
        """
        failure = (ctypes.c_int64 * len(FAILURE.types))()
        asked = ctypes.c_int64(0)
        after = (int(alone), ctypes.addressof(failure), ctypes.addressof(asked))
        old = {r: memory[r].copy() for r in self.sources}
        for r in old:  # the task stores all of it, and reads the old content elsewhere
            memory[r].view(np.uint8)[...] = GUARD
        words = [*(memory[r].ctypes.data for r in self.code.refs), *(x.ctypes.data for x in old.values()), *after]
        pointers = (ctypes.c_void_p * len(words))(*words)
        ends = (ctypes.c_int64 * 2)(*self._known or ())
        if self._known is None:
            self._bounds(pointers, ends)
        start, stop = ends
        borders = [start, *(start + int(c * (stop - start)) for c in cuts), stop]
        chunks = [(low, high) for low, high in itertools.pairwise(borders) if low < high]
        raw, slots = guarded(np.full(self.code.slot_bytes * len(chunks), GUARD, np.uint8))
        for k in reversed(range(len(chunks))) if backward else range(len(chunks)):
            (low, high), slot = chunks[k], slots[k * self.code.slot_bytes :]
            self._task(pointers, low, high, slot.ctypes.data)
        if self.code.slot_bytes and chunks:
            self._combine(pointers, slots.ctypes.data, len(chunks))
        untouched(raw)
        if failure[0]:
            eqn = checks_of(self.task.all_eqns)[failure[0] - 1]
            kinds = list(FAILURE.types.values())
            words = {kind: iter([w for w, k in zip(failure, kinds, strict=True) if k == kind]) for kind in set(kinds)}
            next(words["i64"])  # the number of the check
            told = []
            for atom in eqn.invars[eqn.primitive.name == "check" :]:
                word = next(words["double" if atom.dtype.is_float else "i64"])
                if atom.dtype.is_float:
                    told.append(f"{struct.unpack('d', struct.pack('q', word))[0]:g}")
                else:
                    told.append(str(word if atom.dtype.is_signed else word % 2**64))
            raise fault_of(eqn, *told)

    def merge(self, memory: dict[Var, np.ndarray], copies: np.ndarray, cuts: Sequence[int] = ()) -> None:
        """Merges copies, in pieces that end at these lines; `copies` are bytes, one copy after another."""
        pointers = (ctypes.c_void_p * len(self.code.refs))(*[memory[r].ctypes.data for r in self.code.refs])
        size = self.code.copies.nbytes
        job = (ctypes.c_int64 * 3)(ctypes.addressof(pointers), copies.ctypes.data, copies.size // size)
        for low, high in itertools.pairwise([0, *cuts, size // 64]):
            self._merge(ctypes.addressof(job), low, high, None)


def execute(
    program: Program, args: Sequence[np.ndarray], target: str, options: EmitOptions = STRICT, cuts: Sequence[float] = ()
) -> list[np.ndarray]:
    """Results of a program, task after task."""
    if target == KERNELS:
        return execute_kernels(program, args, options)
    return run_kernels(program, [Kernel(t, runnable(target), options) for t in program.tasks], args, cuts)


def run_kernels(
    program: Program, kernels: Sequence[Kernel], args: Sequence[np.ndarray], cuts: Sequence[float], alone: bool = False
) -> list[np.ndarray]:
    """Results of a program by its compiled tasks; nothing beside the arrays may be touched."""
    raws, memory = guarded_memory(program, args)
    try:
        for kernel in kernels:
            kernel.run(memory, cuts, alone=alone)
    finally:
        for raw in raws:
            untouched(raw)
    return [memory[r].copy() for r in program.results]


def same_bits(got: np.ndarray, want: np.ndarray, what: object = "") -> None:
    """Equal, with NaN equal to NaN and 0.0 not equal to -0.0."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if DType.of(got.dtype).is_float:
        nan = np.isnan(want.astype(np.float64))
        np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), nan, err_msg=str(what))
        unsigned = np.dtype(f"u{got.dtype.itemsize}")
        bits_got, bits_want = (x.reshape(-1).view(unsigned).reshape(x.shape) for x in (got, want))
        bad = (bits_got != bits_want) & ~nan
        assert not bad.any(), f"{what}: {bad.sum()} differ, first got {got[bad][0]!r}, want {want[bad][0]!r}"
    else:
        np.testing.assert_array_equal(got, want, err_msg=str(what))


def agrees(
    program: Program,
    args: Sequence[np.ndarray],
    targets: Sequence[str] = TARGETS,
    cuts: Sequence[float] = (0.13, 0.5, 0.77),
    vectors: Sequence[int | None] = (None,),
) -> None:
    """Every target, and kernels, give exactly what the reference gives, in one piece and in chunks with odd borders.

    With a GPU, kernels alone.
    """
    want = evaluate(program, args)
    for got, expected in zip(execute_kernels(program, args), want, strict=True):
        same_bits(got, expected, "kernels")
    for target in dict.fromkeys(map(nearest, targets)) if gpu() is None else ():
        for side in vectors if target in ("avx512", "avx2", "neon") else vectors[:1]:
            options = EmitOptions(fast_math=False, vectors=side)
            kernels = [Kernel(t, runnable(target), options) for t in program.tasks]
            alone = [False, True] if any(kernel.code.updates for kernel in kernels) else [False]
            for pieces, way in itertools.product(((), cuts), alone):
                for got, expected in zip(run_kernels(program, kernels, args, pieces, way), want, strict=True):
                    same_bits(got, expected, (target, side, pieces, way))


def i32(value: int) -> Literal:
    """An i32 constant."""
    return literal(value, DType.i32)


def f32(value: float) -> Literal:
    """An f32 constant."""
    return literal(value, DType.f32)


def loop(b: Builder, start: Atom, stop: Atom, step: Atom, carries: Sequence[Atom], body: Callable) -> tuple[Var, ...]:
    """A `for`; `body(index, *carries)` returns the next carries."""
    index = scalar_var(start.dtype)
    params = [scalar_var(c.dtype) for c in carries]
    with b.block([index, *params]) as block:
        results = body(index, *params) or ()
    return b.emit("for", start, stop, step, *carries, blocks=[block.close(results)], unroll=None)


def while_loop(b: Builder, carries: Sequence[Atom], test: Callable, body: Callable) -> tuple[Var, ...]:
    """A `while`; `test(*carries)` returns a bool, `body(*carries)` the next carries."""
    tested, params = ([scalar_var(c.dtype) for c in carries] for _ in range(2))
    with b.block(tested) as first:
        condition = test(*tested)
    with b.block(params) as second:
        results = body(*params) or ()
    return b.emit("while", *carries, blocks=[first.close([condition]), second.close(results)])


def branch(b: Builder, condition: Atom, then: Callable, other: Callable | None = None) -> tuple[Var, ...]:
    """An `if`; both sides return their results."""
    blocks = []
    for side in (then, other or (lambda: ())):
        with b.block() as block:
            results = side() or ()
        blocks.append(block.close(results))
    return b.emit("if", condition, blocks=blocks)


def task(
    n: int | Atom, body: Callable[[Builder, Var], object], head: Callable[[Builder], object] | None = None
) -> Task:
    """A range_for over 0 .. n-1; what `head(b)` returns is given to `body(b, i, value)`."""
    b, index = Builder(), scalar_var(DType.i32, "i")
    value = head(b) if head else None
    with b.block() as block:
        body(b, index, value) if head else body(b, index)
    return Task("range_for", index, i32(0), i32(n) if isinstance(n, int) else n, block.close(), tuple(b.current.eqns))


def serial(body: Callable[[Builder], object]) -> Task:
    """A serial task."""
    b = Builder()
    with b.block() as block:
        body(b)
    return Task("serial", None, i32(0), i32(1), block.close())


def program(params: Sequence[Var], tasks: Sequence[Task] | Task, results: Sequence[Var]) -> Program:
    """A program over parameters."""
    tasks = (tasks,) if isinstance(tasks, Task) else tuple(tasks)
    return Program("test", tuple(params), (), tasks, tuple(results))
