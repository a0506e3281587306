"""Tasks that differ in constants only: which constants move, that the tasks are equal then, and that results stay."""

from dataclasses import replace

import numpy as np
import pytest

from lowering.legalize.share_code import LIFT_LIMIT, SharedCode, share_code
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program, print_task
from qdtrace.ir.program import Program
from qdtrace.ir.verify import verify_program
from qdtrace.stats import stats
from tests.ir.equal import programs_equal
from tests.passes.harness import arguments, parsed
from tests.runtime.programs import compiled

TASK = """\
  range_for i in 0:i32 : {count}:i32
    a: f32 = load y {row}:i32 i
    {body}
    store y b {next}:i32 i
"""


def program(bodies: list[str], counts: list[int] | None = None) -> Program:
    """One task a body, each from one row of `y` to the next."""
    counts = counts or [8] * len(bodies)
    rows = enumerate(zip(bodies, counts, strict=True))
    tasks = [TASK.format(row=k, next=k + 1, body=body, count=count) for k, (body, count) in rows]
    return parsed(f"program p(y: ref[f32,{len(bodies) + 1}x8], n: ref[i32,8])\n{''.join(tasks)}  return y\n")


def as_program(shared: SharedCode) -> Program:
    """The same with the constants as parameters, so that it stands alone."""
    return replace(shared.program, params=(*shared.program.params, *shared.literals))


def distinct(made: Program) -> int:
    """Different tasks, names apart."""
    return len({print_task(t, canonical=True) for t in made.tasks})


def assert_same(before: Program, shared: SharedCode) -> None:
    made = as_program(shared)
    verify_program(made)
    for number, first in shared.equal.items():
        tasks = shared.program.tasks
        assert print_task(tasks[number], canonical=True) == print_task(tasks[first], canonical=True)
    args = arguments(before)
    wanted = evaluate(before, [a.copy() for a in args])
    got = evaluate(made, [a.copy() for a in args] + list(shared.literals.values()))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(compiled(before).call(*args), wanted, strict=True):
        # the compiler may fuse a product and a sum
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6)


def test_text() -> None:
    before = program(["b: f32 = mul a 2.0:f32", "b: f32 = mul a 3.0:f32"])
    shared = share_code(before)
    wanted = parsed("""\
program p(y: ref[f32,3x8], n: ref[i32,8], k: ref[i32,2], c: ref[f32,1], k2: ref[i32,2], c2: ref[f32,1])
  range_for i in 0:i32 : 8:i32
    head
      row: i32 = load k 0:i32
      next: i32 = load k 1:i32
      factor: f32 = load c 0:i32
    a: f32 = load y row i
    b: f32 = mul a factor
    store y b next i
  range_for i in 0:i32 : 8:i32
    head
      row: i32 = load k2 0:i32
      next: i32 = load k2 1:i32
      factor: f32 = load c2 0:i32
    a: f32 = load y row i
    b: f32 = mul a factor
    store y b next i
  return y
""")
    assert programs_equal(as_program(shared), wanted), print_program(as_program(shared))
    assert [v.tolist() for v in shared.literals.values()] == [[0, 1], [2.0], [1, 2], [3.0]]
    assert_same(before, shared)


BODIES = {
    "factor": "b: f32 = mul a {}.5:f32",
    "sum": "b: f32 = add a {}.5:f32",
    "select": "c: bool = lt a {}.5:f32\n    b: f32 = select c a {}.25:f32",
    "integer sum": "j: i32 = add i {}:i32\n    f: f32 = convert[dtype=f32] j\n    b: f32 = mul f a",
    "inside a branch": "c: bool = lt a 0.5:f32\n    b: f32 = if c\n      d: f32 = mul a {}.5:f32\n      yield d\n"
    "    else\n      yield a",
    "inside a loop": "b: f32 = for k in 0:i32 : 3:i32 : 1:i32 carry s = a\n"
    "      d: f32 = mul s 0.{}:f32\n      yield d",
    "half": "h: f16 = convert[dtype=f16] a\n    e: f16 = mul h {}.5:f16\n    b: f32 = convert[dtype=f32] e",
}


@pytest.mark.parametrize("name", BODIES)
def test_tasks_become_equal(name: str) -> None:
    before = program([BODIES[name].replace("{}", str(k + 2)) for k in range(4)])
    assert distinct(before) == 4
    shared = share_code(before)
    assert distinct(shared.program) == 1
    assert_same(before, shared)


KEPT = {
    "factor of an index": "j: i32 = mul i {}:i32\n    f: f32 = convert[dtype=f32] j\n    b: f32 = mul f a",
    "divisor": "j: i32 = div i {}:i32\n    f: f32 = convert[dtype=f32] j\n    b: f32 = mul f a",
    "shift": "j: i32 = shift_left i {}:i32\n    f: f32 = convert[dtype=f32] j\n    b: f32 = mul f a",
    "trip count": "b: f32 = for k in 0:i32 : {}:i32 : 1:i32 carry s = a\n      d: f32 = mul s s\n      yield d",
    "index of a record": "j: i32 = load n {}:i32\n    f: f32 = convert[dtype=f32] j\n    b: f32 = mul f a",
    "private element": "c: cell[f32,9] = cell[dtype=f32, shape=(9)]\n    store c a {}:i32\n    b: f32 = load c {}:i32",
    "power": "b: f32 = integer_pow[y={}] a",
}


@pytest.mark.parametrize("name", KEPT)
def test_constants_that_code_depends_on_stay(name: str) -> None:
    before = program([KEPT[name].replace("{}", str(k + 2)) for k in range(3)])
    shared = share_code(before)
    assert shared.program is before
    assert not shared.literals
    assert_same(before, shared)


def test_other_bounds_or_types_stay_apart() -> None:
    body = "b: f32 = mul a {}.0:f32"
    before = program([body.format(k) for k in range(3)], [8, 7, 6])
    assert share_code(before).program is before


def test_groups_and_equal_constants() -> None:
    """Constants that all have in common are not moved; a task of another form is left alone."""
    before = program(
        [
            "c: f32 = mul a 0.5:f32\n    b: f32 = add c 1.0:f32",
            "b: f32 = exp a",
            "c: f32 = mul a 0.5:f32\n    b: f32 = add c 2.0:f32",
        ]
    )
    shared = share_code(before)
    assert shared.program.tasks[1] is before.tasks[1]
    assert "0.5:f32" in print_task(shared.program.tasks[0])
    assert distinct(shared.program) == 2
    assert_same(before, shared)


def test_bits_count_not_values() -> None:
    """-0.0 and 0.0 differ, NaN is equal to itself."""
    before = program(["b: f32 = add a 0.0:f32", "b: f32 = add a -0.0:f32"])
    shared = share_code(before)
    assert [np.signbit(v).tolist() for v in shared.literals.values() if v.dtype == np.float32] == [[False], [True]]
    nan = program(["b: f32 = max a nan:f32", "b: f32 = max a nan:f32"])
    assert all(v.dtype == np.int32 for v in share_code(nan).literals.values())


def test_too_many_constants_stay() -> None:
    def body(k: int) -> str:
        lines = [f"v{n}: f32 = add {'a' if not n else f'v{n - 1}'} {k}.{n + 1}:f32" for n in range(LIFT_LIMIT)]
        return "\n    ".join([*lines, f"b: f32 = mul v{LIFT_LIMIT - 1} 1.0:f32"])

    before = program([body(1), body(2)])  # and two rows: over the limit
    assert share_code(before).program is before


def test_one_compilation_for_many_tasks() -> None:
    """32 tasks of a function that no other test has: the task, the program's handler and, at first, the launcher."""
    body = "c: f32 = sin a\n    d: f32 = mul c {}.75:f32\n    b: f32 = sub d 0.123:f32"
    before = program([body.format(k) for k in range(32)])
    started = stats().compiled
    compiled(before)
    assert stats().compiled - started <= 3
