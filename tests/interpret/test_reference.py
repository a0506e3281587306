"""Programs under the reference interpreter: control flow, memory, bounds, orders and fuel."""

import warnings

import numpy as np
import pytest

from qdtrace.errors import CheckError, InterpreterError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program

HEAD = "program p(x: ref[f32,4], n: ref[i32])\n"


def run(text: str, *args, **options) -> list[np.ndarray]:
    program = parse_program(text, file="t.qd")
    verify_program(program)
    return evaluate(program, args, **options)


def refusal(text: str, *args, **options) -> str:
    with pytest.raises(InterpreterError) as caught:
        run(text, *args, **options)
    return str(caught.value)


X = np.array([1, 2, 3, 4], np.float32)
N = np.array(3, np.int32)


def test_arguments_are_copied():
    x = X.copy()
    (out,) = run(HEAD + "  range_for i in 0:i32 : 4:i32\n    store x 0.0:f32 i\n  return x", x, N)
    assert out.tolist() == [0, 0, 0, 0]
    assert x.tolist() == [1, 2, 3, 4]


def test_results_keep_order_shape_and_dtype():
    text = "program p(x: ref[f16,2x3], b: ref[bool], e: ref[bf16,0x2])\n  return b, e, x, b"
    x = np.arange(6, dtype=np.float16).reshape(2, 3)
    out = run(text, x, np.array(True), np.empty((0, 2), DType.bf16.numpy))
    assert [(a.dtype, a.shape) for a in out] == [
        (np.dtype(bool), ()), (np.dtype(DType.bf16.numpy), (0, 2)), (np.dtype(np.float16), (2, 3)),
        (np.dtype(bool), ()),
    ]  # fmt: skip
    assert (out[2] == x).all()


def test_initial_values_of_buffers():
    text = (
        "program p(x: ref[f32,4])\n  buffer b: ref[f32,2x2] = 1.5:f32\n  buffer c: ref[bool,2] = true\n"
        "  buffer d: ref[i8,0] = 7:i8\n  serial\n    a: f32 = load b 1:i32 1:i32\n"
        "    accum[op=add] b a 0:i32 1:i32\n    store x a 0:i32\n  return b, x, c, d"
    )
    b, x, c, d = run(text, X)
    assert b.tolist() == [[1.5, 3], [1.5, 1.5]]
    assert x.tolist() == [1.5, 2, 3, 4]
    assert c.tolist() == [True, True]
    assert d.shape == (0,)
    assert "is read before anything is stored there" in refusal(text.replace(" = 1.5:f32", ""), X)


def test_arguments_in_any_memory_order():
    text = (
        "program p(x: ref[f32,2x3])\n  serial\n    a: f32 = load x 0:i32 2:i32\n    store x a 1:i32 0:i32\n  return x"
    )
    x = np.arange(6, dtype=np.float32).reshape(3, 2).T
    (out,) = run(text, x)
    assert out.tolist() == [[0, 2, 4], [4, 3, 5]]


def counted(loop: str) -> list[int]:
    text = (
        "program p(o: ref[i32,8], m: ref[i32])\n  serial\n"
        f"    for k in {loop}\n      j: i32 = load m\n      store o k j\n      accum[op=add] m 1:i32\n  return o, m"
    )
    o, m = run(text, np.zeros(8, np.int32), np.array(0, np.int32))
    return o[: int(m)].tolist()


@pytest.mark.parametrize(
    ("loop", "indices"),
    [
        ("0:i32 : 3:i32 : 1:i32", [0, 1, 2]),
        ("-1:i32 : 6:i32 : 3:i32", [-1, 2, 5]),
        ("3:i32 : 0:i32 : -1:i32", [3, 2, 1]),
        ("5:i32 : -1:i32 : -3:i32", [5, 2]),
        ("3:i32 : 3:i32 : 1:i32", []),
        ("3:i32 : 0:i32 : 1:i32", []),
        ("0:i32 : 3:i32 : -1:i32", []),
        ("2147483645:i32 : 2147483647:i32 : 2:i32", [2147483645]),
        ("-2147483647:i32 : -2147483648:i32 : -2:i32", [-2147483647]),
    ],
)
def test_for(loop, indices):
    assert counted(loop) == indices


def test_a_dynamic_step_of_zero_runs_nothing():
    text = (
        "program p(o: ref[f32], z: ref[i32])\n  serial\n    s: i32 = load z\n"
        "    r: f32 = for k in 0:i32 : 3:i32 : s carry c = 7.0:f32\n      yield 1.0:f32\n    store o r\n  return o"
    )
    assert run(text, np.float32(0), np.int32(0))[0] == 7


def test_carries_swap_at_once():
    text = (
        "program p(o: ref[i32,2])\n  serial\n"
        "    a: i32, b: i32 = for k in 0:i32 : 3:i32 : 1:i32 carry c = 1:i32, d = 2:i32\n      yield d, c\n"
        "    store o a 0:i32\n    store o b 1:i32\n  return o"
    )
    assert run(text, np.zeros(2, np.int32))[0].tolist() == [2, 1]


def test_while_carries():
    text = (
        "program p(x: ref[i64], o: ref[i64,2])\n  serial\n    v: i64 = load x\n"
        "    a: i64, n: i64 = while carry c = v, k = 0:i64\n      t: bool = gt c 1:i64\n      test t\n"
        "      odd: i64 = and c 1:i64\n      is_odd: bool = eq odd 1:i64\n      d: i64 = if is_odd\n"
        "        e: i64 = mul c 3:i64\n        f: i64 = add e 1:i64\n        yield f\n      else\n"
        "        g: i64 = div c 2:i64\n        yield g\n      j: i64 = add k 1:i64\n      yield d, j\n"
        "    store o a 0:i64\n    store o n 1:i64\n  return o"
    )
    assert run(text, np.int64(27), np.zeros(2, np.int64))[0].tolist() == [1, 111]
    assert run(text, np.int64(1), np.zeros(2, np.int64))[0].tolist() == [1, 0]


def test_if_without_results_and_without_else():
    text = HEAD + (
        "  range_for i in 0:i32 : 4:i32\n    a: f32 = load x i\n    big: bool = gt a 2.0:f32\n    if big\n"
        "      store x 0.0:f32 i\n  return x"
    )
    assert run(text, X, N)[0].tolist() == [1, 2, 0, 0]


def test_bounds_from_the_head_are_read_once():
    text = HEAD + (
        "  range_for i in 1:i32 : m\n    head\n      m: i32 = load n\n    accum[op=add] n 1:i32\n"
        "    store x 9.0:f32 i\n  return x, n"
    )
    x, n = run(text, X, N)
    assert x.tolist() == [1, 9, 9, 4]
    assert n == 5


@pytest.mark.parametrize(("start", "stop"), [(4, 4), (3, 1)])
def test_an_empty_task(start, stop):
    text = HEAD + f"  range_for i in {start}:i32 : {stop}:i32\n    store x 0.0:f32 i\n  return x"
    for order in ("forward", "backward", "shuffled"):
        assert run(text, X, N, order=order)[0].tolist() == X.tolist()


def test_the_head_of_a_task_without_iterations() -> None:
    """Its checks are made, whatever the bounds are."""
    text = """program p(x: ref[i32], y: ref[i32,2])
  range_for i in {start} : 2:i32
    head
      n: i32 = load x
      low: i32 = max n 2:i32
      few: bool = lt n 5:i32
      check[message="many"] few
    store y n i
  return y
"""
    y = np.arange(2, dtype=np.int32)
    for start in ("2:i32", "low", "1:i32"):
        program = parse_program(text.format(start=start))
        with pytest.raises(CheckError, match="many"):
            evaluate(program, [np.int32(7), y])


def test_cells_are_fresh_in_each_iteration():
    text = HEAD + (
        "  range_for i in 0:i32 : 4:i32\n    c: cell[f32,2] = cell[dtype=f32, shape=(2)]\n"
        "    first: bool = eq i 0:i32\n    if first\n      store c 1.0:f32 1:i32\n    a: f32 = load c 1:i32\n"
        "    store x a i\n  return x"
    )
    assert refusal(text, X, N) == (
        "`c[1]` is read before anything is stored there; its shape is (2,)\n  at t.qd:7\n"
        "note: `load` needs the content of `c`\nhelp: store a value first, or start from zeros"
    )


def test_a_cell_in_a_loop_is_fresh_each_time():
    text = HEAD + (
        "  serial\n    for k in 0:i32 : 2:i32 : 1:i32\n      c: cell[f32] = cell[dtype=f32, shape=()]\n"
        "      z: bool = eq k 0:i32\n      if z\n        store c 1.0:f32\n      a: f32 = load c"
    )
    assert refusal(text, X, N).startswith("`c` is read before anything is stored there; its shape is ()\n  at t.qd:8")


def test_unset_buffers():
    text = HEAD + "  buffer t: ref[f32,2x2]\n  serial\n    store t 1.0:f32 0:i32 0:i32\n"
    assert refusal(text + "    accum[op=add] t 1.0:f32 1:i32 0:i32", X, N) == (
        "`t[1, 0]` is read before anything is stored there; its shape is (2, 2)\n  at t.qd:5\n"
        "note: `accum` needs the content of `t`\nhelp: store a value first, or start from zeros"
    )
    assert refusal(text + "  return t", X, N) == (
        "result `t[0, 1]` of `p` is never stored\n  at t.qd:4\n"
        "help: store every element of what is returned, or start from zeros"
    )


@pytest.mark.parametrize(
    ("access", "what"),
    [
        ("a: f32 = load x i", "`load` of `x` at (4)"),
        ("store x 1.0:f32 i", "`store` of `x` at (4)"),
        ("accum[op=add] x 1.0:f32 i", "`accum` of `x` at (4)"),
        ("a: f32 = atomic[op=add] x 1.0:f32 i", "`atomic` of `x` at (4)"),
    ],
)
def test_out_of_bounds(access, what):
    assert refusal(HEAD + f"  range_for i in 0:i32 : 5:i32\n    {access}", X, N) == (
        "index 4 is out of bounds for axis 0 of `x` with shape (4,)\n  at t.qd:3\n"
        f"note: {what}\n"
        "help: keep indices between 0 and the length of the axis minus 1, or guard the access with a condition"
    )


def test_out_of_bounds_of_one_axis_that_is_inside_the_memory():
    text = "program p(x: ref[f32,2x3])\n  serial\n    a: f32 = load x 0:i32 3:i32"
    message = refusal(text, np.zeros((2, 3), np.float32))
    assert message.startswith("index 3 is out of bounds for axis 1 of `x` with shape (2, 3)\n  at t.qd:3\n")
    assert "note: `load` of `x` at (0, 3)\n" in message


def test_negative_indices_are_out_of_bounds():
    message = refusal(HEAD + "  serial\n    a: f32 = load x -1:i32", X, N)
    assert message.startswith("index -1 is out of bounds for axis 0 of `x` with shape (4,)")


def test_every_element_of_an_empty_buffer_is_out_of_bounds():
    text = "program p(x: ref[f32,0])\n  serial\n    a: f32 = load x 0:i32"
    message = refusal(text, np.zeros(0, np.float32))
    assert message.startswith("index 0 is out of bounds for axis 0 of `x` with shape (0,)")


@pytest.mark.parametrize(
    ("op", "start", "values", "want"),
    [
        ("add", 2, [3, 4, 5], 14), ("mul", 2, [3, 4, 5], 120), ("min", 4, [3, 9, 5], 3), ("max", 4, [3, 9, 5], 9),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f32", "i8", "u64", "bf16"])
def test_accum(op, start, values, want, dtype):
    text = (
        f"program p(v: ref[{dtype},3], o: ref[{dtype}])\n  range_for i in 0:i32 : 3:i32\n    a: {dtype} = load v i\n"
        f"    accum[op={op}] o a\n  return o"
    )
    kind = DType(dtype).numpy
    for order in ("forward", "backward", "shuffled"):
        (out,) = run(text, np.array(values).astype(kind), np.array(start).astype(kind), order=order)
        assert out == want


@pytest.mark.parametrize(
    ("op", "old", "operands", "new"),
    [
        ("add", 250, "10", 4), ("mul", 7, "3", 21), ("min", 7, "3", 3), ("max", 7, "3", 7), ("and", 6, "3", 2),
        ("or", 6, "3", 7), ("xor", 6, "3", 5), ("exchange", 6, "3", 3), ("cas", 6, "6 9", 9), ("cas", 6, "5 9", 6),
    ],
)  # fmt: skip
def test_atomic_gives_the_old_value(op, old, operands, new):
    values = " ".join(f"{v}:u8" for v in operands.split())
    text = (
        f"program p(x: ref[u8,2], o: ref[u8])\n  serial\n    a: u8 = atomic[op={op}] x {values} 1:i32\n"
        "    store o a\n  return x, o"
    )
    x, o = run(text, np.array([0, old], np.uint8), np.uint8(0))
    assert x.tolist() == [0, new]
    assert o == old


def test_bool_accumulation():
    for op, want in [("add", True), ("max", True), ("mul", False), ("min", False)]:
        text = (
            "program p(v: ref[bool,2], o: ref[bool])\n  range_for i in 0:i32 : 2:i32\n    a: bool = load v i\n"
            f"    accum[op={op}] o a\n  return o"
        )
        assert run(text, np.array([True, False]), np.array(not want))[0] == want
        assert run(text, np.array([not want, not want]), np.array(not want))[0] == (not want)


def test_compare_and_swap_compares_bits():
    text = (
        "program p(x: ref[f32])\n  serial\n    a: f32 = atomic[op=cas] x nan:f32 1.0:f32\n"
        "    b: f32 = atomic[op=cas] x 1.0:f32 0.0:f32\n    c: f32 = atomic[op=cas] x -0.0:f32 5.0:f32\n  return x"
    )
    assert run(text, np.float32(np.nan))[0] == 0


ORDERED = "program p(o: ref[i32,8], m: ref[i32])\n  range_for i in 0:i32 : 8:i32\n" + (
    "    k: i32 = atomic[op=add] m 1:i32\n    store o i k\n  return o"
)


def test_orders():
    def order(**options):
        return run(ORDERED, np.zeros(8, np.int32), np.int32(0), **options)[0].tolist()

    assert order() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert order(order="backward") == [7, 6, 5, 4, 3, 2, 1, 0]
    shuffled = order(order="shuffled", seed=1)
    assert sorted(shuffled) == list(range(8))
    assert shuffled not in (order(), order(order="backward"), order(order="shuffled", seed=2))
    assert shuffled == order(order="shuffled", seed=1)
    with pytest.raises(InterpreterError, match="order must be forward, backward or shuffled, got 'random'"):
        order(order="random")


def test_fuel():
    endless = HEAD + "  serial\n    while\n      test true"
    assert refusal(endless, X, N, fuel=100) == (
        "more than 100 loop iterations were run\n  at t.qd:3\n"
        "help: end the loop, or raise `fuel` when so many are meant"
    )
    long = HEAD + "  range_for i in 0:i32 : 2147483647:i32\n"
    for order in ("forward", "backward", "shuffled"):
        assert refusal(long, X, N, fuel=10, order=order).startswith(
            "more than 10 loop iterations were run\n  at t.qd:2"
        )
    exact = HEAD + "  range_for i in 0:i32 : 10:i32\n  return n"
    assert run(exact, X, N, fuel=10)[0] == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X,), "`p` needs 2 arguments, got 1"),
        ((X[:3], N), "argument 0 (`x`) of `p` needs float32 of shape (4,), got float32 of shape (3,)"),
        ((X.astype(float), N), "argument 0 (`x`) of `p` needs float32 of shape (4,), got float64 of shape (4,)"),
    ],
)
def test_wrong_arguments(args, message):
    assert refusal(HEAD, *args) == message


def test_no_warning_leaves_the_interpreter():
    text = (
        "program p(x: ref[f32,2], k: ref[i8])\n  serial\n    a: f32 = load x 0:i32\n    b: f32 = div a a\n"
        "    c: f32 = log -1.0:f32\n    d: f32 = exp 1000.0:f32\n    e: f32 = add b c\n    store x e 0:i32\n"
        "    store x d 1:i32\n    j: i8 = load k\n    m: i8 = mul j j\n    store k m\n  return x, k"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, k = run(text, np.zeros(2, np.float32), np.int8(100))
    assert np.isnan(x[0])
    assert x[1] == np.inf
    assert k == np.int8(16)  # 10000 modulo 256


def test_tasks_see_what_earlier_tasks_stored():
    text = HEAD + (
        "  buffer t: ref[f32,4]\n  range_for i in 0:i32 : 4:i32\n    a: f32 = load x i\n    b: f32 = mul a a\n"
        "    store t b i\n  range_for j in 0:i32 : 4:i32\n    r: i32 = sub 3:i32 j\n    c: f32 = load t r\n"
        "    store x c j\n  return x"
    )
    assert run(text, X, N)[0].tolist() == [16, 9, 4, 1]
