"""Upper bounds of trip counts, by the ranges of loop bounds: cases with one, and cases that must not have one."""

import pytest

from qdtrace.analysis.index.most_trips import MostTrips
from qdtrace.ir.parser import parse_program


def most(*lines: str) -> list[int | None]:
    """The most iterations of loops in a task over 100 elements, in order; `n` and `u` are data."""
    text = "program p(x: ref[i32,100], w: ref[u16,100], t: ref[i8,100])\n  range_for i in 0:i32 : 100:i32\n"
    head = ["n: i32 = load x i", "u: u16 = load w i", "b: i8 = load t i"]
    (task,) = parse_program(text + "".join(f"    {line}\n" for line in (*head, *lines)) + "  return x\n").tasks
    trips = MostTrips(task)
    return [trips.of(e) for e in task.all_eqns if e.primitive.name in ("for", "while")]


def loop(bounds: str, depth: int = 0, index: str = "k") -> list[str]:
    """A loop with a store."""
    return ["  " * depth + f"for {index} in {bounds}", "  " * depth + f"  store x {index} i"]


@pytest.mark.parametrize(
    ("before", "bounds", "want"),
    [
        ([], "0:i32 : 7:i32 : 2:i32", 4),
        ([], "0:i32 : 5000000:i32 : 1:i32", 5_000_000),
        (["m: i32 = min n 64:i32"], "0:i32 : m : 1:i32", 64),
        (["m: i32 = min n 64:i32"], "m : 0:i32 : -1:i32", 64),
        (["m: i32 = min n 64:i32", "s: i32 = max m 0:i32"], "s : 0:i32 : -1:i32", 64),
        (["m: i32 = min n 64:i32"], "0:i32 : m : 5:i32", 13),
        ([], "0:i32 : i : 1:i32", 99),
        ([], "i : 100:i32 : 1:i32", 100),
        (["m: i32 = rem n 8:i32"], "0:i32 : m : 1:i32", 7),
        ([], "0:i32 : n : 1:i32", None),
        (["m: i32 = div n 2:i32"], "0:i32 : m : 1:i32", None),
        (["m: i32 = sub n 1:i32"], "0:i32 : m : 1:i32", None),
        # the bound is that of the dtype alone
        (["m: i32 = convert[dtype=i32] u"], "0:i32 : m : 1:i32", None),
        (["m: i32 = convert[dtype=i32] u", "q: i32 = mul m 2:i32"], "0:i32 : q : 1:i32", None),
        (["m: i32 = convert[dtype=i32] b"], "0:i32 : m : 1:i32", None),
        (["m: i32 = convert[dtype=i32] b"], "m : 5:i32 : 1:i32", None),
        (["m: i32 = convert[dtype=i32] u", "q: i32 = min m 64:i32"], "0:i32 : q : 1:i32", 64),
        (["m: i32 = convert[dtype=i32] u"], "m : 5:i32 : 1:i32", 5),
        # a derivative does without the check
        (["m: i32 = bound[size=50] n"], "0:i32 : m : 1:i32", None),
        (["p: bool = lt n 50:i32", "check[message=few] p"], "0:i32 : n : 1:i32", None),
        (["m: i32 = min n 3:i32"], "0:i32 : 10:i32 : m", None),
    ],
)
def test_bounds(before: list[str], bounds: str, want: int | None) -> None:
    assert most(*before, *loop(bounds)) == [want]


def test_branches() -> None:
    found = most(
        "p: bool = lt n 50:i32",
        "if p",
        *(f"  {line}" for line in loop("0:i32 : n : 1:i32")),
        "else",
        *(f"  {line}" for line in loop("0:i32 : n : 1:i32", index="j")),
    )
    assert found == [50 - 1, None]


def test_triangles() -> None:
    inner = [*loop("0:i32 : a : 1:i32", 1), *loop("a : 40:i32 : 1:i32", 1, "j")]
    assert most("for a in 0:i32 : 40:i32 : 1:i32", *inner) == [40, 39, 40]


def test_loops_in_one_that_never_runs() -> None:
    assert most("for a in 5:i32 : 2:i32 : 1:i32", *loop("0:i32 : a : 1:i32", 1)) == [0, 0]


@pytest.mark.parametrize(("bound", "want"), [("m", 64), ("n", None), ("7:i32", 7), ("5000000:i32", 5_000_000)])
def test_counters_of_a_while(bound: str, want: int | None) -> None:
    """What else may end the loop makes no difference."""
    found = most(
        "m: i32 = min n 64:i32",
        "z: i32, d: bool = while carry k = 0:i32, more = true",
        f"  p: bool = lt k {bound}",
        "  q: bool = and p more",
        "  test q",
        "  h: i32 = add k 1:i32",
        "  l: i32 = load x h",
        "  r: bool = lt l 3:i32",
        "  yield h, r",
        "store x z i",
    )
    assert found == [want]
