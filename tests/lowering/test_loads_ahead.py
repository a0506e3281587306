"""Loops of GPUs that load ahead: what they compute, in which order they fail, and which loops stay."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowering.simt import loads_ahead
from lowering.simt.devices import device
from lowering.simt.emit import emit_kernels
from qdtrace.errors import BoundsError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.types import DType
from tests.differential.compare import compare
from tests.lowering.kernels import execute_kernels
from tests.lowering.test_kernels import RANDOM
from tests.selection import drawn

ROWS = """program p(ptr: ref[i32,9], col: ref[i32,40], w: ref[f32,40], x: ref[f32,5], y: ref[f32,8], z: ref[f32,40])
  range_for i in 0:i32 : 8:i32
    lo: i32 = load ptr i
    i1: i32 = add i 1:i32
    hi: i32 = load ptr i1
    s: f32, n: i32 = for k in lo : hi : 1:i32 carry acc = 0.5:f32, count = 7:i32
      k1: i32 = bound[size=40, axis=0, buffer="w", shape=(40)] k
      a: f32 = load w k1
      c: i32 = load col k1
      b: i32 = bound[size=5, axis=0, buffer="x", shape=(5)] c
      v: f32 = load x b
      t: f32 = mul acc acc
      u: f32 = mul a v
      r: f32 = add t u
      store z r k1
      more: i32 = add count k
      yield r, more
    e: f32 = convert[dtype=f32] n
    q: f32 = add s e
    store y q i
  return y, z
"""


@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize("bad", [None, 0, 17, 39])
def test_loops_that_load_ahead(bad: int | None, stores: bool) -> None:
    """Rows of every length, empty and backward ones too; a place that is wrong is reported from wherever it is. What
    remains is behind the loop if iterations store."""
    program = parse_program(ROWS if stores else ROWS.replace("      store z r k1\n", ""))
    text = emit_kernels(program.tasks[0], device("sm_90")).text
    assert text.count("load float, ptr") == (6 if stores else 3) * loads_ahead.ITERATIONS + 1
    rng = np.random.default_rng(1)
    ptr = np.array([9, 0, 0, 5, 8, 17, 18, 34, 40], np.int32)
    args = [ptr, rng.integers(0, 5, 40).astype(np.int32), rng.integers(-2, 3, 40).astype(np.float32) / 4]
    args += [rng.integers(-2, 3, 5).astype(np.float32) / 4, np.zeros(8, np.float32), np.zeros(40, np.float32)]
    if bad is None:
        compare(execute_kernels(program, args), evaluate(program, args))
        return
    args[1][bad] = -5
    with pytest.raises(BoundsError, match="index -5 "):
        execute_kernels(program, args)


BETWEEN = """program p(lo: ref[{d},6], hi: ref[{d},6], w: ref[f32,7], y: ref[f32,6])
  range_for i in 0:i32 : 6:i32
    a: {d} = load lo i
    b: {d} = load hi i
    s: f32 = for k in {a} : {b} : 1:{d} carry c = 0.5:f32
      n: {d} = and k 6:{d}
      v: f32 = load w n
      t: f32 = mul c 0.5:f32
      u: f32 = add t v
      yield u
    store y s i
  return y
"""


@pytest.mark.parametrize("dtype", [DType.i32, DType.i64], ids=str)
def test_loops_over_either_dtype_load_ahead(dtype: DType) -> None:
    """At both ends of what the index has room for, with 0 to 9 iterations; also where nothing is between."""
    info = np.iinfo(dtype.numpy)
    lo = np.array([info.max - 9, info.max - 4, info.min, info.min + 3, info.max, 7], dtype.numpy)
    hi = np.array([info.max, info.max, info.min + 5, info.min + 3, info.min, 11], dtype.numpy)
    args = [lo, hi, np.arange(7, dtype=np.float32), np.zeros(6, np.float32)]
    program = parse_program(BETWEEN.format(d=dtype.name, a="a", b="b"))
    assert "there" in emit_kernels(program.tasks[0], device("sm_90")).text
    compare(execute_kernels(program, args), evaluate(program, args))


@pytest.mark.parametrize("trips", [3, 4, 5, 7, 8, 9])
def test_loops_of_known_length_load_ahead(trips: int) -> None:
    """No iteration of a multiple of those that load together asks whether it is there."""
    program = parse_program(BETWEEN.format(d="i32", a="2:i32", b=f"{2 + trips}:i32"))
    args = [np.zeros(6, np.int32), np.zeros(6, np.int32), np.arange(7, dtype=np.float32), np.zeros(6, np.float32)]
    text = emit_kernels(program.tasks[0], device("sm_90")).text
    assert ("there" in text) == (trips > 4 and trips % 4 != 0)
    compare(execute_kernels(program, args), evaluate(program, args))


def test_nothing_is_loaded_ahead_of_a_check_that_waits() -> None:
    """Nor memory that the task writes, nor what depends on an iteration before."""
    begin, end = ROWS.split("      a: f32 = load w k1\n")
    waits = begin + '      fine: bool = lt acc 9.0:f32\n      check[message="m"] fine\n      a: f32 = load w k1\n' + end
    written = ROWS.replace("load w k1", "load z k1").replace("load col k1", "load col count")
    for text in (waits, written):
        (task,) = parse_program(text).tasks
        assert emit_kernels(task, device("sm_90")).text.count("load i32, ptr") == 3


ANY = """program p(ptr: ref[i32,9], col: ref[i32,40], w: ref[f32,40], y: ref[f32,8], z: ref[f32,40], h: ref[i32,8])
  range_for i in 0:i32 : 8:i32
    lo: i32 = load ptr i
    i1: i32 = add i 1:i32
    hi: i32 = load ptr i1
    own: cell[f32,8] = cell[dtype=f32, shape=(8)]
    for n in 0:i32 : 8:i32 : 1:i32
      store own 0.5:f32 n
    s: f32, m: i32 = for k in lo : hi : 1:i32 carry s0 = 0.5:f32, m0 = 7:i32
{body}
      yield {s}, {m}
    store y s i
    store h m i
  return y, z, h
"""
STATEMENTS = ("load", "load", "load", "index", "index", "check", "store", "keep", "kept", "float")


@st.composite
def loops(draw: st.DrawFn) -> str:
    """A loop over rows whose body loads, checks, computes and stores in any order, of what is there so far."""
    floats, numbers, lines = ["s0", "1.5:f32"], ["k", "m0", "3:i32"], []

    def line(names: list[str], name: str, operation: str) -> None:
        lines.append(f"      {name}: {'f32' if names is floats else 'i32'} = {operation}")
        names.append(name)

    def place(n: int, among: int) -> str:
        """One of the first numbers, as an index."""
        line(numbers, f"p{n}", f"and {draw(st.sampled_from(numbers))} {among - 1}:i32")
        return f"p{n}"

    for n in range(draw(st.integers(2, 12))):
        a, b = (draw(st.sampled_from(floats[-4:])) for _ in range(2))
        match draw(st.sampled_from(STATEMENTS)):
            case "load":
                line(floats, f"f{n}", f"load w {place(n, 32)}")
            case "index":
                line(numbers, f"n{n}", f"load col {place(n, 32)}")
            case "check":
                number = draw(st.sampled_from(numbers))
                line(numbers, f"n{n}", f'bound[size=40, axis=0, buffer="w", shape=(40)] {number}')
            case "store":
                lines.append(f"      store z {a} k")
                line(floats, f"f{n}", "load z k")
            case "keep":
                lines.append(f"      store own {a} {place(n, 8)}")
            case "kept":
                line(floats, f"f{n}", f"load own {place(n, 8)}")
            case _:
                line(floats, f"g{n}", f"mul {a} 0.5:f32")
                line(floats, f"f{n}", f"add g{n} {b}")
    line(floats, "last", f"mul {floats[-1]} 0.5:f32")
    line(numbers, "more", f"sub {draw(st.sampled_from(numbers))} {draw(st.sampled_from(numbers))}")
    return ANY.format(body="\n".join(lines), s=draw(st.sampled_from(floats[-3:])), m="more")


@pytest.mark.full
@settings(RANDOM, max_examples=drawn(60))
@given(loops(), st.integers(0, 99))
def test_random_loops_load_ahead(text: str, seed: int) -> None:
    """Rows of every length; where one fails, so does the interpreter, of many failures maybe by another one."""
    rng = np.random.default_rng(seed)
    ptr = np.sort(rng.integers(0, 41, 9)).astype(np.int32)
    args = [ptr, rng.integers(-1, 40, 40).astype(np.int32), rng.integers(-8, 8, 40).astype(np.float32) / 4]
    args += [np.zeros(8, np.float32), np.zeros(40, np.float32), np.zeros(8, np.int32)]
    program = parse_program(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loads_ahead, "MOST_VALUES", 100)
        try:
            wanted = evaluate(program, args)
        except BoundsError:
            with pytest.raises(BoundsError):
                execute_kernels(program, args)
        else:
            compare(execute_kernels(program, args), wanted)
