"""Sums of floats on a GPU with `deterministic=True`: the same bits in any order of iterations, and rounded once."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from lowering.gpu.reproducible import FORMATS, MOST_BYTES, NAN, reproducible
from qdtrace.analysis.machine import GPU
from qdtrace.errors import BackendError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from tests.gpu.fake import fake_backend
from tests.runtime.programs import uncached

BINS, VALUES = 5, 400
LIMITS = GPU.accumulation
DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def summing(dtype: str, body: str = "accum[op=add] out v j", values: int = VALUES, bins: int = BINS) -> Program:
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    first = 0.5 if dtype.startswith("f") else 0
    return parse_program(f"""program p(k: ref[i32,{values}], x: ref[{dtype},{values}])
  buffer out: ref[{dtype},{bins}] = {first}:{dtype}
  range_for i in 0:i32 : {values}:i32 @"sum"
    j: i32 = load k i
    v: {dtype} = load x i
{lines}
  return out""")


def drawn(dtype: str, seed: int, values: int = VALUES) -> tuple[Any, Any]:
    """Keys, and values of all exponents whose sums are finite, some of them subnormal, zero or cancelling."""
    rng = np.random.default_rng(seed)
    info = np.finfo(DTYPES[dtype])
    x = np.ldexp(rng.normal(size=values), rng.integers(info.minexp - info.nmant, info.maxexp - 14, values))
    x[: values // 4] = -x[values // 4 : 2 * (values // 4)]
    x[-3:] = 0, -0.0, float(info.smallest_subnormal)
    return rng.integers(0, BINS, values).astype(np.int32), x.astype(DTYPES[dtype])


def exact(k: Any, x: Any) -> Any:
    """What the sums are before they are rounded, from 0.5 on."""
    return np.array([math.fsum([0.5, *x[k == b].astype(np.float64)]) for b in range(BINS)])


def on_fake(program: Program, *args: Any) -> Any:
    with jax.enable_x64(True), fake_backend() as (backend, _):
        call = jax.jit(backend.compile(program, uncached(deterministic=True, block_dim=4)).call)
        found = [np.asarray(call(*args)[0]) for _ in range(2)]
    assert found[0].tobytes() == found[1].tobytes()  # scratch is dirty the second time
    return found[0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_is_rounded_once_in_any_order(dtype: str, seed: int) -> None:
    k, x = drawn(dtype, seed)
    program = reproducible(summing(dtype), LIMITS)
    verify_program(program)
    (found,) = evaluate(program, [k, x])
    order = np.random.default_rng(seed).permutation(VALUES)
    (other,) = evaluate(program, [k[order], x[order]])
    assert found.tobytes() == other.tobytes()
    # planes are added up in f64, each sum of at most 262 terms; then they are rounded to the dtype
    wanted, sizes = exact(k, x), np.array([np.abs(x[k == b].astype(np.float64)).sum() for b in range(BINS)])
    half = np.spacing(np.abs(wanted).astype(DTYPES[dtype])).astype(np.float64) / 2
    bound = half + 300 * np.spacing(sizes)
    assert (np.abs(found.astype(np.float64) - wanted) <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_have_the_bits_of_the_interpreter(dtype: str) -> None:
    k, x = drawn(dtype, 7)
    if dtype == "f64":  # a device has the numbers that count as zeros in XLA's threads
        x[np.abs(x) < 1e-280] = 0
    (wanted,) = evaluate(reproducible(summing(dtype), LIMITS), [k, x])
    assert on_fake(summing(dtype), k, x).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_where_it_is(dtype: str) -> None:
    k = np.array([0, 1, 1, 2, 2, 3, 3, 4, 0, 1], np.int32)
    inf, nan = np.inf, np.nan
    x = np.array([1, inf, 2, -inf, inf, nan, 1, -inf, 2, inf], DTYPES[dtype])
    (found,) = evaluate(reproducible(summing(dtype, values=10), LIMITS), [k, x])
    np.testing.assert_array_equal(found, np.array([3.5, inf, nan, nan, -inf]))


def test_a_sum_beyond_the_largest_number_that_comes_back_is_finite() -> None:
    most = np.finfo(np.float32).max
    x = np.array([most, most, -most, -most, 3], np.float32)
    (found,) = evaluate(reproducible(summing("f32", values=5), LIMITS), [np.zeros(5, np.int32), x])
    assert found[0] == 3.5


def test_planes_that_are_used_again_begin_at_zero() -> None:
    once = "    j: i32 = load k i\n    v: f32 = load x i\n    accum[op=add] out v j\n"
    text = print_program(summing("f32"))
    twice = parse_program(text.replace("  return", f'  range_for i in 0:i32 : {VALUES}:i32 @"again"\n{once}  return'))
    k, x = drawn("f32", 3)
    (found,) = evaluate(reproducible(twice, LIMITS), [k, x])
    half = exact(k, x) - 0.5
    np.testing.assert_allclose(found, 0.5 + 2 * half, rtol=1e-6)


def test_updates_in_loops_and_branches_of_a_matrix_are_in_planes() -> None:
    program = parse_program("""program p(k: ref[i32,9], x: ref[f32,9])
  buffer out: ref[f32,3x2] = 0.0:f32
  range_for i in 0:i32 : 9:i32
    j: i32 = load k i
    v: f32 = load x i
    p: bool = gt v 0.0:f32
    if p
      for m in 0:i32 : 2:i32 : 1:i32
        accum[op=add] out v j m
  return out""")
    made = reproducible(program, LIMITS)
    verify_program(made)
    k, x = np.arange(9, dtype=np.int32) % 3, np.linspace(-1, 3, 9, dtype=np.float32)
    for one, other in zip(evaluate(made, [k, x]), evaluate(program, [k, x]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert [t.name for t in made.tasks] == ["", ""]
    assert len(made.buffers) == 2


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("accum[op=mul] out v j", "atomic updates"),
        ("accum[op=max] out v j", "atomic updates"),
        ("o: f32 = atomic[op=add] out v j", "atomic updates"),
        ("accum[op=add] out v j\no: f32 = load out 0:i32\nstore out o j", "atomic updates"),
    ],
)
def test_other_updates_are_refused(body: str, what: str) -> None:
    with pytest.raises(BackendError, match=rf"deterministic=True needs .*{what} of `out` on a GPU"):
        reproducible(summing("f32", body), LIMITS)


def test_planes_that_take_more_memory_than_devices_spare_are_refused() -> None:
    form = FORMATS[DType.f64]
    most = MOST_BYTES // (8 * (form.planes + NAN + 1))
    assert len(reproducible(summing("f64", bins=most), LIMITS).buffers) == 2
    with pytest.raises(BackendError, match="more than 4 GiB for the exact sums of `out`"):
        reproducible(summing("f64", bins=most + 1), LIMITS)


def test_sums_in_registers_and_of_integers_stay() -> None:
    for program in (summing("f32", "accum[op=add] out v 0:i32"), summing("i32")):
        assert reproducible(program, LIMITS) is program
