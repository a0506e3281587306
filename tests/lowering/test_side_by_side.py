"""Elementary functions of vectors side by side: one call serves several, and gives what a call for each gives."""

import re

import numpy as np
import pytest

from lowering.llvm.maths.library import APART, NAMES
from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program
from qdtrace.ir.types import DType
from tests.lowering.harness import Kernel, run_kernels, same_bits

N = 83


def applied(names: str, kind: str) -> Program:
    """Each element through some functions, one after the other."""
    steps = names.split()
    lines = [f"    v{k + 1}: {kind} = {name} v{k}{' w' * (name in ('atan2', 'pow'))}" for k, name in enumerate(steps)]
    body = "\n".join(lines)
    return parse_program(f"""program p(x: ref[{kind},{N}], u: ref[{kind},1], y: ref[{kind},{N}])
  range_for i in 0:i32 : {N}:i32
    head
      w: {kind} = load u 0:i32
    v0: {kind} = load x i
{body}
    store y v{len(steps)} i
  return y
""")


def calls(program: Program, target: str, vectors: int) -> list[str]:
    """The functions that the task calls, from the text before LLVM's passes."""
    text = emit_task(program.tasks[0], Target.named(target), EmitOptions(vectors=vectors)).text
    task, _ = re.split(r"^define internal .*@qdm\.", text, maxsplit=1, flags=re.MULTILINE)
    return re.findall(r"@qdm\.([\w.]+)\(", task)


@pytest.mark.parametrize(
    ("vectors", "expected"), [(1, ["x8"]), (2, ["x8x2"]), (3, ["x8x2", "x8"]), (4, ["x8x4"]), (5, ["x8x4", "x8"])]
)
def test_one_call_takes_a_power_of_two_of_vectors(vectors: int, expected: list[str]) -> None:
    found = calls(applied("sin", "f32"), "avx2", vectors)
    # the loop's body is emitted for whole steps and for the last one
    assert found[: len(expected)] == [f"sin.f32{lanes}" for lanes in expected]
    assert set(found) == {f"sin.f32{lanes}" for lanes in expected}


@pytest.mark.parametrize(("target", "lanes"), [("avx512", 16), ("neon", 4)])
def test_lanes_are_those_of_the_machine(target: str, lanes: int) -> None:
    assert set(calls(applied("tan", "f32"), target, 2)) == {f"tan.f32x{lanes}x2"}


@pytest.mark.parametrize("name", sorted(name for name, dtype in APART if dtype is DType.f32))
def test_functions_that_are_called_for_each_vector(name: str) -> None:
    assert set(calls(applied(name, "f32"), "avx2", 4)) == {f"{name}.f32x8"}


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize(
    "names", ["sin cos", "tan exp", "pow", "atan2 log1p", "erf acos", pytest.param("lgamma", marks=pytest.mark.full)]
)
def test_results_do_not_depend_on_the_number_of_vectors(names: str, kind: str) -> None:
    program = applied(names, kind)
    x = np.random.default_rng(0).normal(size=N) * 10.0 ** np.random.default_rng(1).integers(-3, 4, N)
    x[::7], x[5], x[40], x[41] = 3e30 if kind != "f16" else 6e4, np.nan, np.inf, -0.0
    dtype = DType[kind].numpy
    args = [x.astype(dtype), np.full(1, 1.5, dtype), np.zeros(N, dtype)]
    want = None
    for vectors in (1, 2, 3, 4):
        kernels = [Kernel(program.tasks[0], Target.host(), EmitOptions(fast_math=False, vectors=vectors))]
        (got,) = run_kernels(program, kernels, args, (0.3,), False)
        want = got if want is None else want
        same_bits(got, want, vectors)
    assert want is not None
    assert np.isfinite(want.astype(np.float64)).any()


def test_every_exception_is_a_function() -> None:
    assert {name for name, _ in APART} < NAMES
