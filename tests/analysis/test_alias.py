"""Aliases: when two accesses of one iteration are one element, and whose elements are private to an iteration."""

import pytest

from qdtrace.analysis.location_table import LIMIT, SCAN, LocationTable
from qdtrace.analysis.memory import MemoryLocation, TaskMemory
from tests.analysis.index_programs import MAY, MUST, NO, meeting
from tests.passes.harness import parsed


def meeting_in(setup: str, first: str, second: str) -> str:
    """How `x[first]` and `x[second]` meet after the equations of `setup`."""
    lines = "".join(f"    {line}\n" for line in setup.splitlines())
    text = f"""
program p(x: ref[f32,8x8], e: ref[i32,8], w: ref[i64,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
{lines}    a: f32 = load x {first}
    b: f32 = load x {second}
    c: f32 = add a b
    store x c {first}
  return x
"""
    task = parsed(text).tasks[0]
    memory = TaskMemory(task)
    a, b = [memory.of(e) for e in task.all_eqns if e.primitive.name == "load" and e.invars[0].type.shape == (8, 8)]
    found = meeting(memory, a, b)
    assert meeting(memory, b, a) == found
    return found


@pytest.mark.parametrize(
    ("setup", "first", "second", "wanted"),
    [
        ("", "i 0:i32", "i 0:i32", MUST),
        ("", "i 0:i32", "i 1:i32", NO),
        ("", "i 0:i32", "0:i32 0:i32", MAY),
        ("", "i 0:i32", "8:i32 0:i32", NO),
        ("j: i32 = add i 1:i32", "i 0:i32", "j 0:i32", NO),
        ("j: i32 = add i 1:i32\nk: i32 = sub j 1:i32", "i 0:i32", "k 0:i32", MUST),
        ("j: i32 = mul i 2:i32\nk: i32 = shift_left i 1:i32", "j 0:i32", "k 0:i32", MUST),
        ("j: i32 = load e i\nk: i32 = load e 0:i32", "j 0:i32", "k 0:i32", MAY),
        ("j: i32 = load e i", "j 0:i32", "j 0:i32", MUST),
        ("j: i32 = load e i\nk: i32 = add j -3:i32", "j 0:i32", "k 0:i32", NO),
        ("j: i32 = load e i\nk: i32 = mul j 2:i32\nl: i32 = mul i 2:i32\nm: i32 = add l 1:i32", "k i", "m i", NO),
        ("j: i32 = load e i\nk: i32 = mul j 3:i32\nl: i32 = mul i 3:i32\nm: i32 = add l 1:i32", "k i", "m i", MAY),
        # adding 2**31 twice comes back
        ("j: i32 = add i -2147483648:i32\nk: i32 = add j -2147483648:i32", "i 0:i32", "k 0:i32", MUST),
        ("j: i32 = add i -2147483648:i32\nk: i32 = add j 2147483647:i32", "i 0:i32", "k 0:i32", NO),
        # a 64-bit index may differ in its upper half only, but then one of the two is out of range
        ("j: i64 = load w i\nk: i32 = convert[dtype=i32] j", "j 0:i32", "k 0:i32", MUST),
        ("j: i32 = div i 2:i32\nk: i32 = add i 1:i32\nl: i32 = div k 2:i32", "j 0:i32", "l 0:i32", MAY),
        ("j: i32 = xor i 1:i32\nk: i32 = xor i 1:i32", "j 0:i32", "k 0:i32", MUST),
        ("j: i32 = xor i 1:i32", "j 0:i32", "i 0:i32", MAY),
        ("j: i32 = neg i\nk: i32 = not i", "j 0:i32", "k 0:i32", NO),
    ],
)
def test_meeting(setup: str, first: str, second: str, wanted: str) -> None:
    assert meeting_in(setup, first, second) == wanted


def test_the_interval_of_a_loop() -> None:
    text = """
program p(x: ref[f32,8])
  serial
    for k in 2:i32 : 5:i32 : 1:i32
      a: f32 = load x k
      b: f32 = load x 1:i32
      c: f32 = load x 4:i32
      d: f32 = load x 5:i32
  return x
"""
    task = parsed(text).tasks[0]
    memory = TaskMemory(task)
    k, *others = [memory.of(e) for e in task.all_eqns if e.primitive.name == "load"]
    assert [meeting(memory, k, p) for p in others] == [NO, MAY, NO]
    assert {v.hint: level for v, level in memory.levels.items()} == {"k": 2, "a": 2, "b": 2, "c": 2, "d": 2}


def facts(body: str, kind: str = "range_for i in 0:i32 : 8:i32") -> tuple[set[str], set[str]]:
    """Names of the references that are private, and of those that are tracked."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    text = f"program p(x: ref[f32,8], y: ref[f32,8x4], e: ref[i32,8])\n  {kind}\n{lines}  return x, y\n"
    task = parsed(text).tasks[0]
    memory = TaskMemory(task)
    private = {r.hint for r in memory.accesses if memory.is_private(r)}
    return private, {r.hint for r in memory.tracked}


def test_references_of_plain_accesses() -> None:
    assert facts("j: i32 = load e 0:i32\na: f32 = load x j\nstore y a i 0:i32") == ({"y"}, {"e", "x", "y"})


@pytest.mark.parametrize(
    ("accesses", "private"),
    [
        ("accum[op=add] x 1.0:f32 i", True),
        ("accum[op=add] x 1.0:f32 i\na: f32 = load x i", True),
        ("accum[op=add] x 1.0:f32 i\na: f32 = load x 0:i32", False),
        ("j: i32 = add i 1:i32\naccum[op=add] x 1.0:f32 i\naccum[op=add] x 1.0:f32 j", False),
        ("j: i32 = div i 2:i32\naccum[op=add] x 1.0:f32 j", False),
        ("a: f32 = atomic[op=exchange] x 1.0:f32 i", True),
        ("a: f32 = atomic[op=exchange] x 1.0:f32 0:i32", False),
    ],
)
def test_references_that_are_combined_with(accesses: str, private: bool) -> None:
    assert facts(accesses) == (({"x"}, {"x"}) if private else (set(), set()))


@pytest.mark.parametrize(
    ("setup", "first", "second", "private"),
    [
        ("j: i32 = mul i 2:i32\nk: i32 = add j 1:i32", "j", "k", True),  # one colour of a chain
        ("j: i32 = mul i 2:i32\nk: i32 = add j 2:i32", "j", "k", False),
        ("j: i32 = add i 4:i32", "i", "j", True),  # halves
        ("j: i32 = add i 3:i32", "i", "j", False),
        ("j: i32 = sub 7:i32 i", "i", "j", True),  # both ends
        ("j: i32 = load e i\nk: i32 = mul j 2:i32\nl: i32 = mul i 2:i32\nm: i32 = add l 1:i32", "l", "m", True),
        # one of each pair is apart from the other ones, but meets itself
        ("j: i32 = load e i\nk: i32 = mul j 2:i32\nl: i32 = mul i 2:i32\nm: i32 = add l 1:i32", "k", "m", False),
    ],
)
def test_places_of_which_no_two_meet(setup: str, first: str, second: str, private: bool) -> None:
    body = f"{setup}\na: f32 = load x {first}\nb: f32 = load x {second}\n"
    body += f"accum[op=add] x b {first}\naccum[op=add] x a {second}"
    assert ("x" in facts(body, "range_for i in 0:i32 : 4:i32")[0]) == private


def test_a_serial_task_has_one_iteration() -> None:
    assert facts("accum[op=add] x 1.0:f32 0:i32", "serial") == ({"x"}, {"x"})


def table_of(count: int) -> tuple[LocationTable[int], list[MemoryLocation], TaskMemory]:
    """A table of the locations `x[j + k]` and `x[i]`."""
    lines = "".join(f"    j{k}: i32 = add j {k}:i32\n    store x 1.0:f32 j{k}\n" for k in range(count))
    text = f"program p(x: ref[f32,999], e: ref[i32,8])\n  range_for i in 0:i32 : 8:i32\n    j: i32 = load e i\n{lines}"
    task = parsed(text + "    store x 2.0:f32 i\n  return x\n").tasks[0]
    memory = TaskMemory(task)
    known = [memory.of(e) for e in task.all_eqns if e.primitive.name == "store"]
    table: LocationTable[int] = LocationTable()
    for k, location in enumerate(known[:-1]):
        table.put(location, k)
    return table, known, memory


def test_a_write_forgets_what_it_may_touch() -> None:
    table, (first, second, other), memory = table_of(2)
    copy = table.copy()
    table.forget(first, memory)
    assert [(p.key == second.key, value) for p, value in table] == [(True, 1)]
    assert (copy.get(first), copy.get(second), copy.get(other), copy.count) == (0, 1, None, 2)
    copy.forget(other, memory)
    assert (list(copy), copy.count) == ([], 0)


def test_a_table_is_limited() -> None:
    table, known, memory = table_of(LIMIT + 2)
    assert table.count == len(list(table)) == LIMIT
    assert known[1] not in table
    assert known[2] in table
    # too many to compare: all are taken to meet
    assert LIMIT > SCAN
    assert len(table.meeting(known[-1], memory)) == LIMIT
