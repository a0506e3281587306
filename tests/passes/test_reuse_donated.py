"""Results become donated parameters where nobody needs the parameter any more; else they keep memory of their own."""

import pytest

from qdtrace.config import Options
from qdtrace.ir.parser import parse_program
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.reuse_donated import ReuseDonated
from tests.passes.harness import assert_same_results, check, parsed, unchanged

reuse = ReuseDonated()

SQUARE = """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = mul a a
    store y b i
"""


def program(body: str, *, kind: str = "ref[f32,8]", params: str = "", buffers: str = "", results: str = "y") -> str:
    """A program that may keep `y` in `x`."""
    head = f"program p(x: {kind}, n: ref[i32]{params})\n  buffer y: {kind} in x\n"
    return f"{head}{buffers}{body}  return {results}\n"


def in_place(text: str) -> str:
    """The program with `x` for `y`."""
    lines = [line for line in text.splitlines() if not line.startswith("  buffer y")]
    return "\n".join(lines).replace(" y ", " x ").replace("return y", "return x").replace(", y", ", x")


def taken(text: str) -> None:
    """The pass puts `y` into `x`."""
    check(reuse, text, in_place(text))


# ---------------------------------------------------------------------- one task
def test_each_iteration_reads_before_it_writes() -> None:
    check(
        reuse,
        program(SQUARE),
        """
program p(x: ref[f32,8], n: ref[i32])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = mul a a
    store x b i
  return x
""",
    )


def test_without_a_mark_nothing_happens() -> None:
    unchanged(reuse, program(SQUARE).replace(" in x\n", "\n"))


ORDERS_TAKEN = {
    "what it wrote is read again": """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    store y a i
    b: f32 = load y i
    c: f32 = mul b b
    store y c i
""",
    "on both sides of a branch": """\
  range_for i in 0:i32 : 8:i32
    c: bool = lt i 4:i32
    if c
      a: f32 = load x i
      store y a i
    else
      b: f32 = load x i
      d: f32 = neg b
      store y d i
""",
    "a loop that reads before a loop that writes": """\
  range_for i in 0:i32 : 8:i32
    s: f32 = for k in 0:i32 : 3:i32 : 1:i32 carry t = 0.0:f32
      a: f32 = load x i
      b: f32 = add t a
      yield b
    for k in 0:i32 : 3:i32 : 1:i32
      store y s i
""",
    "the last iteration first": """\
  range_for i in 0:i32 : 8:i32
    j: i32 = sub 7:i32 i
    a: f32 = load x j
    store y a j
""",
    "a serial task": """\
  serial
    a: f32 = load x 0:i32
    b: f32 = load x 1:i32
    store y b 0:i32
    store y a 1:i32
    for k in 2:i32 : 8:i32 : 1:i32
      c: f32 = load x k
      store y c k
""",
    "one half into the other": """\
  range_for i in 0:i32 : 4:i32
    j: i32 = add i 4:i32
    a: f32 = load x i
    b: f32 = load x j
    store y b i
    store y a j
""",
}


@pytest.mark.parametrize("name", ORDERS_TAKEN)
def test_an_order_that_is_right(name: str) -> None:
    taken(program(ORDERS_TAKEN[name]))


ORDERS_REFUSED = {
    "the next element": """\
  range_for i in 0:i32 : 7:i32
    j: i32 = add i 1:i32
    a: f32 = load x j
    store y a i
""",
    "an element that data decides": """\
  range_for i in 0:i32 : 8:i32
    m: i32 = load n
    j: i32 = min i m
    a: f32 = load x j
    store y a i
""",
    "one element for all": """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x 3:i32
    store y a i
""",
    "the mirror image": """\
  range_for i in 0:i32 : 8:i32
    j: i32 = sub 7:i32 i
    a: f32 = load x j
    store y a i
""",
    "a read after the write": """\
  range_for i in 0:i32 : 8:i32
    store y 1.0:f32 i
    a: f32 = load x i
    store y a i
""",
    "a read after a write that may have happened": """\
  range_for i in 0:i32 : 8:i32
    c: bool = lt i 4:i32
    if c
      store y 1.0:f32 i
    a: f32 = load x i
    store y a i
""",
    "a read in the second time around": """\
  range_for i in 0:i32 : 8:i32
    for k in 0:i32 : 3:i32 : 1:i32
      a: f32 = load x i
      b: f32 = add a 1.0:f32
      store y b i
""",
    "a read in the second time around a while": """\
  range_for i in 0:i32 : 8:i32
    s: i32 = while carry t = 0:i32
      c: bool = lt t 2:i32
      test c
      a: f32 = load x i
      b: f32 = add a 1.0:f32
      store y b i
      u: i32 = add t 1:i32
      yield u
""",
    "a read in the test of a while": """\
  range_for i in 0:i32 : 8:i32
    store y 0.0:f32 i
    s: i32 = while carry t = 0:i32
      a: f32 = load x i
      c: bool = lt a 2.0:f32
      d: bool = lt t 2:i32
      e: bool = and c d
      test e
      u: i32 = add t 1:i32
      yield u
""",
    "a serial task that writes too early": """\
  serial
    for k in 0:i32 : 8:i32 : 1:i32
      j: i32 = sub 7:i32 k
      a: f32 = load x j
      store y a k
""",
    "a sum": """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    store y a i
    accum[op=add] y a i
""",
    "an atomic": """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    store y a i
    b: f32 = atomic[op=add] y a i
""",
    "a head that reads": """\
  range_for i in 0:i32 : 8:i32
    head
      h: f32 = load x 0:i32
    a: f32 = load x i
    b: f32 = mul a h
    store y b i
""",
}


@pytest.mark.parametrize("name", ORDERS_REFUSED)
def test_an_order_that_is_not_proved(name: str) -> None:
    unchanged(reuse, program(ORDERS_REFUSED[name]))


# ---------------------------------------------------------------------- more axes
ROWS = """\
  range_for i in 0:i32 : 8:i32
    for k in 0:i32 : 5:i32 : 1:i32
      a: f32 = load x {load}
      store y a {store}
"""


@pytest.mark.parametrize(
    ("kind", "load", "store"),
    [
        ("ref[f32,8x5]", "i k", "i k"),
        ("ref[f32,5x8]", "k i", "k i"),
        ("ref[f32,8x5x2]", "i k 1:i32", "i k 1:i32"),
        ("ref[f32,8x5x2]", "i k 1:i32", "i k 0:i32"),
    ],
)
def test_rows_in_a_loop(kind: str, load: str, store: str) -> None:
    # Values are not compared: some elements are unset.
    text = program(ROWS.format(load=load, store=store), kind=kind)
    assert reuse(parsed(text)).buffers == ()


@pytest.mark.parametrize(
    ("kind", "load", "store"),
    [
        ("ref[f32,8x6]", "i k", "i 0:i32"),  # the first time around overwrites what the first time read: right, but
        ("ref[f32,5x5]", "k k", "k k"),  # every iteration has the same elements
        ("ref[f32,8x6]", "i 1:i32", "i k"),
        ("ref[f32,6x8]", "k i", "i k"),
    ],
)
def test_rows_that_meet_in_another_time_around(kind: str, load: str, store: str) -> None:
    unchanged(reuse, program(ROWS.format(load=load, store=store), kind=kind))


def test_a_loop_over_a_flat_array() -> None:
    body = """\
  range_for i in 0:i32 : 8:i32
    s: i32 = mul i 5:i32
    for k in 0:i32 : 5:i32 : 1:i32
      j: i32 = add s k
      a: f32 = load x j
      b: f32 = mul a 2.0:f32
      store y b j
"""
    taken(program(body, kind="ref[f32,40]"))
    unchanged(reuse, program(body.replace("0:i32 : 5:i32 : 1", "0:i32 : 6:i32 : 1"), kind="ref[f32,48]"))


def test_two_loops_around() -> None:
    body = """\
  range_for i in 0:i32 : 4:i32
    for k in 0:i32 : 3:i32 : 1:i32
      for l in 0:i32 : 2:i32 : 1:i32
        a: f32 = load x i {inner}
        store y a i {inner}
"""
    taken(program(body.format(inner="k l"), kind="ref[f32,4x3x2]"))
    # Once around the outer loop has every element.
    same = body.replace("0:i32 : 3:i32", "0:i32 : 2:i32").replace("load x i", "load x i 0:i32")
    unchanged(reuse, program(same.replace("store y a i", "store y a i 0:i32").format(inner="l"), kind="ref[f32,4x1x2]"))


def test_an_index_that_two_loops_make() -> None:
    body = """\
  range_for i in 0:i32 : 4:i32
    for k in 0:i32 : 3:i32 : 1:i32
      for l in 0:i32 : {stop} : 1:i32
        {index}
        a: f32 = load x i j
        store y a i j
"""
    # The second time around the outer loop reads what the first one wrote.
    unchanged(reuse, program(body.format(stop="3:i32", index="j: i32 = add k l"), kind="ref[f32,4x5]"))
    unchanged(reuse, program(body.format(stop="3:i32", index="j: i32 = div k 2:i32"), kind="ref[f32,4x5]"))


def test_columns_of_one_row() -> None:
    body = """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i 0:i32
    store y a i {first}
    b: f32 = load x i 1:i32
    store y b i {second}
"""
    taken(program(body.format(first="0:i32", second="1:i32"), kind="ref[f32,8x2]"))
    unchanged(reuse, program(body.format(first="1:i32", second="0:i32"), kind="ref[f32,8x2]"))


# ---------------------------------------------------------------------- several tasks
STENCIL = """\
  range_for i in 0:i32 : 8:i32
    j: i32 = add i 1:i32
    k: i32 = rem j 8:i32
    a: f32 = load x k
    store t a i
"""
COPY = """\
  range_for j in 0:i32 : 8:i32
    a: f32 = load t j
    store y a j
"""
TEMPORARY = "  buffer t: ref[f32,8]\n"


def test_all_reads_in_earlier_tasks() -> None:
    taken(program(STENCIL + COPY, buffers=TEMPORARY))


def test_a_read_in_a_later_task() -> None:
    unchanged(reuse, program(STENCIL + COPY + STENCIL, buffers=TEMPORARY))


def test_the_result_is_used_before() -> None:
    first = "  range_for j in 0:i32 : 8:i32\n    store y 1.0:f32 j\n"
    unchanged(reuse, program(first + SQUARE))


def test_a_head_of_an_earlier_task_reads() -> None:
    head = "    head\n      h: f32 = load x 5:i32\n"
    text = STENCIL.replace("8:i32\n    j:", "8:i32\n" + head + "    j:").replace("store t a", "store t h")
    taken(program(text + COPY, buffers=TEMPORARY))


def test_bounds_that_are_in_the_memory() -> None:
    kind = "ref[i32,8]"
    bounds = "  range_for i in 0:i32 : m\n    head\n      m: i32 = load {} 0:i32\n    store t i i\n"
    fill = "  range_for j in 0:i32 : 8:i32\n    store y 3:i32 j\n"
    temporary = "  buffer t: ref[i32,8]\n"
    before = program(bounds.format("x") + fill + bounds.format("y"), kind=kind, buffers=temporary)
    taken(before)
    unchanged(reuse, program(fill + bounds.format("x"), kind=kind, buffers=temporary))


def test_a_parameter_that_is_written_or_returned() -> None:
    write = "  range_for j in 0:i32 : 8:i32\n    store x 1.0:f32 j\n"
    unchanged(reuse, program(write + SQUARE))
    unchanged(reuse, program(SQUARE, results="y, x"))


def test_an_initial_value() -> None:
    unchanged(reuse, program(SQUARE).replace(" in x\n", " in x = 0.0:f32\n"))


# ---------------------------------------------------------------------- several pairs
def test_two_pairs() -> None:
    two = SQUARE + "    c: f32 = load w i\n    d: f32 = add c a\n    store z d i\n"
    params, buffers = ", w: ref[f32,8]", "  buffer z: ref[f32,8] in w\n"
    check(
        reuse,
        program(two, params=params, buffers=buffers, results="z, y, z"),
        """
program p(x: ref[f32,8], n: ref[i32], w: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = mul a a
    store x b i
    c: f32 = load w i
    d: f32 = add c a
    store w d i
  return w, x, w
""",
    )


def test_one_pair_of_two() -> None:
    two = SQUARE + "    c: f32 = load w i\n    d: f32 = load x i\n    e: f32 = add c d\n    store z e i\n"
    params, buffers = ", w: ref[f32,8]", "  buffer z: ref[f32,8] in w\n"
    text = program(two, params=params, buffers=buffers, results="y, z")
    after = text.replace("  buffer z: ref[f32,8] in w\n", "").replace("store z", "store w").replace("y, z", "y, w")
    check(reuse, text, after)


def test_each_parameter_is_judged_with_the_other_in_place() -> None:
    """What is read of one parameter is not touched by a result in the memory of another one."""
    swap = """\
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = load w i
    store y b i
    store z a i
"""
    params, buffers = ", w: ref[f32,8]", "  buffer z: ref[f32,8] in w\n"
    got = reuse(parsed(program(swap, params=params, buffers=buffers, results="y, z")))
    assert got.buffers == ()
    assert_same_results(parsed(program(swap, params=params, buffers=buffers, results="y, z")), got)


# ---------------------------------------------------------------------- in the pipeline
def test_a_chain_is_joined_and_then_in_place() -> None:
    steps = [("x", "s"), ("s", "t"), ("t", "y")]
    tasks = [SQUARE.replace("load x", f"load {a}").replace("store y", f"store {b}") for a, b in steps]
    text = program("".join(tasks), buffers="  buffer s: ref[f32,8]\n  buffer t: ref[f32,8]\n")
    made = optimise(parse_program(text), Options())
    assert made.buffers == ()
    assert len(made.tasks) == 1
    assert made.results == made.params[:1]
    assert_same_results(parsed(text), made)


def test_a_fill_is_a_clear_first() -> None:
    """A result that is cleared and added to keeps its own memory."""
    fill = "  range_for j in 0:i32 : 8:i32\n    store y 0.0:f32 j\n"
    add = "  range_for i in 0:i32 : 8:i32\n    a: f32 = load x i\n    accum[op=add] y a 2:i32\n"
    made = optimise(parse_program(program(fill + add)), Options())
    assert len(made.buffers) == 1
    assert made.donated_from
