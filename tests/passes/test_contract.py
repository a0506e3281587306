"""Buffers that live inside of the iterations of one task become private, all others stay."""


import pytest

from qdtrace.analysis.machine import CPU
from qdtrace.config import Options
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program
from qdtrace.ir.verify import verify_program
from qdtrace.passes.by_name import pass_named
from tests.passes.fusion_cases import INJECTIVE, SHARED, program, task
from tests.passes.harness import arguments, assert_same_bits, parsed, rewrites

CONTRACT = pass_named("contract", Options())
REFS = "x: ref[f32,256], c: ref[f32,256], k: ref[i32,256], n: ref[i32], s: ref[f32]"
LOCAL = "  buffer t: ref[f32,256]\n"
ROWS = "  buffer t: ref[f32,256x3]\n"
COLUMNS = "  buffer t: ref[f32,3x256]\n"
SCALAR = "  buffer t: ref[f32]\n"


def same(before: Program, after: Program) -> None:
    verify_program(after)
    for seed in range(3):
        args = arguments(before, seed)
        want = evaluate(before, args, check_races=True)
        for order in ("forward", "backward", "shuffled"):
            for x, y in zip(evaluate(after, args, order=order, check_races=True), want, strict=True):
                assert_same_bits(x, y)


def gone(line: str, buffers: str = LOCAL, *before_it: str) -> Program:
    """The buffer is no more, the results are the same."""
    before = parsed(program(*before_it, task(line), refs=REFS, buffers=buffers))
    after = CONTRACT(before)
    assert not after.buffers, print_program(after)
    same(before, after)
    assert CONTRACT(after) is after
    return after


def stays(text: str) -> None:
    """Nothing changes."""
    before = parsed(text)
    evaluate(before, arguments(before), check_races=True)
    after = CONTRACT(before)
    assert after is before, print_program(after)


PASSED = "v: f32 = load x i; store t v {0}; w: f32 = load t {0}; u: f32 = mul w w; store c u i"


def test_the_text() -> None:
    rewrites(CONTRACT)("""
program p(x: ref[f32,8], z: ref[f32,8])
- buffer y: ref[f32,8]
  range_for i in 0:i32 : 8:i32
+   y: cell[f32] = cell[dtype=f32, shape=()]
    a: f32 = load x i
-   store y a i
-   b: f32 = load y i
+   store y a
+   b: f32 = load y
    c: f32 = mul b b
    store z c i
  return z
""")


@pytest.mark.parametrize("name", INJECTIVE)
def test_any_injective_index(name: str) -> None:
    gone(f"{INJECTIVE[name]}; {PASSED.format('p')}")


@pytest.mark.parametrize("name", SHARED)
def test_no_index_that_iterations_share(name: str) -> None:
    """Each iteration first stores, so the task alone would be right; but it has a race, or none that is proved."""
    line = f"{SHARED[name]}; accum[op=add] t 1.0:f32 p"
    filled = LOCAL.replace("\n", " = 0.0:f32\n")
    stays(program(task(line), task("v: f32 = load t i; store c v i"), refs=REFS, buffers=filled))
    before = parsed(program(task(f"{SHARED[name]}; {PASSED.format('p')}"), refs=REFS, buffers=LOCAL))
    assert CONTRACT(before) is before


@pytest.mark.parametrize(
    ("line", "buffers"),
    [
        ("store t 1.0:f32 i 0:i32; store t 2.0:f32 i 2:i32; v: f32 = load t i 0:i32; store c v i", ROWS),
        ("store t 1.0:f32 0:i32 i; store t 2.0:f32 2:i32 i; v: f32 = load t 0:i32 i; store c v i", COLUMNS),
        ("for j in 0:i32 : 3:i32 : 1:i32; .q: f32 = convert[dtype=f32] j; .store t q i j; v: f32 = load t i 1:i32; "
         "store c v i", ROWS),
        ("q: i32 = load k i; store t 1.0:f32 i 0:i32; store t 2.0:f32 i 1:i32; store t 3.0:f32 i 2:i32; "
         "r: i32 = min q 2:i32; v: f32 = load t i r; store c v i", ROWS),
        ("v: f32 = load x i; store t v i; accum[op=add] t v i; accum[op=max] t 3.0:f32 i; w: f32 = load t i; "
         "store c w i", LOCAL),
        ("v: f32 = load x i; store t v i; b: bool = gt v 0.0:f32; if b; .store t 1.0:f32 i; w: f32 = load t i; "
         "store c w i", LOCAL),
        ("store t 0.0:f32 i; for j in 0:i32 : 5:i32 : 1:i32; .accum[op=add] t 1.0:f32 i; w: f32 = load t i; "
         "store c w i", LOCAL),
        ("store t 0.0:f32 i; r: i32 = while carry a = 0:i32; .f: f32 = load t i; .b: bool = lt f 3.0:f32; .test b; "
         ".accum[op=add] t 1.0:f32 i; .m: i32 = add a 1:i32; .yield m; w: f32 = load t i; store c w i", LOCAL),
    ],
)  # fmt: skip
def test_rows_and_control_flow(line: str, buffers: str) -> None:
    gone(line, buffers)


def test_a_result_stays() -> None:
    text = program(task(PASSED.format("i"), "0:i32 : 256:i32"), refs=REFS, buffers=LOCAL)
    stays(text.rstrip() + ", t\n")


def test_what_another_task_reads_stays() -> None:
    stays(program(task(PASSED.format("i")), task("v: f32 = load t i; store c v i"), refs=REFS, buffers=LOCAL))


def test_what_another_task_stores_stays() -> None:
    stays(program(task("store t 1.0:f32 i"), task("v: f32 = load t i; store c v i"), refs=REFS, buffers=LOCAL))


def test_what_a_head_of_another_task_reads_stays() -> None:
    head = "  range_for i in 0:i32 : e\n    head\n      f: f32 = load t 9:i32\n      e: i32 = convert[dtype=i32] f\n"
    stays(program(task(PASSED.format("i")), head + "    store c 1.0:f32 i\n", refs=REFS, buffers=LOCAL))


def test_a_parameter_stays() -> None:
    stays(program(task("v: f32 = load x i; store x 1.0:f32 i; store c v i"), refs=REFS))


def test_two_injective_indices_are_two_elements() -> None:
    """Half of the buffer is read by another iteration than the one that stores it."""
    line = (
        "p: i32 = mul i 2:i32; q: i32 = add p 1:i32; store t 1.0:f32 p; store t 2.0:f32 q; v: f32 = load t p; "
        "store c v i"
    )
    before = parsed(program(task(line), refs=REFS, buffers=LOCAL))
    same(before, CONTRACT(before))
    before = parsed(program(task("store t 1.0:f32 i; r: i32 = add i 100:i32; store t 2.0:f32 r; v: f32 = load t i; "
                                 "store c v i"), refs=REFS, buffers=LOCAL))  # fmt: skip
    same(before, CONTRACT(before))


def test_an_initial_value_is_seen_before_the_first_store() -> None:
    line = "v: f32 = load t i; store t 1.0:f32 i; w: f32 = load t i; u: f32 = add v w; store c u i"
    before = parsed(program(task(line), refs=REFS, buffers="  buffer t: ref[f32,256] = 5.0:f32\n"))
    same(before, CONTRACT(before))


def test_atomics_keep_their_old_values() -> None:
    line = "store t 1.0:f32 i; o: f32 = atomic[op=add] t 2.0:f32 i; w: f32 = load t i; u: f32 = add o w; store c u i"
    before = parsed(program(task(line), refs=REFS, buffers=LOCAL))
    same(before, CONTRACT(before))


# One expression is not one element: it may have another value each time around a loop.

AGAIN = {
    "the index of the loop": (
        "for m in 0:i32 : 2:i32 : 1:i32; .for j in 0:i32 : 3:i32 : 1:i32; ..first: bool = eq m 0:i32; ..if first; "
        "...q: f32 = convert[dtype=f32] j; ...store t q i j; ..else; ...v: f32 = load t i j; ...accum[op=add] x v i"
    ),
    "a remainder of it": (
        "for m in 0:i32 : 6:i32 : 1:i32; .j: i32 = rem m 3:i32; .first: bool = lt m 3:i32; .if first; "
        "..q: f32 = convert[dtype=f32] m; ..store t q i j; .else; ..v: f32 = load t i j; ..accum[op=add] x v i"
    ),
    "a loaded index": (
        "for m in 0:i32 : 6:i32 : 1:i32; .g: i32 = rem m 3:i32; .h: i32 = load k g; .j: i32 = min h 2:i32; "
        ".first: bool = lt m 3:i32; .if first; ..q: f32 = convert[dtype=f32] m; ..store t q i j; .else; "
        "..v: f32 = load t i j; ..accum[op=add] x v i"
    ),
    "a carried value": (
        "r: i32 = while carry a = 0:i32; .b: bool = lt a 6:i32; .test b; .j: i32 = rem a 3:i32; "
        ".first: bool = lt a 3:i32; .if first; ..q: f32 = convert[dtype=f32] a; ..store t q i j; .else; "
        "..v: f32 = load t i j; ..accum[op=add] x v i; .m: i32 = add a 1:i32; .yield m"
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_an_expression_that_changes_inside_of_the_iteration(name: str) -> None:
    before = parsed(program(task(AGAIN[name]), refs=REFS, buffers=ROWS))
    same(before, CONTRACT(before))


def test_a_window_of_a_flat_buffer() -> None:
    """2 * i + j: injective between iterations, two elements inside of one."""
    line = (
        "p: i32 = mul i 2:i32; for m in 0:i32 : 2:i32 : 1:i32; .for j in 0:i32 : 2:i32 : 1:i32; ..g: i32 = add p j; "
        "..first: bool = eq m 0:i32; ..if first; ...q: f32 = convert[dtype=f32] j; ...store t q g; ..else; "
        "...v: f32 = load t g; ...accum[op=add] x v i"
    )
    before = parsed(program(task(line), refs=REFS, buffers=LOCAL))
    same(before, CONTRACT(before))


def test_a_serial_task() -> None:
    serial = "  serial\n    store t 1.0:f32\n    v: f32 = load t\n    store s v\n"
    before = parsed(program(serial, refs=REFS, buffers=SCALAR))
    same(before, CONTRACT(before))


def test_a_scalar_in_a_range_stays() -> None:
    text = program(task("store t 1.0:f32; v: f32 = load t; store c v i", "0:i32 : 1:i32"), refs=REFS, buffers=SCALAR)
    before = parsed(text)
    same(before, CONTRACT(before))


# An iteration stores first what the buffer has in it at the beginning.

SEEN = "v: f32 = load t i; store t 1.0:f32 i; w: f32 = load t i; u: f32 = add v w; store c u i"
FILL = "  range_for f in 0:i32 : 256:i32\n    store t 7.0:f32 f\n"


def test_the_initial_content_is_seen() -> None:
    rewrites(CONTRACT)("""
program p(x: ref[f32,4x2], z: ref[f32,4])
- buffer y: ref[f32,4x2] = 5.0:f32
  buffer o: ref[f32,4] = 2.0:f32
  range_for i in 0:i32 : 4:i32
+   y: cell[f32,2] = cell[dtype=f32, shape=(2)]
+   for m in 0:i32 : 2:i32 : 1:i32
+     store y 5.0:f32 m
    a: f32 = load x i 1:i32
-   accum[op=add] y a i 1:i32
+   accum[op=add] y a 1:i32
    for k in 0:i32 : 2:i32 : 1:i32
-     b: f32 = load y i k
+     b: f32 = load y k
      accum[op=add] z b i
  return z
""")


def test_an_initial_value_is_stored_first() -> None:
    assert not gone(SEEN, "  buffer t: ref[f32,256] = 5.0:f32\n").initial


@pytest.mark.parametrize("buffers", [LOCAL, "  buffer t: ref[f32,256] = 5.0:f32\n"])
def test_a_task_that_fills_is_a_user(buffers: str) -> None:
    stays(program(FILL, task(SEEN), refs=REFS, buffers=buffers))
    stays(program(FILL, task(SEEN), FILL, refs=REFS, buffers=buffers))


@pytest.mark.parametrize(
    "place", ["q r {0}", "q {0} r", "{0} q r", "r q {0}"], ids=["last", "middle", "first", "turned"]
)
def test_columns_of_a_grid(place: str) -> None:
    """The tuple of the other two indices tells iterations apart, though none of them does."""
    shapes = {"q": "2", "r": "3", "{0}": "5"}
    shape = "x".join(shapes[part] for part in place.split())
    at, before = place.format("k"), place.format("m")
    text = f"""
program p(x: ref[f32,6x5], c: ref[f32,6x5])
  buffer t: ref[f32,{shape}]
  range_for i in 0:i32 : 6:i32
    q: i32 = div i 3:i32
    r: i32 = rem i 3:i32
    store t 1.0:f32 {place.format("0:i32")}
    for k in 1:i32 : 5:i32 : 1:i32
      m: i32 = sub k 1:i32
      a: f32 = load t {before}
      b: f32 = load x i k
      s: f32 = add a b
      store t s {at}
    for k in 0:i32 : 5:i32 : 1:i32
      e: f32 = load t {at}
      store c e i k
  return c
"""
    before_it = parsed(text)
    after = CONTRACT(before_it)
    assert not after.buffers, print_program(after)
    same(before_it, after)


def test_arrays_up_to_the_limit() -> None:
    def of(length: int, cells: int = 0) -> bool:
        line = "; ".join(f"p{k}: cell[f32,256] = cell[dtype=f32, shape=(256)]" for k in range(cells))
        stores = "store t 1.0:f32 i 1:i32; store t 1.0:f32 i 0:i32; v: f32 = load t i 0:i32; store c v i"
        buffers = f"  buffer t: ref[f32,256x{length}]\n"
        text = program(task(f"{line}; {stores}" if line else stores), refs=REFS, buffers=buffers)
        return not CONTRACT(parsed(text)).buffers

    most = CPU.private_bytes // 4
    assert of(most)
    assert not of(most + 1)
    assert of(most - 512, cells=2)
    assert not of(most - 511, cells=2)
