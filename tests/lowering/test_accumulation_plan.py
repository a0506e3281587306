"""The place chosen for the sum of each accumulation, and the updates of a shared array that are made together."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lowering.llvm.facts import TaskFacts
from lowering.plan.sums import Part, Sums, Where, find_sums, in_turns
from lowering.plan.update_groups import group_updates
from lowering.simd.accumulation.plan import AccumulationPlan, plan_accumulation
from qdtrace.analysis.machine import CPU, AccumulationLimits
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Task, Var, literal
from qdtrace.ir.types import DType
from tests.lowering.harness import branch, i32, task

F32, I32 = DType.f32, DType.i32
N = 1000
LIMITS = CPU.accumulation
AT = ref_var(I32, (N,), "at")
OUT = ref_var(F32, (N, 3), "out")


def strategies(body: Callable[[Builder, Var], None], n: int = N, limits: AccumulationLimits = LIMITS) -> list[Where]:
    made = task(n, body)
    sums = find_sums(TaskFacts(made), limits)
    return [sums.where(e) for e in made.all_eqns if e.primitive.name == "accum"]


def into(ref: Var, *indices: Callable[[Builder, Var], Var] | int) -> Callable[[Builder, Var], None]:
    def body(b: Builder, i: Var) -> None:
        b.accum(ref, literal(1, F32), *(i32(k) if isinstance(k, int) else k(b, i) for k in indices))

    return body


def anywhere(b: Builder, i: Var) -> Var:
    return b.load(AT, i)


def index(b: Builder, i: Var) -> Var:
    return i


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (into(OUT, index, 0), Where.OWN),
        (into(OUT, 5, 0), Where.REGISTERS),
        (into(OUT, anywhere, 0), Where.COPY),
        (into(ref_var(F32, (LIMITS.chunk_bytes // 4 + 1,), "large"), anywhere), Where.SHARED),
    ],
)
def test_strategies(body: Callable[[Builder, Var], None], wanted: Where) -> None:
    assert strategies(body, n=100 * N) == [wanted]


def test_a_copy_costs_work_and_memory() -> None:
    body = into(OUT, anywhere, 0)
    assert strategies(body, n=N) == [Where.SHARED]
    assert strategies(body, n=100 * N, limits=replace(LIMITS, chunk_bytes=12 * N - 1)) == [Where.SHARED]
    assert strategies(body, n=100 * N, limits=replace(LIMITS, chunk_bytes=12 * N)) == [Where.COPY]


def test_too_many_places_are_no_registers() -> None:
    def body(b: Builder, i: Var) -> None:
        for k in range(4):
            b.accum(OUT, literal(1, F32), i32(k), i32(0))

    assert set(strategies(body, limits=replace(LIMITS, registers=4))) == {Where.REGISTERS}
    assert Where.REGISTERS not in strategies(body, limits=replace(LIMITS, registers=3))


def test_places_that_may_be_one_element_are_combined_in_turns() -> None:
    chosen = [ref_var(I32, (), name) for name in "ab"]
    parts = [Part(OUT, "add", Where.REGISTERS, (at, i32(0)), F32) for at in (i32(0), i32(1), *chosen)]
    assert in_turns(parts) == [parts[:2], parts[2:3], parts[3:]]


def test_another_use_of_a_buffer_makes_it_shared() -> None:
    def body(b: Builder, i: Var) -> None:
        b.accum(OUT, literal(1, F32), i32(5), i32(0))
        b.accum(OUT, literal(1, F32), i32(6), i32(0), op="max")

    made = task(N, body)
    sums = find_sums(TaskFacts(made), LIMITS)
    assert sums.atomic == {OUT}
    assert plan(made, sums, 8).thread_copies.nbytes == 0


def plan(made: Task, sums: Sums, width: int, limits: AccumulationLimits = LIMITS) -> AccumulationPlan:
    return plan_accumulation(TaskFacts(made), sums, limits, width)


@pytest.mark.parametrize(("lane_bytes", "copies"), [(12 * N * 8, 8), (12 * N * 8 - 1, 4), (12 * N * 2, 2), (0, 1)])
def test_lanes_have_copies_where_there_is_room(lane_bytes: int, copies: int) -> None:
    limits = replace(LIMITS, lane_bytes=lane_bytes)
    made = task(1000 * N, into(OUT, anywhere, 0))
    (part,) = plan(made, find_sums(TaskFacts(made), limits), 8, limits).slot.parts
    assert part.lanes == copies


# Groups of updates


def groups(body: Callable[[Builder, Var], None]) -> list[list[tuple[int | None, int]]]:
    """(first component, components) of the groups before each equation of the body, and at the end."""
    made = task(N, body)
    sums = Sums({(OUT, None): Part(OUT, "add", Where.SHARED, None, F32)}, frozenset())
    steps = group_updates(sums, made.body.eqns)
    assert len(steps) == len(made.body.eqns) + 1
    return [[(g.component, len(g.values)) for g in step] for step in steps]


def components(*numbers: int) -> Callable[[Builder, Var], None]:
    def body(b: Builder, i: Var) -> None:
        for c in numbers:
            b.accum(OUT, literal(c, F32), i, i32(c))

    return body


def test_neighbouring_components_are_one_group() -> None:
    assert groups(components(0, 1, 2)) == [[], [], [], [(0, 3)]]


def test_a_component_out_of_order_begins_a_group() -> None:
    assert groups(components(1, 0, 1)) == [[], [(1, 1)], [], [(0, 2)]]


def test_a_group_is_made_before_a_branch() -> None:
    def body(b: Builder, i: Var) -> None:
        b.accum(OUT, literal(0, F32), i, i32(0))
        branch(b, b("lt", i, i32(7)), lambda: None)
        b.accum(OUT, literal(1, F32), i, i32(1))

    assert groups(body) == [[], [], [(0, 1)], [], [(1, 1)]]


def test_a_component_of_unknown_number_is_alone() -> None:
    def body(b: Builder, i: Var) -> None:
        b.accum(OUT, literal(0, F32), i, i32(0))
        b.accum(OUT, literal(0, F32), i, i)

    assert groups(body) == [[], [(0, 1), (None, 1)], []]
