"""Serial loops that are scans, as kernels in Triton source: prefixes give what the reference gives."""

import re
from collections.abc import Sequence

import numpy as np
import pytest

from lowering.llvm.options import EmitOptions
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.types import DType
from tests.differential.compare import Tolerance, compare

triton = pytest.importorskip("triton", reason="needs the package triton")

from triton.runtime import interpreter  # noqa: E402

from lowering.triton.choice import choose  # noqa: E402
from lowering.triton.compile import compile_kernels  # noqa: E402
from lowering.triton.emit import describe, emit_triton  # noqa: E402
from lowering.triton.plan import DEFAULT_TILING, Tiling  # noqa: E402
from lowering.triton.scan import Scan, find_scan  # noqa: E402
from tests.lowering.triton_interpreter import SMALL, ZEROS, agrees, guarded_memory, run_task, untouched  # noqa: E402

RNG = np.random.default_rng(11)
FAST = EmitOptions()
TILINGS = (Tiling(scan=32, tiles=3, group=2), Tiling(scan=64, tiles=7, group=4), Tiling(tiles=16))
"""Few tiles where only the device knows how many there are, so that some walk."""


def scanned(
    text: str, args: list[np.ndarray], tolerance: Tolerance = ZEROS, tilings: Sequence[Tiling] = TILINGS
) -> None:
    """The one task is a scan and agrees with the reference, in any division into tiles."""
    made = parse_program(text)
    (task,) = made.tasks
    assert isinstance(find_scan(task, fast_math=True), Scan)
    for tiling in tilings:
        code = emit_triton(task, FAST, tiling)
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


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 31, 32, 33, 63, 64, 65, 96, 97, 128, 129, 255, 256, 257, 1000])
@pytest.mark.parametrize("start", [0, 3])
def test_prefix_sums_of_any_length(n: int, start: int):
    """Below, at and above a tile, a group of tiles and a group of groups."""
    if start < n:
        scanned(prefix(n, start=start), [eighths(n), np.zeros(n, np.float32)])


@pytest.mark.full
@pytest.mark.parametrize("n", [8191, 8192, 8193, 32 * 1024, 32 * 1024 + 1, 70_001])
def test_tiles_and_groups_of_the_emitter(n: int):
    scanned(prefix(n), [eighths(n), np.zeros(n, np.float32)], tilings=[DEFAULT_TILING])


def test_an_empty_range_leaves_what_is_before_and_after():
    text = """program p(x: ref[f32,4], y: ref[f32,4], z: ref[f32])
  serial
    store y 9.0:f32 3:i32
    s: f32 = for k in 4:i32 : 4:i32 : 1:i32 carry c = 2.5:f32
      v: f32 = load x k
      r: f32 = add c v
      store y r k
      yield r
    store z s
  return y, z
"""
    scanned(text, [eighths(4), np.zeros(4, np.float32), np.float32(0)])


@pytest.mark.parametrize("n", [20, 200])
def test_what_is_stored_before_the_loop_is_overwritten_by_it(n: int):
    text = f"""program p(x: ref[f32,{n}], y: ref[f32,{n}])
  serial
    store y 9.0:f32 3:i32
    store y 8.0:f32 {n - 1}:i32
    s: f32 = for k in 0:i32 : {n - 1}:i32 : 1:i32 carry c = 0.0:f32
      v: f32 = load x k
      r: f32 = add c v
      store y r k
      yield r
    store y s 5:i32
  return y
"""
    scanned(text, [eighths(n), np.zeros(n, np.float32)])


def test_an_index_that_begins_below_zero():
    n = 100
    text = prefix(n, start=-50).replace(f": {n}:i32 :", ": 50:i32 :").replace("y r k", "y r j")
    text = text.replace("      v: f32 = load x k", "      j: i32 = add k 50:i32\n      v: f32 = load x j")
    scanned(text, [eighths(n), np.zeros(n, np.float32)])


@pytest.mark.parametrize("start", [-50, 2**31 - 60])
def test_a_wide_index_from_anywhere(start: int):
    """Across the end of 32 bits."""
    text = f"""program p(x: ref[f32,100], y: ref[f32])
  serial
    s: f32 = for k in {start}:i64 : {start + 100}:i64 : 1:i64 carry c = 0.0:f32
      j: i64 = sub k {start}:i64
      v: f32 = load x j
      r: f32 = add c v
      yield r
    store y s
  return y
"""
    scanned(text, [eighths(100), np.float32(0)])


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("op", ["add", "mul"])
def test_integers_wrap(dtype: str, op: str):
    d, n = DType(dtype).numpy, 300
    x = RNG.integers(np.iinfo(d).min, np.iinfo(d).max, n, dtype=d, endpoint=True) | 1
    scanned(prefix(n, dtype, op, initial="3"), [x, np.zeros(n, d)])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
@pytest.mark.full
def test_infinities_and_nan_of_any_tile_reach_all_that_follow(dtype: str, op: str):
    d, n = DType(dtype).numpy, 300
    for value, place in ((np.nan, 0), (np.nan, 31), (np.inf, 64), (-np.inf, 140), (np.nan, 299)):
        x = np.ones(n, d)
        x[place] = value
        scanned(prefix(n, dtype, op, initial="1"), [x, np.zeros(n, d)], tilings=TILINGS[:1])


@pytest.mark.full
def test_all_bits_of_wide_numbers_pass_from_tile_to_tile():
    """Halves travel apart; a sum has bits in both."""
    n = 300
    x = RNG.integers(-(2**62), 2**62, n, dtype=np.int64)
    scanned(prefix(n, "i64", "xor", initial="-1"), [x, np.zeros(n, np.int64)])
    x = np.ldexp(RNG.integers(-(2**20), 2**20, n).astype(np.float64), -30)
    scanned(prefix(n, "f64"), [x, np.zeros(n, np.float64)])


@pytest.mark.full
@pytest.mark.parametrize("n", [100, 333])
def test_a_scan_from_the_end(n: int):
    text = f"""program p(x: ref[i32,{n}], y: ref[i32,{n}])
  serial
    s: i32 = for k in 0:i32 : {n}:i32 : 1:i32 carry c = 7:i32
      j: i32 = sub {n - 1}:i32 k
      v: i32 = load x j
      store y c j
      r: i32 = add c v
      yield r
  return y
"""
    scanned(text, [RNG.integers(-9, 9, n).astype(np.int32), np.zeros(n, np.int32)])


@pytest.mark.full
@pytest.mark.parametrize("bounds", [(299, -1, -1), (299, 0, -3), (5, 300, 7), (0, 0, -1), (40, 39, -9)])
def test_steps_of_any_size_between_constants(bounds: tuple[int, int, int]):
    """As a derivative has them: it clears what it has read and adds to elements of its own."""
    start, stop, step = bounds
    text = f"""program p(x: ref[i32,300], y: ref[i32,300], z: ref[i32,300], t: ref[i32])
  serial
    s: i32 = for k in {start}:i32 : {stop}:i32 : {step}:i32 carry c = 7:i32
      v: i32 = load x k
      r: i32 = add c v
      store z c k
      store x 0:i32 k
      accum[op=add] y r k
      yield r
    store t s
  return x, y, z, t
"""
    scanned(text, [*(RNG.integers(-9, 9, 300).astype(np.int32) for _ in range(3)), np.int32(0)])


@pytest.mark.full
def test_the_order_of_a_sum_is_fixed(monkeypatch):
    """Floats whose sum depends on the order have the same bits whatever program starts first: a tile takes its number
    when it starts, and combines what others left in a tree of its own."""
    n = 1500
    made = parse_program(prefix(n))
    (task,) = made.tasks
    x = RNG.standard_normal(n).astype(np.float32)
    code = emit_triton(task, FAST, TILINGS[0])

    def run() -> bytes:
        raws, memory = guarded_memory(made, [x, np.zeros(n, np.float32)])
        run_task(code, task, memory)
        for raw in raws:
            untouched(raw)
        return memory[made.results[0]].tobytes()

    forward = run()
    builder = interpreter.InterpreterBuilder
    own = builder.set_grid_idx
    monkeypatch.setattr(builder, "set_grid_idx", lambda self, x, y, z: own(self, self.grid_dim[0] - 1 - x, y, z))
    assert run() == forward
    assert forward != np.cumsum(x, dtype=np.float32).tobytes()


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


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_small_floats_are_carried_as_f32(dtype: str):
    """What is stored is rounded, what is carried is not; of these numbers every sum is exact."""
    d, n = DType(dtype), 200
    x = np.ones(n, d.numpy)
    scanned(prefix(n, dtype), [x, np.zeros(n, d.numpy)])


@pytest.mark.full
def test_nan_and_minus_zero_pass_through():
    n = 100
    x = np.full(n, -0.0, np.float32)
    scanned(prefix(n, initial="-0.0"), [x, np.zeros(n, np.float32)], Tolerance())
    x = eighths(n)
    x[[40, 70]] = np.inf, np.nan
    for op in ("add", "min", "max"):
        scanned(prefix(n, op=op), [x, np.zeros(n, np.float32)])


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.every_case
@pytest.mark.parametrize("count", [0, 1, 33, 400])
@pytest.mark.parametrize("stores", [True, False])
def test_sums_that_no_iteration_uses(count: int, stores: bool):
    """Of a range that only the device knows: tiles hand them on and wait for nothing; a second walk is for stores."""
    text = SUMS if stores else SUMS.replace("      store y v k\n", "")
    (task,) = parse_program(text).tasks
    code = emit_triton(task, FAST).text
    assert "hand_on_add" in code
    assert "look_back" not in code
    assert "associative_scan" not in code
    assert code.count("tl.load(x") == (4 if stores else 2)  # of whole blocks and of the last one
    y, ends = np.zeros(400, np.float32), [np.float32(0), np.int32(0)]
    scanned(text, [eighths(400), y, np.int32(count), *ends])


SUMS = """program p(x: ref[f32,400], y: ref[f32,400], n: ref[i32], z: ref[f32], w: ref[i32])
  serial
    e: i32 = load n
    s: f32, t: i32 = for k in 0:i32 : e : 1:i32 carry c = 2.5:f32, d = 7:i32
      v: f32 = load x k
      store y v k
      r: f32 = add c v
      g: i32 = convert[dtype=i32] v
      q: i32 = sub d g
      yield r, q
    store z s
    store w t
  return y, z, w
"""

OTHER = {
    "a sum of floats is kept": (prefix(9), False),
    "it does not have exactly one loop": ("  serial\n    store y 1.0:f32 0:i32\n", True),
    "carries nothing": ("  serial\n    for k in 0:i32 : 9:i32 : 1:i32\n      store y 1.0:f32 k\n", True),
    "not 1, and its bounds are not known": ("""program p(x: ref[f32,9], y: ref[f32,9], n: ref[i32])
  serial
    e: i32 = load n
    s: f32 = for k in 0:i32 : e : 2:i32 carry c = 0.0:f32
      v: f32 = load x k
      r: f32 = add c v
      yield r
    store y s 0:i32
  return y
""", True),
    "not combined": ("""  serial
    s: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = 0.0:f32
      v: f32 = load x k
      w: f32 = sub v c
      yield w
""", True),
    "depends on a carried value": ("""  serial
    s: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = 0.0:f32
      v: f32 = load x k
      w: f32 = mul v c
      r: f32 = add c w
      yield r
""", True),
    "access the same elements": ("""  serial
    s: f32 = for k in 1:i32 : 9:i32 : 1:i32 carry c = 0.0:f32
      j: i32 = sub k 1:i32
      v: f32 = load y j
      r: f32 = add c v
      store y r k
      yield r
""", True),
    "the code before it access the same": ("""  serial
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
    assert chosen.reason == "scan by add: 67108864 iterations in 8192 tiles of 8192"


def reason(text: str) -> str:
    (task,) = parse_program(text).tasks
    return describe(task, FAST).removeprefix("scan by ")


def test_what_a_thread_holds_decides_the_size_of_a_tile():
    """Numbers of 64 bits, and terms that are used after the wait, take registers; short ranges have small tiles."""
    n = 1 << 26
    assert reason(prefix(n, "f64")).endswith(f"{n} iterations in 16384 tiles of 4096")
    again = prefix(n).replace("store y r k", "u: f32 = mul r v\n      store y u k")
    assert reason(again).endswith("tiles of 4096")
    exclusive = prefix(n).replace("store y r k", "store y c k")
    assert reason(exclusive).endswith("tiles of 8192")
    assert reason(prefix(8192)) == "add: 8192 iterations in one tile of 8192"
    assert reason(prefix(100, op="max")) == "max: 100 iterations in one tile of 128"
    assert reason(prefix(8193)) == "add: 8193 iterations in 9 tiles of 1024"
    assert reason(prefix(1 << 20)) == "add: 1048576 iterations in 256 tiles of 4096"


def test_one_tile_is_one_kernel_and_needs_no_scratch():
    (task,) = parse_program(prefix(8192)).tasks
    code = emit_triton(task, FAST)
    assert [(k.name, k.programs) for k in code.launches] == [("qd_kernel", 1)]
    assert code.scratch_bytes == 0
    assert "atomic" not in code.text
    (task,) = parse_program(prefix(8193)).tasks
    code = emit_triton(task, FAST)
    assert [(k.name, k.programs) for k in code.launches] == [("qd_clear", 1), ("qd_kernel", 9)]
    assert code.text.count("tl.load(x") == 2  # of whole tiles, and of the last one


FAR = """program p(n: ref[i64,2], x: ref[i64,40], s: ref[i64])
  range_for i in a : b
    head
      a: i64 = load n 0:i32
      b: i64 = load n 1:i32
    accum[op=add] s 1:i64
  serial
    a: i64 = load n 0:i32
    b: i64 = load n 1:i32
    e: i64 = load s
    t: i64 = for k in a : b : 1:i64 carry c = e
      r: i64 = add c 1:i64
      m: i64 = sub k a
      store x r m
      yield r
    store s t
  return x, s
"""
FAR_SCAN = """program p(n: ref[i64,2], z: ref[i64])
  serial
    a: i64 = load n 0:i32
    b: i64 = load n 1:i32
    s: i64 = for k in a : b : 1:i64 carry c = 3:i64
      r: i64 = add c k
      yield r
    store z s
  return z
"""
MOST = (1 << 63) - 1


@pytest.mark.parametrize("bounds", [(MOST, -MOST), (MOST, 5), (7, 7), (MOST - 9, MOST), (-MOST - 1, 8 - MOST)])
def test_ranges_that_end_where_their_dtype_does(bounds: tuple[int, int]):
    agrees(parse_program(FAR), [np.array(bounds), np.zeros(40, np.int64), np.array(3)], tilings=[SMALL])
    scanned(FAR_SCAN, [np.array(bounds), np.array(3)], tilings=TILINGS[:1])


@pytest.mark.full
def test_ranges_beyond_32_bits():
    n = (1 << 31) + 5
    text = prefix(n).replace("0:i32", "0:i64").replace(f"{n}:i32", f"{n}:i64").replace("1:i32", "1:i64")
    (task,) = parse_program(text).tasks
    code = emit_triton(task, FAST)
    assert code.launches[1].programs == -(-n // 8192)
    assert "tile.to(tl.int64) * BLOCK" in code.text
    _, walk = compile_kernels(code, "sm_90")
    assert "ld.global.v4.b32" in walk.assembly
    assert ".maxnreg 128" in walk.assembly  # the last tile has code of its own


EXCLUSIVE = prefix(1 << 20, "i64").replace("store y r k", "store y c k")
UNKNOWN = """program p(x: ref[f32,5000000], y: ref[f32,5000000], n: ref[i32], z: ref[f32])
  serial
    e: i32 = load n
    s: f32 = for k in 0:i32 : e : 1:i32 carry c = 0.0:f32
      v: f32 = load x k
      r: f32 = add c v
      store y r k
      yield r
    store z s
  return y, z
"""


@pytest.mark.parametrize("device", ["sm_80", "sm_90", "sm_100", "gfx942", "gfx1100"])
@pytest.mark.full
def test_scans_compile_and_read_once_by_wide_loads(device: str):
    (task,) = parse_program(prefix(1 << 26)).tasks
    clear, walk = compile_kernels(emit_triton(task, FAST), device)
    if device.startswith("sm_"):
        assert walk.assembly.count("ld.global.v4.b32") == 8192 // 128 // 4
        assert walk.assembly.count("st.global.v4.b32") == 8192 // 128 // 4
        assert "st.global.v2.b64" in clear.assembly
        assert ".local" not in walk.assembly + clear.assembly
    for text, kernels in ((EXCLUSIVE, 2), (UNKNOWN, 3), (SUMS, 3)) if device in ("sm_90", "gfx942") else ():
        (task,) = parse_program(text).tasks
        assert len(compile_kernels(emit_triton(task, FAST), device)) == kernels


@pytest.mark.full
@pytest.mark.parametrize("device", ["sm_80", "sm_90", "gfx942"])
def test_words_of_other_tiles_are_read_by_atomic_operations(device: str):
    """No cache of one multiprocessor may hold back what another one has written."""
    (task,) = parse_program(prefix(1 << 20)).tasks
    _, walk = compile_kernels(emit_triton(task, FAST), device)
    if device.startswith("sm_"):
        assert walk.assembly.count("atom.global.gpu.relaxed.or.b64") == 10  # asked, and asked again, in five places
        assert not re.search(r"ld\.(volatile\.)?global\.b64", walk.assembly)
    else:  # a load may stand for a word that is only asked for: of the scope of the device, beyond its caches
        loads = re.findall(r"(?:global|buffer|flat)_load_dwordx2 .*", walk.assembly)
        assert all(load.endswith(" sc1") for load in loads)
        assert len(loads) + len(re.findall(r"(?:global|buffer)_atomic_or_x2 ", walk.assembly)) >= 5
