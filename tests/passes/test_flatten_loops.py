"""Nests over all elements that become one loop, what keeps them nests, and random nests."""

import random

import pytest

from qdtrace.analysis.machine import CPU, GPU
from qdtrace.ir.primitives import FOR
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.flatten_loops import FlattenLoops
from tests.passes.harness import assert_same_results, changes, check, drawn, parsed, unchanged

flatten = FlattenLoops()
HEAD = "program p(x: ref[f32,4x6x8], y: ref[f32,4x6x8])\n  range_for i in 0:i32 : 4:i32\n"


def up(n: int) -> str:
    return f"0:i32 : {n}:i32 : 1:i32"


def down(n: int) -> str:
    return f"{n - 1}:i32 : -1:i32 : -1:i32"


def text(*lines: str) -> str:
    """The program with these lines in its task."""
    return HEAD + "".join(f"    {line}\n" for line in lines) + "  return y\n"


BOARD = "a: cell[f32,6x8] = cell[dtype=f32, shape=(6,8)]"
FLAT = "a: cell[f32,48] = cell[dtype=f32, shape=(48)]"
DIGITS = ("  m: i32 = rem e 8:i32", "  k: i32 = div e 8:i32")


@pytest.mark.parametrize("way", [up, down], ids=["up", "down"])
def test_private_arrays_have_one_axis_and_one_index(way: object) -> None:
    assert callable(way)
    check(
        flatten,
        text(
            BOARD,
            f"for k in {way(6)}",
            f"  for m in {way(8)}",
            "    v: f32 = load x i k m",
            "    store a v k m",
            "w: f32 = load a 2:i32 i",
            "t: f32 = load a 2:i32 3:i32",
            "store y t i 0:i32 1:i32",
            "store y w i 0:i32 0:i32",
        ),
        text(
            FLAT,
            f"for e in {way(48)}",
            *DIGITS,
            "  v: f32 = load x i k m",
            "  store a v e",
            "g: i32 = add i 16:i32",
            "w: f32 = load a g",
            "t: f32 = load a 19:i32",
            "store y t i 0:i32 1:i32",
            "store y w i 0:i32 0:i32",
        ),
    )


def test_sums_are_carried_by_one_loop_in_the_same_order() -> None:
    check(
        flatten,
        text(
            f"s: f32 = for k in {up(6)} carry c = 0.5:f32",
            f"  t: f32 = for m in {up(8)} carry d = c",
            "    v: f32 = load x i k m",
            "    w: f32 = add d v",
            "    yield w",
            "  yield t",
            "store y s i 0:i32 0:i32",
        ),
        text(
            f"s: f32 = for e in {up(48)} carry d = 0.5:f32",
            *DIGITS,
            "  v: f32 = load x i k m",
            "  w: f32 = add d v",
            "  yield w",
            "store y s i 0:i32 0:i32",
        ),
    )


def test_a_row_that_is_moved_is_a_constant_distance_away() -> None:
    check(
        flatten,
        text(
            BOARD,
            "for k in 1:i32 : 6:i32 : 1:i32",
            "  h: i32 = add k -1:i32",
            f"  for m in {up(8)}",
            "    v: f32 = load x i k m",
            "    store a v h m",
        ),
        text(
            FLAT,
            f"for e in {up(40)}",
            "  m: i32 = rem e 8:i32",
            "  q: i32 = div e 8:i32",
            "  k: i32 = add q 1:i32",
            "  h: i32 = add k -1:i32",
            "  v: f32 = load x i k m",
            "  store a v e",
        ),
    )


def test_three_axes_are_one() -> None:
    lines = (
        "b: cell[f32,6x2x8] = cell[dtype=f32, shape=(6,2,8)]",
        f"for k in {up(6)}",
        f"  for n in {up(2)}",
        f"    for m in {up(8)}",
        "      v: f32 = convert[dtype=f32] k",
        "      store b v k n m",
        f"for r in {up(6)}",
        "  w: f32 = load b r 1:i32 3:i32",
        "  store y w i r 2:i32",
    )
    program = parsed(text(*lines))
    made = flatten(program)
    assert sum(e.primitive is FOR for e in walk_eqns(made.tasks[0].body)) == 2
    assert_same_results(program, made)


STORED = "    store y v i k m"
NESTS = {
    "another order": (f"for m in {up(8)}", f"  for k in {up(6)}", "    v: f32 = load x i k m", STORED),
    "a part of each line": (f"for k in {up(6)}", f"  for m in {up(6)}", "    v: f32 = load x i k m", STORED),
    "a number for each line": (f"for k in {up(6)}", "  v: f32 = load x i k 0:i32", f"  for m in {up(8)}", STORED),
    "two ways": (f"for k in {down(6)}", f"  for m in {up(8)}", "    v: f32 = load x i k m", STORED),
    "every other line": ("for k in 0:i32 : 6:i32 : 2:i32", f"  for m in {up(8)}", "    v: f32 = load x i k m", STORED),
    "a length that is not known": (
        "for k in 0:i32 : i : 1:i32",
        f"  for m in {up(8)}",
        "    v: f32 = load x i k m",
        STORED,
    ),
    "a branch for each line": (
        f"for k in {up(6)}",
        "  b: bool = lt k 2:i32",
        "  if b",
        "    store y 1.0:f32 i k 0:i32",
        f"  for m in {up(8)}",
        "    v: f32 = load x i k m",
        STORED,
    ),
    "what comes behind": (
        f"for k in {up(6)}",
        f"  s: f32 = for m in {up(8)} carry c = 0.0:f32",
        "    v: f32 = load x i k m",
        "    w: f32 = add c v",
        "    yield w",
        "  store y s i k 0:i32",
    ),
    "a sum of each line begins anew": (
        f"s: f32 = for k in {up(6)} carry c = 0.0:f32",
        f"  t: f32 = for m in {up(8)} carry d = 1.0:f32",
        "    v: f32 = load x i k m",
        "    w: f32 = add d v",
        "    yield w",
        "  yield t",
        "store y s i 0:i32 0:i32",
    ),
    "the sum so far is read": (
        f"s: f32 = for k in {up(6)} carry c = 1.0:f32",
        f"  t: f32 = for m in {up(8)} carry d = c",
        "    v: f32 = mul d c",
        "    yield v",
        "  yield t",
        "store y s i 0:i32 0:i32",
    ),
    "a line that changes what it begins with": (
        "n: cell[f32] = cell[dtype=f32, shape=()]",
        "store n 1.0:f32",
        f"for k in {up(6)}",
        "  v: f32 = load n",
        f"  for m in {up(8)}",
        "    w: f32 = mul v 2.0:f32",
        "    store n w",
        STORED,
    ),
}


@pytest.mark.parametrize("which", NESTS)
def test_what_stays_a_nest(which: str) -> None:
    unchanged(flatten, text(*NESTS[which]))


def test_an_array_that_is_taken_apart_keeps_its_nest() -> None:
    """An element is met outside of loops, so all of them become values."""
    fill = (f"for k in {up(6)}", f"  for m in {up(8)}", "    store a 1.0:f32 k m")
    unchanged(flatten, text(BOARD, *fill, "v: f32 = load a 2:i32 3:i32", "store y v i 0:i32 0:i32"))


def test_long_lines_and_threads_keep_their_nests() -> None:
    lines = (f"for k in {up(2)}", "  for m in 0:i32 : 32:i32 : 1:i32", "    store b 1.0:f32 k m")
    unchanged(flatten, text("b: cell[f32,2x32] = cell[dtype=f32, shape=(2,32)]", *lines))
    assert CPU.scalars_of_rows == 31
    unchanged(FlattenLoops(GPU), text(f"for k in {up(6)}", f"  for m in {up(8)}", "    store y 1.0:f32 i k m"))


def _random_nests(seed: int) -> str:
    """Nests over boards of a lane and of all lanes: filled, summed, moved, turned and exchanged, in both directions."""
    rng = random.Random(seed)
    boards = [f"c{n}" for n in range(rng.randint(1, 3))]
    lines = [f"{c}: cell[f32,6x8] = cell[dtype=f32, shape=(6,8)]" for c in boards]
    for c in boards:
        lines += [f"for f{c} in {up(6)}", f"  for g{c} in {up(8)}", f"    store {c} 0.5:f32 f{c} g{c}"]
    for n in range(rng.randint(1, 6)):
        k, m, way = f"k{n}", f"m{n}", rng.choice([up, up, down])
        moved, size = rng.random() < 0.3, rng.choice([8, 8, 7])
        inner, outer = (m, k) if rng.random() < 0.8 else (k, m)
        trips = {k: 5 if moved else 6, m: size}
        carry = rng.random() < 0.4
        other = way if rng.random() < 0.9 else up
        lines.append(
            (f"s{n}: f32 = " if carry else "")
            + f"for {outer} in {way(trips[outer])}"
            + (f" carry c_{n} = 0.25:f32" if carry else "")
        )
        values, at = ["1.5:f32"], k
        if moved:
            lines.append(f"  h{n}: i32 = add k{n} 1:i32" if outer == k else f"  u{n}: f32 = sqrt 2.0:f32")
            at = f"h{n}" if outer == k else k
        lines.append(
            "  "
            + (f"t{n}: f32 = " if carry else "")
            + f"for {inner} in {other(trips[inner])}"
            + (f" carry d_{n} = c_{n}" if carry else "")
        )
        for part in range(rng.randint(1, 5)):
            board, name = rng.choice([*boards, "x", "y"]), f"w{n}_{part}"
            place = f"{board} " + ("i " if board in "xy" else "") + f"{rng.choice([k, at])} {m}"
            kind = rng.choice(["load", "load", "store", "accum", "op", "index"])
            if kind == "index":
                lines.append(f"    {name}: f32 = convert[dtype=f32] {rng.choice([k, m])}")
            else:
                lines.append(f"    {drawn(rng, kind, name, place, values)}")
            if kind in ("load", "op", "index"):
                values.append(name)
        if carry:
            op = rng.choice(["add", "max", "sub"])
            lines += [
                f"    r{n}: f32 = {op} d_{n} {values[-1]}",
                f"    yield r{n}",
                f"  yield t{n}",
                f"store y s{n} i {rng.randrange(6)}:i32 {rng.randrange(8)}:i32",
            ]
    for n, c in enumerate(boards):
        line = rng.choice(["i", "i", "2:i32"])
        lines += [f"e{c}: f32 = load {c} {line} {rng.randrange(8)}:i32", f"store y e{c} i 0:i32 {n}:i32"]
    return text(*lines)


def _flattened(seed: int) -> bool:
    return changes(flatten, _random_nests(seed))


def test_random_nests_have_the_same_bits() -> None:
    flattened = sum(map(_flattened, range(30)))
    assert flattened > 12, "few of them are flattened"


@pytest.mark.full
def test_more_random_nests() -> None:
    for seed in range(30, 600):
        _flattened(seed)
