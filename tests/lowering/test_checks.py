"""Checks in machine code: where they are made, what they say, and that nothing outside is touched when one fails."""

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from qdtrace.errors import BoundsError, CheckError
from qdtrace.ir.parser import parse_program
from qdtrace.ir.types import DType
from tests.lowering.harness import TARGETS, Kernel, run_kernels, runnable

BOUND = 'bound[size=8, axis=0, buffer="x", shape=(8)]'


def run(text: str, target: str, args: list[object], cuts: tuple[float, ...] = (0.3, 0.6)) -> list[np.ndarray]:
    program = parse_program(text.replace("BOUND", BOUND))
    options = EmitOptions(fast_math=True)
    kernels = [Kernel(t, runnable(target), options) for t in program.tasks]
    return run_kernels(program, kernels, [np.asarray(a) for a in args], cuts)


@pytest.mark.every_case
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("index", [8, -1, 2**31 - 1, -(2**31)])
def test_what_chunks_have_reduced_is_not_stored_when_a_check_failed(target: str, index: int) -> None:
    """The condition proves the index of the sum, which is the same in all iterations, so it is in no check."""
    text = """
program p(x: ref[i32,100], n: ref[i32], y: ref[i32,8])
  range_for i in 0:i32 : 100:i32
    head
      a: i32 = load n
      low: bool = ge a 0:i32
      high: bool = lt a 8:i32
      fine: bool = and low high
    v: i32 = load x i
    p: bool = ge v 0:i32
    q: bool = and p fine
    check[message="no"] q
    accum[op=add] y v a
  return y
"""
    x, y = np.ones(100, np.int32), np.zeros(8, np.int32)
    assert run(text, target, [x, np.int32(3), y])[0].tolist() == [0, 0, 0, 100, 0, 0, 0, 0]
    with pytest.raises(CheckError, match="check failed: no"):
        run(text, target, [x, np.int32(index), y])


@pytest.mark.parametrize("target", TARGETS)
def test_bounds_are_checked_once_before_anything_is_stored(target: str) -> None:
    """The task overwrites what its bounds were computed from: later chunks must not check that."""
    text = """
program p(n: ref[i32,2])
  range_for i in 0:i32 : k
    head
      a: i32 = load n 0:i32
      k: i32 = BOUND a
    p: bool = eq i 1:i32
    if p
      store n 1000:i32 0:i32
  return n
"""
    assert run(text, target, [np.array([6, 5], np.int32)])[0].tolist() == [1000, 5]
    with pytest.raises(BoundsError, match="index 1000 is out of bounds for axis 0 of `x`"):
        run(text, target, [np.array([1000, 5], np.int32)])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["i32", "i64", "u32", "u64"])
def test_the_index_of_the_lane_that_fails_is_told(target: str, dtype: str) -> None:
    text = f"""
program p(x: ref[f32,8], n: ref[{dtype},40], y: ref[f32,40])
  range_for i in 0:i32 : 40:i32
    a: {dtype} = load n i
    b: {dtype} = BOUND a
    k: {"i64" if "64" in dtype else "i32"} = convert[dtype={"i64" if "64" in dtype else "i32"}] b
    v: f32 = load x k
    store y v i
  return y
"""
    x, y = np.arange(8, dtype=np.float32), np.zeros(40, np.float32)
    kind = DType(dtype).numpy
    good = np.arange(40).astype(kind) % kind.type(8)
    assert run(text, target, [x, good, y])[0].tolist() == [float(k) for k in good]
    wide = {
        "i32": (-1, 2**31 - 1, -(2**31)), "i64": (-1, 2**32, 2**32 + 3, -(2**32), 2**63 - 1, -(2**63)),
        "u32": (2**31 - 1, 2**31, 2**32 - 1), "u64": (2**32 + 3, 2**63 - 1, 2**63, 2**64 - 1),
    }  # fmt: skip
    for place in (0, 5, 17, 39):
        for index in (8, *wide[dtype]):
            bad = good.copy()
            bad[place] = index
            with pytest.raises(BoundsError, match=f"^index {index} is out of bounds for axis 0 of `x` with shape"):
                run(text, target, [x, bad, y])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [2**31, 2**33])
def test_axes_longer_than_the_dtype_of_the_index(target: str, size: int) -> None:
    """Then only negative indices are outside."""
    text = f"""
program p(n: ref[i32,8], y: ref[i32,8])
  range_for i in 0:i32 : 8:i32
    a: i32 = load n i
    k: i32 = bound[size={size}, axis=0, buffer="x", shape=({size})] a
    store y k i
  return y
"""
    n, y = np.full(8, 2**31 - 1, np.int32), np.zeros(8, np.int32)
    assert (run(text, target, [n, y])[0] == n).all()
    n[3] = -1
    with pytest.raises(BoundsError, match="index -1 is"):
        run(text, target, [n, y])


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_that_do_not_take_part_do_not_fail(target: str) -> None:
    """Lanes under the other side of a branch, that left a loop, and behind the end of the range."""
    text = """
program p(x: ref[i32,8], n: ref[i32,37], y: ref[i32,37])
  range_for i in 0:i32 : 37:i32
    a: i32 = load n i
    s: i32 = while carry t = a
      p: bool = lt t 8:i32
      test p
      k: i32 = BOUND t
      v: i32 = load x k
      q: bool = gt v 2:i32
      if q
        b: i32 = sub v 3:i32
        l: i32 = BOUND b
        store y 7:i32 i
      u: i32 = add t 1:i32
      yield u
    store y s i
  return y
"""
    x, y = np.arange(8, dtype=np.int32), np.zeros(37, np.int32)
    n = np.array([(0, 8, 7, 100, 2**31 - 1)[k % 5] for k in range(37)], np.int32)
    assert run(text, target, [x, n, y])[0].tolist() == [max(8, k) for k in n.tolist()]
    n[20] = -1
    with pytest.raises(BoundsError, match="index -1 is"):
        run(text, target, [x, n, y])
    x[5] = 12
    n[20] = 0
    with pytest.raises(BoundsError, match="index 9 is"):
        run(text, target, [x, n, y])


@pytest.mark.full
@pytest.mark.parametrize("target", ["avx512", "scalar"])
def test_a_check_in_the_middle_of_a_long_function(target: str) -> None:
    """Long functions are cut into parts; a part with a way out says so to its caller."""
    lines = ["    v0: f32 = load x k"]
    for step in range(2500):
        lines += [f"    m{step}: f32 = mul v{step} v{step}", f"    v{step + 1}: f32 = add m{step} 0.25:f32"]
        if step in (700, 1500, 2400):
            lines += [f"    k{step}: i32 = BOUND a", f"    store y v{step} i"]
    body = "\n".join(lines)
    text = f"""
program p(x: ref[f32,8], n: ref[i32,20], y: ref[f32,20])
  range_for i in 0:i32 : 20:i32
    b: i32 = load n i
    k: i32 = and b 7:i32
    a: i32 = load n i
{body}
    store y v2500 i
  return y
"""
    x, n, y = np.zeros(8, np.float32), np.zeros(20, np.int32), np.zeros(20, np.float32)
    assert run(text, target, [x, n, y], ())[0].shape == (20,)
    n[7] = 8
    with pytest.raises(BoundsError, match="index 8 is"):
        run(text, target, [x, n, y], ())
