"""Dead stores: what goes, and what must stay."""

import pytest

from qdtrace.passes.dead_stores import DeadStores
from tests.passes.harness import check, unchanged

sweep = DeadStores()


def task(body: str, *, kind: str = "range_for i in 0:i32 : 8:i32", buffer: str = "") -> str:
    """A program of one task over `b`, `x`, `y`; the body is given at indentation 0."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    refs = "b: ref[f32,8], x: ref[f32,8], y: ref[f32,8], e: ref[i32,8], r: ref[f32,8x4], n: ref[i32]"
    return f"program p({refs})\n{buffer}  {kind}\n{lines}  return b, x, y, r\n"


FIRST = "store b 0.0:f32 i\n"


def goes(rest: str) -> None:
    """The first store is dead."""
    check(sweep, task(FIRST + rest.strip("\n")), task(rest))


def stays(rest: str, first: str = FIRST, **options: str) -> None:
    """The first store is not."""
    unchanged(sweep, task(first + rest.strip("\n"), **options))


def test_overwritten_at_once() -> None:
    goes("v: f32 = load x i\nstore b v i")


def test_equal_forms_are_one_place() -> None:
    goes("j: i32 = add i 1:i32\nk: i32 = sub j 1:i32\nv: f32 = load x i\nstore b v k")


@pytest.mark.parametrize("index", ["j: i32 = add i 1:i32\nk: i32 = min j 7:i32", "k: i32 = load e i"])
def test_another_place_is_stored(index: str) -> None:
    stays(f"{index}\nstore r 1.0:f32 k 0:i32", first="store r 0.0:f32 i 0:i32\n", kind="range_for i in 0:i32 : 1:i32")


def test_read_in_between() -> None:
    stays("v: f32 = load b i\nstore y v i\nstore b 1.0:f32 i")


def test_a_read_that_may_be_of_the_place() -> None:
    stays("j: i32 = load e i\nv: f32 = load b j\nstore y v i\nstore b 1.0:f32 i", kind="range_for i in 0:i32 : 1:i32")


def test_a_read_of_a_neighbour() -> None:
    before = """
store r 0.0:f32 i 0:i32
v: f32 = load r i 1:i32
store r v i 0:i32
"""
    check(sweep, task(before), task(before.replace("store r 0.0:f32 i 0:i32\n", "")))


def test_overwritten_on_both_sides() -> None:
    goes("""
v: f32 = load x i
p: bool = gt v 0.0:f32
if p
  store b v i
else
  w: f32 = neg v
  store b w i
""")


@pytest.mark.parametrize(
    "sides",
    [
        "if p\n  store b v i",
        "if p\nelse\n  store b v i",
        "if p\n  store b v i\nelse\n  store y v i",
        "if p\n  w: f32 = load b i\n  store b v i\n  store y w i\nelse\n  store b v i",
    ],
)
def test_overwritten_on_one_side(sides: str) -> None:
    stays(f"v: f32 = load x i\np: bool = gt v 0.0:f32\n{sides}")


def test_a_store_in_a_branch_is_overwritten_after_it() -> None:
    before = """
v: f32 = load x i
p: bool = gt v 0.0:f32
if p
  store b v i
  store y v i
store b 1.0:f32 i
"""
    check(sweep, task(before), task(before.replace("  store b v i\n", "")))


def test_a_store_before_a_continue_is_not_dead() -> None:
    """`continue_if` leaves what follows under a condition: the store is overwritten on one way only."""
    unchanged(sweep, task("""
v: f32 = load x i
for k in 0:i32 : 4:i32 : 1:i32
  store r v i k
  p: bool = gt v 1.0:f32
  if p
  else
    store r 2.0:f32 i k
"""))


def test_a_store_before_a_break_is_not_dead() -> None:
    unchanged(sweep, task("""
store b 9.0:f32 i
broken: bool = while carry stop = false
  go: bool = not stop
  test go
  v: f32 = load b i
  p: bool = lt v 3.0:f32
  store b 1.0:f32 i
  if p
  else
    w: f32 = sub v 1.0:f32
    store b w i
  yield p
"""))


def test_a_store_dead_on_both_ways_of_a_continue() -> None:
    before = """
v: f32 = load x i
for k in 0:i32 : 4:i32 : 1:i32
  store r v i k
  p: bool = gt v 1.0:f32
  if p
    store r 1.0:f32 i k
  else
    store r 2.0:f32 i k
"""
    check(sweep, task(before), task(before.replace("  store r v i k\n", "")))


def test_never_across_a_loop_that_may_not_run() -> None:
    stays("m: i32 = load n\nfor k in 0:i32 : m : 1:i32\n  store b 1.0:f32 i")
    stays("while\n  v: f32 = load x i\n  p: bool = gt v 9.0:f32\n  test p\n  store b 1.0:f32 i")


def test_a_loop_that_surely_runs() -> None:
    goes("for k in 0:i32 : 4:i32 : 1:i32\n  store b 1.0:f32 i")


def test_the_condition_of_a_while_surely_runs() -> None:
    goes("while\n  store b 1.0:f32 i\n  v: f32 = load b i\n  p: bool = gt v 9.0:f32\n  test p")


def test_a_loop_that_reads_first() -> None:
    stays("for k in 0:i32 : 4:i32 : 1:i32\n  v: f32 = load b i\n  store y v i\n  store b 1.0:f32 i")


def test_a_store_in_a_loop_that_is_overwritten_after_it() -> None:
    before = "m: i32 = load n\nfor k in 0:i32 : m : 1:i32\n  store b 1.0:f32 i\n  store y 2.0:f32 i\nstore b 3.0:f32 i"
    check(sweep, task(before), task(before.replace("  store b 1.0:f32 i\n", "")))


@pytest.mark.parametrize("place", ["b i", "b j"])
def test_a_store_that_the_next_iteration_reads(place: str) -> None:
    body = f"""
m: i32 = load n
j: i32 = load e i
for k in 0:i32 : m : 1:i32
  v: f32 = load {place}
  store y v i
  store b 1.0:f32 i
store b 3.0:f32 i
"""
    unchanged(sweep, task(body, kind="range_for i in 0:i32 : 1:i32"))


def test_rows_are_overwritten_in_part() -> None:
    before = """
store r 0.0:f32 i 0:i32
store r 1.0:f32 i 2:i32
for k in 1:i32 : 4:i32 : 1:i32
  store r 2.0:f32 i k
store r 3.0:f32 i 0:i32
"""
    check(sweep, task(before), task(before.replace("store r 0.0:f32 i 0:i32\n", "")))


def test_an_element_of_the_iteration_before_is_another_one() -> None:
    unchanged(sweep, task("""
for k in 0:i32 : 4:i32 : 1:i32
  store r 1.0:f32 i k
  j: i32 = sub 3:i32 k
  store r 2.0:f32 i j
"""))


@pytest.mark.parametrize("op", ["accum[op=add] b 1.0:f32 i", "o: f32 = atomic[op=max] b 1.0:f32 i\nstore y o i"])
def test_what_an_accumulation_or_atomic_reads(op: str) -> None:
    stays(f"{op}\nstore x 2.0:f32 i")


def test_an_accumulation_is_overwritten() -> None:
    before = "v: f32 = load x i\naccum[op=add] b v i\nstore b v i"
    check(sweep, task(before), task("v: f32 = load x i\nstore b v i"))


def test_an_accumulation_that_others_share_stays() -> None:
    unchanged(sweep, task("""
j: i32 = load e i
accum[op=add] b 1.0:f32 j
store b 2.0:f32 j
""", kind="range_for i in 0:i32 : 1:i32"))


def test_an_atomic_elsewhere_reads_nothing_of_it() -> None:
    goes("o: f32 = atomic[op=max] y 1.0:f32 0:i32\nstore b o i")


def test_private_memory_is_gone_at_the_end_of_its_block() -> None:
    before = """
m: i32 = load n
for k in 0:i32 : 2:i32 : 1:i32
  c: cell[f32,4] = cell[dtype=f32, shape=(4)]
  store c 1.0:f32 m
  v: f32 = load c m
  store b v i
  store c 2.0:f32 m
"""
    check(sweep, task(before), task(before.replace("  store c 2.0:f32 m\n", "")))


def test_private_memory_outlives_a_loop_inside_its_block() -> None:
    unchanged(sweep, task("""
c: cell[f32,4] = cell[dtype=f32, shape=(4)]
m: i32 = load n
store c 1.0:f32 m
for k in 0:i32 : 2:i32 : 1:i32
  v: f32 = load c m
  store b v i
  w: f32 = load x k
  store c w m
"""))


TEMPORARY = """
program p(x: ref[f32,8], y: ref[f32,8])
  buffer t: ref[f32,8]
  range_for i in 0:i32 : 8:i32
    v: f32 = load x i
    store t v i
    w: f32 = load t i
    store y w i
    {last}
{later}  return y
"""
LAST = "store t w i"


def test_a_buffer_of_the_program_is_gone_with_the_last_task_that_reads_it() -> None:
    text = TEMPORARY.format(last=LAST, later="")
    check(sweep, text, text.replace(LAST, ""))


@pytest.mark.parametrize("read", ["a: f32 = load t i", "accum[op=add] t 1.0:f32 i\n    a: f32 = load t i"])
def test_a_later_task_reads_it(read: str) -> None:
    later = f"  range_for i in 0:i32 : 8:i32\n    {read}\n    store x a i\n"
    unchanged(sweep, TEMPORARY.format(last=LAST, later=later).replace("return y", "return y, x"))


DIGITS = """program p(g: ref[f32,2x4x3x5], y: ref[f32,2x4x3x5])
  range_for i in 0:i32 : 60:i32
    c: i32 = rem i 5:i32
    q: i32 = div i 5:i32
    b: i32 = rem q {n}:i32
    a: i32 = div i 15:i32
    u: f32 = load g 0:i32 a b c
    store g 0.0:f32 0:i32 a b c
    v: f32 = load g 1:i32 a b c
    store g 0.0:f32 1:i32 a b c
    store y u 1:i32 a b c
    store y v 0:i32 a b c
  return y
"""


def test_elements_of_three_digits_are_of_one_iteration() -> None:
    text = DIGITS.format(n=3)
    check(sweep, text, "\n".join(line for line in text.splitlines() if "store g" not in line) + "\n")
    unchanged(sweep, DIGITS.format(n=2))


def test_another_iteration_may_read_it() -> None:
    unchanged(sweep, TEMPORARY.format(last="store t w 3:i32", later="").replace("0:i32 : 8:i32", "3:i32 : 4:i32"))


@pytest.mark.parametrize("per_task", [True, False])
def test_the_way_through_all_tasks(per_task: bool) -> None:
    """A later task stores all of the buffer, and a task after that reads it."""
    later = "  range_for i in 0:i32 : 8:i32\n    store t 2.0:f32 i\n  range_for i in 0:i32 : 8:i32\n"
    later += "    a: f32 = load t i\n    store x a i\n"
    text = TEMPORARY.format(last=LAST, later=later).replace("return y", "return y, x")
    if per_task:
        unchanged(DeadStores(), text)
    else:
        check(DeadStores(per_task=False), text, text.replace(LAST, ""))


@pytest.mark.parametrize(
    "task_between",
    [
        "range_for i in 1:i32 : 8:i32\n    store t 2.0:f32 i",
        "range_for i in 0:i32 : 4:i32\n    j: i32 = mul i 2:i32\n    store t 2.0:f32 j",
        "range_for i in 0:i32 : 8:i32\n    v: f32 = load x i\n    p: bool = gt v 0.0:f32\n    if p\n      store t v i",
        "range_for i in 0:i32 : 8:i32\n    v: f32 = load t i\n    store t 2.0:f32 i\n    accum[op=add] y v i",
        "serial\n    for k in 1:i32 : 8:i32 : 1:i32\n      store t 2.0:f32 k",
    ],
)
def test_the_later_task_does_not_store_all_of_it_first(task_between: str) -> None:
    later = f"  {task_between}\n  range_for i in 0:i32 : 8:i32\n    a: f32 = load t i\n    store x a i\n"
    text = TEMPORARY.format(last=LAST, later=later).replace("return y", "return y, x")
    unchanged(DeadStores(per_task=False), text)


COVERED = """
program p(y: ref[f32,8])
  buffer t: ref[f32,{shape}]
  serial
    store t 1.0:f32 {place}
    store y 1.0:f32 0:i32
  {covering}
  serial
    a: f32 = load t {place}
    store y a 1:i32
  return y
"""


@pytest.mark.parametrize(
    ("covering", "partial"),
    [
        ("serial\n    for k in 7:i32 : -1:i32 : -1:i32\n      store t 2.0:f32 k", (" -1:i32 : -1", " 0:i32 : -1")),
        ("range_for i in 1:i32 : 9:i32\n    j: i32 = sub i 1:i32\n    store t 2.0:f32 j", ("9:i32", "8:i32")),
        ("range_for i in 0:i32 : 8:i32\n    j: i32 = sub 7:i32 i\n    store t 2.0:f32 j", ("sub 7:i32", "and 7:i32")),
        (
            "range_for i in 0:i32 : 8:i32\n    store t 2.0:f32 i 0:i32\n    store t 3.0:f32 i 1:i32",
            ("store t 2.0:f32 i 0:i32", "accum[op=add] y 2.0:f32 i"),
        ),
        (
            "range_for i in 0:i32 : 8:i32\n    for k in 0:i32 : 2:i32 : 1:i32\n      store t 2.0:f32 i k",
            (": 2:i32 :", ": 1:i32 :"),
        ),
        (
            "range_for i in 0:i32 : 16:i32\n    j: i32 = div i 2:i32\n    k: i32 = rem i 2:i32\n"
            "    store t 2.0:f32 j k",
            (": 16:i32", ": 15:i32"),
        ),
    ],
)
def test_ways_to_store_all_of_a_buffer(covering: str, partial: tuple[str, str]) -> None:
    rows = covering.split("store t")[1].split("\n")[0].count(" ") == 3
    place, shape = ("0:i32 1:i32", "8x2") if rows else ("3:i32", "8")
    text = COVERED.format(place=place, shape=shape, covering=covering)
    check(DeadStores(per_task=False), text, text.replace(f"    store t 1.0:f32 {place}\n", ""))
    unchanged(DeadStores(per_task=False), text.replace(covering, covering.replace(*partial)))


LOOP = "for k in 0:i32 : 4:i32 : 1:i32\n"
ROWS = """program p(r: ref[f32,8x4], y: ref[f32,8x4])
  range_for i in 0:i32 : 8:i32
{}  return y
"""


@pytest.mark.parametrize(
    ("body", "dead"),
    [
        (LOOP + "  v: f32 = load r i k\n  store r 0.0:f32 i k\n  store y v i k\n", "  store r 0.0:f32 i k\n"),
        (LOOP + "  v: f32 = load r i k\n  accum[op=add] r v i k\n  store y v i k\n", "  accum[op=add] r v i k\n"),
        (
            LOOP + "  for t in 0:i32 : 2:i32 : 1:i32\n"
            "    v: f32 = load r i k\n    store r 0.0:f32 i k\n    store y v i k\n",
            "",  # the next trip of the inner loop loads it
        ),
        (LOOP + "  n: i32 = sub 3:i32 k\n  v: f32 = load r i n\n  store r 0.0:f32 i k\n  store y v i k\n", ""),
        (LOOP + f"  v: f32 = load r i k\n  store r 0.0:f32 i k\n  store y v i k\n{LOOP.replace('k', 't')}"
         "  w: f32 = load r i t\n  store y w i t\n", ""),
        ("n: i32 = sub 7:i32 i\n" + LOOP + "  v: f32 = load r n k\n  store r 0.0:f32 i k\n  store y v i k\n", ""),
    ],
)  # fmt: skip
def test_stores_in_loops_whose_trips_are_apart(body: str, dead: str) -> None:
    """What a trip stores into an element of its own is dead if the code after the loop does not load it."""
    text = ROWS.format("".join(f"    {line}\n" for line in body.splitlines()))
    if dead:
        check(sweep, text, text.replace(f"    {dead}", ""))
    else:
        unchanged(sweep, text)
