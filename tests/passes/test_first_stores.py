"""Initial contents that the first task stores: in front of its own accesses, of all elements, never of some."""

import pytest

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.passes.first_stores import ROW_LIMIT, FirstStores
from tests.passes.fusion_cases import program, task
from tests.passes.fusion_harness import FULL, ORDER, SHORT, headed, inputs, same
from tests.passes.harness import assert_same_bits, check, parsed, unchanged

store = FirstStores()
LOCAL = "  buffer t: ref[{0}] = 7.0:f32\n"
REVERSED = task("p: i32 = sub 63:i32 i; v: f32 = load t {0}; store z v i", FULL)


def filled(*tasks: str, shape: str = "f32,64") -> str:
    """A program whose buffer `t` has a content at the beginning, and is read in another order at the end."""
    return program(*tasks, refs=ORDER, buffers=LOCAL.format(shape))


JOINED = {
    "an accumulation": ("f32,64", "v: f32 = load x i; accum[op=add] t v i; w: f32 = load t i; store c w i", "p"),
    "a store in a branch": ("f32,64", "q: bool = gt i 20:i32; if q; .store t 1.0:f32 i", "p"),
    "a loop": ("f32,64", "for j in 0:i32 : i : 1:i32; .v: f32 = load x j; .accum[op=max] t v i", "p"),
    "nothing but loads": ("f32,64", "v: f32 = load t i; store c v i", "p"),
    "a column of a row": ("f32,64x3", "v: f32 = load x i; store t v i 1:i32", "p 1:i32"),
    "a row of two axes": ("f32,64x2x8", "v: f32 = load x i; store t v i 1:i32 7:i32", "p 0:i32 7:i32"),
    "all axes in one": (
        "f32,8x8", "q: i32 = div i 8:i32; r: i32 = rem i 8:i32; accum[op=add] t 1.0:f32 q r", "0:i32 1:i32"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_elements_of_an_iteration(name: str) -> None:
    shape, line, place = JOINED[name]
    before = parsed(filled(task(line, FULL), REVERSED.format(place), shape=shape))
    after = store(before)
    assert not after.initial
    assert len(after.tasks) == 2
    same(before, after)
    assert store(after) is after


LEFT = {
    "sums into any element": ("f32,64", FULL, "q: i32 = load k i; p: i32 = rem q 64:i32; accum[op=add] t 1.0:f32 p"),
    "an element of another iteration": ("f32,64", FULL, "p: i32 = sub 63:i32 i; v: f32 = load t p; store c v i"),
    "fewer iterations than elements": ("f32,64", SHORT, "v: f32 = load x i; store t v i"),
    "more iterations than elements": ("f32,20", FULL, "p: i32 = min i 19:i32; accum[op=max] t 1.0:f32 p"),
    "another start": ("f32,64", "1:i32 : 65:i32", "p: i32 = sub i 1:i32; v: f32 = load x p; store t v p"),
    "a long row": (f"f32,64x{ROW_LIMIT + 1}", FULL, "v: f32 = load x i; store t v i 1:i32"),
    "rows in another axis": ("f32,2x64", FULL, "v: f32 = load x i; store t v 1:i32 i"),
    "columns of other iterations": ("f32,64x64", FULL, "v: f32 = load x i; store t v 1:i32 i"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_stays_a_content(name: str) -> None:
    shape, bounds, line = LEFT[name]
    before = parsed(filled(task(line, bounds), shape=shape))
    evaluate(before, inputs(before), check_races=True)
    unchanged(store, print_program(before))


def test_a_task_that_runs_once_and_a_head_that_loads() -> None:
    serial = "  serial\n    v: f32 = load x 0:i32\n    accum[op=add] t v 0:i32\n"
    unchanged(store, filled(serial, shape="f32,1"))
    head = "l: f32 = load t 3:i32"
    unchanged(store, filled(headed(head, FULL, "accum[op=add] t 1.0:f32 i")))
    unchanged(store, filled(headed(head, FULL, "v: f32 = add l 1.0:f32; store c v i")))


@pytest.mark.parametrize("ends", [20, 64, 0, 1])
def test_a_range_that_is_known_when_it_runs(ends: int) -> None:
    """Elements beyond the bound have the content as well."""
    head = "e0: i32 = load k 0:i32; e: i32 = min e0 64:i32"
    use = headed(head, "0:i32 : e", "v: f32 = load x i; accum[op=add] t v i")
    before = parsed(filled(use, REVERSED.format("p")))
    after = store(before)
    assert after is before
    args = inputs(before)
    args[-1][0] = ends
    for x, y in zip(evaluate(after, args, check_races=True), evaluate(before, args), strict=True):
        assert_same_bits(x, y)


def test_only_the_first_task_stores_it() -> None:
    text = """
program p(x: ref[f32,4])
  buffer a: ref[f32,4]{0}
  buffer b: ref[i32,4x2]{1}
  buffer c: ref[f32,9] = -0.0:f32
  range_for i in 0:i32 : 4:i32
{2}    v: f32 = load x i
    accum[op=add] a v i
  range_for j in 0:i32 : 4:i32
{3}    w: f32 = load a j
    u: i32 = convert[dtype=i32] w
    accum[op=max] b u j 1:i32
    accum[op=add] a 1.0:f32 j
  return a, b, c
"""
    row = "    store b 3:i32 j 0:i32\n    store b 3:i32 j 1:i32\n"
    check(store, text.format(" = 1.5:f32", " = 3:i32", "", ""), text.format("", "", "    store a 1.5:f32 i\n", row))
