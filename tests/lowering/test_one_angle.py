"""Sine and cosine of one angle in kernels of GPUs: one call of one function."""

import numpy as np

from lowering.simt.devices import device
from lowering.simt.emit import emit_kernels
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from tests.differential.compare import Tolerance, compare
from tests.lowering.kernels import execute_kernels


def test_sine_and_cosine_of_one_angle_are_one_call() -> None:
    """Also where one of them stands in front of a branch: LLVM has the same call twice."""
    text = """program p(x: ref[{d},40], n: ref[i32,40], y: ref[{d},40], z: ref[{d},40])
  range_for i in 0:i32 : 40:i32
    a: {d} = load x i
    s: {d} = sin a
    c: {d} = cos a
    store y s i
    m: i32 = load n i
    p: bool = lt m 1:i32
    if p
      t: {d} = sin c
      store z t i
    else
      u: {d} = cos c
      v: {d} = cos a
      w: {d} = mul u v
      store z w i
  return y, z
"""
    for d, kind in (("f32", "float"), ("f64", "double")):
        program = parse_program(text.format(d=d))
        code = emit_kernels(program.tasks[0], device("sm_90")).text
        assert code.count(f"call {{ {kind}, {kind} }} @qdm.sin_and_cos") == 4
        rng = np.random.default_rng(2)
        x = rng.standard_normal(40) * 10.0 ** rng.integers(-3, 9, 40)
        x[:6] = 0.0, -0.0, np.inf, -np.inf, np.nan, 1e30
        zeros = np.zeros(40)
        args = [np.asarray(a, program.params[0].type.dtype.numpy) for a in (x, zeros, zeros)]
        args.insert(1, rng.integers(0, 2, 40).astype(np.int32))
        # each function is within 2 ulps, and NumPy's within 4
        compare(execute_kernels(program, args), evaluate(program, args), Tolerance(ulps=12))
