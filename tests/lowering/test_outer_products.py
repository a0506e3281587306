"""Sums of outer products by tiles: every size, order and mask gives what the reference gives."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from lowering.llvm.target import Target
from lowering.simd import emit
from lowering.simd.accumulation.outer_products import outer_products
from lowering.simd.emit import emit_task
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Atom, Literal, Program, Var, literal
from qdtrace.ir.types import DType
from tests.lowering.harness import agrees, branch, f32, i32, loop, program, task, while_loop
from tests.selection import drawn

N = 77


@dataclass(frozen=True)
class Case:
    """A nest of two loops, and what is around it."""

    outer: int = 9
    inner: int = 17
    dtype: DType = DType.f32
    turned: bool = False
    """True if the inner loop has the rows."""
    falls: bool = False
    """True if the indices fall."""
    low: int = 0
    """The least index of both loops."""
    layer: str = ""
    """The first index of the array, if it has one: a "literal", "uniform" in all lanes, or "varying"."""
    around: str = ""
    """What lanes leave at different times: a "branch", a "while", or nothing."""
    swapped: bool = False
    """True if the inner loop's factor is the first operand of the product."""
    more: str = ""
    """What else the inner loop does: "adds" to a private array, "reads" the outer index, or "updates" another array."""
    listed: bool = False
    """True if there is an update for each index instead of an inner loop."""


SHAPE = (2, 40, 44)


def made(case: Case) -> Program:
    """Each iteration i of a task adds y[i, j] * x[i, k] to out[layer, j, k]."""
    d = case.dtype
    x, y = ref_var(d, (N, SHAPE[2]), "x"), ref_var(d, (N, SHAPE[2]), "y")
    kind, out, other = ref_var(DType.i32, (N,), "kind"), ref_var(d, SHAPE, "out"), ref_var(d, SHAPE[1:], "other")
    total = ref_var(d, (N,), "total")

    def bounds(count: int) -> tuple[Atom, Atom, Atom]:
        first, last = case.low, case.low + count
        return (i32(last - 1), i32(first - 1), i32(-1)) if case.falls else (i32(first), i32(last), i32(1))

    def nest(b: Builder, i: Var, private: Var) -> None:
        layer: Atom = i32(int(case.layer == "literal"))
        if case.layer in ("uniform", "varying"):
            layer = b("min", b.load(kind, i if case.layer == "varying" else i32(0)), i32(1))

        numbers = range(case.low, case.low + case.inner if case.listed else case.low)
        known = {k: b.load(x, i, i32(k)) for k in (reversed(numbers) if case.falls else numbers)}

        def outer(j: Var) -> None:
            left = b("add", b.load(y, i, j), literal(1, d))

            def inner(k: Atom) -> None:
                factor: Atom = known[int(k.value)] if isinstance(k, Literal) else b.load(x, i, k)
                if case.more == "reads":
                    factor = b("mul", factor, b.convert(j, d))
                product = b("mul", *((factor, left) if case.swapped else (left, factor)))
                b.accum(out, product, layer, *((k, j) if case.turned else (j, k)))
                if case.more == "adds":
                    b.accum(private, product, i32(0))
                if case.more == "updates":
                    b.accum(other, b("add", factor, left), j, k)

            for k in known:
                inner(i32(k))
            if not known:
                loop(b, *bounds(case.inner), (), inner)

        loop(b, *bounds(case.outer), (), outer)

    def body(b: Builder, i: Var) -> None:
        private = b.cell(d, (1,))
        b.store(private, literal(0, d), i32(0))
        if case.around == "branch":
            branch(b, b("gt", b.load(kind, i), i32(0)), lambda: nest(b, i, private))
        elif case.around == "while":

            def step(c: Var) -> tuple[Var]:
                nest(b, i, private)
                return (b("sub", c, i32(1)),)

            while_loop(b, [b.load(kind, i)], lambda c: b("gt", c, i32(0)), step)
        else:
            nest(b, i, private)
        b.store(total, b.load(private, i32(0)), i)

    return program([x, y, kind, out, other, total], task(N, body), [out, other, total])


def arguments(case: Case, seed: int = 0) -> list[np.ndarray]:
    """Whole numbers, whose sums are exact in any order; lanes that the nest leaves out have none."""
    rng, d = np.random.default_rng(seed), case.dtype.numpy
    x, y = (rng.integers(-3, 4, (N, SHAPE[2])).astype(d) for _ in range(2))
    kind = rng.integers(0, 3 if case.around == "while" else 2, N).astype(np.int32)
    if case.around:
        x[kind == 0], y[kind == 0] = np.inf, np.nan
    elif case.layer != "varying":
        kind[:] = 1
    return [x, y, kind, np.ones(SHAPE, d), np.zeros(SHAPE[1:], d), np.zeros(N, d)]


def check(case: Case, seed: int = 0) -> None:
    agrees(made(case), arguments(case, seed), vectors=(None, 2))


@pytest.mark.sample(full=3)
@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(outer=8, inner=32, around="while"),
        Case(turned=True, falls=True, around="while", dtype=DType.f64),
        Case(layer="uniform", low=3, more="adds", swapped=True),
        Case(layer="varying", around="branch"),
        Case(outer=16, inner=18, listed=True, around="while", layer="literal"),
        Case(listed=True, turned=True, more="updates", falls=True),
        Case(more="reads"),
        Case(more="updates", around="branch", turned=True),
    ],
    ids=str,
)
@pytest.mark.full
def test_nests(case: Case) -> None:
    check(case)


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("seed", range(drawn(8)))
def test_random_nests(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def one(*of: object) -> object:
        return of[rng.integers(len(of))]

    sides = {"outer": int(rng.integers(4, 37)), "inner": int(rng.integers(4, 37)), "low": int(rng.integers(0, 4))}
    turns = {name: bool(rng.integers(2)) for name in ("turned", "falls", "swapped", "listed")}
    words = {
        "layer": one("", "literal", "uniform", "varying"),
        "around": one("", "branch", "while"),
        "more": one("", "", "adds", "reads", "updates"),
    }
    check(replace(Case(), dtype=one(DType.f32, DType.f64), **sides, **turns, **words), seed)


@pytest.mark.parametrize(
    ("case", "is_one"),
    [
        (Case(), True),
        (Case(turned=True, falls=True, layer="uniform", more="updates"), True),
        (Case(listed=True, layer="literal"), True),
        (Case(listed=True, more="reads"), False),
        (Case(outer=3, inner=44), False),
        (Case(outer=8, inner=15), False),
        (Case(more="reads"), False),
        (Case(dtype=DType.f16), False),
    ],
    ids=str,
)
def test_what_is_one(case: Case, is_one: bool) -> None:
    found = list(outer_products(made(case).tasks[0].body.eqns))
    assert len(found) == is_one
    code = emit_task(made(case).tasks[0], Target.named("avx512"))
    assert ("sums of outer products by tiles" in code.reason) == is_one


@pytest.mark.full
def test_an_inner_factor_that_the_nest_writes_is_none() -> None:
    out, x = ref_var(DType.f32, (16, 16), "out"), ref_var(DType.f32, (N, 16), "x")

    def body(b: Builder, i: Var) -> None:
        private = b.cell(DType.f32, (16,))
        loop(b, i32(0), i32(16), i32(1), (), lambda k: b.store(private, b.load(x, i, k), k))

        def outer(j: Var) -> None:
            left = b.load(private, j)
            b.store(private, f32(0), j)
            inner = lambda k: b.accum(out, b("mul", left, b.load(private, k)), j, k)  # noqa: E731
            loop(b, i32(0), i32(16), i32(1), (), inner)

        loop(b, i32(0), i32(16), i32(1), (), outer)

    whole = program([x, out], task(N, body), [out])
    assert not list(outer_products(whole.tasks[0].body.eqns))
    values = np.random.default_rng(0).integers(-3, 4, (N, 16)).astype(np.float32)
    agrees(whole, [values, np.zeros((16, 16), np.float32)])


def wide(n: int) -> Program:
    """A matrix of 8 x n numbers to which each iteration adds an outer product."""
    out, x, y = (ref_var(DType.f32, shape, "r") for shape in ((8, n), (N, n), (N, 8)))

    def body(b: Builder, i: Var) -> None:
        def outer(j: Var) -> None:
            left = b.load(y, i, j)
            inner = lambda k: b.accum(out, b("mul", left, b.load(x, i, k)), j, k)  # noqa: E731
            loop(b, i32(0), i32(n), i32(1), (), inner)

        loop(b, i32(0), i32(8), i32(1), (), outer)

    return program([x, y, out], task(N, body), [out])


def test_factors_too_long_for_memory_are_none() -> None:
    assert len(list(outer_products(wide(508).tasks[0].body.eqns))) == 1
    assert not list(outer_products(wide(509).tasks[0].body.eqns))


@pytest.mark.full
def test_factors_that_no_stack_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "ON_STACK", 1 << 10)
    made = wide(50)
    assert "aligned_alloc" in emit_task(made.tasks[0], Target.named("avx512")).text
    rng = np.random.default_rng(0)
    args = [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((N, 50), (N, 8), (8, 50))]
    agrees(made, args, targets=("avx512", "avx2"))
