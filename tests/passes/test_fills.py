"""Fills of fresh buffers become initial values; what is not surely a whole fill of a fresh buffer stays."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdtrace.config import Options
from qdtrace.ir.printer import print_program
from qdtrace.passes.fills import Fills, fill_of
from qdtrace.passes.pipelines import optimise
from tests.passes.harness import assert_same_results, check, parsed, unchanged

clear = Fills()

USE = """\
  range_for j in 0:i32 : 4:i32
    a: f32 = load x j
    accum[op=add] b a j
"""


def program(buffer: str, fill: str, rest: str = "", results: str = "b") -> str:
    """A program of one fill, with the tasks after it."""
    return f"program p(x: ref[f32,4])\n  buffer b: {buffer}\n{fill}{rest}  return {results}\n"


def test_a_flat_fill() -> None:
    before = program("ref[f32,4]", "  range_for i in 0:i32 : 4:i32\n    store b 1.5:f32 i\n", USE)
    check(clear, before, program("ref[f32,4] = 1.5:f32", "", USE))


def test_a_fill_that_is_all_of_the_program() -> None:
    before = program("ref[f32,4]", "  range_for i in 0:i32 : 4:i32\n    store b -0.0:f32 i\n")
    check(clear, before, program("ref[f32,4] = -0.0:f32", ""))


FILLS = {
    "one element": ("ref[f32]", "  serial\n    store b 1.0:f32\n"),
    "one iteration": ("ref[f32]", "  range_for i in 0:i32 : 1:i32\n    store b 1.0:f32\n"),
    "the same again and again": ("ref[f32]", "  range_for i in 3:i32 : 9:i32\n    store b 1.0:f32\n"),
    "two axes": (
        "ref[f32,4x6]",
        "  range_for i in 0:i32 : 24:i32\n    r: i32 = rem i 6:i32\n    q: i32 = div i 6:i32\n"
        "    store b 1.0:f32 q r\n",
    ),
    "three axes": (
        "ref[f32,4x5x6]",
        "  range_for i in 0:i32 : 120:i32\n    r: i32 = rem i 6:i32\n    q: i32 = div i 6:i32\n"
        "    s: i32 = rem q 5:i32\n    t: i32 = div q 5:i32\n    store b 1.0:f32 t s r\n",
    ),
    "three axes with one quotient": (
        "ref[f32,4x5x6]",
        "  range_for i in 0:i32 : 120:i32\n    r: i32 = rem i 6:i32\n    q: i32 = div i 6:i32\n"
        "    s: i32 = rem q 5:i32\n    t: i32 = div i 30:i32\n    store b 1.0:f32 t s r\n",
    ),
    "four axes in i64": (
        "ref[f32,2x3x2x2]",
        "  range_for i in 0:i64 : 24:i64\n    r: i64 = rem i 2:i64\n    q: i64 = div i 2:i64\n"
        "    s: i64 = rem q 2:i64\n    t: i64 = div q 2:i64\n    u: i64 = rem t 3:i64\n    v: i64 = div t 3:i64\n"
        "    store b 1.0:f32 v u s r\n",
    ),
    "a loop inside": (
        "ref[f32,4x6]",
        "  range_for i in 0:i32 : 4:i32\n    for k in 0:i32 : 6:i32 : 1:i32\n      store b 1.0:f32 i k\n",
    ),
    "loops of a serial task": (
        "ref[f32,2x3]",
        "  serial\n    for k in 0:i32 : 2:i32 : 1:i32\n      for m in 2:i32 : -1:i32 : -1:i32\n"
        "        store b 1.0:f32 k m\n",
    ),
    "columns": (
        "ref[f32,4x6]",
        "  range_for i in 0:i32 : 6:i32\n    for k in 0:i32 : 4:i32 : 1:i32\n      store b 1.0:f32 k i\n",
    ),
    "backwards": ("ref[f32,4]", "  range_for i in 0:i32 : 4:i32\n    k: i32 = sub 3:i32 i\n    store b 1.0:f32 k\n"),
    "from another start": (
        "ref[f32,4]",
        "  range_for i in 1:i32 : 5:i32\n    k: i32 = sub i 1:i32\n    store b 1.0:f32 k\n",
    ),
    "an offset from the head": (
        "ref[f32,4]",
        "  range_for i in 1:i32 : 5:i32\n    head\n      one: i32 = sub 2:i32 1:i32\n"
        "    k: i32 = sub i one\n    store b 1.0:f32 k\n",
    ),
    "an unrolled row": (
        "ref[f32,4x3]",
        "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 i 0:i32\n    store b 1.0:f32 i 2:i32\n"
        "    store b 1.0:f32 i 1:i32\n",
    ),
    "unrolled columns": (
        "ref[f32,2x4]",
        "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 0:i32 i\n    store b 1.0:f32 1:i32 i\n",
    ),
    "all unrolled": ("ref[f32,2]", "  serial\n    store b 1.0:f32 1:i32\n    store b 1.0:f32 0:i32\n"),
    "an element twice": (
        "ref[f32,4]",
        "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 0:i32\n    store b 1.0:f32 i\n",
    ),
    "rows that overlap": (
        "ref[f32,9]",
        "  range_for i in 0:i32 : 4:i32\n    for k in 0:i32 : 3:i32 : 1:i32\n      d: i32 = mul i 2:i32\n"
        "      e: i32 = add d k\n      store b 1.0:f32 e\n",
    ),
}


@pytest.mark.parametrize("name", FILLS)
def test_ways_to_cover(name: str) -> None:
    buffer, fill = FILLS[name]
    check(clear, program(buffer, fill), program(f"{buffer} = 1.0:f32", ""))


REFUSED = {
    "a quotient of an index": (
        "ref[f32,6]",
        "  range_for i in 0:i32 : 3:i32\n    for k in 0:i32 : 4:i32 : 2:i32\n      k2: i32 = div k 2:i32\n"
        "      d: i32 = mul i 2:i32\n      e: i32 = add d k2\n      store b 1.0:f32 e\n",
    ),
    "not from the start": ("ref[f32,4]", "  range_for i in 1:i32 : 4:i32\n    store b 1.0:f32 i\n"),
    "not to the end": ("ref[f32,4]", "  range_for i in 0:i32 : 3:i32\n    store b 1.0:f32 i\n"),
    "one row": ("ref[f32,4x3]", "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 i 0:i32\n"),
    "the diagonal": ("ref[f32,4x4]", "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 i i\n"),
    "every second": ("ref[f32,8]", "  range_for i in 0:i32 : 4:i32\n    k: i32 = mul i 2:i32\n    store b 1.0:f32 k\n"),
    "all but one column": (
        "ref[f32,4x3]",
        "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 i 0:i32\n    store b 1.0:f32 i 1:i32\n",
    ),
    "with a gap": (
        "ref[f32,4x4]",
        "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 i 0:i32\n    store b 1.0:f32 i 1:i32\n"
        "    store b 1.0:f32 i 3:i32\n",
    ),
    "an axis too short": (
        "ref[f32,4x6]",
        "  range_for i in 0:i32 : 4:i32\n    for k in 0:i32 : 5:i32 : 1:i32\n      store b 1.0:f32 i k\n",
    ),
    "every second of a row": (
        "ref[f32,4x6]",
        "  range_for i in 0:i32 : 4:i32\n    for k in 0:i32 : 6:i32 : 2:i32\n      store b 1.0:f32 i k\n",
    ),
    "a loop that does not run": (
        "ref[f32,4]",
        "  range_for i in 0:i32 : 4:i32\n    for k in 0:i32 : 0:i32 : 1:i32\n      store b 1.0:f32 i\n",
    ),
    "two values": ("ref[f32,4]", "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 i\n    store b 2.0:f32 i\n"),
    "zeros of both signs": ("ref[f32,2]", "  serial\n    store b 0.0:f32 0:i32\n    store b -0.0:f32 1:i32\n"),
    "a value of the iteration": ("ref[i32,4]", "  range_for i in 0:i32 : 4:i32\n    store b i i\n"),
    "a value that is loaded": (
        "ref[f32,4]",
        "  range_for i in 0:i32 : 4:i32\n    head\n      a: f32 = load x 0:i32\n    store b a i\n",
    ),
    "a condition": (
        "ref[f32,4]",
        "  range_for i in 0:i32 : 4:i32\n    c: bool = lt i 4:i32\n    if c\n      store b 1.0:f32 i\n",
    ),
    "a loop with a condition": (
        "ref[f32,4]",
        "  range_for i in 0:i32 : 4:i32\n    z: i32 = while carry k = 0:i32\n      c: bool = lt k 1:i32\n      test c\n"
        "      store b 1.0:f32 i\n      m: i32 = add k 1:i32\n      yield m\n",
    ),
    "a carried value": (
        "ref[f32,4x4]",
        "  range_for i in 0:i32 : 4:i32\n    z: i32 = for k in 0:i32 : 4:i32 : 1:i32 carry d = 0:i32\n"
        "      store b 1.0:f32 i d\n      m: i32 = add d 1:i32\n      yield m\n",
    ),
    "an accumulation": (
        "ref[f32,4]",
        "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 i\n    accum[op=add] b 1.0:f32 i\n",
    ),
    "a store to an argument beside it": (
        "ref[f32,4]",
        "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 i\n    store x 1.0:f32 i\n",
    ),
    "a load beside it": (
        "ref[f32,4]",
        "  range_for i in 0:i32 : 4:i32\n    a: f32 = load x i\n    store b 1.0:f32 i\n",
    ),
    "an index that is loaded": (
        "ref[f32,4]",
        "  range_for i in 0:i32 : 4:i32\n    a: f32 = load x i\n    k: i32 = convert[dtype=i32] a\n"
        "    m: i32 = rem k 4:i32\n    store b 1.0:f32 m\n",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays(name: str) -> None:
    unchanged(clear, program(*REFUSED[name]))


def test_bounds_known_at_run_time_only() -> None:
    text = """
program p(n: ref[i32])
  buffer b: ref[f32,4]
  range_for i in {start} : {stop}
    head
      m: i32 = load n
    {body}
  return b
"""
    store = "store b 1.0:f32 i"
    for start, stop in (("0:i32", "m"), ("m", "4:i32")):
        unchanged(clear, text.format(start=start, stop=stop, body=store))
    loop = "for k in 0:i32 : m : 1:i32\n      " + store
    unchanged(clear, text.format(start="0:i32", stop="4:i32", body=loop))
    stepped = loop.replace("m : 1:i32", "4:i32 : m")
    unchanged(clear, text.format(start="0:i32", stop="4:i32", body=stepped))


def test_arguments_are_not_cleared() -> None:
    unchanged(clear, "program p(x: ref[f32,4])\n  range_for i in 0:i32 : 4:i32\n    store x 1.0:f32 i\n  return x\n")


FILL = "  range_for i in 0:i32 : 4:i32\n    store b 1.0:f32 i\n"


@pytest.mark.parametrize("use", ["    store b a 0:i32", "    accum[op=add] b a 0:i32", "    c: f32 = load b 0:i32"])
def test_a_buffer_that_was_used_before(use: str) -> None:
    before = f"  serial\n    a: f32 = load x 0:i32\n{use}\n"
    unchanged(clear, program("ref[f32,4] = 2.0:f32", before + FILL))


def test_a_buffer_that_a_head_uses_before() -> None:
    used = """\
  range_for k in 0:i32 : m
    head
      f: f32 = load b 0:i32
      m: i32 = convert[dtype=i32] f
    store x 1.0:f32 k
"""
    unchanged(clear, program("ref[f32,4] = 2.0:f32", used + FILL, results="b, x"))
    own = FILL.replace("    store", "    head\n      f: f32 = load b 0:i32\n    store")
    unchanged(clear, program("ref[f32,4] = 2.0:f32", own))


def test_a_fill_wins_over_the_value_before_it() -> None:
    check(clear, program("ref[f32,4] = 2.0:f32", FILL, USE), program("ref[f32,4] = 1.0:f32", "", USE))
    twice = FILL + FILL.replace("1.0", "3.0")
    check(clear, program("ref[f32,4]", twice, USE), program("ref[f32,4] = 3.0:f32", "", USE))


def test_a_fill_after_a_use_stays_and_the_first_goes() -> None:
    before = program("ref[f32,4]", FILL, USE + FILL.replace("1.0", "3.0") + USE)
    after = program("ref[f32,4] = 1.0:f32", "", USE + FILL.replace("1.0", "3.0") + USE)
    check(clear, before, after)


def test_several_buffers() -> None:
    text = """
program p(x: ref[f32,4])
  buffer a: ref[f32,4]{0}
  buffer b: ref[i32,4x2]{1}
  buffer c: ref[bool,2]{2}
{3}  range_for i in 0:i32 : 4:i32
    v: f32 = load x i
    accum[op=add] a v i
{4}  return a, b, c
"""
    fused = """\
  range_for i in 0:i32 : 8:i32
    q: i32 = div i 2:i32
    r: i32 = rem i 2:i32
    store b 7:i32 q r
    h: i32 = div i 4:i32
    store c true r
    s: i32 = rem i 4:i32
    store a 0.0:f32 s
"""
    after = text.format(" = 0.0:f32", " = 7:i32", " = true", "", "")
    check(clear, text.format("", "", "", fused, ""), after)
    rows = fused.replace(" s\n", " q\n").replace(
        "store c true r", "store c true 1:i32\n    store c true 0:i32"
    )
    check(clear, text.format("", "", "", rows, ""), after)
    other = fused.replace("rem i 4:i32", "rem i 3:i32")  # the digits of two radices are not independent
    unchanged(clear, text.format("", "", "", other, ""))
    nested = """\
  range_for i in 0:i32 : 4:i32
    store a 0.0:f32 i
    for k in 0:i32 : 2:i32 : 1:i32
      store b 7:i32 i k
      store c true k
"""
    check(clear, text.format("", "", "", nested, ""), after)
    later = nested.replace("    store a 0.0:f32 i\n", "")
    first = "  range_for i in 0:i32 : 4:i32\n    store a 0.0:f32 i\n"
    check(clear, text.format("", "", "", first, later), after)
    # one of them was used before: the task stays whole
    unchanged(clear, text.format(" = 1.0:f32", "", "", "", nested))


@st.composite
def nests(draw: st.DrawFn) -> tuple[str, bool | None, bool]:
    """A program that stores in loops, whether it reaches all of its buffer (None: and more), and must be seen to."""
    loops: list[tuple[int, int, int]] = []
    for _ in range(draw(st.integers(1, 3))):
        step = draw(st.sampled_from([1, 1, 1, 2, -1, -2]))
        start = draw(st.integers(-2, 2))
        loops.append((start, step, draw(st.integers(1, 4))))
    order = draw(st.permutations(range(len(loops))))
    strides, size = [0] * len(loops), 1
    for k in order:
        strides[k], size = size, size * loops[k][2]
    base = -sum(s * (a if c > 0 else a + c * (n - 1)) for s, (a, c, n) in zip(strides, loops, strict=True))
    gaps = any(abs(step) == 2 and count > 1 for _, step, count in loops)
    exact = draw(st.booleans())
    if not exact:
        changed = draw(st.integers(0, len(loops) - 1))
        strides[changed] += draw(st.integers(-1, 1))
        base += draw(st.integers(-1, 1))
        size += draw(st.integers(-1, 1))
    size = max(size, 1)
    ranges = [range(a, a + c * n, c) for a, c, n in loops]
    reached = {base + sum(s * x for s, x in zip(strides, at, strict=True)) for at in itertools.product(*ranges)}
    width = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    lines = [f"program p()\n  buffer b: ref[i32,{size // width}x{width}]\n  serial"]
    lines += [
        "  " * (k + 2) + f"for x{k} in {a}:i32 : {a + c * n}:i32 : {c}:i32" for k, (a, c, n) in enumerate(loops)
    ]
    indent = "  " * (len(loops) + 2)
    lines.append(f"{indent}a0: i32 = add {base}:i32 0:i32")
    for k, stride in enumerate(strides):
        lines.append(f"{indent}m{k}: i32 = mul x{k} {stride}:i32")
        lines.append(f"{indent}a{k + 1}: i32 = add a{k} m{k}")
    last = f"a{len(loops)}"
    lines += [f"{indent}q: i32 = div {last} {width}:i32", f"{indent}r: i32 = rem {last} {width}:i32"]
    lines += [f"{indent}store b 7:i32 q r", "  return b\n"]
    inside = all(0 <= a < size for a in reached)
    return "\n".join(lines), len(reached) == size if inside else None, exact and not gaps


@pytest.mark.full
@settings(max_examples=300, deadline=None, derandomize=True)
@given(nests())
def test_what_counts_as_a_fill_fills(nest: tuple[str, bool | None, bool]) -> None:
    text, whole, must = nest
    (task,) = parsed(text).tasks
    found = fill_of(task) is not None
    assert whole or whole is None or not found  # with an index out of range the program has no meaning
    assert found or not must


def test_what_cannot_be_counted_is_refused() -> None:
    large = "ref[i8,65537x65536]"
    text = program(
        large,
        "  range_for i in 0:i64 : 4295032832:i64\n    q: i64 = div i 65536:i64\n    r: i64 = rem i 65536:i64\n"
        "    store b 1:i8 q r\n",
    )
    (task,) = parsed(text).tasks
    assert fill_of(task) is None
    (task,) = parsed(text.replace("65537", "65536").replace("4295032832", "4294967296")).tasks
    assert fill_of(task) is not None


def test_the_pipeline_clears_last() -> None:
    text = program(*FILLS["three axes"], USE.replace("b a j", "b a j 0:i32 0:i32"))
    done = optimise(parsed(text), Options())
    assert "buffer b: ref[f32,4x5x6] = 1.0:f32" in print_program(done)
    assert len(done.tasks) == 1
    assert_same_results(parsed(text), done)


# A value that nobody sees is not written.

ROW = "    a: f32 = load x j\n    for k in 0:i32 : {0}:i32 : 1:i32\n      store b a j k\n"
OVERWRITES = {
    "an element an iteration": ("ref[f32,4]", "    a: f32 = load x j\n    store b a j\n"),
    "a row": ("ref[f32,4x3]", ROW.format(3)),
    "a row and an element beside it": ("ref[f32,4x3]", "    store b 1.0:f32 j 2:i32\n" + ROW.format(2)),
    "the rows of a square": (
        "ref[f32,4x3x3]",
        "    for k in 2:i32 : -1:i32 : -1:i32\n      a: f32 = load x j\n      store b a j k 0:i32\n"
        "      for l in 1:i32 : 3:i32 : 1:i32\n        store b a j k l\n",
    ),
}
TASK = "  range_for j in 0:i32 : 4:i32\n"


@pytest.mark.parametrize("name", OVERWRITES)
def test_no_clear_of_what_is_overwritten(name: str) -> None:
    buffer, body = OVERWRITES[name]
    check(clear, program(f"{buffer} = 5.0:f32", "", TASK + body), program(buffer, "", TASK + body))


@pytest.mark.parametrize(
    ("buffer", "rest"),
    [
        pytest.param("ref[f32,4x3]", TASK + ROW.format(2), id="an element is left"),
        pytest.param("ref[f32,4x3]", TASK + "    v: f32 = load b j 0:i32\n" + ROW.format(3), id="a load"),
        pytest.param("ref[f32,4x3]", TASK + "    accum[op=add] b 1.0:f32 j 0:i32\n" + ROW.format(3), id="a sum"),
        pytest.param("ref[f32,4]", "  range_for j in 0:i32 : 3:i32\n    store b 1.0:f32 j\n", id="one is left"),
        pytest.param(
            "ref[f32,4]", TASK + "    q: bool = eq j 1:i32\n    if q\n      store b 1.0:f32 j\n", id="in a branch"
        ),
        pytest.param(
            "ref[f32,4]", "  range_for j in 0:i32 : 2:i32\n    store b 1.0:f32 j\n" + TASK + "    store b 1.0:f32 j\n",
            id="a part before the whole",
        ),
        pytest.param("ref[f32,4]", "", id="nobody uses it"),
    ],
)  # fmt: skip
def test_a_clear_that_somebody_may_see_stays(buffer: str, rest: str) -> None:
    unchanged(clear, program(f"{buffer} = 5.0:f32", "", rest))
