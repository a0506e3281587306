"""The walk that rebuilds graphs, copies of equations, and carries."""

from dataclasses import replace

import pytest

from qdtrace.errors import Loc
from qdtrace.ir.carries import Carry, carries_of, with_carries
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Block, Eqn, Program, Var, literal
from qdtrace.ir.rebuild import Copier, Rebuilder
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from qdtrace.ir.walk import blocks_of, bound_in_block, is_innermost, walk_all, walk_inside, walk_nested
from tests.differential.task_programs import random_case
from tests.ir.equal import programs_equal, tasks_equal

NESTED = """
program p(x: ref[f32,8], n: ref[i32])
  buffer y: ref[f32,8]
  range_for i in 0:i32 : m
    head
      m: i32 = load n
    a: f32 = load x i
    b: f32, u: f32 = for k in 0:i32 : m : 1:i32 carry c = a, d = 1.0:f32
      p: bool = gt c d
      e: f32, g: f32 = if p
        t: f32 = mul c 2.0:f32
        yield t, d
      else
        yield c, 0.5:f32
      yield e, g
    w: f32, z: i32 = while carry r = b, q = 0:i32
      s: bool = lt q m
      test s
      v: f32 = sub r u
      o: i32 = add q 1:i32
      yield v, o
    store y w i
  return y
"""


def loops(program: Program) -> list[Eqn]:
    return [e for e in program.all_eqns if e.blocks]


def mapped(rebuilder: Rebuilder, text: str) -> str:
    program = parse_program(text)
    made = program.map_tasks(rebuilder.rebuild_task)
    verify_program(made)
    return print_program(made)


class Doubling(Rebuilder):
    """Each sum becomes two: x + y becomes x + y + y."""

    def visit(self, eqn: Eqn) -> None:
        if eqn.primitive.name != "add":
            super().visit(eqn)
            return
        a, b = self.atoms(eqn.invars)
        self.env[eqn.outvar] = self("add", self("add", a, b), b)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_changed_is_the_same_object(seed: int) -> None:
    program = random_case(seed).program
    assert program.map_tasks(Rebuilder().rebuild_task) is program
    assert (
        program.map_tasks(Rebuilder({Var(literal(0, DType.i32).type): literal(0, DType.i32)}).rebuild_task) is program
    )


def test_several_equations_in_the_place_of_one() -> None:
    after = mapped(Doubling(), NESTED)
    assert after.count("= add") == 2
    assert "yield v, o_2" in after or "yield v, v" in after
    assert mapped(Doubling(), after).count("= add") == 4


def test_only_what_changed_is_made_anew() -> None:
    program = parse_program(NESTED)
    (task,) = program.tasks
    made = Doubling().rebuild_task(task)
    assert made is not task
    before, after = task.body.eqns, made.body.eqns
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, True, False, True]
    assert made.head == task.head


def test_renames_reach_bounds_operands_results_and_blocks() -> None:
    program = parse_program(NESTED)
    (task,) = program.tasks
    m, eight = task.head[0].outvar, literal(8, DType.i32)
    made = Rebuilder({m: eight}).rebuild_task(task)
    used = [a for e in made.all_eqns for a in e.invars]
    assert m not in used
    assert made.stop is eight
    assert sum(a is eight for a in used) == 2  # of the `for` and of the condition of the `while`
    a = task.body.eqns[0].outvar
    before = task.body.eqns[1]
    loop = Rebuilder({a: (one := literal(1.0, DType.f32))}).rebuild_eqn(before)
    assert loop.invars[3] is one
    assert loop.blocks[0] is before.blocks[0]


class Depth(Rebuilder):
    """Takes note of the regions around equations."""

    def __init__(self) -> None:
        super().__init__()
        self.around: list[str] = []
        self.seen: dict[str, list[str]] = {}

    def region(self, eqn: Eqn, number: int) -> Block:
        self.around.append(f"{eqn.primitive.name}{number}")
        block = super().region(eqn, number)
        self.around.pop()
        return block

    def visit(self, eqn: Eqn) -> None:
        self.seen[eqn.primitive.name] = list(self.around)
        super().visit(eqn)


def test_regions_are_entered_and_left_in_order() -> None:
    depth = Depth()
    mapped(depth, NESTED)
    assert depth.around == []
    assert depth.seen["mul"] == ["for0", "if0"]
    assert depth.seen["lt"] == ["while0"]
    assert depth.seen["sub"] == ["while1"]
    assert depth.seen["store"] == []


@pytest.mark.parametrize("seed", range(8))
def test_equations_are_seen_with_what_is_around_them(seed: int) -> None:
    program = random_case(seed).program
    for task in program.tasks:
        depths: dict[Eqn, int] = {}
        for block in blocks_of(task):
            for eqn, around in walk_nested(block):
                depths[eqn] = depths[around[-1]] + 1 if around else 0
                assert all(eqn in list(walk_task_of(outer)) for outer in around)
        assert list(depths) == list(task.all_eqns)


def test_what_is_inside_of_an_equation() -> None:
    loop, branch, while_ = loops(parse_program(NESTED))
    assert [e.primitive.name for e in walk_inside(loop)] == ["gt", "if", "mul"]
    assert list(walk_all([loop, while_])) == [loop, *walk_inside(loop), while_, *walk_inside(while_)]
    assert [is_innermost(e) for e in (loop, branch, while_)] == [True, False, True]
    outer = replace(loop, blocks=(replace(loop.blocks[0], eqns=(while_,)),))
    assert not is_innermost(outer)


def walk_task_of(eqn: Eqn) -> list[Eqn]:
    return [e for b in eqn.blocks for inner in b.eqns for e in (inner, *walk_task_of(inner))]


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_is_equal_and_shares_no_variable(seed: int) -> None:
    program = random_case(seed).program
    for task in program.tasks:
        made = Copier().rebuild_task(task)
        assert tasks_equal(task, made)
        bound = [{v for b in blocks_of(t) for v in bound_in_block(b)} | {t.index} for t in (task, made)]
        assert bound[0] & bound[1] <= {None}


def test_a_copy_has_the_line_it_is_given() -> None:
    program = parse_program(NESTED)
    loc = Loc("here.py", 3)
    made = Copier(loc=loc).rebuild_task(program.tasks[0])
    assert all(e.loc is loc for e in made.all_eqns)


def test_carries_of_loops_and_branches() -> None:
    loop, branch, while_ = loops(parse_program(NESTED))
    b, u = carries_of(loop)
    e, g = carries_of(branch)
    w, _ = carries_of(while_)
    assert loop.control == loop.invars[:3]
    assert branch.control == branch.invars
    assert while_.control == ()
    assert (b.outvar.hint, [p.hint for p in b.params], b.results) == ("b", ["c"], (branch.outvars[0],))
    assert u.initial == literal(1.0, DType.f32)
    assert g == Carry(branch.outvars[1], (loop.blocks[0].params[2], literal(0.5, DType.f32)))
    assert (e.params, e.initial) == ((), None)
    assert (w.initial, len(w.params), len(w.results)) == (loop.outvars[0], 2, 1)


def test_the_same_carries_are_the_same_equation() -> None:
    for eqn in loops(parse_program(NESTED)):
        assert with_carries(eqn, carries_of(eqn)) is eqn


@pytest.mark.parametrize("keep", [[], [0], [1], [1, 0]])
def test_carries_dropped_and_added_again(keep: list[int]) -> None:
    for eqn in loops(parse_program(NESTED)):
        carries = carries_of(eqn)
        made = with_carries(eqn, [carries[k] for k in keep])
        assert carries_of(made) == [carries[k] for k in keep]
        assert made.control == eqn.control
        assert len(made.outvars) == len(keep)
        again = with_carries(made, carries)
        assert carries_of(again) == carries
        assert again.invars == eqn.invars
        assert [b.type for b in again.blocks] == [b.type for b in eqn.blocks]


def test_a_program_with_other_tasks() -> None:
    program = parse_program(NESTED)
    assert program.map_tasks(lambda task: task) is program
    assert program.map_tasks(lambda task: None).tasks == ()
    assert programs_equal(program, program.map_tasks(Copier().rebuild_task))
