"""Long functions in parts: which stretches, and programs cut as often as it goes."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowering.llvm import parts, text
from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd import emit
from lowering.simd.emit import emit_task
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.primitives import IF
from qdtrace.ir.program import Eqn, Program, Var
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType
from tests.differential.compare import compare
from tests.differential.corpus import Case, replay
from tests.differential.divergent import nested_programs
from tests.differential.programs import programs
from tests.lowering.harness import agrees, branch, execute, f32, i32, loop, program, task, while_loop
from tests.lowering.test_refill import rows, trips
from tests.selection import drawn


@pytest.fixture
def cut_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function is split, into the shortest parts."""
    monkeypatch.setattr(parts, "PART", 1)
    monkeypatch.setattr(parts, "WHOLE", 0)


def cut(lengths: list[int], divided: tuple[int, ...] = (), waits: tuple[int, ...] = ()) -> list[tuple[int, int, bool]]:
    count = range(len(lengths))
    found = parts.stretches(lengths, [n in divided for n in count], [n not in waits for n in count])
    return [(s.start, s.stop, part) for s, part in found if s.start < s.stop]


def test_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART", 1000)
    assert cut([400] * 7) == [(0, 3, True), (3, 6, True), (6, 7, False)]
    # stores that wait for others of their record are in one part with them
    assert cut([400] * 7, waits=(2, 3)) == [(0, 5, True), (5, 7, False)]
    # a loop that has parts itself is in none, and alone
    assert cut([400, 5000, 400, 400, 400], divided=(1,)) == [(0, 1, False), (1, 2, False), (2, 5, True)]


@pytest.mark.full
@pytest.mark.usefixtures("cut_often")
@pytest.mark.parametrize(("target", "examples"), [("avx512", 40), ("avx2", 10), ("scalar", 15)])
def test_random_programs_in_the_shortest_parts(target: str, examples: int) -> None:
    @settings(max_examples=drawn(examples), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(programs(), st.sampled_from([None, 1, 2]))
    def one(case: Case, vectors: int | None) -> None:
        got = execute(case.program, case.args, target, EmitOptions(fast_math=False, vectors=vectors), (0.4,))
        compare(got, evaluate(case.program, case.args))

    one()


@pytest.mark.full
@pytest.mark.usefixtures("cut_often")
def test_accesses_of_lanes_in_the_shortest_parts() -> None:
    """Where the processor does not gather or scatter, each part has slots of its own for inactive lanes."""

    @settings(max_examples=drawn(9), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(nested_programs(), st.sampled_from([1, 2]))
    def one(case: Case, vectors: int) -> None:
        got = execute(case.program, case.args, "avx2", EmitOptions(fast_math=False, vectors=vectors), (0.4,))
        compare(got, evaluate(case.program, case.args))

    one()


@pytest.mark.full
@pytest.mark.parametrize("part", [1, 4, 8, 12, 16])
def test_conditions_made_in_parts(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a loop joins by `and` are tested one by one where registers of all of them are at hand."""
    monkeypatch.setattr(parts, "PART", part)
    monkeypatch.setattr(parts, "WHOLE", 0)
    x, y = ref_var(DType.f32, (37,), "x"), ref_var(DType.f32, (37,), "y")

    def body(b: Builder, i: Var) -> None:
        a = b.load(x, i)

        def goes_on(s: Var, k: Var) -> Var:
            large = b("gt", b("mul", b("add", s, a), f32(0.5)), f32(0.25))
            return b("and", b("and", large, b("lt", k, i32(9))), b("lt", s, f32(30.0)))

        s, k = while_loop(b, [a, i32(0)], goes_on, lambda s, k: (b("mul", s, f32(1.5)), b("add", k, i32(1))))
        b.store(y, b("add", s, b.convert(k, DType.f32)), i)

    values = np.linspace(-2, 3, 37, dtype=np.float32)
    agrees(program((x, y), task(37, body), (y,)), [values, np.zeros(37, np.float32)], ("avx512",), (), (1, 2))


@pytest.mark.full
@pytest.mark.usefixtures("cut_often")
def test_parts_gather_and_scatter_on_their_own() -> None:
    """Inactive lanes access a slot of their function where the processor has no masks."""
    x, p = ref_var(DType.f32, (37,), "x"), ref_var(DType.i32, (37,), "p")
    ys = [ref_var(DType.f32, (37,), f"y{k}") for k in range(4)]

    def body(b: Builder, i: Var) -> None:
        place = b.load(p, i)
        for k, y in enumerate(ys):
            b.store(y, b("mul", b.load(x, place), f32(k + 1)), place)

    places = np.random.default_rng(0).permutation(37).astype(np.int32)
    args = [np.linspace(-2, 3, 37, dtype=np.float32), places, *(np.zeros(37, np.float32) for _ in ys)]
    agrees(program((x, p, *ys), task(37, body), tuple(ys)), args, vectors=(None, 1))


class MakeRare(Rebuilder):
    """Marks each `if` without results as one that hardly ever runs: SIMD code calls a function for it."""

    def visit(self, eqn: Eqn) -> None:
        if eqn.primitive is IF and not eqn.outvars:
            eqn = replace(eqn, params={"rare": True})
        self.append(self.rebuild_eqn(eqn))


@pytest.mark.usefixtures("cut_often")
@pytest.mark.full
def test_random_programs_whose_branches_are_rare() -> None:
    @settings(max_examples=drawn(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(programs())
    def one(case: Case) -> None:
        made = replace(case.program, tasks=tuple(MakeRare().rebuild_task(t) for t in case.program.tasks))
        compare(execute(made, case.args, "avx512", EmitOptions(fast_math=False), (0.4,)), evaluate(made, case.args))

    one()


def with_rare_branches() -> tuple[Program, list[np.ndarray]]:
    """Values that are made in front of a rare branch and behind it, and first read behind it or in it, parts later.
    Branches are in loops, too, in which half of the lanes goes on alone where that is possible."""
    n = 40
    x, y, z = (ref_var(DType.f32, (n,), name) for name in "xyz")

    def body(b: Builder, i: Var) -> None:
        a = b.load(x, i)
        made = [b("mul", a, f32(1 + k / 8)) for k in range(8)]
        t = a
        for k in range(24):
            t = b("add", b("mul", t, f32(0.75)), made[k % 3])
            if k % 6 == 5:
                u, v = t, made[k % 5]
                branch(b, b("gt", t, f32(1.5)), lambda u=u, v=v: b.store(z, b("sub", u, v), i))
                t = b("max", t, made[3 + k // 6])

                def row(j: Var, s: Var, v: Var = v) -> tuple[Var, ...]:
                    branch(b, b("gt", s, f32(4.0)), lambda: b.store(z, b("sub", v, s), i))
                    return (b("add", b("mul", s, f32(0.5)), v),)

                (t,) = loop(b, i32(0), b("rem", i, i32(5 + k)), i32(1), [t], row)
                made.append(b("sub", t, made[-2]))
        for v in made:
            t = b("add", t, v)
        b.store(y, t, i)

    values = np.linspace(-2, 2, n, dtype=np.float32)
    return program((x, y, z), MakeRare().rebuild_task(task(n, body)), (y, z)), [values, *np.zeros((2, n), np.float32)]


@pytest.mark.full
@pytest.mark.parametrize("part", range(8, 80, 8))
def test_a_part_goes_on_behind_a_rare_branch(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads what it has not read yet, and stores what later parts read."""
    monkeypatch.setattr(parts, "PART", part)
    monkeypatch.setattr(parts, "WHOLE", 0)
    agrees(*with_rare_branches(), ("avx512",), (), (1, 4))


@pytest.mark.usefixtures("cut_often")
@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in replay()])
def test_the_corpus_in_the_shortest_parts(case: Case) -> None:
    compare(execute(case.program, case.args, "avx512"), evaluate(case.program, case.args))


def nested(n: int) -> tuple[Program, list[np.ndarray]]:
    """Loops and branches in one another, values that cross all borders."""
    x, y = ref_var(DType.f32, (n,), "x"), ref_var(DType.f32, (n,), "y")

    def body(b: Builder, i: Var) -> None:
        a = b.load(x, i)
        c = b("mul", a, f32(0.5))

        def row(k: Var, s: Var, t: Var) -> tuple[Var, ...]:
            u = b("add", s, a)
            (v,) = branch(b, b("lt", u, t), lambda: (b("sub", u, c),), lambda: (b("mul", u, f32(0.25)),))
            (w,) = while_loop(b, [v], lambda q: b("gt", q, f32(1.0)), lambda q: (b("mul", q, c),))
            return b("min", w, f32(9.0)), b("add", t, b("mul", u, c))

        s, t = loop(b, i32(0), b("rem", i, i32(5)), i32(1), [a, c], row)
        b.store(y, b("add", b("mul", s, t), c), i)

    values = np.random.default_rng(0).uniform(-0.9, 0.9, n).astype(np.float32)
    return program((x, y), task(n, body), (y,)), [values, np.zeros(n, np.float32)]


@pytest.mark.full
@pytest.mark.usefixtures("cut_often")
def test_control_flow_in_parts() -> None:
    agrees(*nested(37), vectors=(None, 1, 2, 4))


@pytest.mark.full
@pytest.mark.usefixtures("cut_often")
def test_values_that_cross_borders_may_be_on_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "ON_STACK", 0)
    monkeypatch.setattr(text, "LARGE", 1)
    assert "aligned_alloc" in emit_task(nested(37)[0].tasks[0], Target.named("avx512")).text
    agrees(*nested(37), vectors=(None, 2))


def fan(width: int) -> Program:
    """Values that are all made before the first of them is read."""
    x, y = ref_var(DType.f32, (40,), "x"), ref_var(DType.f32, (40,), "y")

    def body(b: Builder, i: Var) -> None:
        v = b.load(x, i)
        for _ in range(3):
            made = [b("mul", v, f32(1 + k / width)) for k in range(width)]
            v = f32(0.0)
            for k in range(width):
                v = b("add", v, b("mul", made[k], made[-1 - k]))
            v = b("mul", v, f32(1 / width))
        b.store(y, v, i)

    return program((x, y), task(40, body), (y,))


@pytest.mark.full
def test_values_cross_borders_in_memory_whose_places_are_taken_again() -> None:
    width = 1000
    code = emit_task(fan(width).tasks[0], Target.named("avx512")).text
    (nbytes,) = map(int, re.findall(r"%crossings = alloca \[(\d+) x i8\]", code))
    assert width / 2 < nbytes / 64 < width + 100
    assert max(h.count(",") for h in re.findall(r"define internal fastcc \S+ @qd_part.*", code)) < 5
    agrees(fan(width), [np.linspace(-1, 1, 40, dtype=np.float32), np.zeros(40, np.float32)], ("avx512", "scalar"))


def chain(steps: int) -> Program:
    """`v * v + c` again and again."""
    x, y = ref_var(DType.f32, (40,), "x"), ref_var(DType.f32, (40,), "y")

    def body(b: Builder, i: Var) -> None:
        v = b.load(x, i)
        for k in range(steps):
            v = b("sub", b("mul", v, v), f32(0.5 + k % 7 / 20))
        b.store(y, v, i)

    return program((x, y), task(40, body), (y,))


@pytest.mark.full
def test_long_bodies_are_cut_and_short_ones_are_not() -> None:
    assert "qd_part" not in emit_task(chain(1000).tasks[0], Target.named("avx512")).text
    code = emit_task(chain(4000).tasks[0], Target.named("avx512")).text
    functions = re.split(r"(?m)^}$", code)
    assert code.count("define internal fastcc") == 8000 // parts.PART
    assert max(f.count("\n") for f in functions) <= parts.PART + 100
    agrees(chain(2000), [np.linspace(-1, 1, 40, dtype=np.float32), np.zeros(40, np.float32)], ("avx512", "scalar"))


def test_functions_are_called_where_the_code_would_be_long() -> None:
    def of(sites: int, exps: int) -> str:
        x = ref_var(DType.f32, (40,), "x")

        def body(b: Builder, i: Var) -> None:
            v = b.load(x, i)
            for k in range(sites):
                v = b("sin", b("add", v, f32(k / 10)))
            for _ in range(exps):
                v = b("exp", v)
            b.store(x, v, i)

        return emit_task(task(40, body), Target.named("avx512")).text

    assert "@qdm.sin.f32x16(<16 x float> %x0) alwaysinline" in of(40, 1)
    many = of(200, 2)
    assert "@qdm.sin.f32x16(<16 x float> %x0) noinline" in many
    assert "@qdm.exp.f32x16(<16 x float> %x0) alwaysinline" in many


@pytest.mark.usefixtures("cut_often")
@pytest.mark.parametrize("hint", [" {refill=true}", ""])
def test_refilled_loops_in_parts(hint: str) -> None:
    agrees(rows(200, hint=hint), trips("geometric", 200), ("avx512",))
