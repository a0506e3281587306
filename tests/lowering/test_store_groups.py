"""The plan of which stores to records are written together, from the order of a block's equations alone."""

from lowering.simd.descriptions import Component
from lowering.simd.records import Touch, group_stores
from qdtrace.analysis.index.affine import Form
from qdtrace.ir.program import Var
from qdtrace.ir.types import DType, RefType

X, Y = (Var(RefType(DType.f32, (64, 2)), name) for name in "xy")
HERE, THERE = Form({}), Form({}, 2)


def store(number: int, ref: Var = X, first: Form = HERE) -> Touch:
    return Touch(ref, Component(number, 2, first), stores=True)


def load(number: int, ref: Var = X) -> Touch:
    return Touch(ref, Component(number, 2, HERE))


def written(*touches: Touch | None) -> list[list[list[int]]]:
    """For each equation, and the end: components of the groups that are written before it, incomplete as they are."""
    steps = group_stores(touches)
    assert len(steps) == len(touches) + 1
    return [[[c.number for c in group.components] for group in step.written] for step in steps]


def test_all_components_are_one_group_whatever_comes_between() -> None:
    steps = group_stores([store(1), None, store(0, Y), load(0), store(0)])
    assert steps[0].joined is steps[4].joined
    assert steps[0].joined is not None
    assert [c.number for c in steps[0].joined.components] == [1, 0]
    assert steps[0].joined.is_complete
    assert steps[2].joined is not steps[0].joined
    assert written(store(1), None, store(0, Y), load(0), store(0)) == [[], [], [], [], [], [[0]]]


def test_what_is_read_is_written_first() -> None:
    assert written(store(0), load(0), store(1)) == [[], [[0]], [], [[1]]]
    assert written(store(0), Touch(X)) == [[], [[0]], []]
    assert written(store(0), Touch(Y)) == [[], [], [[0]]]


def test_a_component_stored_again_begins_a_group() -> None:
    steps = group_stores([store(0), store(0), store(1)])
    assert steps[1].written == (steps[0].joined,)
    assert steps[1].joined is steps[2].joined
    assert steps[3].written == ()


def test_other_records_of_the_same_buffer_are_in_the_way() -> None:
    assert written(store(0), store(1, first=THERE), store(1)) == [[], [[0]], [[1]], [[1]]]


def test_loops_and_branches_find_everything_in_memory() -> None:
    assert written(store(0), store(1, Y), Touch(None), store(1)) == [[], [], [[0], [1]], [], [[1]]]
