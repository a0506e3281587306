"""Pairs of tasks that are fused, and pairs that are not; the pairs are in `fusion_cases`."""

import pytest

from qdtrace.interpret.reference import evaluate
from qdtrace.passes.by_name import pass_named
from tests.passes.fusion_cases import INJECTIVE, JOINED, REFUSED, SHARED, program, task
from tests.passes.fusion_harness import (
    AGGRESSIVE,
    FULL,
    ORDER,
    SHORT,
    copy,
    fuse,
    headed,
    inputs,
    joins,
    same,
    stays,
)  # fmt: skip
from tests.passes.harness import parsed, rewrites, unchanged

# Pairs of tasks.


@pytest.mark.parametrize("name", JOINED)
def test_joined(name: str) -> None:
    first, second = JOINED[name]
    joins(program(task(first), task(second)))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    first, second = REFUSED[name]
    # What the first body writes conditionally, two iterations of the second may still write.
    stays(program(task(first), task(second)))


WRITE, READ = "store b 1.0:f32 p", "y: f32 = load b p; store c y i"


@pytest.mark.parametrize("name", INJECTIVE)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (WRITE, READ),
        (READ, WRITE),
        (WRITE, "store b 2.0:f32 p"),
        (WRITE, "accum[op=add] b 2.0:f32 p"),
        ("accum[op=add] b 2.0:f32 p", READ),
        ("accum[op=add] b 2.0:f32 p", "accum[op=max] b 2.0:f32 p"),
    ],
)
def test_one_injective_index(name: str, first: str, second: str) -> None:
    joins(program(task(f"{INJECTIVE[name]}; {first}"), task(f"{INJECTIVE[name]}; {second}")))


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("accum[op=add] b 2.0:f32 p", READ),
        (READ, "accum[op=add] b 2.0:f32 p"),
        ("accum[op=add] b 2.0:f32 p", "accum[op=max] b 2.0:f32 p"),
    ],
)
def test_one_index_that_iterations_share(name: str, first: str, second: str) -> None:
    stays(program(task(f"{SHARED[name]}; {first}"), task(f"{SHARED[name]}; {second}")))


@pytest.mark.parametrize("name", SHARED)
def test_an_element_of_its_own_and_one_that_iterations_share(name: str) -> None:
    own, shared = "store b 1.0:f32 i", f"{SHARED[name]}; {READ}"
    stays(program(task(own), task(shared)))
    stays(program(task(shared), task(own)))


@pytest.mark.parametrize("name", SHARED)
def test_sums_at_an_index_that_iterations_share(name: str) -> None:
    line = f"{SHARED[name]}; accum[op=add] b 2.0:f32 p"
    joins(program(task(line), task(line)))


@pytest.mark.parametrize("first", INJECTIVE)
def test_different_injective_indices(first: str) -> None:
    """Joined where no iteration meets another; what the interpreter finds out by running both."""
    for second in INJECTIVE:
        before = parsed(program(task(f"{INJECTIVE[first]}; {WRITE}"), task(f"{INJECTIVE[second]}; {READ}")))
        after = fuse(before)
        if after is not before:
            same(before, after)


# Bounds.

OWN = "store b 1.0:f32 i", "r: f32 = load b i; store c r i"
RANGES = "x: ref[f32,64], n: ref[i32], m: ref[i32], s: ref[i32,4], b: ref[f32,64], c: ref[f32,64]"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0:i32 : 64:i32", "0:i32 : 63:i32"),
        ("0:i32 : 64:i32", "1:i32 : 64:i32"),
        ("0:i32 : 64:i32", "0:i64 : 64:i64"),
        ("0:i32 : 32:i32", "32:i32 : 64:i32"),
    ],
)
def test_static_bounds_that_differ(first: str, second: str) -> None:
    stays(program(task(OWN[0], first), task(OWN[1], second), refs=RANGES))


@pytest.mark.parametrize(
    "bounds", ["0:i32 : 64:i32", "5:i32 : 6:i32", "5:i32 : 5:i32", "7:i32 : 2:i32", "0:i64 : 64:i64"]
)
def test_static_bounds_that_are_equal(bounds: str) -> None:
    joins(program(task(OWN[0], bounds), task(OWN[1], bounds), refs=RANGES))


EQUAL = {
    "loaded": ("e: i32 = load n", "0:i32 : e", "e: i32 = load n", "0:i32 : e"),
    "both loaded": ("l: i32 = load m; e: i32 = load n", "l : e", "e: i32 = load n; l: i32 = load m", "l : e"),
    "an element": ("e: i32 = load s 1:i32", "0:i32 : e", "e: i32 = load s 1:i32", "0:i32 : e"),
    "computed": (
        "n0: i32 = load n; e: i32 = min n0 64:i32", "0:i32 : e",
        "n1: i32 = load n; n2: i32 = add n1 1:i32; e: i32 = min n1 64:i32", "0:i32 : e",
    ),
    "loaded twice": (
        "n0: i32 = load n; e: i32 = add n0 n0", "0:i32 : e", "n0: i32 = load n; n1: i32 = load n; e: i32 = add n0 n1",
        "0:i32 : e",
    ),
}  # fmt: skip
DIFFERENT = {
    "other arguments": ("e: i32 = load n", "0:i32 : e", "e: i32 = load m", "0:i32 : e"),
    "other elements": ("e: i32 = load s 1:i32", "0:i32 : e", "e: i32 = load s 2:i32", "0:i32 : e"),
    "an element that is itself loaded": (
        "k: i32 = load n; k1: i32 = min k 3:i32; e: i32 = load s k1", "0:i32 : e", "e: i32 = load s 3:i32", "0:i32 : e",
    ),
    "a constant": ("e: i32 = load n", "0:i32 : e", "e: i32 = load n", "0:i32 : 20:i32"),
    "one more": ("e: i32 = load n", "0:i32 : e", "n0: i32 = load n; e: i32 = add n0 1:i32", "0:i32 : e"),
    "another operation": (
        "n0: i32 = load n; e: i32 = max n0 9:i32", "0:i32 : e", "n0: i32 = load n; e: i32 = min n0 9:i32", "0:i32 : e",
    ),
    "operands exchanged": (
        "n0: i32 = load n; e: i32 = sub n0 9:i32", "0:i32 : e", "n0: i32 = load n; e: i32 = sub 9:i32 n0", "0:i32 : e",
    ),
    "another start": ("e: i32 = load n", "0:i32 : e", "e: i32 = load n", "1:i32 : e"),
    "start and stop exchanged": (
        "e: i32 = load n; l: i32 = load m", "l : e", "e: i32 = load n; l: i32 = load m", "e : l",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_equal_runtime_bounds(name: str) -> None:
    head, bounds, other, others = EQUAL[name]
    joins(program(headed(head, bounds, OWN[0]), headed(other, others, OWN[1]), refs=RANGES.replace("64]", "256]")))


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_runtime_bounds(name: str) -> None:
    head, bounds, other, others = DIFFERENT[name]
    text = program(headed(head, bounds, OWN[0]), headed(other, others, OWN[1]), refs=RANGES.replace("64]", "256]"))
    stays(text)


LOADED = "e: i32 = load n", "0:i32 : e"
WRITES = {
    "stored": "  serial\n    store n 9:i32\n",
    "stored, the same value": "  serial\n    o: i32 = load n\n    store n o\n",
    "accumulated": "  serial\n    accum[op=add] n -1:i32\n",
    "changed atomically": "  serial\n    o: i32 = atomic[op=exchange] n 9:i32\n",
    "stored under a condition": (
        "  serial\n    o: i32 = load m\n    t: bool = gt o 3:i32\n    if t\n      store n 9:i32\n"
    ),
    "stored in a loop": "  serial\n    for j in 0:i32 : 2:i32 : 1:i32\n      store n j\n",
    "stored by one iteration": task("t: bool = eq i 1:i32; if t; .store n 9:i32", "0:i32 : 3:i32"),
}


@pytest.mark.parametrize("name", WRITES)
def test_bounds_that_were_written_in_between(name: str) -> None:
    stays(program(headed(*LOADED, OWN[0]), WRITES[name], headed(*LOADED, OWN[1]), refs=RANGES))


def test_bounds_that_the_first_task_writes() -> None:
    first = headed(*LOADED, "store b 1.0:f32 i; accum[op=add] n 1:i32")
    stays(program(first, headed(*LOADED, OWN[1]), refs=RANGES))


def test_bounds_that_the_second_task_writes() -> None:
    second = headed(*LOADED, OWN[1] + "; accum[op=add] n 1:i32")
    before = parsed(program(headed(*LOADED, OWN[0]), second, headed(*LOADED, "store x 1.0:f32 i"), refs=RANGES))
    same(before, fuse(before))


def test_bounds_and_a_write_of_something_else() -> None:
    text = program(headed(*LOADED, OWN[0]), "  serial\n    store m 9:i32\n", headed(*LOADED, OWN[1]), refs=RANGES)
    joins(text, 2)


# Heads.

SCALED = "f: f32 = load x 0:i32; g: f32 = mul f 2.0:f32", "0:i32 : 64:i32"


def test_heads_are_shared() -> None:
    after = joins(program(headed(*SCALED, "store b g i"), headed(*SCALED, "accum[op=add] b g i"), refs=RANGES))
    assert [e.primitive.name for e in after.tasks[0].head] == ["load", "mul"]


def test_a_head_that_reads_what_the_first_task_writes() -> None:
    stays(program(task("store x 1.0:f32 i", SCALED[1]), headed(*SCALED, "store b g i"), refs=RANGES))


def test_a_head_that_reads_what_the_second_task_writes() -> None:
    stays(program(headed(*SCALED, "store b g i"), task("store x 1.0:f32 i", SCALED[1]), refs=RANGES))


def test_a_head_that_reads_one_element_of_what_the_first_task_adds_to() -> None:
    first = task("accum[op=add] x 1.0:f32 63:i32", SCALED[1])
    stays(program(first, headed(*SCALED, "store b g i"), refs=RANGES))


def test_private_memory_of_heads_is_written_in_between() -> None:
    """Two loads of one cell are two values."""
    head = (
        "l: cell[i32] = cell[dtype=i32, shape=()]; store l 3:i32; e: i32 = load l; store l 9:i32; g: i32 = load l; "
        "f: f32 = convert[dtype=f32] g"
    )
    tasks = headed(head, FULL, "store b f i"), headed(head, FULL, "accum[op=add] b f i")
    before = parsed(program(*tasks, refs=RANGES))
    same(before, fuse(before))


SHIFTED = "h0: i32 = load m; h: i32 = min h0 9:i32", "0:i32 : 32:i32"
AT_SHIFT = "p: i32 = add i h; store b 1.0:f32 p", "p: i32 = add i h; y: f32 = load b p; store c y i"


def test_an_index_with_a_value_of_the_head() -> None:
    joins(program(headed(*SHIFTED, AT_SHIFT[0]), headed(*SHIFTED, AT_SHIFT[1]), refs=RANGES))


def test_an_index_with_a_value_of_the_head_that_was_written_in_between() -> None:
    between = "  serial\n    store m 5:i32\n"
    stays(program(headed(*SHIFTED, AT_SHIFT[0]), between, headed(*SHIFTED, AT_SHIFT[1]), refs=RANGES))


def test_an_index_with_and_one_without_a_value_of_the_head() -> None:
    bounds = SHIFTED[1]
    stays(program(headed(*SHIFTED, AT_SHIFT[0]), task(OWN[1], bounds), refs=RANGES))
    stays(program(task(OWN[0], bounds), headed(*SHIFTED, AT_SHIFT[1]), refs=RANGES))


def test_values_of_the_head_from_two_places() -> None:
    other = "h0: i32 = load n; h: i32 = min h0 8:i32"
    stays(program(headed(*SHIFTED, AT_SHIFT[0]), headed(other, SHIFTED[1], AT_SHIFT[1]), refs=RANGES))


# Order.


PASSED = {
    "nothing in common": task(copy("y", "z"), SHORT),
    "both read": task(copy("x", "z"), SHORT),
    "in between has another range of the same reference read": task("v: f32 = load x 0:i32; store z v i", SHORT),
    "a serial task": "  serial\n    store s 1.0:f32\n",
    "one that opted out": task(copy("y", "z"), FULL, hints="fuse=false"),
}
NOT_PASSED = {
    "reads what the first wrote, writes what the second reads": task("v: f32 = load b 63:i32; store x v i", SHORT),
    "reads what the first wrote and the second overwrites": (
        task("v: f32 = load b 63:i32; store z v i; w: f32 = load c i; store y w i", SHORT)
    ),
    "adds to what the first wrote, is read by the second": (
        task("accum[op=add] b 1.0:f32 3:i32; store x 0.0:f32 i", SHORT)
    ),
    "a serial task": "  serial\n    v: f32 = load b 9:i32\n    store x v 1:i32\n",
    "writes both": task("store b 1.0:f32 i; store x 2.0:f32 i", SHORT),
}


@pytest.mark.parametrize("name", PASSED)
def test_tasks_that_do_not_depend_are_passed(name: str) -> None:
    joins(program(task(copy("x", "b"), FULL), PASSED[name], task(copy("x", "c"), FULL), refs=ORDER), 2)


@pytest.mark.parametrize("name", NOT_PASSED)
def test_tasks_that_depend_are_not_passed(name: str) -> None:
    second = "store b 5.0:f32 i; store c 5.0:f32 i" if "overwrites" in name else copy("x", "c")
    stays(program(task(copy("x", "b"), FULL), NOT_PASSED[name], task(second, FULL), refs=ORDER))


def test_a_head_in_between_reads_what_the_second_task_writes() -> None:
    between = headed("f: f32 = load s; g: f32 = load b 1:i32", SHORT, "h: f32 = add f g; store z h i")
    second = task("accum[op=add] s 1.0:f32", FULL)
    stays(program(task(copy("x", "b"), FULL), between, second, refs=ORDER))


def test_bounds_in_between_come_from_what_the_second_task_writes() -> None:
    head = "e: i32 = load k 0:i32; e1: i32 = min e 64:i32"
    between = headed(head, "0:i32 : e1", "v: f32 = load b 1:i32; store z v i")
    stays(program(task(copy("x", "b"), FULL), between, task("store k 1:i32 i", FULL), refs=ORDER))


def test_a_chain_is_one_task() -> None:
    tasks = [task(copy(a, b), FULL) for a, b in ("xy", "yz", "zb", "bc")]
    joins(program(*tasks, refs=ORDER))


def test_a_third_task_is_judged_against_all_that_were_joined() -> None:
    """The third reads at i - 1 what the first wrote; the second, which it would fit, is in one task with the first."""
    first, second = task("store b 1.0:f32 i", "1:i32 : 64:i32"), task(copy("b", "c"), "1:i32 : 64:i32")
    third = task("p: i32 = sub i 1:i32; v: f32 = load b p; store y v i", "1:i32 : 64:i32")
    joins(program(first, second, third, refs=ORDER), 2)


def test_a_group_that_reads_its_neighbours_is_not_written_by_a_later_task() -> None:
    first = task("p: i32 = sub i 1:i32; v: f32 = load b p; store c v i", "1:i32 : 64:i32")
    second = task(copy("x", "y"), "1:i32 : 64:i32")
    third = task("store b 1.0:f32 i", "1:i32 : 64:i32")
    joins(program(first, second, third, refs=ORDER), 2)


def test_indices_loaded_from_memory_that_was_written_in_between() -> None:
    at = "q: i32 = load k i; p: i32 = rem q 8:i32; "
    first = task(at + "accum[op=add] b 1.0:f32 p", FULL)
    second = task("r: i32 = sub 63:i32 i; store k r i", FULL)
    third = task(at + "v: f32 = load b p; store c v i", FULL)
    joins(program(first, second, third, refs=ORDER), 2)


# Wrap-around: 2**30 * 4 is 0.


@pytest.mark.parametrize(
    ("index", "apart"),
    [
        ("p: i32 = mul i 1073741824:i32", 4),
        ("p: i32 = shift_left i 30:i32", 4),
        ("p: i32 = mul i -2147483648:i32", 2),
        ("p: i32 = shift_left i 31:i32", 2),
        ("p0: i32 = mul i 65536:i32; p: i32 = mul p0 65536:i32", 1),
        ("p0: i32 = mul i 32768:i32; p1: i32 = mul p0 32768:i32; p: i32 = neg p1", 4),
        ("p0: i32 = mul i 1073741824:i32; p: i32 = add p0 3:i32", 4),
        ("p0: i64 = convert[dtype=i64] i; p1: i64 = mul p0 1073741824:i64; p: i32 = convert[dtype=i32] p1", 4),
        ("p0: u32 = bitcast[dtype=u32] i; p1: u32 = mul p0 1073741824:u32; p: i32 = bitcast[dtype=i32] p1", 4),
        ("p0: i64 = convert[dtype=i64] i; p1: i64 = mul p0 4294967296:i64; p: i32 = convert[dtype=i32] p1", 1),
    ],
)
def test_products_that_wrap_to_one_element(index: str, apart: int) -> None:
    first = task(f"t: bool = eq i 0:i32; if t; {guarded(index)}; .store b 1.0:f32 p", "0:i32 : 8:i32")
    read = ".v: f32 = load b p; .store c v i"
    second = task(f"t: bool = eq i {apart}:i32; if t; {guarded(index)}; {read}", "0:i32 : 8:i32")
    stays(program(first, second, refs=ORDER))


def guarded(line: str) -> str:
    """The equations one level deeper."""
    return "; ".join("." + part.strip() for part in line.split(";"))


def test_a_wrapped_offset_is_the_element_before() -> None:
    """u32: i + (2**32 - 1)."""
    index = "p0: u32 = bitcast[dtype=u32] i; p1: u32 = add p0 4294967295:u32; p: i32 = bitcast[dtype=i32] p1"
    bounds = "1:i32 : 64:i32"
    stays(program(task(OWN[0], bounds), task(f"{index}; v: f32 = load b p; store c v i", bounds), refs=ORDER))


# What the user says.


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_task_that_opted_out(which: int) -> None:
    hints = ["", ""]
    for k in range(2):
        hints[k] = "fuse=false" if which in (k, 2) else ""
    stays(program(*(task(line, FULL, hints=h) for line, h in zip(OWN, hints, strict=True)), refs=ORDER))


def test_a_task_that_opted_out_is_not_joined_but_its_neighbours_are() -> None:
    alone = task(copy("y", "z"), FULL, hints="fuse=false")
    after = joins(program(task(copy("x", "b"), FULL), alone, task(copy("x", "c"), FULL), refs=ORDER), 2)
    assert [len(t.body.eqns) for t in after.tasks if t.hints.get("fuse") is False] == [2]


def test_off() -> None:
    for first, second in JOINED.values():
        stays(program(task(first), task(second)), fuse_tasks="off")


def test_without_reads_after_writes() -> None:
    raw, apart = JOINED["read after write"], JOINED["nothing shared"]
    stays(program(task(raw[0]), task(raw[1])), fuse_tasks_raw=False)
    joins(program(task(apart[0]), task(apart[1])), fuse_tasks_raw=False)


def test_ranges_and_serial_tasks_are_not_mixed() -> None:
    serial = "  serial\n    v: f32 = load b 0:i32\n    store s v\n"
    stays(program(task("store b 1.0:f32 i", "0:i32 : 1:i32"), serial, refs=ORDER))


def test_a_serial_task_sees_the_memory_of_the_one_before_in_its_head() -> None:
    """Joined or not, the head of the second reads what the first stored."""
    first = "  serial\n    store s 1.0:f32\n"
    second = "  serial\n    head\n      v: f32 = load s\n      w: f32 = add v 1.0:f32\n    store b w 0:i32\n"
    before = parsed(program(first, second, refs=ORDER))
    same(before, fuse(before))


# Cost.


def test_auto_joins_a_chain() -> None:
    tasks = [task(copy(a, b), FULL) for a, b in ("xy", "yz", "zb", "bc")]
    joins(program(*tasks, refs=ORDER), fuse_tasks="auto")


def test_the_text_of_two_joined_tasks() -> None:
    rewrites(pass_named("fuse_tasks", AGGRESSIVE))("""
program p(x: ref[f32,8], n: ref[i32])
  buffer y: ref[f32,8]
  buffer z: ref[f32,8]
  range_for i in 0:i32 : e
    head
      e: i32 = load n
+     g: i32 = add e 1:i32
    a: f32 = load x i
    store y a i
- range_for j in 0:i32 : f
-   head
-     f: i32 = load n
-     g: i32 = add f 1:i32
-   b: f32 = load y j
+   b: f32 = load y i
    c: f32 = mul b b
    h: f32 = convert[dtype=f32] g
    k: f32 = add c h
-   store x k j
+   store x k i
  return x
""")


def test_one_task_is_left_alone() -> None:
    unchanged(pass_named("fuse_tasks", AGGRESSIVE), program(task(copy("x", "b"), FULL), refs=ORDER))
    unchanged(pass_named("fuse_tasks", AGGRESSIVE), "program p(x: ref[f32])\n  return x\n")


def test_work_does_not_repeat_bodies() -> None:
    """Joining moves equations, it makes none."""
    text = program(*(task(copy("x", "b"), FULL) for _ in range(5)), refs=ORDER)
    after = joins(text)
    assert len(list(after.all_eqns)) == 10


@pytest.mark.parametrize("name", {**JOINED, **REFUSED})
def test_the_cases_are_valid(name: str) -> None:
    """Each pair runs without a race as two tasks, so that a refusal is not for a pair that means nothing."""
    before = parsed(program(*map(task, {**JOINED, **REFUSED}[name])))
    evaluate(before, inputs(before), check_races=True)
