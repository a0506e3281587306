"""Recurrences: which loads become carried values, and that the results stay."""

import numpy as np
import pytest

from qdtrace.config import Options
from qdtrace.interpret.reference import evaluate
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.recurrences import Recurrences
from tests.passes.harness import assert_same_bits, check, parsed, unchanged

recurrences = Recurrences()
TEXT = """\
program p(x: ref[f32,6x8], b: ref[f32,6x8], k0: ref[i32], n: ref[i32])
  range_for i in 0:i32 : 6:i32
    head
      lo: i32 = load k0
      hi: i32 = load n
{lines}  return b
"""


def text(*lines: str) -> str:
    return TEXT.format(lines="".join(f"    {line}\n" for line in lines))


def loop(bounds: str, at: str, place: str = "k", *more: str) -> str:
    """`b[i, place] = b[i, at] + x[i, k]`."""
    lines = [
        f"for k in {bounds}",
        f"  m: i32 = {at}",
        "  a: f32 = load b i m",
        "  v: f32 = load x i k",
        "  s: f32 = add a v",
        *[f"  {line}" for line in more],
        f"  store b s i {place}",
    ]
    return text(*lines)


UP, DOWN = "1:i32 : 8:i32 : 1:i32", "6:i32 : -1:i32 : -1:i32"


@pytest.mark.parametrize(
    ("bounds", "at", "first"),
    [
        (UP, "add k -1:i32", "add 1:i32 -1:i32"),
        (DOWN, "add k 1:i32", "add 6:i32 1:i32"),
        (UP, "sub k 1:i32", "sub 1:i32 1:i32"),
        ("2:i32 : 8:i32 : 2:i32", "sub k 2:i32", "sub 2:i32 2:i32"),
    ],
)
def test_the_value_of_the_iteration_before(bounds: str, at: str, first: str) -> None:
    check(
        recurrences,
        loop(bounds, at),
        text(
            f"g: i32 = {first}",
            "f: f32 = load b i g",
            f"o: f32 = for k in {bounds} carry c = f",
            f"  m: i32 = {at}",
            "  v: f32 = load x i k",
            "  s: f32 = add c v",
            "  store b s i k",
            "  yield s",
        ),
    )


def test_where_the_loop_may_not_run_the_first_load_is_guarded() -> None:
    check(
        recurrences,
        loop("1:i32 : hi : 1:i32", "add k -1:i32"),
        text(
            "r: bool = lt 1:i32 hi",
            "f: f32 = if r",
            "  g: i32 = add 1:i32 -1:i32",
            "  e: f32 = load b i g",
            "  yield e",
            "else",
            "  yield 0.0:f32",
            "o: f32 = for k in 1:i32 : hi : 1:i32 carry c = f",
            "  m: i32 = add k -1:i32",
            "  v: f32 = load x i k",
            "  s: f32 = add c v",
            "  store b s i k",
            "  yield s",
        ),
    )


def test_beside_other_carries_and_when_the_load_is_what_is_stored() -> None:
    lines = [
        "t: f32 = for k in 1:i32 : 8:i32 : 1:i32 carry d = 0.5:f32",
        "  m: i32 = add k -1:i32",
        "  {}",
        "  e: f32 = add d {}",
        "  store b {} i k",
        "  yield e",
        "store b t i 0:i32",
    ]
    after = (
        "\n".join(lines).replace("t: f32 = for", "t: f32, u: f32 = for").replace("d = 0.5:f32", "d = 0.5:f32, c = f")
    )
    after = after.replace("yield e", "yield e, c").replace("  {}\n", "", 1).format("c", "c")
    check(
        recurrences,
        text(*"\n".join(lines).format("a: f32 = load b i m", "a", "a").splitlines()),
        text("g: i32 = add 1:i32 -1:i32", "f: f32 = load b i g", *after.splitlines()),
    )


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(loop(UP, "add k -1:i32", "k", "store b v i k"), id="two stores"),
        pytest.param(loop(UP, "add k -1:i32", "k", "accum[op=add] b v i 0:i32"), id="an accumulation"),
        pytest.param(
            loop(UP, "add k -1:i32", "k", "q: bool = lt v 0.0:f32", "if q", "  store b v i 7:i32"),
            id="a store in a branch",
        ),
        pytest.param(loop(UP, "add k 0:i32"), id="the same place"),
        pytest.param(loop("2:i32 : 8:i32 : 1:i32", "add k -2:i32"), id="two iterations before"),
        pytest.param(loop("0:i32 : 7:i32 : 1:i32", "add k 1:i32"), id="the iteration after"),
        pytest.param(loop(UP, "sub 8:i32 k"), id="towards each other"),
        pytest.param(loop("1:i32 : 8:i32 : hi", "add k -1:i32"), id="a step that is no constant"),
        pytest.param(loop("8:i32 : 8:i32 : 1:i32", "add k -1:i32"), id="a loop that does not run"),
        pytest.param(
            text(
                "for k in 1:i32 : 8:i32 : 1:i32",
                "  c: cell[f32,8] = cell[dtype=f32, shape=(8)]",
                "  store c 1.0:f32 k",
                "  m: i32 = add k -1:i32",
                "  store c 2.0:f32 m",
                "  a: f32 = load c m",
                "  store b a i k",
            ),
            id="memory that is made in the loop",
        ),
        pytest.param(
            text(
                "for k in 1:i32 : 8:i32 : 1:i32",
                "  j: i32 = load n",
                "  m: i32 = add k -1:i32",
                "  a: f32 = load b j m",
                "  v: f32 = load x i k",
                "  store b v j k",
            ),
            id="an index that is loaded in the loop",
        ),
        pytest.param(
            text(
                "for k in 2:i32 : 8:i32 : 1:i32",
                "  q: i32 = div k 2:i32",
                "  m: i32 = add q -1:i32",
                "  a: f32 = load b i m",
                "  store b a i q",
            ),
            id="a quotient of the index",
        ),
        pytest.param(
            text(
                "z: i32 = for k in 1:i32 : 8:i32 : 1:i32 carry c = 1:i32",
                "  m: i32 = add c -1:i32",
                "  a: f32 = load b i m",
                "  store b a i c",
                "  d: i32 = add c 1:i32",
                "  yield d",
            ),
            id="a carried index",
        ),
        pytest.param(
            text(
                "z: i32 = while carry c = 1:i32",
                "  q: bool = lt c 8:i32",
                "  test q",
                "  m: i32 = add c -1:i32",
                "  a: f32 = load b i m",
                "  store b a i c",
                "  d: i32 = add c 1:i32",
                "  yield d",
            ),
            id="a while",
        ),
    ],
)
def test_what_stays(program: str) -> None:
    unchanged(recurrences, program)


CHECKED = """\
for k in 1:i32 : hi : 1:i32
  m: i32 = add k -1:i32
  j: i32 = bound[axis=0, buffer=b, shape=(6, 8), size=8] m
  a: f32 = load b i j
  v: f32 = load x i 0:i32
  s: f32 = add a v
  p: i32 = bound[axis=0, buffer=b, shape=(6, 8), size=8] k
  store b s i p
"""


def test_checks_of_indices_stay() -> None:
    after = """\
r: bool = lt 1:i32 hi
f: f32 = if r
  g: i32 = add 1:i32 -1:i32
  h: i32 = bound[axis=0, buffer=b, shape=(6, 8), size=8] g
  e: f32 = load b i h
  yield e
else
  yield 0.0:f32
o: f32 = for k in 1:i32 : hi : 1:i32 carry c = f
  m: i32 = add k -1:i32
  j: i32 = bound[axis=0, buffer=b, shape=(6, 8), size=8] m
  v: f32 = load x i 0:i32
  s: f32 = add c v
  p: i32 = bound[axis=0, buffer=b, shape=(6, 8), size=8] k
  store b s i p
  yield s
"""
    check(recurrences, text(*CHECKED.splitlines()), text(*after.splitlines()))


def test_a_check_stays_behind_conditions_of_the_user() -> None:
    """Which of the two fails first says what is wrong."""
    condition = ["  q: bool = lt k 5:i32", '  check[message="few"] q']
    first, *rest = CHECKED.splitlines()
    unchanged(recurrences, text(first, *condition, *rest))


@pytest.mark.parametrize(("low", "high"), [(1, 8), (3, 8), (5, 5), (7, 2)])
def test_any_bounds(low: int, high: int) -> None:
    program = parsed(loop("lo : hi : 1:i32", "add k -1:i32"))
    rng = np.random.default_rng(low)
    args = [*rng.normal(size=(2, 6, 8)).astype(np.float32), np.array(low, np.int32), np.array(high, np.int32)]
    for after in (recurrences(program), optimise(program, Options(fast_math=False))):
        assert after is not program
        for got, want in zip(evaluate(after, args), evaluate(program, args), strict=True):
            assert_same_bits(got, want)


def test_columns_that_need_no_memory_twice() -> None:
    """What a column solver stores is loaded by nobody, and its zeros are not written."""
    program = parsed("""
program p(x: ref[f32,4x6x70])
  buffer y: ref[f32,4x6x70] = 0.0:f32
  range_for i in 0:i32 : 24:i32
    q: i32 = div i 6:i32
    r: i32 = rem i 6:i32
    a: f32 = load x q r 69:i32
    store y a q r 69:i32
    for k in 68:i32 : -1:i32 : -1:i32
      m: i32 = add k 1:i32
      b: f32 = load y q r m
      c: f32 = load x q r k
      d: f32 = add b c
      store y d q r k
  return y
""")
    after = optimise(program, Options(fast_math=False))
    assert not after.initial
    loads = [e.invars[0] for e in after.tasks[0].body.eqns[-1].blocks[0].eqns if e.primitive.name == "load"]
    assert loads == [program.params[0]]
