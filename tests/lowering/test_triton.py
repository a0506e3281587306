"""Triton source on the CPU: primitives, memory and accumulations give what the reference gives."""

from dataclasses import replace

import numpy as np
import pytest

from qdtrace.errors import BoundsError, CheckError, Loc
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import ref_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.primitives import FUNCTIONS
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType
from tests.differential.compare import Tolerance, compare
from tests.lowering.harness import i32, program, task
from tests.lowering.test_elementwise import operations, table, values_of

triton = pytest.importorskip("triton", reason="needs the package triton")

from lowering.triton.compile import compile_kernels  # noqa: E402
from lowering.triton.emit import emit_triton  # noqa: E402
from lowering.triton.maths import is_accurate  # noqa: E402
from lowering.triton.plan import Tiling  # noqa: E402
from tests.lowering.triton_interpreter import SMALL, ZEROS, Run, agrees  # noqa: E402

RNG = np.random.default_rng(3)
_BINARY = {"pow", "atan2"}


@pytest.mark.full
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_primitives_agree_with_the_reference(dtype: DType):
    values = values_of(dtype)
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    c = np.roll(b, 3)
    names = [o for o in operations(dtype) if o[0] != "nextafter"]
    made = table(dtype, names, len(a))
    got, want = Run(Tiling(stream=256)).results(made, [a, b, c]), evaluate(made, [a, b, c])
    for (name, params, _), x, y in zip(names, got, want, strict=True):
        try:
            compare([x], [y], ZEROS if name in ("min", "max") else Tolerance())
        except AssertionError as e:
            raise AssertionError(f"{name} {params} of {dtype}") from e


@pytest.mark.parametrize("dtype", [DType.f16, DType.bf16, DType.f32, DType.f64], ids=lambda d: d.value)
def test_functions_are_called_by_their_names(dtype: DType):
    names = [(n, {}, 1 + (n in _BINARY)) for n in sorted(FUNCTIONS) if is_accurate(n, dtype, "cuda")]
    a, b = RNG.uniform(-3, 3, (2, 200)).astype(dtype.numpy)
    made = table(dtype, [*names, ("rem", {}, 2)], 200)
    run = Run()
    compare(run.results(made, [a, b, b]), evaluate(made, [a, b, b]), Tolerance(ulps=4, absolute=1e-18))
    assert run.made == 1


@pytest.mark.parametrize("by", [0, 1, 7, -1, -3])
@pytest.mark.parametrize("dtype", [d for d in DType if d.is_integer], ids=lambda d: d.value)
def test_division_and_shifts_by_constants(dtype: DType, by: int):
    if by < 0 and not dtype.is_signed:
        by += int(np.iinfo(dtype.numpy).max)
    values = values_of(dtype)
    x, *outs = (ref_var(dtype, values.shape, h) for h in "xqrstu")

    def body(b, i):
        constant, loaded = literal(by, dtype), b.load(x, i)
        names = ("div", "rem", "shift_left", "shift_right_logical", "shift_right_arithmetic")
        for out, name in zip(outs, names, strict=True):
            b.store(out, b(name, loaded, constant), i)

    agrees(program([x, *outs], task(len(values), body), outs), [values] * 6)


@pytest.mark.parametrize("dtype", [DType.f16, DType.bf16, DType.f32, DType.f64], ids=lambda d: d.value)
@pytest.mark.parametrize("constant", [0.0, -0.0, 0.1, 1e-40, 3e38, float("nan"), float("-inf")])
def test_float_constants_keep_their_dtype_and_sign(dtype: DType, constant: float):
    values = values_of(dtype)
    x, *outs = (ref_var(dtype, values.shape, h) for h in "xpqrs")
    with np.errstate(over="ignore"):
        constant = dtype.numpy.type(constant)

    def body(b, i):
        c, v = literal(constant, dtype), b.load(x, i)
        b.store(outs[0], b("mul", c, v), i)
        b.store(outs[1], b("select", b("ge", v, c), v, c), i)  # of gt some releases make a maximum: 0.0 above -0.0
        b.store(outs[2], b("sub", c, v), i)
        b.store(outs[3], c, i)

    agrees(program([x, *outs], task(len(values), body), outs), [values] * 5, Tolerance())


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 1000])
@pytest.mark.parametrize(("start", "dtype"), [(0, "i32"), (5, "i32"), (-7, "i32"), (3, "i64")])
def test_streams_of_any_length(n: int, start: int, dtype: str):
    at = f"""
    a: {dtype} = sub i {start}:{dtype}"""
    made = parse_program(f"""program p(x: ref[f32,{n}], y: ref[f32,{n}], s: ref[f32])
  range_for i in {start}:{dtype} : {start + n}:{dtype}
    head
      c: f32 = load s{at}
    v: f32 = load x a
    w: f32 = mul v c
    store y w a
  return y
""")
    agrees(made, [RNG.normal(size=n).astype(np.float32), np.zeros(n, np.float32), np.float32(3)])


def test_a_range_at_the_end_of_i32_and_one_beyond():
    last = 2**31 - 1
    agrees(
        parse_program(f"""program p(y: ref[i32,40], z: ref[i64,40])
  range_for i in {last - 40}:i32 : {last}:i32
    a: i32 = sub i {last - 40}:i32
    store y i a
  range_for j in {2**40}:i64 : {2**40 + 40}:i64
    a: i64 = sub j {2**40}:i64
    store z j a
  return y, z
"""),
        [np.zeros(40, np.int32), np.zeros(40, np.int64)],
    )


@pytest.mark.full
@pytest.mark.parametrize(("first", "last"), [(0, 100), (7, 8), (9, 3), (-4, -2), (0, 97)])
def test_bounds_that_only_the_device_knows(first: int, last: int):
    agrees(
        parse_program("""program p(y: ref[i32,100], n: ref[i32,2])
  range_for i in a : e
    head
      a: i32 = load n 0:i32
      e: i32 = load n 1:i32
    j: i32 = rem i 100:i32
    k: i32 = abs j
    store y i k
  return y
"""),
        [np.zeros(100, np.int32), np.array([first, last], np.int32)],
    )


@pytest.mark.full
def test_rows_and_columns_of_a_flat_index_are_one_address():
    made = parse_program("""program p(x: ref[f32,30x41], y: ref[f32,41x30], z: ref[f32,30x41])
  range_for i in 0:i32 : 1230:i32
    r: i32 = div i 41:i32
    c: i32 = rem i 41:i32
    v: f32 = load x r c
    store y v c r
    store z v r c
  return y, z
""")
    agrees(made, [RNG.normal(size=s).astype(np.float32) for s in ((30, 41), (41, 30), (30, 41))])
    text = emit_triton(made.tasks[0]).text
    assert "tl.load(x + i" in text
    assert "tl.store(z + i" in text


def test_gathers_and_uniform_loads():
    made = parse_program("""program p(x: ref[f32,64], k: ref[i32,200], t: ref[f32,3], y: ref[f32,200])
  range_for i in 0:i32 : 200:i32
    j: i32 = load k i
    v: f32 = load x j
    u: f32 = load t 2:i32
    w: f32 = add v u
    store y w i
  return y
""")
    args = [RNG.normal(size=64), RNG.integers(0, 64, 200), RNG.normal(size=3), np.zeros(200)]
    agrees(made, [a.astype(r.dtype.numpy) for a, r in zip(args, made.params, strict=True)])
    assert "tl.load(t + 2)\n" in emit_triton(made.tasks[0]).text


def test_a_store_at_an_index_that_all_lanes_share_is_one_of_active_lanes():
    agrees(
        parse_program("""program p(x: ref[f32,100], y: ref[f32,4])
  range_for i in 0:i32 : 100:i32
    v: f32 = load x i
    c: bool = eq i 37:i32
    if c
      store y v 2:i32
  return y
"""),
        [RNG.normal(size=100).astype(np.float32), np.zeros(4, np.float32)],
    )


def test_accesses_that_an_iteration_orders_have_a_barrier_between_them():
    made = parse_program("""program p(x: ref[f32,100], y: ref[f32,100])
  range_for i in 0:i32 : 100:i32
    v: f32 = load x i
    store y v i
    store x 0.0:f32 i
    w: f32 = load y i
    u: f32 = mul w 2.0:f32
    store y u i
  return x, y
""")
    agrees(made, [RNG.normal(size=100).astype(np.float32), np.zeros(100, np.float32)])
    lines = emit_triton(made.tasks[0], tiling=SMALL).text.splitlines()
    for k, line in enumerate(lines):
        if "tl.store(x" in line or "tl.load(y" in line or "tl.store(y + i, u" in line:
            assert "debug_barrier" in lines[k - 1], line
    assert sum("debug_barrier" in line for line in lines) == 3 * 2  # in whole blocks and in the last one
    alone = parse_program("""program p(x: ref[f32,100], y: ref[f32,100])
  range_for i in 0:i32 : 100:i32
    v: f32 = load x i
    store y v i
  return y
""")
    assert "debug_barrier" not in emit_triton(alone.tasks[0]).text


@pytest.mark.sample(full=5)
@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_sums_into_places(dtype: DType, op: str):
    """Values of which few are not 1 (0 for sums), so that results are exact in any order."""
    n, neutral = 500, 0 if op == "add" else 1
    x = np.full(n, neutral).astype(dtype.numpy)
    x[[3, 200, 499]] = np.array([2, 3, 4]).astype(dtype.numpy)
    made = parse_program(f"""program p(x: ref[{dtype.value},{n}], y: ref[{dtype.value},3], k: ref[i32,2])
  range_for i in 0:i32 : {n}:i32
    head
      a: i32 = load k 0:i32
      b: i32 = load k 1:i32
    v: {dtype.value} = load x i
    accum[op={op}] y v 0:i32
    accum[op={op}] y v a
    accum[op={op}] y v b
  return y
""")
    agrees(made, [x, np.ones(3, dtype.numpy), np.array([1, 2], np.int32)])
    for places in ([1, 1], [0, 0]):
        agrees(made, [x, np.ones(3, dtype.numpy), np.array(places, np.int32)], tilings=(SMALL,))


def test_a_sum_of_minus_zeros_is_minus_zero_and_nan_reaches_min():
    n = 100
    made = parse_program(f"""program p(x: ref[f32,{n}], z: ref[f32,{n}], s: ref[f32], m: ref[f32])
  range_for i in 0:i32 : {n}:i32
    v: f32 = load x i
    w: f32 = load z i
    accum[op=add] s w
    accum[op=min] m v
  return s, m
""")
    x = np.arange(n, dtype=np.float32)
    x[77] = np.nan
    args = [x, np.full(n, -0.0, np.float32), np.float32(-0.0), np.float32(5)]
    agrees(made, args, Tolerance())
    assert "other=" not in emit_triton(made.tasks[0]).text  # for AMD, Triton loses the sign of -0.0 there


@pytest.mark.full
def test_a_sum_of_small_floats_is_rounded_once():
    made = parse_program("""program p(x: ref[f16,3000], s: ref[f16])
  range_for i in 0:i32 : 3000:i32
    v: f16 = load x i
    accum[op=add] s v
  return s
""")
    (got,) = Run().results(made, [np.ones(3000, np.float16), np.float16(0)])
    assert got == 3000  # rounded after each addition it would stay at 2048


def test_sums_of_conditional_values_in_loops():
    agrees(
        parse_program("""program p(x: ref[f32,100], s: ref[f32], c: ref[i32])
  range_for i in 0:i32 : 100:i32
    v: f32 = load x i
    p: bool = gt v 0.0:f32
    if p
      accum[op=add] s v
    for k in 0:i32 : 3:i32 : 1:i32
      accum[op=add] c k
  return s, c
"""),
        [(RNG.integers(-8, 8, 100) / 8).astype(np.float32), np.float32(1), np.int32(2)],
    )


@pytest.mark.parametrize(("bins", "dtype"), [(1, "i32"), (63, "u32"), (64, "i32"), (130, "u32")])
@pytest.mark.full
def test_histograms(bins: int, dtype: str):
    made = parse_program(f"""program p(k: ref[i32,3000], h: ref[{dtype},{bins}])
  range_for i in 0:i32 : 3000:i32
    a: i32 = load k i
    accum[op=add] h 3:{dtype} a
    c: bool = lt a 5:i32
    if c
      accum[op=add] h 7:{dtype} a
  return h
""")
    keys = RNG.integers(0, bins, 3000).astype(np.int32)
    agrees(made, [keys, RNG.integers(0, 9, bins).astype(DType(dtype).numpy)])
    assert "tl.histogram" in emit_triton(made.tasks[0]).text


@pytest.mark.parametrize("name", ["i32", "u32", "i64", "u64", "f32", "f64"])
def test_accumulations_into_scattered_elements(name: str):
    dtype = DType(name)
    made = parse_program(f"""program p(k: ref[i32,300], x: ref[{dtype.value},300], y: ref[{dtype.value},5000])
  range_for i in 0:i32 : 300:i32
    a: i32 = load k i
    v: {dtype.value} = load x i
    accum[op=add] y v a
  return y
""")
    keys = RNG.integers(0, 9, 300).astype(np.int32)
    agrees(made, [keys, RNG.integers(0, 9, 300).astype(dtype.numpy), np.zeros(5000, dtype.numpy)])
    assert "tl.atomic_add" in emit_triton(made.tasks[0]).text


@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
def test_accumulations_into_elements_of_an_iteration(op: str):
    made = parse_program(f"""program p(x: ref[bf16,100], y: ref[bf16,100x2])
  range_for i in 0:i32 : 100:i32
    v: bf16 = load x i
    accum[op={op}] y v i 1:i32
    accum[op={op}] y v i 1:i32
  return y
""")
    args = [(RNG.integers(-8, 8, s) / 8).astype(DType.bf16.numpy) for s in ((100,), (100, 2))]
    agrees(made, args)


def test_serial_tasks_are_scalars():
    made = parse_program("""program p(x: ref[f32,10], y: ref[f32,10])
  serial
    v: f32 = load x 3:i32
    store y v 0:i32
    w: f32 = load y 0:i32
    c: bool = gt w 0.0:f32
    if c
      store y 2.0:f32 1:i32
    else
      store y 3.0:f32 1:i32
    accum[op=add] y w 1:i32
  return y
""")
    for sign in (1, -1):
        agrees(made, [(sign * np.arange(10)).astype(np.float32), np.zeros(10, np.float32)])


CHECKED = """program p(k: ref[i32,100], x: ref[f32,10], y: ref[f32,100], s: ref[f32])
  range_for i in 0:i32 : 100:i32
    a: i32 = load k i
    j: i32 = bound[size=10, axis=0, buffer=x, shape=(10)] a
    v: f32 = load x j
    store y v i
    accum[op=add] s v
  return y, s
"""


def test_checks_that_hold():
    keys = RNG.integers(0, 10, 100).astype(np.int32)
    agrees(parse_program(CHECKED), [keys, np.arange(10, dtype=np.float32), np.zeros(100, np.float32), np.float32(0)])


@pytest.mark.parametrize("index", [-1, 10, 2**31 - 1, -(2**31)])
def test_an_index_outside_ends_the_call_with_it(index: int):
    keys = np.zeros(100, np.int32)
    keys[61] = index
    args = [keys, np.zeros(10, np.float32), np.zeros(100, np.float32), np.float32(0)]
    with pytest.raises(BoundsError, match=str(index)):
        Run().results(parse_program(CHECKED), args)


@pytest.mark.parametrize(("dtype", "index"), [("u32", 2**32 - 1), ("u64", 2**40), ("u64", 2**63), ("u64", 2**64 - 1)])
def test_an_unsigned_index_outside_ends_the_call_with_it(dtype: str, index: int):
    """What has no room in the report is told as the largest number that has."""
    text = CHECKED.replace("k: ref[i32,100]", f"k: ref[{dtype},100]").replace("a: i32 = load", f"a: {dtype} = load")
    text = text.replace("j: i32 = bound", f"b: {dtype} = bound").replace(
        "    v: f32", "    j: i32 = convert[dtype=i32] b\n    v: f32"
    )
    keys = np.zeros(100, np.dtype(f"uint{dtype[1:]}"))
    args = [keys, np.arange(10, dtype=np.float32), np.zeros(100, np.float32), np.float32(0)]
    agrees(parse_program(text), args)
    keys[61] = index
    with pytest.raises(BoundsError, match=f"^index {min(index, 2**47 - 1)} is"):
        Run().results(parse_program(text), args)


@pytest.mark.parametrize("side", ["branch", "uniform", "head"])
def test_checks_in_branches_switch_off_what_follows(side: str):
    condition = {"branch": "gt i 50:i32", "uniform": "gt n 0:i32", "head": "gt i -1:i32"}[side]
    head = "b: bool = gt m 0:i32\n      check[message=\"small\"] b" if side == "head" else ""
    made = parse_program(f"""program p(x: ref[i32,100], y: ref[i32,100], q: ref[i32])
  range_for i in 0:i32 : 100:i32
    head
      n: i32 = load q
      m: i32 = add n 0:i32
      {head}
    c: bool = {condition}
    if c
      v: i32 = load x i
      p: bool = lt v 90:i32
      check[message="large"] p
      store y v i
    w: i32 = load y i
    u: i32 = add w 1:i32
    store y u i
  return y
""")
    x, y = np.arange(100, dtype=np.int32), np.zeros(100, np.int32)
    agrees(made, [x % 90, y, np.int32(1)])
    with pytest.raises(CheckError, match="large"):
        Run(SMALL).results(made, [x, y, np.int32(1)])
    if side == "head":
        with pytest.raises(CheckError, match="small"):
            Run(SMALL).results(made, [x % 90, y, np.int32(-1)])


SERIAL_CHECKS = """program p(x: ref[i32,9], y: ref[i32,9], q: ref[i32])
  serial
    n: i32 = load q
    c: bool = gt n 3:i32
    if c
      p: bool = lt n 7:i32
      check[message="large"] p
      store y 1:i32 0:i32
    else
      v: i32 = load x 0:i32
      store y v 1:i32
    for k in 0:i32 : n : 1:i32
      w: i32 = load x k
      r: bool = lt w 5:i32
      check[message="there"] r
      store y w k
    u: i32 = load x 8:i32
    store y u 8:i32
  return y
"""


@pytest.mark.full
@pytest.mark.parametrize("n", [0, 2, 5, 8])
def test_checks_in_branches_and_loops_of_a_serial_task(n: int):
    """Where nothing was checked before; behind a failure, nothing is stored, in later iterations neither."""
    made, y = parse_program(SERIAL_CHECKS), np.zeros(9, np.int32)
    for bad in (None, 1):
        x = np.array([4, 3, 2, 1, 0, 1, 2, 3, 4], np.int32)
        if bad is not None:
            x[bad] = 6
        failure = "large" if n > 6 else "there" if bad is not None and bad < n else None
        if failure is None:
            agrees(made, [x, y, np.int32(n)])
            continue
        with pytest.raises(CheckError, match=failure):
            Run(SMALL).results(made, [x, y, np.int32(n)])
    assert compile_kernels(emit_triton(made.tasks[0]), "sm_90")


def test_the_users_lines_stand_as_comments(tmp_path):
    source = tmp_path / "user.py"
    source.write_text("first\nstore here\n")
    made = parse_program("program p(y: ref[i32,9])\n  range_for i in 0:i32 : 9:i32\n    store y i i\n  return y\n")
    (eqn,) = made.tasks[0].body.eqns
    body = replace(made.tasks[0].body, eqns=(replace(eqn, loc=Loc(str(source), 2)),))
    assert "# user.py:2: store here" in emit_triton(replace(made.tasks[0], body=body)).text


def test_names_of_references_do_not_collide_with_the_texts_own():
    names = ("start", "tl", "BLOCK", "for_", "libdevice", "range", "a b")
    refs = [ref_var(DType.f32, (40,), h) for h in names]

    def body(b, i):
        for r in refs:
            b.store(r, b("convert", i, dtype=DType.f32), i)

    agrees(program(refs, task(i32(40), body), refs), [np.zeros(40, np.float32)] * len(refs))
