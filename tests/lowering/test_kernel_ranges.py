"""Ranges of kernels: those that end where their dtype does, and those whose bounds the task itself changes."""

import numpy as np
import pytest

from lowering.simt import stacks
from lowering.simt.code import Launch
from lowering.simt.devices import device
from lowering.simt.emit import emit_kernels
from lowering.simt.plan import plan_task
from qdtrace.errors import BoundsError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from tests.differential.compare import compare
from tests.lowering.kernels import execute_kernels

EMPTY = """program p(n: ref[i64,2], s: ref[i64])
  range_for i in a : b
    head
      a: i64 = load n 0:i32
      b: i64 = load n 1:i32
    accum[op=add] s 1:i64
  return s
"""


MOST = (1 << 63) - 1


RANGES = [(MOST, 5), (MOST, -MOST), (7, 7), (7, -7), (-MOST - 1, 8 - MOST), (MOST - 3, MOST), (MOST - 21, MOST)]
IN_STACKS = EMPTY.replace(
    "accum", "c: cell[i64,40] = cell[dtype=i64, shape=(40)]\n    k: i64 = and i 31:i64\n    store c i k\n    accum"
)


@pytest.mark.parametrize("bounds", RANGES)
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("text", [EMPTY, EMPTY.replace("accum[op=add] s 1:i64", "store s 1:i64"), IN_STACKS])
def test_ranges_of_64_bits_do_not_begin_again(
    text: str, known: bool, bounds: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they go on behind the last number there is."""
    monkeypatch.setattr(stacks, "LOCAL_BYTES", 100)
    monkeypatch.setattr(stacks, "WAITING_BYTES", 100)
    if known:
        text = text.replace(" a : b", f" {bounds[0]}:i64 : {bounds[1]}:i64")
    program = parse_program(text)
    args = [np.array(bounds), np.array(0)]
    compare(execute_kernels(program, args), evaluate(program, args))


SELF = """program p(n: ref[i32], x: ref[i32,12])
  range_for i in 0:i32 : m
    head
      m: i32 = load n
    store n 3:i32
    store x 7:i32 i
  return n, x
"""
SELF_BY_CELL = SELF.replace(
    "m: i32 = load n",
    "c: cell[i32] = cell[dtype=i32, shape=()]\n      k: i32 = load n\n      store c k\n      m: i32 = load c",
)
FEW = """program p(n: ref[i32], s: ref[i32])
  range_for i in 0:i32 : m
    head
      m: i32 = load n
      k: i32 = bound[size=5, axis=0, buffer="x", shape=(5)] m
    store n 9:i32
    accum[op=add] s 1:i32
  return n, s
"""


@pytest.mark.parametrize("text", [SELF, SELF_BY_CELL])
def test_bounds_that_the_task_changes_are_found_before(text: str) -> None:
    program = parse_program(text)
    plan = plan_task(program.tasks[0], device("sm_90"))
    assert plan.bounds_apart
    code = emit_kernels(program.tasks[0], device("sm_90"))
    assert code.launches == (Launch("qd_begin", 1, 1), Launch("qd_kernel", 256, 132 * 8, 4))
    assert code.scratch_bytes == 24
    for n in (0, 1, 9, 12):
        n_after, x = execute_kernels(program, [np.array(n, np.int32), np.zeros(12, np.int32)])
        assert n_after == (3 if n else 0)
        np.testing.assert_array_equal(x, np.where(np.arange(12) < n, 7, 0))


def test_what_is_checked_of_such_bounds_is_checked_before() -> None:
    """Not again where the sums of blocks are combined."""
    program = parse_program(FEW)
    for n in (0, 3, 4):
        args = [np.array(n, np.int32), np.array(2, np.int32)]
        compare(execute_kernels(program, args), evaluate(program, args))
    with pytest.raises(BoundsError, match="index 6 "):
        execute_kernels(program, [np.array(6, np.int32), np.array(2, np.int32)])


AROUND_ZERO = """program p(n: ref[i64,2], y: ref[i64,400])
  range_for i in start : stop
    head
      start: i64 = load n 0:i32
      stop: i64 = load n 1:i32
    zero: bool = eq i 0:i64
    one: i64 = select zero 1:i64 2:i64
    j: i64 = sub i start
    store y one j
  return y
"""


@pytest.mark.parametrize("start", range(-102, -98))
def test_threads_that_take_several_iterations_around_zero(start: int) -> None:
    """Zero is one of them wherever it stands among the iterations of its thread."""
    program = parse_program(AROUND_ZERO)
    assert emit_kernels(program.tasks[0], device("sm_90")).launches[0].group == 2
    args = [np.array([start, start + 400]), np.zeros(400, np.int64)]
    compare(execute_kernels(program, args), evaluate(program, args))
