"""Emitted code on special values: every primitive of floats alone, and expressions of two that LLVM could join.

Without `fast_math`, and for one operation with it too, results are those of the interpreter to the bit. Of two
operations `fast_math` may join the roundings, so results may be those of exact intermediate values; zeros still have
their sign, and infinities and NaN are the same.
"""

from typing import Any

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from qdtrace.interpret.numpy_rules import RULES
from qdtrace.interpret.reference import evaluate
from qdtrace.ir import primitives
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Program, Task, literal
from qdtrace.ir.types import DType
from tests.differential.compare import Tolerance, agreeing
from tests.lowering.harness import execute
from tests.passes.special_expressions import Grid, Run, one_rounding, specials

FUNCTIONS = Tolerance(ulps=5)
"""What the maths library promises, and the interpreter's own rounding."""
APPROXIMATE = primitives.FUNCTIONS | {"quotient"}
PARAMS: dict[str, list[dict[str, Any]]] = {
    "integer_pow": [{"y": y} for y in (-3, -2, -1, 0, 1, 2, 3, 5)],
    "convert": [{"dtype": d} for d in DType],
}
OF_OTHERS = {"bitcast", "and", "or", "xor", "not", "shift_left", "shift_right_logical", "shift_right_arithmetic",
             "population_count", "clz", "at_most", "lane_max", "lane_count", "lane_rank", "custom",
             "platform"}  # fmt: skip
"""Primitives that take no floats (the bits of a NaN are not defined), and those that emission never sees."""
FAST, STRICT = EmitOptions(fast_math=True), EmitOptions(fast_math=False)
JOINED = {
    "x": lambda b, x, y: x,
    "mul": lambda b, x, y: b("mul", x, y),
    "add": lambda b, x, y: b("add", x, y),
    "sub": lambda b, x, y: b("sub", x, y),
    "neg": lambda b, x, y: b("neg", x),
    "div": lambda b, x, y: b("div", x, y),
    "mul 3": lambda b, x, y: b("mul", x, literal(3.0, DType.f32)),
    "add 0": lambda b, x, y: b("add", x, literal(0.0, DType.f32)),
    "0 -": lambda b, x, y: b("sub", literal(0.0, DType.f32), x),
    "abs": lambda b, x, y: b("abs", x),
    "max": lambda b, x, y: b("max", x, y),
}  # fmt: skip


def special_values(dtype: DType) -> list[np.ndarray]:
    """Three operands in every combination."""
    info = np.finfo(dtype.numpy)
    positive = [0.0, 1.0, np.inf, float(info.max), float(info.tiny), float(info.smallest_subnormal), 2.5]
    row = np.array([*positive, *(-v for v in positive), np.nan], dtype.numpy)
    return [a.ravel() for a in np.meshgrid(row, row, row)]


def each_alone(dtype: DType, count: int) -> tuple[Program, list[str]]:
    """A program that applies every primitive of floats to x, y and z; the names of its results."""
    b, index, names, outs = Builder(), scalar_var(DType.i32, "i"), list[str](), list[Any]()
    refs = [ref_var(dtype, (count,), name) for name in "xyz"]
    with b.block() as body:
        operands: list[Any] = [b.load(r, index) for r in refs]
        for name in RULES:
            if name in OF_OTHERS:
                continue
            for params in PARAMS.get(name, [{}]):
                x, y, z = operands
                if name == "select":
                    value: Any = b(name, b("lt", x, y), y, z)
                elif name == "quotient":  # its third operand is the reciprocal of the second
                    value = b(name, x, y, b("div", literal(1.0, dtype), y))
                else:
                    value = _applied(b, name, operands, params)
                names.append(name)
                outs.append(ref_var(value.dtype, (count,), "out"))
                b.store(outs[-1], value, index)
    task = Task("range_for", index, literal(0, DType.i32), literal(count, DType.i32), body.close())
    return Program("alone", (*refs, *outs), (), (task,), tuple(outs)), names


def _applied(b: Builder, name: str, operands: list[Any], params: dict[str, Any]) -> Any:
    """The primitive of as many operands as it takes."""
    for count in (1, 2, 3):
        try:
            return b(name, *operands[:count], **params)
        except Exception:
            if count == 3:
                raise
    raise AssertionError(name)


def check_each_alone(dtype: DType, target: str, options: EmitOptions) -> None:
    x = special_values(dtype)
    program, names = each_alone(dtype, x[0].size)
    args = [*x, *(np.zeros(x[0].size, r.dtype.numpy) for r in program.results)]
    with np.errstate(all="ignore"):
        want = evaluate(program, args, fuel=1 << 30)
    for name, one, other in zip(names, execute(program, args, target, options), want, strict=True):
        good = agreeing(one, other, FUNCTIONS if name in APPROXIMATE else Tolerance())
        bad = np.flatnonzero(~good)
        assert not bad.size, f"{name}({[float(v[bad[0]]) for v in x]}) is {one[bad[0]]!r}, not {other[bad[0]]!r}"


def check_joined(name: str, target: str, options: EmitOptions) -> None:
    x, y = specials()
    grid = Grid(x.size, without=("pow", "rem", "exp", "cos", "cosh"))
    task = grid.build(lambda b, x, y: (JOINED[name](b, x, y), name))
    program = Program("joined", (*grid.refs, *grid.outs), (), (task,), tuple(grid.outs))
    inputs = dict(zip(grid.refs, (x, y), strict=True))
    args = [x, y, *(np.zeros(x.size, r.dtype.numpy) for r in grid.outs)]
    got = execute(program, args, target, options)
    with np.errstate(all="ignore"):
        run, exact = Run(task.body.eqns, inputs), Run(task.body.eqns, inputs, wide=True)
        for text, result, a, b in zip(grid.texts, got, run.stored, exact.stored, strict=True):
            want = np.broadcast_to(run.value(a), x.shape)
            good = agreeing(result, want, Tolerance())
            if options.fast_math and a.dtype is DType.f32:
                size, whole = run.size(a), np.broadcast_to(exact.value(b), x.shape).astype(np.float32)
                good |= one_rounding(want, result, size) | one_rounding(whole, result, size)
            elif options.fast_math and a.dtype is DType.bool:
                good |= np.broadcast_to(exact.value(b), x.shape) == result
            bad = np.flatnonzero(~good)
            assert not bad.size, f"{text} at {x[bad[0]]}, {y[bad[0]]} is {result[bad[0]]!r}, not {want[bad[0]]!r}"


@pytest.mark.full
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_every_primitive(target: str) -> None:
    check_each_alone(DType.f32, target, FAST)


@pytest.mark.parametrize(("name", "target"), [("mul", "avx512"), ("sub", "avx2")])
def test_two_operations(name: str, target: str) -> None:
    check_joined(name, target, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("options", [FAST, STRICT], ids=["fast", "strict"])
@pytest.mark.parametrize("target", ["avx512", "avx2", "portable", "scalar"])
@pytest.mark.parametrize("dtype", [DType.f16, DType.f32, DType.f64], ids=str)
def test_every_primitive_everywhere(dtype: DType, target: str, options: EmitOptions) -> None:
    check_each_alone(dtype, target, options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [FAST, STRICT], ids=["fast", "strict"])
@pytest.mark.parametrize("target", ["avx512", "avx2", "portable", "scalar"])
@pytest.mark.parametrize("name", JOINED)
def test_two_operations_everywhere(name: str, target: str, options: EmitOptions) -> None:
    check_joined(name, target, options)
