"""Loops that count: which `while` is a `for`, and which carries follow from the index of their loop."""

from itertools import product

import numpy as np
import pytest

from qdtrace.config import Options
from qdtrace.ir.printer import print_program
from qdtrace.ir.types import DType
from qdtrace.passes.pipelines import optimise
from tests.passes.harness import assert_same_results, check, parsed, unchanged
from tests.passes.test_structured_rules import Alone

WHILE, CARRY = Alone("while_counts"), Alone("carry_counts")
I32 = np.iinfo(np.int32)


def loop(start="2:i32", test="t: bool = lt a n", rise="b: i32 = add a 1:i32", dtype="i32", second="0:i32") -> str:
    return f"""\
program p(x: ref[f32,4], starts: ref[{dtype},4], ends: ref[{dtype},4], counts: ref[{dtype},4])
  range_for i in 0:i32 : 4:i32
    s: {dtype} = load starts i
    n: {dtype} = load ends i
    v: f32 = load x i
    k: {dtype}, w: f32, l: i32 = while carry a = {start}, c = v, e = {second}
      {test}
      test t
      d: f32 = mul c c
      {rise}
      f: i32 = add e 1:i32
      yield b, d, f
    store x w i
    store counts k i
  return x, counts
"""


def is_for(text: str) -> bool:
    return "while" not in print_program(WHILE(parsed(text)))


def test_a_while_that_counts_is_a_for() -> None:
    head, _ = loop().replace("    s: i32 = load starts i\n", "").split("    k: i32")
    check(
        WHILE,
        loop(),
        head
        + """\
    k: i32 = max 2:i32 n
    w: f32 = for a in 2:i32 : n : 1:i32 carry c = v
      d: f32 = mul c c
      yield d
    store x w i
    store counts k i
  return x, counts
""",
    )


@pytest.mark.parametrize(
    "test", ["t: bool = lt a n", "t: bool = gt n a", "t: bool = lt a 5:i32", "t: bool = lt a 2147483647:i32"]
)
@pytest.mark.parametrize("start", ["2:i32", "s"])
def test_what_is_a_for(test: str, start: str) -> None:
    assert is_for(loop(start, test))


SECOND = "t1: bool = lt a n\n      t2: bool = {other}\n      t: bool = and t1 t2"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(loop(rise="b: i32 = add a 2:i32"), id="another step"),
        pytest.param(loop(rise="b: i32 = add a -1:i32", test="t: bool = gt a n"), id="downwards"),
        pytest.param(loop(rise="g: bool = lt c 9.0:f32\n      h: i32 = convert[dtype=i32] g\n      b: i32 = add a h"),
                     id="a step that differs"),
        pytest.param(loop(test="t: bool = lt n a"), id="the other way round"),
        pytest.param(loop(test="t: bool = le a n"), id="an end that is reached"),
        pytest.param(loop(test="t: bool = ne a n"), id="not equal"),
        pytest.param(loop(test="t: bool = lt c 0.5:f32"), id="no counter"),
        pytest.param(loop(test="m: i32 = load ends i\n      t: bool = lt a m"), id="an end that is loaded in the test"),
        pytest.param(loop(test="t: bool = lt a e"), id="an end that changes"),
        pytest.param(loop(test=SECOND.format(other="lt c 9.0:f32")), id="another condition"),
        pytest.param(loop(test=SECOND.format(other="lt e n")), id="either of two counters"),
        pytest.param(loop(test="t1: bool = lt a n\n      t2: bool = lt c 9.0:f32\n      t: bool = or t1 t2"), id="or"),
        pytest.param(loop(test="t: bool = lt a n\n      check[message=\"no\"] t"), id="a check in the test"),
        pytest.param(
            loop("2:u32", rise="b: u32 = add a 1:u32", dtype="u32"), id="a dtype that no index has"
        ),
    ],
)  # fmt: skip
def test_what_stays_a_while(text: str) -> None:
    unchanged(WHILE, text)


ENDS = (I32.min, I32.min + 1, -1, 0, 3, I32.max - 1, I32.max)


def test_starts_and_ends_near_those_of_the_dtype() -> None:
    """Loops of at most five iterations, and those of none."""
    pairs = [(s, n) for s, n in product(ENDS, ENDS) if n - s <= 5]
    pairs += [pairs[0]] * (-len(pairs) % 4)
    program = parsed(loop("s"))
    made = optimise(program, Options())
    assert "while" not in print_program(made)
    for at in range(0, len(pairs), 4):
        starts, ends = (np.array(column, np.int32) for column in zip(*pairs[at : at + 4], strict=True))
        arguments = [np.linspace(0.5, 1.2, 4, dtype=np.float32), starts, ends, np.zeros(4, np.int32)]
        assert_same_results(program, made, arguments)


@pytest.mark.parametrize(("limit", "order"), [*product(range(5), ("t1 t2", "t2 t1"))])
def test_two_counters(limit: int, order: str) -> None:
    """The other counter ends the loop first, or not; where that depends on the start, the loop stays."""
    test = f"t1: bool = lt a 3:i32\n      t2: bool = lt e {limit}:i32\n      t: bool = and {order}"
    text = loop("u", test).replace("    v: f32", "    u: i32 = and n 3:i32\n    v: f32")
    program = parsed(text)
    made = optimise(program, Options(opt_level=1, advanced_optimization=False))
    assert ("while" in print_program(made)) == (limit in (1, 2))
    assert_same_results(program, made)
    assert_same_results(program, optimise(program, Options()))


# Carries beside the index.


def beside(start="3:i32", stop="n", dtype="i32", by="1", initial="s", index="i32", step="1") -> str:
    return f"""\
program p(x: ref[{dtype},4], starts: ref[{dtype},4], ends: ref[{index},4], counts: ref[{dtype},4])
  range_for i in 0:i32 : 4:i32
    s: {dtype} = load starts i
    n: {index} = load ends i
    c: {dtype}, l: {dtype} = for k in {start} : {stop} : {step}:{index} carry a = {initial}, e = 1:{dtype}
      d: {dtype} = mul e a
      b: {dtype} = add a {by}:{dtype}
      yield b, d
    store x l i
    store counts c i
  return x, counts
"""


def test_a_carry_that_counts_follows_from_the_index() -> None:
    head, _ = beside().split("    c: i32")
    check(
        CARRY,
        beside(),
        head
        + """\
    distance: i32 = sub s 3:i32
    last: i32 = max 3:i32 n
    c: i32 = add last distance
    l: i32 = for k in 3:i32 : n : 1:i32 carry e = 1:i32
      a: i32 = add k distance
      d: i32 = mul e a
      yield d
    store x l i
    store counts c i
  return x, counts
""",
    )


@pytest.mark.parametrize("text", [beside(by="2"), beside(by="-1"), beside(step="2"), beside(step="-1")])
def test_another_step(text: str) -> None:
    unchanged(CARRY, text)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("index", ["i32", "i64"])
@pytest.mark.parametrize("start", [0, -3, "end"])
def test_every_dtype_and_overflow(dtype: str, index: str, start: int | str) -> None:
    """The carry wraps where it did, and so does its distance from the index."""
    end, own = (np.iinfo(DType[name].numpy) for name in (index, dtype))
    first = end.max - 5 if start == "end" else int(start)
    program = parsed(beside(f"{first}:{index}", dtype=dtype, index=index))
    made = CARRY(program)
    assert print_program(made).count(" = add") == 2
    ends = np.array([first - 1 if first > end.min else first, first, first + 1, first + 5], end.dtype)
    starts = np.array([own.min, 0, own.max, own.max - 1], own.dtype)
    assert_same_results(program, made, [np.zeros(4, own.dtype), starts, ends, np.zeros(4, own.dtype)])
