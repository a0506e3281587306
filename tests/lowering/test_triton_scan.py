"""Serial loops that are scans, as kernels in Triton source: prefixes give what the reference gives."""

from __future__ import annotations

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.types import DType
from tests.differential.compare import Tolerance, compare

triton = pytest.importorskip("triton", reason="needs the package triton")

from lowering.triton.choice import choose  # noqa: E402
from lowering.triton.compile import compile_kernels  # noqa: E402
from lowering.triton.emit import emit_triton  # noqa: E402
from lowering.triton.plan import Tiling  # noqa: E402
from lowering.triton.scan import Scan, find_scan  # noqa: E402
from tests.lowering.triton_interpreter import ZEROS, guarded_memory, run_task, untouched  # noqa: E402

RNG = np.random.default_rng(11)
FAST = EmitOptions()
TILINGS = (Tiling(32, 32, 3), Tiling(32, 64, 2), Tiling(programs=16))


def scanned(text: str, args: list[np.ndarray], tolerance: Tolerance = ZEROS) -> None:
    """The one task is a scan and agrees with the reference, in any division into stretches."""
    made = parse_program(text)
    (task,) = made.tasks
    assert isinstance(find_scan(task, fast_math=True), Scan)
    for tiling in TILINGS:
        code = emit_triton(task, FAST, tiling)
        assert code.launches[0].name == "qd_sums"
        raws, memory = guarded_memory(made, args)
        run_task(code, task, memory)
        for raw in raws:
            untouched(raw)
        compare([memory[r] for r in made.results], evaluate(made, args), tolerance)


def prefix(n: int, dtype: str = "f32", op: str = "add", initial: str = "0", start: int = 0) -> str:
    """The sums of the beginnings of an array."""
    return f"""program p(x: ref[{dtype},{n}], y: ref[{dtype},{n}])
  serial
    s: {dtype} = for k in {start}:i32 : {n}:i32 : 1:i32 carry c = {initial}:{dtype}
      v: {dtype} = load x k
      r: {dtype} = {op} c v
      store y r k
      yield r
  return y
"""


def eighths(n: int) -> np.ndarray:
    """Floats whose sums are exact."""
    return (RNG.integers(-64, 64, n) / 8).astype(np.float32)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 96, 97, 1000])
@pytest.mark.parametrize("start", [0, 3])
def test_prefix_sums_of_any_length(n: int, start: int):
    if start < n:
        scanned(prefix(n, start=start), [eighths(n), np.zeros(n, np.float32)])


@pytest.mark.parametrize("op", ["add", "sub", "mul", "min", "max", "and", "or", "xor"])
@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64", "f32", "f64"])
def test_operations_and_dtypes(op: str, dtype: str):
    d = DType(dtype)
    if d.is_float and op in ("and", "or", "xor"):
        return
    n = 150
    x = RNG.integers(0, 7, n).astype(d.numpy)
    if op == "mul" and d.is_float:
        x = RNG.choice([0.5, 1.0, 2.0, -1.0], n).astype(d.numpy)
    scanned(prefix(n, dtype, op, initial="5"), [x, np.zeros(n, d.numpy)])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_small_floats_are_carried_as_f32(dtype: str):
    """What is stored is rounded, what is carried is not; of these numbers every sum is exact."""
    d, n = DType(dtype), 200
    x = np.ones(n, d.numpy)
    scanned(prefix(n, dtype), [x, np.zeros(n, d.numpy)])


def test_nan_and_minus_zero_pass_through():
    n = 100
    x = np.full(n, -0.0, np.float32)
    scanned(prefix(n, initial="-0.0"), [x, np.zeros(n, np.float32)], Tolerance())
    x = eighths(n)
    x[[40, 70]] = np.inf, np.nan
    for op in ("add", "min", "max"):
        scanned(prefix(n, op=op), [x, np.zeros(n, np.float32)])


@pytest.mark.parametrize("count", [0, 1, 33, 100])
def test_values_at_the_begin_of_an_iteration_several_carries_and_equations_around(count: int):
    text = """program p(x: ref[f32,100], n: ref[i32], b: ref[f32,101], c: ref[f32,101])
  serial
    e: i32 = load n
    e1: i32 = add e 1:i32
    i: f32 = load x 7:i32
    store b 7.0:f32 0:i32
    s: f32, m: f32 = for k in 1:i32 : e1 : 1:i32 carry p = i, q = 3.0:f32
      j: i32 = sub k 1:i32
      v: f32 = load x j
      store b p k
      w: f32 = mul v 2.0:f32
      r: f32 = sub p w
      t: f32 = max v q
      z: f32 = add t p
      store c z k
      yield r, t
    u: f32 = add s m
    store b u 100:i32
    store c i 0:i32
  return b, c
"""
    scanned(text, [eighths(100), np.int32(count), np.zeros(101, np.float32), np.zeros(101, np.float32)])


def test_a_scan_in_place():
    n = 300
    text = f"""program p(x: ref[i32,{n}])
  serial
    s: i32 = for k in 0:i32 : {n}:i32 : 1:i32 carry c = 0:i32
      v: i32 = load x k
      store x c k
      r: i32 = add c v
      yield r
  return x
"""
    scanned(text, [RNG.integers(-9, 9, n).astype(np.int32)])


def test_a_sum_alone_and_conditional_terms():
    n = 500
    text = f"""program p(x: ref[f32,{n}], y: ref[f32], k: ref[i32,{n}])
  serial
    a: f32 = load y
    s: f32, m: i32 = for i in 0:i32 : {n}:i32 : 1:i32 carry c = a, d = 0:i32
      v: f32 = load x i
      p: bool = gt v 0.0:f32
      w: f32 = if p
        u: f32 = mul v v
        yield u
      else
        yield 0.0:f32
      r: f32 = add c w
      o: i32 = select p 1:i32 0:i32
      t: i32 = add o d
      if p
        store k t i
      yield r, t
    store y s
  return y, k
"""
    scanned(text, [eighths(n), np.float32(2), np.zeros(n, np.int32)])


OTHER = {
    "a sum of floats is kept": (prefix(9), False),
    "it has not exactly one loop": ("  serial\n    store y 1.0:f32 0:i32\n", True),
    "carries nothing": ("  serial\n    for k in 0:i32 : 9:i32 : 1:i32\n      store y 1.0:f32 k\n", True),
    "not 1": ("""  serial
    s: f32 = for k in 0:i32 : 9:i32 : 2:i32 carry c = 0.0:f32
      v: f32 = load x k
      r: f32 = add c v
      yield r
""", True),
    "not combined": ("""  serial
    s: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = 0.0:f32
      v: f32 = load x k
      w: f32 = sub v c
      yield w
""", True),
    "depends on what is carried": ("""  serial
    s: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = 0.0:f32
      v: f32 = load x k
      w: f32 = mul v c
      r: f32 = add c w
      yield r
""", True),
    "meet in memory": ("""  serial
    s: f32 = for k in 1:i32 : 9:i32 : 1:i32 carry c = 0.0:f32
      j: i32 = sub k 1:i32
      v: f32 = load y j
      r: f32 = add c v
      store y r k
      yield r
""", True),
    "what is before it meet": ("""  serial
    a: f32 = load y 0:i32
    s: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = a
      v: f32 = load x k
      r: f32 = add c v
      store y r k
      yield r
""", True),
    "different loops": ("""  serial
    s: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = 0.0:f32
      v: f32 = load x k
      for m in 0:i32 : k : 1:i32
        store y v k
      r: f32 = add c v
      yield r
""", True),
    "without checks": ("""  serial
    s: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = 0.0:f32
      j: i32 = bound[size=9, axis=0, buffer=x, shape=(9)] k
      v: f32 = load x j
      r: f32 = add c v
      yield r
""", True),
}  # fmt: skip


@pytest.mark.parametrize("reason", OTHER)
def test_what_is_no_scan_and_why(reason: str):
    body, fast_math = OTHER[reason]
    text = body if body.startswith("program") else f"program p(x: ref[f32,9], y: ref[f32,9])\n{body}  return y\n"
    (task,) = parse_program(text).tasks
    found = find_scan(task, fast_math=fast_math)
    assert isinstance(found, str)
    assert reason in found
    chosen = choose(task, options=EmitOptions(fast_math=fast_math))
    assert chosen.codegen == "llvm"
    assert reason in chosen.reason


def test_the_choice_says_scan():
    (task,) = parse_program(prefix(1 << 26)).tasks
    chosen = choose(task)
    assert chosen.codegen == "triton"
    assert chosen.reason == "scan by add: 67108864 iterations in 1024 stretches of blocks of 2048"


@pytest.mark.parametrize("device", ["sm_80", "sm_90", "sm_100", "gfx942", "gfx1100"])
def test_scans_compile_with_wide_loads(device: str):
    (task,) = parse_program(prefix(1 << 20)).tasks
    sums, prefixes, walk = compile_kernels(emit_triton(task, FAST), device)
    if device.startswith("sm_"):
        for kernel in (sums, walk):
            assert "ld.global.v4.b32" in kernel.assembly
        assert "st.global.v4.b32" in walk.assembly
        assert ".local" not in walk.assembly + prefixes.assembly
    exclusive = prefix(1 << 20, "i64").replace("store y r k", "store y c k")
    (task,) = parse_program(exclusive).tasks
    assert len(compile_kernels(emit_triton(task, FAST), device)) == 3
