"""Programs for shares of the lanes, together, against the program for all lanes in the interpreter."""

import numpy as np
import pytest

from qdtrace.batching.batch import batch
from qdtrace.batching.shares import shares_of
from qdtrace.errors import InterpreterError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import ref_type
from qdtrace.ir.verify import verify_program
from tests.autodiff.programs import arguments, random_program
from tests.differential.task_programs import random_case

COMBINED = {"add": np.add, "max": np.maximum, "min": np.minimum}


def check(program, args) -> int:
    """Compares all ways to share out a program, and returns how many there are."""
    wanted = evaluate(program, args)
    ways = shares_of(program)
    for way in ways:
        for parts in (n for n in (2, 3, 4) if way.count % n == 0):
            made = way.share(parts)
            verify_program(made)
            found = []
            for k in range(parts):
                given = zip(program.params, args, strict=True)
                found.append(evaluate(made, [part(way, v, a, k, parts) for v, a in given]))
            for v, want, several in zip(program.results, wanted, zip(*found, strict=True), strict=True):
                if (axis := way.axes.get(v)) is not None:
                    np.testing.assert_array_equal(np.concatenate(several, axis), want)
                elif (op := way.sums.get(v)) is not None:
                    got = COMBINED[op].reduce(several, dtype=want.dtype)
                    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)  # another order of the sum
                else:
                    for one in several:
                        np.testing.assert_array_equal(one, want)
    return len(ways)


def part(way, v, array, k, parts):
    axis = way.axes.get(v)
    return array if axis is None else np.split(array, parts, axis)[k]


def of_batch(program, args, seed, size=6) -> int:
    """Checks a program for six calls at once."""
    rng = np.random.default_rng(seed)
    mask = [a.dtype.kind == "f" and bool(rng.integers(3)) for a in args]
    each = [[rng.permutation(a.ravel()).reshape(a.shape) for a in args] for _ in range(size)]
    stacked = [np.stack([e[k] for e in each]) if m else args[k] for k, m in enumerate(mask)]
    try:
        return check(batch(program, mask, size), stacked)
    except InterpreterError:
        return 0  # the program was drawn to be right on `args`: shuffled bounds may leave a buffer


def both(program, args, seed) -> int:
    try:
        found = check(program, args)
    except InterpreterError:
        found = 0
    return found + of_batch(program, args, seed)


@pytest.mark.sample(2)
@pytest.mark.parametrize("first", range(0, 20, 5))
def test_programs_of_floats(first: int) -> None:
    seeds = range(first, first + 5)
    assert sum(both(random_program(seed), arguments(seed), seed) for seed in seeds) > 2


@pytest.mark.sample(2)
@pytest.mark.parametrize("first", range(0, 20, 5))
def test_programs_of_tasks(first: int) -> None:
    """Dynamic bounds, serial tasks, accumulations, atomics."""
    cases = [(random_case(seed), seed) for seed in range(first, first + 5)]
    assert sum(both(case.program, list(case.args), seed) for case, seed in cases) > 0


TWO_LOOPS = """program f(x: ref[f32,4x6], p: ref[f32,3])
  buffer y: ref[f32,6x4]
  buffer s: ref[f32,3] = 0.0:f32
  range_for i in 0:i32 : 24:i32
    a: i32 = div i 6:i32
    b: i32 = rem i 6:i32
    v: f32 = load x a b
    w: f32 = load p 1:i32
    z: f32 = mul v w
    store y z b a
    accum[op=add] s z 2:i32
  return y, s
"""


def test_digits_of_an_index_are_two_ways() -> None:
    ways = shares_of(parse_program(TWO_LOOPS))
    assert [(w.count, sorted(w.axes.values()), list(w.sums.values())) for w in ways] == [
        (4, [0, 1], ["add"]),
        (6, [0, 1], ["add"]),
    ]
    inner = print_program(ways[1].share(3))
    assert "x: ref[f32,4x2]" in inner
    assert "range_for i in 0:i32 : 8:i32" in inner
    assert "div i 2:i32" in inner
    assert "rem i 2:i32" in inner


PLAIN = """program f(x: ref[f32,8], y: ref[f32,8], n: ref[i32,8])
  buffer out: ref[f32,8]
  buffer s: ref[f32] = 0.0:f32
  range_for i in 0:i32 : 8:i32
    v: f32 = load x i
    {}
    store out v i
  {}
  return out, s
"""
REFUSED = {
    "the number of a lane": "c: f32 = convert[dtype=f32] i\n    accum[op=add] s c",
    "a neighbour": "j: i32 = rem i 4:i32\n    c: f32 = load y j",
    "two places of one array": "c: f32 = load x 3:i32",
    "stored by all": "store s v",
    "largest of floats": "accum[op=max] s v",
    "an old value": "c: f32 = atomic[op=add] s v",
    "another operation": "accum[op=add] s v\n    accum[op=mul] s v",
    "a product": "accum[op=mul] s v",
    "a longer array": "c: i32 = load n i\n    d: f32 = load y c\n    store y d i",
}


@pytest.mark.parametrize("name", REFUSED)
def test_lanes_that_are_not_shared_out(name: str) -> None:
    assert shares_of(parse_program(PLAIN.format("accum[op=add] s v", "")))
    assert shares_of(parse_program(PLAIN.format(REFUSED[name], ""))) == ()


def test_a_sum_that_a_later_task_reads_is_not_shared_out() -> None:
    later = "serial\n    t: f32 = load s\n    u: f32 = mul t t\n    store s u"
    assert shares_of(parse_program(PLAIN.format("accum[op=add] s v", later))) == ()


def test_a_sum_on_top_of_a_parameter_is_not_shared_out() -> None:
    """Each device would begin with it."""
    text = PLAIN.replace("  buffer s: ref[f32] = 0.0:f32\n", "").replace("[i32,8])", "[i32,8], s: ref[f32])")
    assert shares_of(parse_program(text.format("accum[op=add] s v", ""))) == ()


def test_what_no_lane_touches_goes_with_its_lanes() -> None:
    (way,) = shares_of(parse_program(PLAIN.format("", "")))
    assert [way.axes.get(v) for v in way.program.params] == [0, 0, 0]
    assert ref_type(way.share(4).params[1]).shape == (2,)
