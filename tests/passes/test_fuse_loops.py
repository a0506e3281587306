"""Loops over the same elements that become one, what keeps them apart, and random sequences of loops."""

import random

import pytest

from qdtrace.passes.fuse_loops import HANDED, LIGHT, MOST, FuseLoops
from tests.passes.harness import changes, check, drawn, parsed, rewrites, unchanged

fuse = FuseLoops()
N = 8
HEAD = f"program p(x: ref[f32,4x{N}], y: ref[f32,4x{N}])\n  range_for i in 0:i32 : 4:i32\n"
UP, DOWN = f"0:i32 : {N}:i32 : 1:i32", f"{N - 1}:i32 : -1:i32 : -1:i32"


def text(*lines: str) -> str:
    """The program with these lines in its task."""
    return HEAD + "".join(f"    {line}\n" for line in lines) + "  return y\n"


MADE = f"row: cell[f32,{N}] = cell[dtype=f32, shape=({N})]"
COPY = (MADE, f"for k in {UP}", "  a: f32 = load x i k", "  store row a k")


@pytest.mark.parametrize("way", [UP, DOWN], ids=["up", "down"])
def test_a_chain_is_one_loop_in_the_direction_of_the_first(way: str) -> None:
    check(
        fuse,
        text(*COPY, f"for m in {way}", "  b: f32 = load row m", "  store y b i m"),
        text(*COPY, "  b: f32 = load row k", "  store y b i k"),
    )


def test_sums_and_extremes_are_carried_together() -> None:
    rewrites(fuse)("""
program p(x: ref[f32,4x8], y: ref[f32,4x8])
  range_for i in 0:i32 : 4:i32
    row: cell[f32,8] = cell[dtype=f32, shape=(8)]
-   for k in 0:i32 : 8:i32 : 1:i32
+   s: f32, t: f32 = for k in 0:i32 : 8:i32 : 1:i32 carry c = 0.0:f32, e = 1.0:f32
      a: f32 = load x i k
      store row a k
-   s: f32 = for m in 0:i32 : 8:i32 : 1:i32 carry c = 0.0:f32
-     b: f32 = load row m
+     b: f32 = load row k
      d: f32 = add c b
-     yield d
-   t: f32 = for n in 0:i32 : 8:i32 : 1:i32 carry e = 1.0:f32
-     f: f32 = load row n
+     f: f32 = load row k
      g: f32 = max f e
-     yield g
+     yield d, g
    h: f32 = add s t
    store y h i 0:i32
  return y
""")


def test_what_the_later_loop_needs_moves_in_front() -> None:
    between = ("q: f32 = sqrt 2.0:f32", f"other: cell[f32,{N}] = cell[dtype=f32, shape=({N})]")
    later = ("b: f32 = load row {}", "d: f32 = mul b q", "store other d {}", "store y d i {}")
    check(
        fuse,
        text(*COPY, *between, f"for m in {UP}", *(f"  {e.format('m')}" for e in later)),
        text(COPY[0], *between, *COPY[1:], *(f"  {e.format('k')}" for e in later)),
    )


@pytest.mark.parametrize("way", [UP, DOWN], ids=["up", "down"])
def test_a_fill_goes_down_to_what_touches_it_first(way: str) -> None:
    carrying = (f"s: f32 = for k in {way} carry c = 0.0:f32", "  a: f32 = load x i k")
    rest = ("  accum[op=add] row a k", "  d: f32 = add c a", "  yield d", "store y s i 0:i32")
    check(
        fuse,
        text(COPY[0], f"for m in {UP}", "  store row 0.0:f32 m", "store y 3.0:f32 i 1:i32", *carrying, *rest),
        text(COPY[0], "store y 3.0:f32 i 1:i32", carrying[0], "  store row 0.0:f32 k", carrying[1], *rest),
    )


APART = {
    "other elements": (f"for m in 1:i32 : {N}:i32 : 1:i32", "  b: f32 = load row m", "  store y b i m"),
    "a neighbour": (
        f"for m in 0:i32 : {N - 1}:i32 : 1:i32",
        "  n: i32 = add m 1:i32",
        "  b: f32 = load row n",
        "  store y b i m",
    ),
    "one element": (f"for m in {UP}", "  b: f32 = load row 3:i32", "  store y b i m"),
    "another place": (f"for m in {UP}", "  b: f32 = load row m", "  store x b 0:i32 i"),
    "a sum the other way": (
        f"s: f32 = for m in {DOWN} carry c = 0.0:f32",
        "  b: f32 = load row m",
        "  d: f32 = add c b",
        "  yield d",
    ),
    "a write between": ("store row 7.0:f32 2:i32", f"for m in {UP}", "  b: f32 = load row m", "  store y b i m"),
    "a read between": (f"for m in {UP}", "  store row 7.0:f32 m"),
    "a branch": (f"for m in {UP}", "  b: f32 = load row m", "  p: bool = lt b 0.0:f32", "  if p", "    store y b i m"),
}


RECURRENCES = {
    "a running sum": ("  d: f32 = add c {v}", "  store y d i {k}", "  yield d"),
    "a carry that is no sum": ("  d: f32 = sub {v} c", "  yield d"),
    "a carry that is read twice": ("  e: f32 = mul c c", "  d: f32 = add e {v}", "  store y d i {k}", "  yield d"),
}


def recurrence(which: str, k: str, v: str) -> list[str]:
    return [line.format(k=k, v=v) for line in RECURRENCES[which]]


@pytest.mark.parametrize("way", [UP, DOWN], ids=["up", "down"])
@pytest.mark.parametrize("which", RECURRENCES)
def test_a_recurrence_reads_what_another_loop_moves(which: str, way: str) -> None:
    """One that would go the other way stays, as its trips wait for each other."""
    own = ("  b: f32 = load row {}", *recurrence(which, "{}", "b"))
    given = text(*COPY, f"s: f32 = for m in {way} carry c = 0.0:f32", *(e.format("m") for e in own))
    if way == DOWN:
        unchanged(fuse, given)
    else:
        loop = f"s: f32 = for k in {UP} carry c = 0.0:f32"
        check(fuse, given, text(COPY[0], loop, *COPY[2:], *(e.format("k") for e in own)))


@pytest.mark.parametrize("which", RECURRENCES)
def test_a_recurrence_is_read_by_a_loop_that_moves(which: str) -> None:
    first = (MADE, f"s: f32 = for k in {UP} carry c = 0.0:f32", "  a: f32 = load x i k")
    body = ("  store row a k", *recurrence(which, "k", "a"))
    check(
        fuse,
        text(*first, *body, f"for m in {DOWN}", "  b: f32 = load row m", "  store x b i m"),
        text(*first, *body[:-1], "  b: f32 = load row k", "  store x b i k", body[-1]),
    )


@pytest.mark.parametrize("which", RECURRENCES)
def test_a_recurrence_stays_apart_from_what_has_vectors_along_the_row(which: str) -> None:
    computed = [f"  w{k}: f32 = sqrt {f'w{k - 1}' if k else 'a'}" for k in range(LIGHT + 1)]
    own = ("  b: f32 = load row m", *recurrence(which, "m", "b"))
    loop = (*COPY[:-1], *computed, f"  store row w{LIGHT} k")
    unchanged(fuse, text(*loop, f"s: f32 = for m in {UP} carry c = 0.0:f32", *own))


@pytest.mark.parametrize("which", APART)
def test_what_stays_apart(which: str) -> None:
    between = ("e: f32 = load row 5:i32", "store y e i 0:i32") if which == "a read between" else ()
    unchanged(fuse, text(*COPY, *between, *APART[which]))


def test_the_result_of_a_loop_is_no_part_of_its_trips() -> None:
    total = (f"s: f32 = for k in {UP} carry c = 0.0:f32", "  a: f32 = load x i k", "  d: f32 = add c a", "  yield d")
    unchanged(fuse, text(*total, "t: f32 = sqrt s", f"for m in {UP}", "  store y t i m"))
    unchanged(fuse, text(*total, f"for m in {UP}", "  store y s i m"))


def test_long_bodies_stay_apart() -> None:
    def long(name: str, n: int) -> tuple[str, ...]:
        adds = [f"  {name}{k}: f32 = add {name}{k - 1} 1.0:f32" for k in range(1, n)]
        return f"for {name} in {UP}", f"  {name}0: f32 = load x i {name}", *adds, f"  store y {name}{n - 1} i {name}"

    program = parsed(text(*long("k", MOST // 2), *long("m", MOST // 2)))
    assert fuse(program) is program
    assert fuse(parsed(text(*long("k", 9), *long("m", 9)))) is not program


def test_bodies_that_hand_a_row_on_may_be_longer() -> None:
    def handing(n: int) -> str:
        adds = [f"  w{k}: f32 = add {f'w{k - 1}' if k else 'a'} 1.0:f32" for k in range(n)]
        read = [f"  e{k}: f32 = mul {f'e{k - 1}' if k else 'b'} 3.0:f32" for k in range(n)]
        first = (*COPY[:-1], *adds, f"  store row w{n - 1} k")
        return text(*first, f"for m in {UP}", "  b: f32 = load row m", *read, f"  store y e{n - 1} i m")

    unchanged(fuse, handing(HANDED // 2))
    program = parsed(handing(MOST // 2 + 8))
    assert fuse(program) is not program


def _random_loops(seed: int) -> str:
    """Loops over arrays of a lane and of all lanes, up and down, filled, summed, shifted, with scalars between."""
    rng = random.Random(seed)
    arrays = {f"c{k}": () for k in range(rng.randint(1, 4))} | {"x": ("i",), "y": ("i",)}
    lines = [f"c{k}: cell[f32,{N}] = cell[dtype=f32, shape=({N})]" for k in range(len(arrays) - 2)]
    lines = rng.sample(lines, len(lines))
    for c in arrays:
        lines += [f"for f_{c} in {UP}", f"  store {c} 0.5:f32 f_{c}"] if c[0] == "c" else []
    scalars = ["1.5:f32"]
    for number in range(rng.randint(2, 9)):
        k = f"k{number}"
        if rng.random() < 0.2:
            source = rng.choice(list(arrays))
            lines.append(f"v{number}: f32 = load {source} {' '.join(arrays[source])} {rng.randrange(N)}:i32")
            scalars.append(f"v{number}")
            if rng.random() < 0.4:
                lines.append(f"store {source} {rng.choice(scalars)} {' '.join(arrays[source])} {rng.randrange(N)}:i32")
            continue
        carry = rng.random() < 0.4
        way = rng.choice([UP, UP, DOWN, f"1:i32 : {N - 1}:i32 : 1:i32"])
        lines.append(f"r{number}: f32 = for {k} in {way} carry q{number} = 0.25:f32" if carry else f"for {k} in {way}")
        values = [rng.choice(scalars)]
        for part in range(rng.randint(1, 5)):
            name, source = f"w{number}_{part}", rng.choice(list(arrays))
            at = k if rng.random() < 0.8 else f"{rng.randrange(N)}:i32"
            if rng.random() < 0.1 and way.startswith("1"):
                lines.append(f"  z{name}: i32 = {rng.choice(['add', 'sub'])} {k} 1:i32")
                at = f"z{name}"
            place = f"{source} " + " ".join((*arrays[source], at))
            kind = rng.choice(["load", "load", "store", "accum", "op"])
            lines.append(f"  {drawn(rng, kind, name, place, values)}")
            if kind in ("load", "op"):
                values.append(name)
        if carry:
            op = rng.choice(["add", "max", "mul", "min", "sub"])
            lines += [f"  t{number}: f32 = {op} q{number} {values[-1]}"]
            if rng.random() < 0.2:
                lines.append(f"  store y t{number} i {k}")
            lines += [f"  yield t{number}"]
            scalars.append(f"r{number}")
    return text(*lines)


def _fused(seed: int) -> bool:
    return changes(fuse, _random_loops(seed))


@pytest.mark.full
@pytest.mark.parametrize("start", [0, 100, 200])
def test_random_loops_keep_their_results(start: int) -> None:
    """Bit for bit, in the interpreter; many of them are fused."""
    assert sum(map(_fused, range(start, start + 100))) > 60


@pytest.mark.slow
def test_many_random_loops_keep_their_results() -> None:
    assert sum(map(_fused, range(1000, 6000))) > 3000
