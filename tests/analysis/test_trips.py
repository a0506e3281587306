"""Trip counts of all small loops, where integers wrap too: as numbers, intervals, forms and computed values."""

import itertools
import random

import pytest

from qdtrace.analysis.index.induction import controlling_counter
from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.analysis.index.ranges import Ranges
from qdtrace.analysis.index.trips import CountedLoop, loop_values, surely_runs, trip_count
from qdtrace.interpret.numpy_rules import apply_scalar
from qdtrace.ir.builder import scalar_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType

I8, I32, U8 = DType.i8, DType.i32, DType.u8


def counted(start: int, stop: int, step: int) -> int:
    return len(range(start, stop, step)) if step else 0


@pytest.mark.parametrize("dtype", [I8, U8, I32, DType.i64])
def test_constant_loops(dtype: DType) -> None:
    low, high = range_of_dtype(dtype)
    ends = (low, low + 1, max(low, -3), 0, 1, 2, 7, high - 1, high)
    for start, stop, step in itertools.product(ends, ends, (-3, -1, 0, 1, 2, 5)):
        if step < low:
            continue
        bounds = [literal(k, dtype) for k in (start, stop, step)]
        # `len` of a range fails above 2**63
        count = trip_count(*bounds)
        first, last = (start, stop) if step > 0 else (stop, start)
        assert count == (max(0, -((first - last) // abs(step))) if step else 0)
        values = loop_values(*bounds)
        assert values is not None
        if count:
            end = start + (count - 1) * step
            assert values.interval == (min(start, end), max(start, end))
            assert min(first, last) <= end <= max(first, last)
        else:
            assert values.interval is None
    assert trip_count(literal(0, dtype), scalar_var(dtype, "n"), literal(1, dtype)) is None


def computed(loop: CountedLoop, env: dict[object, int]) -> int:
    """What the equations of `emit_count` give."""

    def op(name: str, *operands: object, **params: object) -> Literal:
        values = [a.value if isinstance(a, Literal) else a.dtype.numpy.type(env[a]) for a in operands]
        found = apply_scalar(name, values, params)
        return literal(found, DType.of(found.dtype))

    made = loop.emit_count(op)
    assert isinstance(made, Literal)
    return int(made.value)


@pytest.mark.parametrize("dtype", [I8, U8])
def test_the_count_is_computed_for_all_bounds(dtype: DType) -> None:
    rng = random.Random(1)
    low, high = range_of_dtype(dtype)
    atoms = [scalar_var(dtype, name) for name in ("start", "stop", "step")]
    for _ in range(600):
        start, stop = (rng.choice((low, high, 0, rng.randint(low, high))) for _ in range(2))
        step = rng.choice((1, 2, 3, 7, 100, 0, -1, -2, -5))
        if step < low:
            continue
        env = dict(zip(atoms, (start, stop, step), strict=True))
        want = counted(start, stop, step)
        assert computed(CountedLoop(*atoms), env) == want, (start, stop, step)
        assert computed(CountedLoop(*atoms[:2], literal(step, dtype)), env) == want, (start, stop, step)
        least, most = CountedLoop(*atoms[:2], literal(step, dtype)).trips((start, start), (stop, stop))
        assert least == most == want


def test_bounds_of_the_count() -> None:
    rng = random.Random(2)
    for _ in range(300):
        start, stop = (tuple(sorted(rng.choices(range(-6, 12), k=2))) for _ in range(2))
        step = rng.choice((1, 2, 3, -1, -2, 0))
        counts = {
            counted(a, b, step) for a in range(start[0], start[1] + 1) for b in range(stop[0], stop[1] + 1)
        }
        atoms = [scalar_var(I8, name) for name in ("start", "stop", "step")]
        assert CountedLoop(*atoms[:2], literal(step, I8)).trips(start, stop) == (min(counts), max(counts))
        least, most = CountedLoop(*atoms).trips(start, stop)
        assert least <= min(counts)
        assert max(counts) <= most


def test_where_the_index_may_leave_its_dtype() -> None:
    start, stop, step = (scalar_var(I8, name) for name in ("start", "stop", "step"))
    for by, end in itertools.product((1, 2, 5, -1, -3), (-128, -127, -124, 0, 120, 126, 127)):
        # the index that ends the loop, from any start
        last = max((end - 1 + by, by) if by > 0 else (-(end + 1 + by), -by))
        loop = CountedLoop(start, stop, literal(by, I8))
        assert loop.may_pass_the_end((end, end)) == (last > (127 if by > 0 else 128))
    assert CountedLoop(start, stop, step).may_pass_the_end((0, 0))


def test_a_while_that_counts() -> None:
    program = parse_program("""
program p(x: ref[i32])
  serial
    n: i32 = load x
    s: i32 = and n 3:i32
    a: i32, b: i32 = while carry c = s, d = n
      p: bool = lt c 7:i32
      test p
      e: i32 = add c 1:i32
      f: i32 = add d 2:i32
      yield e, f
    store x b
  return x
""")
    (task,) = program.tasks
    defined = {v: e for e in task.body.eqns for v in e.outvars}
    loop = task.body.eqns[2]
    ranges = Ranges(defined.get)
    found = controlling_counter(loop, ranges.of)
    assert found is not None
    position, counted = found
    assert (position, ranges.of(counted.start), int(counted.stop.value)) == (0, (0, 3), 7)
    assert counted.start is loop.invars[0]
    assert computed(counted, {loop.invars[0]: 2}) == 5
    assert surely_runs(loop)


@pytest.mark.parametrize("by", [-3, -1, 0, 1, 2])
def test_code_of_an_index_before_the_end(by: int) -> None:
    def op(name: str, *operands: Literal, **params: object) -> Literal:
        return literal(apply_scalar(name, [a.value for a in operands], params), DType.bool)

    for at, stop in itertools.product((-128, -1, 0, 3, 127), repeat=2):
        loop = CountedLoop(literal(0, I8), literal(stop, I8), literal(by, I8))
        found = loop.emit_before(op, literal(at, I8))
        assert found == literal(at < stop if by > 0 else by < 0 and at > stop, DType.bool)
    counted_nothing = CountedLoop(scalar_var(I8, "start"), scalar_var(I8, "stop"), literal(0, I8))
    assert counted_nothing.emit_count(op) == literal(0, U8)
