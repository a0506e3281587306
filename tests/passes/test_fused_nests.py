"""Nests of loops that become one on GPUs, the arrays that become rows of its trips, and random sequences of nests."""

import random

import pytest

from qdtrace.analysis.machine import GPU
from qdtrace.passes.contract_rows import ContractRows
from qdtrace.passes.fuse_loops import FuseLoops
from tests.passes.harness import changes, check, drawn, parsed, unchanged

fuse, contract = FuseLoops(GPU), ContractRows(GPU)
A, B = 4, 3
HEAD = f"program p(x: ref[f32,5x{A}x{B}], y: ref[f32,5x{A}x{B}])\n  range_for i in 0:i32 : 5:i32\n"
OUTER, INNER = f"0:i32 : {A}:i32 : 1:i32", f"0:i32 : {B}:i32 : 1:i32"
MADE = f"c: cell[f32,{A}x{B}] = cell[dtype=f32, shape=({A},{B})]"
ROW = f"r: cell[f32,{B}] = cell[dtype=f32, shape=({B})]"
COPY = (f"for k in {OUTER}", f"  for m in {INNER}", "    a: f32 = load x i k m", "    store c a k m")
USE = (
    f"for o in {OUTER}",
    f"  for n in {INNER}",
    "    b: f32 = load c o n",
    "    d: f32 = mul b b",
    "    store y d i o n",
)


def text(*lines: str) -> str:
    """The program with these lines in its task."""
    return HEAD + "".join(f"    {line}\n" for line in lines) + "  return y\n"


def test_nests_become_one_from_outside_to_inside() -> None:
    fused = (*COPY, "    b: f32 = load c k m", "    d: f32 = mul b b", "    store y d i k m")
    check(fuse, text(MADE, *COPY, *USE), text(MADE, *fused))
    unchanged(FuseLoops(), text(MADE, *COPY, *USE))


def test_an_array_of_a_nest_becomes_an_element() -> None:
    fused = (*COPY, "    b: f32 = load c k m", "    d: f32 = mul b b", "    store y d i k m")
    element = ("    e: cell[f32] = cell[dtype=f32, shape=()]", "    a: f32 = load x i k m", "    store e a")
    rest = ("    b: f32 = load e", "    d: f32 = mul b b", "    store y d i k m")
    check(contract, text(MADE, *fused), text(*COPY[:2], *element, *rest))
    unchanged(ContractRows(), text(MADE, *fused))


def test_sums_over_other_axes_share_the_outer_trips() -> None:
    """Each trip has its row: written along it, then summed."""
    total = (
        f"  s: f32 = for n in {INNER} carry q = 0.0:f32",
        "    b: f32 = load c {} n",
        "    d: f32 = add q b",
        "    yield d",
        "  store y s i {} 0:i32",
    )
    later = (f"for o in {OUTER}", *(e.format("o") for e in total))
    # the inner loops become one, too, for they run over the same elements
    inner = (
        f"  s: f32 = for m in {INNER} carry q = 0.0:f32",
        "    a: f32 = load x i k m",
        "    store c a k m",
        "    b: f32 = load c k m",
        "    d: f32 = add q b",
        "    yield d",
        "  store y s i k 0:i32",
    )
    check(fuse, text(MADE, *COPY, *later), text(MADE, COPY[0], *inner))


def test_stores_to_arrays_of_the_later_nest_move_in_front() -> None:
    stores = (ROW, *(f"store r {k}.0:f32 {k}:i32" for k in range(B)))
    later = (f"for o in {OUTER}", f"  for n in {INNER}")
    uses = ("    b: f32 = load c {} {}", "    e: f32 = load r {}", "    d: f32 = mul b e", "    store y d i {} {}")

    def rest(k: str, m: str) -> list[str]:
        return [e.format(*((k, m) if e.count("{}") == 2 else (m,))) for e in uses]

    check(fuse, text(MADE, *COPY, *stores, *later, *rest("o", "n")), text(MADE, *stores, *COPY, *rest("k", "m")))


def test_fills_of_two_axes_go_down_to_what_touches_them_first() -> None:
    fill = (f"for o in {OUTER}", f"  for n in {INNER}", "    store c 0.0:f32 o n")
    adds = (f"for k in {OUTER}", f"  for m in {INNER}", "    a: f32 = load x i k m", "    accum[op=add] c a k m")
    between = "store y 3.0:f32 i 1:i32 1:i32"
    joined = (*adds[:2], "    store c 0.0:f32 k m", *adds[2:])
    check(fuse, text(MADE, *fill, between, *adds), text(MADE, between, *joined))


APART = {
    "the other order of axes": (USE[0], USE[1], "    b: f32 = load c n o", "    store y b i o n"),
    "a neighbour's row": (
        f"for o in 0:i32 : {A - 1}:i32 : 1:i32",
        "  p: i32 = add o 1:i32",
        f"  for n in {INNER}",
        "    b: f32 = load c p n",
        "    store y b i o n",
    ),
    "a branch inside": (*USE[:3], "    p: bool = lt b 0.0:f32", "    if p", "      store y b i o n"),
    "a loop that is to be unrolled": (USE[0], f"  for n in {INNER} [unroll=2]", *USE[2:]),
    "a store of an element that the first one reads": ("store x 1.0:f32 i 0:i32 0:i32", f"for o in {OUTER}", *(
        f"  for n in {INNER}", "    b: f32 = load x i o n", "    store y b i o n")),
    "a store to what the first one stores": ("store c 1.0:f32 0:i32 0:i32", *USE),
}  # fmt: skip


@pytest.mark.parametrize("which", APART)
def test_what_stays_apart(which: str) -> None:
    unchanged(fuse, text(MADE, *COPY, *APART[which]))


STAYS = {
    "read behind the loop": (MADE, *COPY, "b: f32 = load c 1:i32 1:i32", "store y b i 0:i32 0:i32"),
    "the row before": (
        MADE, *COPY[:1], "  p: i32 = max k 1:i32", "  o: i32 = sub p 1:i32", f"  for m in {INNER}",
        "    a: f32 = load x i k m", "    store c a k m", "    b: f32 = load c o m", "    store y b i k m",
    ),
    "rows that live through a loop around": (
        MADE, *COPY, f"for t in {INNER}", f"  for o in {OUTER}", "    b: f32 = load c o t",
        "    d: f32 = mul b 2.0:f32", "    store c d o t", "    store y d i o t",
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", STAYS)
def test_what_is_no_row_of_the_trips(which: str) -> None:
    unchanged(contract, text(*STAYS[which]))


def _random_nests(seed: int) -> str:
    """Nests over arrays of a lane and of all lanes, some with sums, rows, fills, single stores, axes the wrong way."""
    rng = random.Random(seed)
    cells = {f"c{k}": 2 for k in range(rng.randint(1, 3))} | {"r": 1}
    lines = [f"{c}: cell[f32,{A}x{B}] = cell[dtype=f32, shape=({A},{B})]" for c, n in cells.items() if n == 2]
    lines = [ROW, *rng.sample(lines, len(lines))]
    for c in cells:  # the interpreter knows what is undefined, but results would tell nothing
        first = [f"for f_{c} in {OUTER}"] if cells[c] == 2 else []
        pad = "  " * len(first)
        at = f"f_{c} g_{c}" if first else f"g_{c}"
        lines += [*first, f"{pad}for g_{c} in {INNER}", f"{pad}  store {c} 0.5:f32 {at}"]
    scalars = ["1.5:f32"]
    for number in range(rng.randint(2, 7)):
        if rng.random() < 0.25:
            lines += [f"store r {rng.choice(scalars)} {k}:i32" for k in rng.sample(range(B), rng.randint(1, B))]
            continue
        k, m = f"k{number}", f"m{number}"
        summed = rng.random() < 0.35
        inner = f"s{number}: f32 = for {m} in {INNER} carry q{number} = 0.25:f32" if summed else f"for {m} in {INNER}"
        outer = OUTER if rng.random() < 0.85 else f"1:i32 : {A - 1}:i32 : 1:i32"
        lines += [f"for {k} in {outer}", f"  {inner}"]
        values = [rng.choice(scalars)]
        for part in range(rng.randint(1, 4)):
            name, source = f"w{number}_{part}", rng.choice([*cells, "x", "y"])
            row = k if rng.random() < 0.85 else f"{rng.randrange(A)}:i32"
            column = m if rng.random() < 0.85 else f"{rng.randrange(B)}:i32"
            place = f"r {column}" if source == "r" else f"{source} {'i ' if source in 'xy' else ''}{row} {column}"
            kind = rng.choice(["load", "load", "store", "accum", "op"])
            lines.append(f"    {drawn(rng, kind, name, place, values)}")
            if kind in ("load", "op"):
                values.append(name)
        if summed:
            op = rng.choice(["add", "max", "sub"])
            lines += [f"    t{number}: f32 = {op} q{number} {values[-1]}", f"    yield t{number}"]
            lines += [f"  store {rng.choice([f'y s{number} i', f'c0 s{number}'])} {k} 0:i32"]
        if rng.random() < 0.2:
            source = rng.choice(list(cells))
            at = f"{rng.randrange(B)}:i32" if source == "r" else f"{rng.randrange(A)}:i32 {rng.randrange(B)}:i32"
            lines.append(f"v{number}: f32 = load {source} {at}")
            scalars.append(f"v{number}")
    return text(*lines)


def _moves(seed: int) -> tuple[bool, bool]:
    program = _random_nests(seed)
    return changes(fuse, program), changes(lambda p: contract(fuse(p)), program) and contract(
        made := fuse(parsed(program))
    ) is not made


@pytest.mark.full
@pytest.mark.parametrize("start", [0, 100, 200])
def test_random_nests_keep_their_results(start: int) -> None:
    """Bit for bit, in the interpreter; many of them are fused, and arrays become rows."""
    fused, rows = map(sum, zip(*map(_moves, range(start, start + 100)), strict=True))
    assert fused > 60
    assert rows > 5


@pytest.mark.slow
def test_many_random_nests_keep_their_results() -> None:
    fused, rows = map(sum, zip(*map(_moves, range(1000, 2500)), strict=True))
    assert fused > 900
    assert rows > 75
