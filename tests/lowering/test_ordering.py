"""Iterations ordered by trip counts: the same results, and only where it is allowed.

The programs have private memory, which keeps lane refill away.
"""

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.divergence.in_blocks import BLOCK
from lowering.simd.plan import plan_task
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from tests.lowering.guards import STRICT
from tests.lowering.harness import execute

ROWS = """program rows(first: ref[i32,{n}], last: ref[i32,{n}], w: ref[f32,{m}], z: ref[f32,{m}])
  buffer y: ref[f32,{n}]
  range_for i in 0:i32 : {n}:i32 {{refill=false}}
    a: i32 = load first i
    b: i32 = load last i
{loops}    store y r i
  return y, z
"""
FOR = """    r: f32 = for j in a : b : 1:i32 carry s = 0.5:f32
      v: f32 = load w j
      t: f32 = sin s
      u: f32 = add t v
      store z u j
      yield u
"""
BACKWARD = """    e: i32 = sub b 1:i32
    g: i32 = sub a 1:i32
    r: f32 = for j in e : g : -1:i32 carry s = 0.5:f32
      v: f32 = load w j
      t: f32 = mul s 0.5:f32
      u: f32 = add t v
      store z u j
      yield u
"""
WHILE = """    q: i32, r: f32 = while carry j = a, s = 0.5:f32
      p: bool = gt b j
      test p
      v: f32 = load w j
      t: f32 = sin s
      u: f32 = add t v
      store z u j
      k: i32 = add j 1:i32
      yield k, u
"""
INSIDE = """    r: f32 = for j in a : b : 1:i32 carry s = 0.5:f32
      v: f32 = load w j
      q: i32, g: f32, h: f32 = while carry k = 0:i32, f = s, d = v
        p: bool = lt k 3:i32
        test p
        t: f32 = mul f 0.5:f32
        u: f32 = add t d
        l: i32 = add k 1:i32
        yield l, u, f
      store z h j
      yield g
"""


def program(loops: str, lengths: np.ndarray):
    ends = np.cumsum(lengths).astype(np.int32)
    n, m = lengths.size, max(1, int(ends[-1]) if lengths.size else 1)
    args = [ends - lengths.astype(np.int32), ends]
    rng = np.random.default_rng(1)
    args += [rng.standard_normal(m).astype(np.float32), np.zeros(m, np.float32)]
    return parse_program(ROWS.format(n=n, m=m, loops=loops)), args


def lengths_of(kind: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if kind == "geometric":
        return np.minimum(rng.geometric(1 / 16, n), 256)
    if kind == "equal":
        return np.full(n, 5)
    if kind == "rare":  # one in a hundred is long: every bucket of sixteen parts of a power of two may be hit
        return np.where(rng.random(n) < 0.01, rng.integers(30, 3000, n), rng.integers(0, 3, n))
    return np.zeros(n, int)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize("kind", ["geometric", "equal", "rare", "none"])
@pytest.mark.parametrize("loops", [FOR, BACKWARD, WHILE], ids=["for", "backward", "while"])
def test_results_are_those_of_the_order_as_it_comes(loops, kind, target):
    made, args = program(loops, lengths_of(kind, 2 * BLOCK + 77))
    given = [np.copy(a) for a in args]
    assert "ordered by trip counts" in plan_task(made.tasks[0], Target.named(target)).reason
    with np.errstate(all="ignore"):
        want = evaluate(made, given, fuel=1 << 30)
    got = execute(made, args, target, EmitOptions(fast_math=False))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)  # sin of the library


def test_a_loop_of_unknown_length_inside():
    made, args = program(INSIDE, lengths_of("geometric", 77))
    assert "ordered by trip counts" in plan_task(made.tasks[0], Target.named("avx2")).reason
    for one, other in zip(execute(made, args, "avx2", STRICT), evaluate(made, args), strict=True):
        np.testing.assert_array_equal(one, other)


REFUSED = {
    "neighbours inside": FOR.replace("load w j", "load w i"),
    "equal for all": FOR.replace("for j in a : b", "for j in 0:i32 : 3:i32"),
    "a step of two": FOR.replace("b : 1:i32", "b : 2:i32"),
    "numbers that are changed": FOR.replace("store z u j", "store last j i"),
    "no counter": WHILE.replace("gt b j", "gt 9.0:f32 s"),
}


@pytest.mark.parametrize("loops", REFUSED.values(), ids=REFUSED.keys())
def test_order_as_it_comes(loops):
    made, _ = program(loops, np.full(64, 3))
    assert "ordered" not in plan_task(made.tasks[0], Target.named("avx512")).reason


LANES = """program lanes(n: ref[i32,100])
  buffer y: ref[i32,100]
  range_for i in 0:i32 : 100:i32
    a: i32 = load n i
    p: bool = gt a 50:i32
    if p
      b: i32 = lane_max a
      store y b i
    else
      store y -1:i32 i
  return y
"""


@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
def test_lane_max_is_the_largest_of_active_lanes(target):
    n = np.random.default_rng(0).integers(0, 100, 100).astype(np.int32)
    (got,) = execute(parse_program(LANES), [n], target, EmitOptions())
    assert (got[n <= 50] == -1).all()
    assert (got[n > 50] >= n[n > 50]).all()
    assert set(got[n > 50]) <= set(n[n > 50])


@pytest.mark.parametrize("target", ["avx512", "avx2", "portable"])
def test_lanes_are_counted_and_ranked_among_active_ones(target):
    numbers = "q: bool = lt a 80:i32\n      b: i32 = lane_count q\n      c: i32 = lane_rank q"
    text = LANES.replace("b: i32 = lane_max a", numbers)
    text = text.replace("store y b i", "d: i32 = mul b 100:i32\n      e: i32 = add d c\n      store y e i")
    n = np.random.default_rng(0).integers(0, 100, 128).astype(np.int32)
    (got,) = execute(parse_program(text.replace("100", "128")), [n], target, EmitOptions())
    inside, width = (n > 50) & (n < 80), plan_task(parse_program(text).tasks[0], Target.named(target)).shape
    for k in range(0, 128, width.width * width.vectors):
        lanes = slice(k, k + width.width * width.vectors)
        counts, ranks = np.divmod(got[lanes][inside[lanes]], 128)
        assert (counts == len(counts)).all()
        assert ranks.tolist() == list(range(len(ranks)))
