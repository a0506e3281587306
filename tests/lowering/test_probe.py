"""The task that measures trips of a loop: a rewrite that the interpreter runs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from lowering.simd.divergence.probe import probe_task
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import ref_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program

Measure = Callable[[NDArray[np.int32]], NDArray[np.int64]]

N = 40
FOR = f"""program p(n: ref[i32,{N}], y: ref[f32,{N}])
  range_for i in 0:i32 : {N}:i32
    b: i32 = load n i
    s: f32 = for j in 2:i32 : b : 1:i32 carry c = 1.0:f32
      d: f32 = mul c 0.5:f32
      yield d
    store y s i
  return y
"""
WHILE = f"""program p(n: ref[i32,{N}], y: ref[f32,{N}])
  range_for i in 0:i32 : {N}:i32
    b: i32 = load n i
    k: i32, s: f32 = while carry j = 2:i32, c = 1.0:f32
      more: bool = lt j b
      test more
      m: i32 = add j 1:i32
      d: f32 = mul c 0.5:f32
      yield m, d
    store y s i
  return y
"""
STEPS = f"""program p(n: ref[i32,{N}], y: ref[f32,{N}])
  range_for i in 0:i32 : {N}:i32
    b: i32 = load n i
    r: f32 = for t in 0:i32 : 3:i32 : 1:i32 carry x = 1.0:f32
      p: bool = gt b 5:i32
      z: f32 = if p
        s: f32 = for j in t : b : 1:i32 carry c = x
          d: f32 = mul c 0.5:f32
          yield d
        yield s
      else
        yield x
      yield z
    store y r i
  return y
"""
MEASURED = """    s: f32, trips_2: i32 = for j in 2:i32 : b : 1:i32 carry c = 1.0:f32, trips = 0:i32
      d: f32 = mul c 0.5:f32
      trips_1: i32 = add trips 1:i32
      yield d, trips_1
    v0: i32 = lane_max trips_2
    accum[op=add] measured trips_2 0:i32
    accum[op=add] measured v0 1:i32
    accum[op=add] measured 1:i32 2:i32
    store y s i
"""


def measuring(text: str) -> Program:
    program = parse_program(text)
    loop = [e for e in program.all_eqns if e.primitive.loops][-1]
    measured = ref_var(DType.i32, (3,), "measured")
    params = (*program.params, measured)
    made = replace(program, params=params, tasks=(probe_task(program.tasks[0], loop, measured),))
    verify_program(made)
    return made


def test_a_counter_and_three_sums() -> None:
    assert MEASURED in print_program(measuring(FOR))


@pytest.mark.parametrize(
    ("text", "trips", "entries"),
    [
        pytest.param(FOR, lambda n: np.maximum(n - 2, 0), lambda n: n >= -9, id="for"),
        pytest.param(WHILE, lambda n: np.maximum(n - 2, 0), lambda n: n >= -9, id="while"),
        pytest.param(STEPS, lambda n: np.where(n > 5, 3 * n - 3, 0), lambda n: 3 * (n > 5), id="in time steps"),
    ],
)
def test_what_is_measured(text: str, trips: Measure, entries: Measure) -> None:
    n = np.random.default_rng(3).integers(-2, 20, N).astype(np.int32)
    arguments = [n, np.zeros(N, np.float32)]
    program = measuring(text)
    memory = np.zeros(3, np.int32)
    (y,) = evaluate(program, [*arguments, memory])
    np.testing.assert_array_equal(y, evaluate(parse_program(text), arguments)[0])
    found = evaluate(replace(program, results=(program.params[-1],)), [*arguments, memory])[0]
    assert found.tolist() == [trips(n).sum(), trips(n).sum(), entries(n).sum()]  # each lane waits for itself alone
