"""Divergent `for` loops whose lanes count alike, and halves of the vectors that go on alone."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Program, Var, literal, ref_type
from qdtrace.ir.types import DType
from tests.lowering.harness import agrees, branch, f32, i32, loop, program, task

F32, I32 = DType.f32, DType.i32
VECTORS = (4, 3, 6)
TARGETS = ("avx512", "avx2", "portable")
EACH = (range(64), [9, 2], [2, 9], [0] * 63 + [40], [7], [0], [-3])
"""Stops of 64 lanes each: all differ, the first half is longer, the second, one lane runs, all alike, none runs."""
STOPS = np.concatenate([np.repeat(k, 64 // len(k)) if len(k) == 2 else np.resize(k, 64) for k in EACH])


def stops(n: int) -> np.ndarray:
    """The stops of n lanes: those above, then any."""
    any_ = np.random.default_rng(n).integers(-4, 20, max(0, n - STOPS.size))
    return np.concatenate([STOPS, any_])[:n].astype(np.int32)


def refs_of(n: int, dtype: DType = I32) -> tuple[Var, Var, Var, Var]:
    return ref_var(F32, (n,), "x"), ref_var(dtype, (n,), "k"), ref_var(F32, (n,), "y"), ref_var(dtype, (n,), "z")


def arguments(k: np.ndarray) -> list[np.ndarray]:
    n = k.size
    x = np.random.default_rng(0).normal(size=n).astype(np.float32)
    return [x, k, np.full(n, -1, np.float32), np.full(n, -1, k.dtype)]


def counted(n: int, start: int = 0, dtype: DType = I32, *, masked: bool = False, reads: bool = False) -> Program:
    """A loop from `start` to k[i], quiet unless it `reads` memory, in every lane or where x > 0."""
    x, k, y, z = refs = refs_of(n, dtype)

    def body(b: Builder, i: Var) -> None:
        first, stop = b.load(x, i), b.load(k, i)

        def turn(j: Var, a: Var, c: Var):
            more = b.load(x, i32(0)) if reads else first
            return b("add", b("mul", a, f32(0.5)), more), b("add", b("add", c, j), stop)

        def run():
            return loop(b, literal(start, dtype), stop, literal(1, dtype), [first, literal(1, dtype)], turn)

        other = (lambda: (first, stop)) if masked else None
        a, c = branch(b, b("gt", first, f32(0)), run, other) if masked else run()
        b.store(y, a, i)
        b.store(z, c, i)

    return under_masks(refs, body)


def under_masks(refs: tuple[Var, Var, Var, Var], body: Callable[[Builder, Var], None]) -> Program:
    """A program of one task, whose loops run without refill, with the last two references as results."""
    made = task(ref_type(refs[0]).shape[0], body)
    return program(refs, replace(made, hints={"refill": False}), refs[2:])


def holds(refs: tuple[Var, Var, Var, Var], body: Callable[[Builder, Var], None]) -> None:
    """Compares such a program with the interpreter."""
    made = under_masks(refs, body)
    agrees(made, arguments(stops(ref_type(refs[0]).shape[0])), TARGETS, vectors=VECTORS)


@pytest.mark.full
@pytest.mark.parametrize("n", [5, 600])
@pytest.mark.parametrize("masked", [False, True])
def test_halves(n: int, masked: bool):
    agrees(counted(n, masked=masked), arguments(stops(n)), TARGETS, vectors=VECTORS)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [DType.i32, DType.i64])
def test_stops_at_the_ends_of_the_integers(dtype: DType):
    ends, n = np.iinfo(dtype.numpy), 130
    near = np.random.default_rng(1).integers(0, 12, n)
    up = (ends.max - near).astype(dtype.numpy)
    agrees(counted(n, int(ends.max) - 9, dtype), arguments(up), TARGETS, vectors=VECTORS)
    down = (ends.min + near).astype(dtype.numpy)
    agrees(counted(n, int(ends.min) + 3, dtype), arguments(down), TARGETS, vectors=VECTORS)


@pytest.mark.full
def test_a_loop_that_reads_memory_keeps_all_vectors():
    agrees(counted(600, reads=True), arguments(stops(600)), TARGETS, vectors=VECTORS)


@pytest.mark.full
def test_a_carry_that_lanes_share_until_they_leave():
    x, k, y, z = refs = refs_of(600)

    def body(b: Builder, i: Var) -> None:
        def turn(_: Var, a: Var, c: Var):
            return b("mul", a, f32(1.5)), b("mul", c, i32(3))

        a, c = loop(b, i32(0), b.load(k, i), i32(1), [b.load(x, i), i32(1)], turn)
        b.store(y, a, i)
        b.store(z, c, i)

    holds(refs, body)


@pytest.mark.full
def test_a_result_that_nobody_reads():
    x, k, y, _ = refs = refs_of(600)

    def body(b: Builder, i: Var) -> None:
        def turn(j: Var, a: Var, c: Var):
            return b("add", a, b("convert", c, dtype=F32)), b("add", b("add", c, i), j)

        a, _ = loop(b, i32(0), b.load(k, i), i32(1), [b.load(x, i), i], turn)
        b.store(y, a, i)

    holds(refs, body)


@pytest.mark.full
def test_branches_and_inner_values_of_a_half():
    x, k, y, z = refs = refs_of(600)

    def body(b: Builder, i: Var) -> None:
        first = b.load(x, i)
        threshold = b("mul", first, first)

        def turn(j: Var, a: Var, c: Var):
            def then():
                return b("sub", a, b("div", first, b("add", threshold, f32(1)))), b("add", c, j)

            return branch(b, b("gt", a, threshold), then, lambda: (b("add", a, f32(0.75)), b("sub", c, i)))

        a, c = loop(b, i32(2), b.load(k, i), i32(1), [first, i32(0)], turn)
        b.store(y, a, i)
        b.store(z, c, i)

    holds(refs, body)


def loops_of(made: Program, vectors: int | None = None) -> tuple[int, str]:
    """Number of loops of lanes in the code of a program's task under masks, and that code."""
    code = emit_task(made.tasks[0], Target.named("avx512"), EmitOptions(vectors=vectors)).text
    code = code[code.index("define void @qd_task") :].split("\n}\n")[0]
    return sum(line.startswith("for") and line.endswith(":") for line in code.splitlines()), code


def test_quiet_loops_run_in_two_parts_and_no_iteration_asks_for_lanes():
    count, code = loops_of(counted(256))
    assert count == 2
    assert "bitcast <16 x i1>" not in code
    assert code.count("llvm.vector.reduce.smax") == 2
    assert "@llvm.smin.i32(" in code
    assert "x 4 vectors" in emit_task(counted(256).tasks[0], Target.named("avx512")).reason


@pytest.mark.parametrize(("vectors", "loops"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 2)])
def test_halves_need_an_even_number_of_vectors(vectors: int, loops: int):
    assert loops_of(counted(256), vectors)[0] == loops


def test_loops_that_read_memory_are_one():
    assert loops_of(counted(256, reads=True))[0] == 1
