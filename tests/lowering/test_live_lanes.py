"""Lanes that are still in a divergent loop: masks, or numbers of 32 bits where LLVM would pack masks."""

import re

import numpy as np
import pytest

from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program
from tests.lowering.harness import agrees

N = 37


def escape(kind: str, count: str, step: str, further: str = "") -> Program:
    """A number grows until it leaves a bound; each lane counts its iterations up or down from 7."""
    return parse_program(f"""program p(x: ref[{kind},{N}], y: ref[{kind},{N}], z: ref[{count},{N}])
  range_for i in 0:i32 : {N}:i32 {{refill=false}}
    a: {kind} = load x i
    v_1: {kind}, k_1: {count} = while carry v = a, k = 7:{count}
      near: bool = lt v 9.0:{kind}
      few: bool = lt k 20:{count}
      on: bool = and near few
      test on
{further}      w: {kind} = mul v 1.25:{kind}
      m: {count} = {step}
      yield w, m
    store y v_1 i
    store z k_1 i
  return y, z
""")


def numbers(kind: str, seed: int = 0) -> np.ndarray:
    """Lanes that never enter, enter once, leave at different times, hold NaN, and stay below the bound."""
    x = np.random.default_rng(seed).uniform(0.01, 8, N).astype(np.dtype(kind.replace("f", "float")))
    x[[3, 4, 20, 21]] = 9, np.nan, 8.9, 1e-3
    return x


@pytest.mark.parametrize("step", ["add k 1:", "sub k 1:", "add k 2:", "add k -1:"])
@pytest.mark.parametrize(
    ("kind", "count"), [("f32", "i32"), ("f32", "u32"), ("f32", "i16"), ("f32", "i64"), ("f64", "i32")]
)
@pytest.mark.parametrize("further", ["", "      f: f32 = load y i\n      store y f i\n"], ids=["quiet", "with memory"])
def test_counts_of_lanes(kind: str, count: str, step: str, further: str) -> None:
    if count == "u32" and "-1" in step:
        step = "add k 4294967295:"
    made = escape(kind, count, step + count, further.replace("f32", kind))
    x = numbers(kind)
    agrees(
        made,
        [x, np.zeros_like(x), np.zeros(N, np.dtype(count.replace("i", "int").replace("u", "uint")))],
        vectors=(None, 1, 3),
    )


@pytest.mark.parametrize(("target", "carried"), [("avx2", "8 x i32"), ("avx512", "16 x i1"), ("neon", "4 x i1")])
def test_what_a_loop_carries(target: str, carried: str) -> None:
    text = emit_task(escape("f32", "i32", "add k 1:i32").tasks[0], Target.named(target)).text
    phis = re.findall(r"phi <(\d+ x i\d+)>", text)
    assert carried in phis
    assert target != "avx2" or "8 x i1" not in phis
    subtracts = re.search(r"sub <8 x i32> %v\d+, %v\d+", text) is not None
    assert subtracts == (target == "avx2")
    adds = re.search(r"add <\d+ x i32> %v\d+, splat \(i32 1\)", text) is not None
    assert adds == (target == "neon")  # masks in registers: a scalar counter is broadcast under one


def test_lanes_of_64_bits_carry_masks() -> None:
    text = emit_task(escape("f64", "i32", "add k 1:i32").tasks[0], Target.named("avx2")).text
    assert "4 x i1" in re.findall(r"phi <(\d+ x i\d+)>", text)
