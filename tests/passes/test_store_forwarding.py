"""Store-to-load forwarding: what becomes a value, and what must stay a load."""

import numpy as np
import pytest

from qdtrace.analysis.location_table import LIMIT
from qdtrace.passes.store_forwarding import StoreForwarding
from tests.passes.harness import arguments, assert_same_results, check, parsed, unchanged

forward = StoreForwarding()


def task(body: str, params: str = "", *, kind: str = "range_for i in 0:i32 : 8:i32") -> str:
    """A program of one task over `b`, `x`, `y`; the body is given at indentation 0."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    refs = f"b: ref[f32,8], x: ref[f32,8], y: ref[f32,8], e: ref[i32,8], r: ref[f32,8x4], n: ref[i32]{params}"
    return f"program p({refs})\n  {kind}\n{lines}  return b, x, y, r\n"


def test_a_stored_value_is_forwarded() -> None:
    before = "v: f32 = load x i\nstore b v i\na: f32 = load b i\nc: f32 = mul a 2.0:f32\nstore y c i"
    after = "v: f32 = load x i\nstore b v i\nc: f32 = mul v 2.0:f32\nstore y c i"
    check(forward, task(before), task(after))


def test_a_loaded_value_is_forwarded() -> None:
    before = "v: f32 = load x i\nstore b v i\na: f32 = load x i\nc: f32 = mul a v\nstore y c i"
    check(forward, task(before), task("v: f32 = load x i\nstore b v i\nc: f32 = mul v v\nstore y c i"))


def test_equal_forms_are_one_place_whatever_the_atoms() -> None:
    before = """
j: i32 = add i 3:i32
k: i32 = sub j 3:i32
store b 2.0:f32 k
a: f32 = load b i
store y a i
"""
    check(forward, task(before), task(before.replace("a: f32 = load b i\n", "").replace("y a i", "y 2.0:f32 i")))


def test_neighbours_are_other_places_even_when_the_index_wraps() -> None:
    text = """
h: i32 = load n
j: i32 = mul h 2147483647:i32
k: i32 = add j h
l: i32 = add k 1:i32
store b 1.0:f32 l
o: i32 = sub l 2147483647:i32
q: i32 = sub o 2147483647:i32
store b 2.0:f32 q
a: f32 = load b l
store y a 0:i32
"""
    program = parsed(task(text, kind="serial"))
    got = forward(program)
    assert [e.primitive.name for e in got.tasks[0].body.eqns].count("load") == 1
    assert_same_results(program, got, [*arguments(program)[:-1], np.array(2, np.int32)])


SERIAL = """
h: i32 = load n
{index}
store b 1.0:f32 h
store b 2.0:f32 j
a: f32 = load b h
store y a 0:i32
"""


@pytest.mark.parametrize("index", ["j: i32 = add h 1:i32", "j: i32 = sub h 3:i32"])
def test_a_place_survives_a_write_to_its_neighbour(index: str) -> None:
    text = SERIAL.format(index=index)
    after = text.replace("a: f32 = load b h\n", "").replace("y a", "y 1.0:f32")
    check(forward, task(text, kind="serial"), task(after, kind="serial"))


@pytest.mark.parametrize(
    "index",
    ["j: i32 = load e 0:i32", "j: i32 = mul h 2:i32", "j: i32 = min h 3:i32", "m: i32 = load e h\nj: i32 = abs m"],
)
def test_a_place_does_not_survive_a_write_anywhere(index: str) -> None:
    unchanged(forward, task(SERIAL.format(index=index), kind="serial"))


def test_even_and_odd_elements_are_apart() -> None:
    text = """
h: i32 = load n
j: i32 = load e 0:i32
s: i32 = mul h 2:i32
t: i32 = mul j 2:i32
u: i32 = add t 1:i32
store b 1.0:f32 s
store b 2.0:f32 u
a: f32 = load b s
store y a 0:i32
"""
    after = text.replace("a: f32 = load b s\n", "").replace("y a", "y 1.0:f32")
    check(forward, task(text, kind="serial"), task(after, kind="serial"))


IF = """
store b 1.0:f32 i
q: f32 = load x i
p: bool = gt q 0.0:f32
if p
{then}
else
{other}
a: f32 = load b i
store y a i
"""


def if_text(then: str, other: str) -> str:
    return IF.format(then="  " + then.replace("\n", "\n  "), other="  " + other.replace("\n", "\n  "))


def test_a_fact_survives_branches_that_leave_it() -> None:
    text = if_text("store y 2.0:f32 i", "store r 2.0:f32 i 0:i32")
    check(forward, task(text), task(text.replace("a: f32 = load b i\n", "").replace("y a i", "y 1.0:f32 i")))


def test_a_fact_survives_branches_that_store_the_same() -> None:
    text = if_text("store b q i", "store b q i")
    check(forward, task(text), task(text.replace("a: f32 = load b i\n", "").replace("y a i", "y q i")))


def test_branches_that_differ_give_the_value() -> None:
    text = if_text("store b q i", "store y q i")
    after = """
store b 1.0:f32 i
q: f32 = load x i
p: bool = gt q 0.0:f32
a: f32 = if p
  store b q i
  yield q
else
  store y q i
  yield 1.0:f32
store y a i
"""
    check(forward, task(text), task(after))


def test_a_value_of_nested_branches() -> None:
    text = if_text("w: bool = gt q 1.0:f32\nif w\n  store b q i", "c: f32 = neg q\nstore b c i")
    after = """
store b 1.0:f32 i
q: f32 = load x i
p: bool = gt q 0.0:f32
a: f32 = if p
  w: bool = gt q 1.0:f32
  s: f32 = if w
    store b q i
    yield q
  else
    yield 1.0:f32
  yield s
else
  c: f32 = neg q
  store b c i
  yield c
store y a i
"""
    check(forward, task(text), task(after))


def test_branches_give_no_value_that_nobody_loads() -> None:
    unchanged(forward, task(if_text("store b q i", "store y q i").replace("a: f32 = load b i\nstore y a i", "")))


def test_a_place_that_one_side_loses_is_loaded() -> None:
    text = task(if_text("j: i32 = load e i\nstore b 0.0:f32 j", "store y q i"), kind="range_for i in 0:i32 : 1:i32")
    unchanged(forward, text)


def test_a_store_before_a_continue() -> None:
    """`continue_if` leaves the rest of the body under a condition: the fact of the store holds on both ways."""
    text = """
v: f32 = load x i
for k in 0:i32 : 4:i32 : 1:i32
  store r v i k
  p: bool = gt v 1.0:f32
  if p
  else
    a: f32 = load r i k
    store y a i
  c: f32 = load r i k
  store b c i
"""
    after = text.replace("    a: f32 = load r i k\n", "").replace("  c: f32 = load r i k\n", "")
    check(forward, task(text), task(after.replace("y a i", "y v i").replace("b c i", "b v i")))


LOOP = """
store b 1.0:f32 i
m: i32 = load n
for k in 0:i32 : m : 1:i32
{body}
a: f32 = load b i
store y a i
"""


def loop_text(body: str) -> str:
    return LOOP.format(body="  " + body.replace("\n", "\n  "))


def test_facts_enter_and_outlive_a_loop_that_leaves_the_place() -> None:
    text = loop_text("c: f32 = load b i\nstore r c i k")
    after = text.replace("a: f32 = load b i\n", "").replace("  c: f32 = load b i\n", "")
    check(forward, task(text), task(after.replace("y a i", "y 1.0:f32 i").replace("r c i k", "r 1.0:f32 i k")))


@pytest.mark.parametrize("body", ["store b 2.0:f32 i", "c: f32 = load b i\nd: f32 = mul c 2.0:f32\nstore b d i"])
def test_a_loop_may_not_run_and_its_second_iteration_sees_the_first(body: str) -> None:
    unchanged(forward, task(loop_text(body)))


def test_rows_are_overwritten_in_part() -> None:
    text = """
store r 1.0:f32 i 0:i32
store r 2.0:f32 i 1:i32
m: i32 = load n
for k in 1:i32 : 4:i32 : 1:i32
  store r 3.0:f32 i k
a: f32 = load r i 0:i32
c: f32 = load r i 1:i32
d: f32 = add a c
store y d i
"""
    check(forward, task(text), task(text.replace("a: f32 = load r i 0:i32\n", "").replace("add a c", "add 1.0:f32 c")))


def test_a_fact_of_one_iteration_is_not_one_of_the_next() -> None:
    unchanged(forward, task("""
for k in 0:i32 : 4:i32 : 1:i32
  j: i32 = sub 3:i32 k
  a: f32 = load r i j
  store r 2.0:f32 i k
  store b a i
"""))


def test_the_test_of_a_while_sees_what_its_body_stored() -> None:
    unchanged(forward, task("""
store b 8.0:f32 i
while
  a: f32 = load b i
  p: bool = gt a 1.0:f32
  test p
  c: f32 = load b i
  d: f32 = mul c 0.5:f32
  store b d i
"""))


def test_a_while_that_stores_elsewhere() -> None:
    text = """
store b 8.0:f32 i
while
  a: f32 = load y i
  c: f32 = load b i
  p: bool = gt a c
  test p
  f: f32 = load b i
  d: f32 = mul f 0.5:f32
  store y d i
"""
    after = text.replace("  c: f32 = load b i\n", "").replace("  f: f32 = load b i\n", "")
    check(forward, task(text), task(after.replace("gt a c", "gt a 8.0:f32").replace("mul f", "mul 8.0:f32")))


def test_accumulation_into_a_known_place_is_an_operation_and_a_store() -> None:
    text = """
q: f32 = load x i
store b 0.0:f32 i
accum[op=add] b q i
accum[op=mul] b q i
a: f32 = load b i
store y a i
"""
    after = """
q: f32 = load x i
store b 0.0:f32 i
s: f32 = add 0.0:f32 q
store b s i
t: f32 = mul s q
store b t i
store y t i
"""
    check(forward, task(text), task(after))


def test_accumulations_into_one_place_share_a_load() -> None:
    text = "q: f32 = load x i\naccum[op=add] b q i\nstore y q i\naccum[op=add] b 2.0:f32 i"
    after = """
q: f32 = load x i
o: f32 = load b i
s: f32 = add o q
store b s i
store y q i
t: f32 = add s 2.0:f32
store b t i
"""
    check(forward, task(text), task(after))


def test_accumulation_of_truth_values() -> None:
    text = "q: f32 = load x i\np: bool = gt q 0.0:f32\nstore t false i\naccum[op=add] t p i"
    got = "q: f32 = load x i\np: bool = gt q 0.0:f32\nstore t false i\ns: bool = or false p\nstore t s i"
    params = ", t: ref[bool,8]"
    check(forward, task(text, params).replace(", r\n", ", r, t\n"), task(got, params).replace(", r\n", ", r, t\n"))


@pytest.mark.parametrize(
    "text",
    [
        # nothing is known of the location, and nothing is gained: the emitter sees to it
        "q: f32 = load x i\naccum[op=add] b q i\nstore y q i",
        "q: f32 = load x i\nk: i32 = min i 3:i32\naccum[op=add] r q i k\naccum[op=add] r q i 0:i32",
        # other iterations add to it too
        "q: f32 = load x i\nj: i32 = load e i\na: f32 = load b i\naccum[op=add] b q j\nc: f32 = load b i\nstore y c i",
        "q: f32 = load x i\nj: i32 = div i 2:i32\naccum[op=max] b q j\naccum[op=max] b q j",
    ],
)
def test_accumulation_where_others_may_add(text: str) -> None:
    unchanged(forward, task(text))


@pytest.mark.parametrize("op", ["add", "exchange"])
def test_atomics_in_between(op: str) -> None:
    text = f"""
store b 1.0:f32 i
o: f32 = atomic[op={op}] b 2.0:f32 i
a: f32 = load b i
c: f32 = add o a
store y c i
"""
    unchanged(forward, task(text))


def test_nothing_is_known_of_memory_that_others_update_atomically() -> None:
    unchanged(forward, task("""
j: i32 = div i 2:i32
o: f32 = atomic[op=max] b 2.0:f32 j
a: f32 = load x i
c: f32 = load x i
accum[op=add] x o j
d: f32 = add a c
store y d i
""", kind="range_for i in 0:i32 : 0:i32"))


def test_an_atomic_elsewhere() -> None:
    text = "store b 1.0:f32 i\no: f32 = atomic[op=max] x 2.0:f32 0:i32\na: f32 = load b i\nstore y a i"
    check(forward, task(text), task(text.replace("a: f32 = load b i\n", "").replace("y a i", "y 1.0:f32 i")))


def test_a_store_of_what_is_there_goes() -> None:
    check(forward, task("v: f32 = load b i\nstore y v i\nstore b v i"), task("v: f32 = load b i\nstore y v i"))


@pytest.mark.parametrize(
    "text",
    [
        "v: f32 = load b i\nstore b 0.0:f32 i\nstore b v i",
        "store b 0.0:f32 i\nstore b -0.0:f32 i",
        "v: f32 = load b i\nj: i32 = load e i\no: f32 = atomic[op=add] b 1.0:f32 j\nstore b v i",
    ],
)
def test_a_store_of_something_else_stays(text: str) -> None:
    unchanged(forward, task(text))


def test_serial_tasks_and_cells() -> None:
    text = """
c: cell[f32,4] = cell[dtype=f32, shape=(4)]
j: i32 = load n
store c 1.0:f32 j
accum[op=add] c 2.0:f32 j
a: f32 = load c j
accum[op=add] b a 0:i32
d: f32 = load b 0:i32
accum[op=add] b d 0:i32
f: f32 = load b 0:i32
store y f 0:i32
"""
    after = """
c: cell[f32,4] = cell[dtype=f32, shape=(4)]
j: i32 = load n
store c 1.0:f32 j
a: f32 = add 1.0:f32 2.0:f32
store c a j
o: f32 = load b 0:i32
d: f32 = add o a
store b d 0:i32
f: f32 = add d d
store b f 0:i32
store y f 0:i32
"""
    check(forward, task(text, kind="serial"), task(after, kind="serial"))


def test_a_head_reads_before_the_task_writes() -> None:
    text = """
program p(n: ref[i32], b: ref[i32,8])
  range_for i in 0:i32 : m
    head
      k: i32 = load n
      l: i32 = load n
      m: i32 = max k l
    a: i32 = load b i
    store n a
    c: i32 = load n
    store b c i
  return b, n
"""
    got = forward(parsed(text))
    assert [e.primitive.name for e in got.tasks[0].head] == ["load", "max"]
    assert [e.primitive.name for e in got.tasks[0].body.eqns] == ["load", "store"]


def test_facts_are_limited_and_what_is_forgotten_is_loaded() -> None:
    count = LIMIT + 8
    stores = "\n".join(f"    store w {k}.0:f32 {k}:i32" for k in range(count))
    loads = "\n".join(f"    a{k}: f32 = load w {k}:i32\n    store z a{k} {k}:i32" for k in reversed(range(count)))
    text = f"program p(w: ref[f32,{count}], z: ref[f32,{count}])\n  serial\n{stores}\n{loads}\n  return w, z\n"
    program = parsed(text)
    got = forward(program)
    left = sum(e.primitive.name == "load" for e in got.tasks[0].body.eqns)
    assert left == 8
    assert_same_results(program, got)
