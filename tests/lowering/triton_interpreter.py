"""Runs emitted Triton source on NumPy memory, without torch: on a GPU where there is one, else by its interpreter.

The interpreter is changed in eight places: it makes Triton's language its own once a launch (it does at each call); a
float of 16 bits is rounded as the hardware does (it drops bits of bf16); comparisons give bools (it takes what they
give for the operands' dtype); sums and scans of a block are made in halves (it calls the combining function for each
element); `range` gives Triton values (it gives Python's); a number whose bits are all set may be unsigned (some
releases convert -1, which NumPy refuses); `fma` rounds once (some releases: twice); and functions of the device library
are NumPy's and SciPy's (it has none).
"""

import contextlib
import itertools
import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special

from lowering.triton.code import TritonCode
from lowering.triton.compile import compile_kernels
from lowering.triton.emit import emit_triton
from lowering.triton.plan import DEFAULT_TILING, Tiling
from lowering.triton.refusals import refusal
from lowering.triton.types import NAME
from qdtrace.interpret.reference import evaluate
from qdtrace.interpret.special import fma, fma_to_odd
from qdtrace.ir.program import Program, Task, Var
from qdtrace.ir.types import DType
from tests.differential.compare import Tolerance, compare
from tests.lowering.guards import GUARD, STRICT, guarded, guarded_memory, untouched
from tests.lowering.kernels import raise_failure
from tests.lowering.on_gpu import gpu

pytest.importorskip("triton", reason="needs the package triton")

import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

_numbers = itertools.count()
ZEROS = Tolerance(signed_zeros=False)
"""Of two zeros `min` and `max` may give either; NumPy does."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "erfinv": scipy.special.erfinv, "erf": scipy.special.erf, "erfc": scipy.special.erfc, "fmod": np.fmod,
    "pow": np.power, "atan2": np.arctan2, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "rsqrt": lambda x: 1 / np.sqrt(x),
    "round": lambda x: _round_away(x),
    **{name: getattr(np, name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "cbrt", "trunc",
        "rint",
    )},
}  # fmt: skip


def _round_away(x: np.ndarray) -> np.ndarray:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1.0, x), whole)


class Array:
    """A NumPy array as kernels take it."""

    def __init__(self, address: int, kind: str) -> None:
        self.address = address
        self.dtype = kind

    def data_ptr(self) -> int:
        """Where it is."""
        return self.address


def _function(name: str) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        values = [v if isinstance(v, tl.tensor) else interpreter.interpreter_semantic.to_tensor(v) for v in values]
        first = max(values, key=lambda v: len(v.shape))
        dtype = first.handle.data.dtype
        result = FUNCTIONS[name](*(v.handle.data.astype(np.float64) for v in values)).astype(dtype)
        return tl.tensor(interpreter.TensorHandle(result, first.dtype), first.type)

    return call


def _cast(self: Any, source: Any, target: Any) -> Any:
    small = ml_dtypes.bfloat16
    a, b = source.dtype.scalar, target.scalar
    if a == tl.float32 and b == tl.bfloat16:
        return interpreter.TensorHandle(source.data.astype(small).view(np.uint16), b)
    if a == tl.bfloat16 and b == tl.float32:
        return interpreter.TensorHandle(source.data.view(small).astype(np.float32), b)
    return interpreter.TensorHandle(source.data.astype(interpreter._get_np_dtype(target)), b)


def _tensor(data: np.ndarray, dtype: Any) -> Any:
    kind = tl.block_type(dtype, list(data.shape)) if data.shape else dtype
    return tl.tensor(interpreter.TensorHandle(np.atleast_1d(data), dtype), kind)


def _comparison(name: str) -> Callable[..., Any]:
    own = getattr(interpreter.InterpreterBuilder, name)
    return lambda self, a, b: interpreter.TensorHandle(own(self, a, b).data, tl.int1)


COMPARISONS = {
    name: _comparison(name)
    for name in dir(interpreter.InterpreterBuilder)
    if name.startswith(("create_icmp", "create_fcmp"))
}


def _all_ones(self: Any, kind: Any) -> Any:
    zero = np.zeros(1, interpreter._get_np_dtype(kind))
    return interpreter.TensorHandle(~zero, kind.scalar)


def _fma(self: Any, a: Any, b: Any, c: Any) -> Any:
    exact = np.vectorize(fma if c.dtype.scalar == tl.float64 else fma_to_odd, otypes=[np.float64])
    return interpreter.TensorHandle(exact(a.data, b.data, c.data).astype(c.data.dtype), c.dtype.scalar)


def _reduce(self: Any, values: Any) -> Any:
    """The sum of a block: of its halves."""
    (value,) = values
    data, dtype = value.handle.data, value.dtype
    while len(data) > 1:
        half = len(data) // 2
        data = self.combine_fn.fn(_tensor(data[:half], dtype), _tensor(data[half:], dtype)).handle.data
    return (_tensor(data[0], dtype),)


def _scan(self: Any, values: Any) -> Any:
    """Sums of beginnings: each step adds what stands 1, 2, 4... places in front."""
    (value,) = values
    data, dtype, step = value.handle.data, value.dtype, 1
    while step < len(data):
        both = self.combine_fn.fn(_tensor(np.roll(data, step), dtype), _tensor(data, dtype)).handle.data
        data, step = np.where(np.arange(len(data)) < step, data, both), 2 * step
    return [_tensor(data, dtype)]


def _range(*bounds: Any) -> Iterator[Any]:
    wide = any(isinstance(b, tl.tensor) and b.dtype == tl.int64 for b in bounds)
    dtype, kind = (tl.int64, np.int64) if wide else (tl.int32, np.int32)
    for k in range(*(b.handle.data.item() if isinstance(b, tl.tensor) else b for b in bounds)):
        yield _tensor(np.asarray(k, kind), dtype)


def _patch_once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What makes Triton's language the interpreter's, once a launch: each call of a function of the kernel does so."""
    done: set[tuple[int, ...]] = set()

    def patched(fn: Any) -> Any:
        key = tuple(id(value) for value in fn.__globals__.values() if value in (tl, tl.core))
        if key in done:
            return None
        scope = patch(fn)
        if not done:
            restore = scope.restore
            scope.restore = lambda: (done.clear(), restore())
        done.add(key)
        return scope

    return patched


@contextlib.contextmanager
def _interpreted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(triton.knobs.runtime, "interpret", True)
        patch.setattr(interpreter.InterpreterBuilder, "cast_impl", _cast)
        for name, comparison in COMPARISONS.items():
            patch.setattr(interpreter.InterpreterBuilder, name, comparison)
        patch.setattr(interpreter.InterpreterBuilder, "get_all_ones_value", _all_ones)
        patch.setattr(interpreter.InterpreterBuilder, "create_fma", _fma)
        patch.setattr(interpreter.ReduceOps, "apply_impl", _reduce)
        patch.setattr(interpreter.ScanOps, "apply_impl", _scan)
        patch.setattr(interpreter, "_patch_lang", _patch_once(interpreter._patch_lang))
        patch.setattr(interpreter.GridExecutor, "_init_args_hst", lambda self, args, kwargs: (args, kwargs))
        patch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda self, *args: None)
        for name in FUNCTIONS:
            patch.setattr(libdevice, name, _function(name))
        yield


def load(text: str) -> dict[str, Any]:
    """The module of the source, for the interpreter."""
    name = f"<triton source {next(_numbers)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    module: dict[str, Any] = {"__name__": name, "range": _range}
    exec(compile(text, name, "exec"), module)
    return module


def _kind(ref: Var) -> str:
    return "int8" if ref.dtype is DType.bool else NAME[ref.dtype]


def run_task(code: TritonCode, task: Task, memory: dict[Var, np.ndarray]) -> None:
    """Runs the kernels of a task on arrays; raises the error of a check that failed."""
    if (device := gpu()) is not None:
        made = compile_kernels(code, device.device.name)
        kernels = [
            (device.kernel(device.load(k.image), k.launch.name, k.launch.shared_bytes), k.launch) for k in made
        ]
        raise_failure(device.run(kernels, task, [memory[r] for r in code.refs], code.scratch_bytes), task)
        return
    failure = np.zeros(1, np.int64)
    raw, scratch = guarded(np.full(code.scratch_bytes, GUARD, np.uint8))
    arrays = [Array(memory[r].ctypes.data, _kind(r)) for r in code.refs]
    words = [Array(failure.ctypes.data, "int64"), Array(scratch.ctypes.data, "int8")]
    with _interpreted():
        module = load(code.text)
        for launch in code.launches:
            module[launch.name][(launch.programs,)](*arrays, 0, 0, *words, BLOCK=launch.block)
    untouched(raw)
    raise_failure(int(failure[0]), task)


SMALL = Tiling(stream=32, walk=32, programs=3)
"""Small blocks, so that short ranges have several and a tail."""


@dataclass
class Run:
    """Runs programs; `made` counts the tasks that were made as Triton source, the others are interpreted."""

    tiling: Tiling = SMALL
    made: int = 0

    def results(self, program: Program, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Results of a program, task after task; nothing beside the arrays may be touched."""
        raws, memory = guarded_memory(program, args)
        try:
            for task in program.tasks:
                if refusal(task) is None:
                    self.made += 1
                    run_task(emit_triton(task, STRICT, self.tiling), task, memory)
                else:
                    _interpret(task, memory)
        finally:
            for raw in raws:
                untouched(raw)
        return [memory[r].copy() for r in program.results]


def _interpret(task: Task, memory: dict[Var, np.ndarray]) -> None:
    refs = tuple(task.refs)
    results = evaluate(Program("task", refs, (), (task,), refs), [memory[r] for r in refs])
    for ref, result in zip(refs, results, strict=True):
        memory[ref][...] = result


def agrees(
    program: Program,
    args: Sequence[np.ndarray],
    tolerance: Tolerance = ZEROS,
    tilings: Sequence[Tiling] = (SMALL, DEFAULT_TILING),
) -> None:
    """Triton gives what the reference gives, with small blocks and with those of the emitter; no task is refused."""
    want = evaluate(program, args)
    for tiling in tilings:
        run = Run(tiling)
        compare(run.results(program, args), want, tolerance)
        assert run.made == len(program.tasks), [refusal(t) for t in program.tasks]
