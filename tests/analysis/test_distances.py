"""Differences of loads from an array with known steps: cases with a bound, and random indices of which all are run."""

import numpy as np
import pytest

from qdtrace.analysis.index.most_trips import MostTrips
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.limits import Limits

HEAD = """
program p(row: ref[i32,101] in (0, 4096, 16), wide: ref[u64,101] in (0, 64, 8), m: ref[i32,9x9] in (0, 4096, 4, 32),
          count: ref[i32,100] in (-8, 64, 128), other: ref[i32,101], x: ref[i32,100])
  range_for i in 0:i32 : 100:i32
    n: i32 = load x i
    j: i32 = add i 1:i32
    a: i32 = load row i
    b: i32 = load row j
""".replace(",\n          ", ", ")


def most(*lines: str) -> int | None:
    """The most iterations of the only loop of a task over 100 elements; `n` and `other` are data."""
    (task,) = (program := parse_program(HEAD + "".join(f"    {line}\n" for line in lines))).tasks
    trips = MostTrips(task, program.limits)
    (found,) = [trips.of(e) for e in task.all_eqns if e.primitive.name in ("for", "while")]
    return found


@pytest.mark.parametrize(
    ("before", "bounds", "want"),
    [
        ([], "a : b : 1:i32", 16),
        ([], "a : b : 3:i32", 6),
        ([], "b : a : -1:i32", 16),
        ([], "a : a : 1:i32", 0),
        ([], "b : a : 1:i32", 4096),
        (["k: i32 = add i 3:i32", "l: i32 = min k 100:i32", "c: i32 = load row l"], "a : c : 1:i32", 4096),
        (["k: i32 = add n 3:i32", "c: i32 = load row k", "d: i32 = load row n"], "d : c : 1:i32", 48),
        (["c: i32 = load row 2:i32", "d: i32 = load row 4:i32"], "c : d : 1:i32", 32),
        # ends
        (["c: i32 = sub b 1:i32"], "a : c : 1:i32", 15),
        (["c: i32 = add 2:i32 b"], "a : c : 1:i32", 18),
        (["c: i32 = add a 2:i32"], "c : b : 1:i32", 14),
        (["c: i32 = add a 7:i32", "d: i32 = min c b"], "a : d : 1:i32", 7),
        (["c: i32 = add a 17:i32", "d: i32 = min b c"], "a : d : 1:i32", 16),
        (["c: i32 = add a 17:i32", "d: i32 = max b c"], "a : d : 1:i32", 17),
        (["c: i32 = max a 5:i32"], "c : b : 1:i32", 16),
        (["c: i32 = min a n"], "c : b : 1:i32", None),
        (["c: i32 = add a n"], "a : c : 1:i32", None),
        (["d: i32 = load count i", "c: i32 = add a d"], "a : c : 1:i32", 64),
        (["d: i32 = load count i", "c: i32 = add d b"], "a : c : 1:i32", 80),
        (["d: i32 = min n 7:i32", "e: i32 = max d 0:i32", "c: i32 = add n e"], "n : c : 1:i32", 7),
        (["d: i32 = min n 7:i32", "c: i32 = add n d"], "n : c : 1:i32", None),  # may wrap downwards
        # elements and axes
        (["c: i32 = load count i"], "0:i32 : c : 1:i32", 64),
        (["c: i32 = load count i"], "c : 0:i32 : 1:i32", 8),
        (["c: i32 = load m i 3:i32", "d: i32 = load m i 4:i32"], "c : d : 1:i32", 32),
        (["c: i32 = load m i n", "d: i32 = load m j n"], "c : d : 1:i32", 4),
        (["e: i32 = add n 1:i32", "c: i32 = load m i n", "d: i32 = load m j e"], "c : d : 1:i32", 36),
        (["c: i32 = load m i n", "d: i32 = load m j i"], "c : d : 1:i32", 4096),
        # numbers of the dtype that is left
        (["p: u64 = load wide i", "q: u64 = load wide j", "c: i32 = convert[dtype=i32] p",
          "d: i32 = convert[dtype=i32] q"], "c : d : 1:i32", 8),
        (["p: i8 = convert[dtype=i8] a", "q: i8 = convert[dtype=i8] b", "c: i32 = convert[dtype=i32] p",
          "d: i32 = convert[dtype=i32] q"], "c : d : 1:i32", None),
        # indices
        (["k: i32 = bound[size=101] n", "e: i32 = add n 1:i32", "l: i32 = bound[size=101] e", "c: i32 = load row k",
          "d: i32 = load row l"], "c : d : 1:i32", 16),
        (["k: i32 = max n 0:i32", "e: i32 = add n 1:i32", "l: i32 = max e 1:i32", "c: i32 = load row k",
          "d: i32 = load row l"], "c : d : 1:i32", 4096),
        # nothing is known of it
        (["c: i32 = load other i", "d: i32 = load other j"], "c : d : 1:i32", None),
        (["c: i32 = load other i"], "c : b : 1:i32", None),
    ],
)  # fmt: skip
def test_bounds(before: list[str], bounds: str, want: int | None) -> None:
    assert most(*before, f"for z in {bounds}", "  store x z i") == want


@pytest.mark.parametrize(("bound", "want"), [("b", 16), ("n", None)])
def test_counters_of_a_while(bound: str, want: int | None) -> None:
    """What else may end the loop makes no difference."""
    lines = ["while carry c = a, d = n", f"  p: bool = lt c {bound}", "  q: bool = gt d 0:i32", "  r: bool = and p q"]
    lines += ["  test r", "  c_1: i32 = add c 1:i32", "  e: i32 = load x c", "  yield c_1, e"]
    assert most("v: i32, w: i32 = " + lines[0], *lines[1:]) == want


KINDS = {
    "add": ("of the dtype", "as i32", "clamped"),
    "from the end": (True, False),
    "odd": ("", "", "ends", "length", "test"),
}


def random_index(rng: np.random.Generator, name: str, shift: int, size: int, dtype: str, kinds: dict) -> list[str]:
    """An element of `row` at an index that is `shift` from the data `c`. It is made as another one of the same kinds;
    the constants of what is odd may make it no neighbour."""
    lines: list[str] = []
    at = "c"

    def emit(text: str) -> str:
        lines.append(f"{name}{len(lines)}: {text}")
        return lines[-1].partition(":")[0]

    def some(what: str, right: int, wrong: int) -> int:
        return int(rng.choice([right, wrong])) if kinds["odd"] == what else right

    def add(at: str, dtype: str = "i32") -> str:
        return emit(f"{dtype} = add {at} {shift}:{dtype}")

    def clamp(at: str) -> str:
        low, high = some("ends", 0, size // 2), some("ends", size - 1, size // 2)
        return emit(f"i32 = min {emit(f'i32 = max {at} {low}:i32')} {high}:i32")

    if kinds["add"] == "of the dtype":
        at = add(at, dtype)
    if dtype != "i32":
        at = emit(f"i32 = convert[dtype=i32] {at}")
    if kinds["add"] == "as i32":
        at = add(at)
    if kinds["from the end"]:
        length, least = some("length", size, size // 2), some("test", 0, 30)
        wrapped, negative = emit(f"i32 = add {at} {length}:i32"), emit(f"bool = lt {at} {least}:i32")
        at = emit(f"i32 = select {negative} {wrapped} {at}")
    at = clamp(at)
    if kinds["add"] == "clamped":
        at = clamp(add(at))
    emit(f"i32 = load row {at}")
    return lines


@pytest.mark.parametrize("seed", range(200))
def test_all_values_of_random_indices(seed: int) -> None:
    """No value of 8 bits gives a loop more iterations than the bound. Neighbours are close, and others are not."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 2, 5, 100, 127, 128, 129, 200, 255, 256, 257, 300]))
    dtype = str(rng.choice(["i8", "u8", "i32"]))
    kinds = {key: rng.choice(values).item() for key, values in KINDS.items()}
    waves = np.sin(2 * np.pi * (rng.random() + rng.integers(1, 3) * np.arange(size) / size))
    row = np.round(60 * waves + rng.integers(-2, 3, size)).astype(np.int32)
    limits = Limits(int(row.min()), int(row.max()), (max(0, int((row - np.roll(row, 1)).max())),))
    first, shift = int(rng.integers(-2, 3)), int(rng.choice([0, 1, 1, 1, 2, -1]))
    last = first + shift
    if dtype == "u8" and kinds["add"] == "of the dtype":
        first, last = max(first, 0), max(last, 0)
    a, b = (random_index(rng, name, by, size, dtype, kinds) for name, by in (("a", first), ("b", last)))
    names = [lines[-1].partition(":")[0] for lines in (a, b)]
    text = f"program p(row: ref[i32,{size}] in {(limits.low, limits.high, *limits.steps)}, data: ref[{dtype},256])\n"
    text += "  buffer out: ref[i32,256]\n  range_for i in 0:i32 : 256:i32\n" + f"    c: {dtype} = load data i\n"
    text += "".join(f"    {line}\n" for line in (*a, *b))
    text += f"    n: i32 = for k in {names[0]} : {names[1]} : 1:i32 carry m = 0:i32\n"
    text += "      m_1: i32 = add m 1:i32\n      yield m_1\n    store out n i\n  return out\n"
    program = parse_program(text)
    (task,) = program.tasks
    (loop,) = [e for e in task.all_eqns if e.primitive.name == "for"]
    bound = MostTrips(task, program.limits).of(loop)
    data = np.arange(256) - (0 if dtype == "u8" else 128)
    (counts,) = evaluate(program, [row, data.astype({"i8": np.int8, "u8": np.uint8, "i32": np.int32}[dtype])])
    assert bound is not None, "the range of all elements is known"
    assert counts.max() <= bound
