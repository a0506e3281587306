"""Control flow: uniform and divergent, nested, with effects, on every target, at sizes around the lanes."""

from dataclasses import replace

import numpy as np
import pytest

from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program, Task, Var, literal
from qdtrace.ir.types import DType
from tests.lowering.harness import SIZES, TARGETS, agrees, branch, f32, i32, loop, program, serial, task, while_loop

F32, I32, BOOL = DType.f32, DType.i32, DType.bool


def buffers(n: int) -> tuple[Var, Var, Var, Var]:
    """x: f32, k: i32 trip counts, y: f32 result, z: i32 result."""
    return ref_var(F32, (n,), "x"), ref_var(I32, (n,), "k"), ref_var(F32, (n,), "y"), ref_var(I32, (n,), "z")


def arguments(n: int, seed: int = 0) -> list[np.ndarray]:
    """Contents of `buffers`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n).astype(np.float32)
    k = rng.integers(-2, 9, n).astype(np.int32)
    return [x, k, np.full(n, -1, np.float32), np.full(n, -1, np.int32)]


def check(body, n: int = 37, targets=TARGETS, vectors=(None, 2)) -> Program:
    """`body(b, i, x, k, y, z)` as a task over n elements."""
    x, k, y, z = refs = buffers(n)
    made = program(refs, task(n, lambda b, i: body(b, i, x, k, y, z)), [y, z])
    agrees(made, arguments(n), targets, vectors=vectors)
    return made


@pytest.mark.parametrize("n", SIZES)
def test_sizes_around_the_lanes(n: int):
    def body(b: Builder, i, x, k, y, z):
        b.store(y, b("add", b("mul", b.load(x, i), f32(2)), f32(1)), i)
        b.store(z, b("add", b.load(k, i), i), i)

    check(body, n, vectors=(None, 2))


@pytest.mark.parametrize("start", [-5, 0, 3])
def test_ranges_that_do_not_start_at_zero(start: int):
    x, y = ref_var(F32, (60,), "x"), ref_var(F32, (60,), "y")
    b, index = Builder(), scalar_var(I32, "i")
    with b.block() as block:
        place = b("add", index, i32(7))
        b.store(y, b("mul", b.load(x, place), f32(3)), place)
    made = Task("range_for", index, i32(start), i32(start + 41), block.close())
    agrees(program([x, y], made, [y]), [np.arange(60, dtype=np.float32), np.zeros(60, np.float32)])


def test_an_empty_range_runs_nothing():
    y = ref_var(F32, (4,), "y")
    b, index = Builder(), scalar_var(I32, "i")
    with b.block() as block:
        b.store(y, f32(1), index)
    made = Task("range_for", index, i32(3), i32(-3), block.close())
    agrees(program([y], made, [y]), [np.zeros(4, np.float32)])


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 5, 1), (5, 0, -2), (0, 7, 3), (3, 3, 1), (4, 1, 1), (0, 5, 0)])
def test_uniform_for(start: int, stop: int, step: int):
    def body(b: Builder, i, x, k, y, z):
        first = b.load(x, i)

        def turn(j, a, c):
            return b("mul", a, first), b("add", c, b("mul", j, i))

        a, c = loop(b, i32(start), i32(stop), i32(step), [f32(1), i32(0)], turn)
        b.store(y, a, i)
        b.store(z, c, i)

    check(body)


@pytest.mark.parametrize("step", [1, 3, -1, -2])
def test_divergent_for(step: int):
    def body(b: Builder, i, x, k, y, z):
        count = b.load(k, i)

        def turn(j, a, c):
            return b("add", b("mul", a, f32(0.5)), b.load(x, b("abs", b("rem", j, i32(9))))), b("add", c, j)

        start, stop = (i32(0), count) if step > 0 else (count, i32(-1))
        a, c = loop(b, start, stop, i32(step), [b.load(x, i), i32(0)], turn)
        b.store(y, a, i)
        b.store(z, c, i)

    check(body)


@pytest.mark.parametrize("uniform", [True, False])
def test_for_with_a_step_from_memory(uniform: bool):
    def body(b: Builder, i, x, k, y, z):
        step = b.load(k, i32(3)) if uniform else b.load(k, i)
        (c,) = loop(b, i32(0), i32(6), step, [i32(0)], lambda j, c: [b("add", b("mul", c, i32(3)), b("add", j, i))])
        b.store(z, c, i)

    check(body)


def test_loops_at_the_end_of_the_integers_end():
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max

    def body(b: Builder, i, x, k, y, z):
        (up,) = loop(b, i32(high - 4), i32(high), i32(3), [i32(0)], lambda j, c: [b("add", c, i32(1))])
        (down,) = loop(b, i32(low + 4), i32(low), i32(-3), [i32(0)], lambda j, c: [b("add", c, i32(1))])
        from_here = b("sub", i32(high), b("abs", b.load(k, i)))
        (mine,) = loop(b, from_here, i32(high), i32(7), [i32(0)], lambda j, c: [b("add", c, i32(1))])
        b.store(z, b("add", b("mul", up, i32(100)), b("add", b("mul", down, i32(10)), mine)), i)

    check(body)


@pytest.mark.full
def test_quiet_while_asks_rarely_and_is_right():
    def body(b: Builder, i, x, k, y, z):
        def test(a, c):
            return b("and", b("lt", c, i32(29)), b("lt", b("abs", a), f32(30)))

        def turn(a, c):
            return b("add", b("mul", a, f32(1.25)), f32(0.125)), b("add", c, i32(1))

        a, c = while_loop(b, [b.load(x, i), i32(0)], test, turn)
        b.store(y, a, i)
        b.store(z, c, i)

    check(body)


def test_the_other_side_of_a_rare_branch_runs():
    made = parse_program("""program p(x: ref[f32,37])
  buffer y: ref[f32,37]
  range_for i in 0:i32 : 37:i32
    v: f32 = load x i
    c: bool = gt v 9.0:f32
    if[rare=true] c
      store y 1.0:f32 i
    else
      store y 2.0:f32 i
  return y
""")
    for most in (5.0, 20.0):
        agrees(made, [np.linspace(-5, most, 37, dtype=np.float32)])


def test_while_with_loads_and_stores_in_it():
    def body(b: Builder, i, x, k, y, z):
        def turn(c):
            b.store(y, b("add", b.load(x, c), b("convert", c, dtype=F32)), i)
            return [b("add", c, i32(1))]

        (c,) = while_loop(b, [i32(0)], lambda c: b("lt", c, b.load(k, i)), turn)
        b.store(z, c, i)

    check(body)


def test_a_counter_stays_scalar_inside_a_divergent_while():
    n = 37
    x, k, y, z = refs = buffers(n)

    def body(b: Builder, i):
        def turn(c, a):
            return b("add", c, i32(1)), b("add", a, b.load(x, c))

        c, a = while_loop(b, [i32(0), f32(0)], lambda c, a: b("lt", c, b.load(k, i)), turn)
        b.store(y, a, i)
        b.store(z, c, i)

    in_step = replace(task(n, body), hints={"refill": False})
    made = program(refs, in_step, [y, z])
    agrees(made, arguments(n))
    text = emit_task(made.tasks[0], Target.named("avx512")).text
    assert "gather" not in text


def test_cheap_if_becomes_a_selection():
    n = 37

    def body(b: Builder, i, x, k, y, z):
        value = b.load(x, i)
        index = b("max", b.load(k, i), i32(0))
        (a,) = branch(b, b("gt", value, f32(0)), lambda: [b.load(x, index)], lambda: [b("neg", value)])
        b.store(y, a, i)

    made = check(body, n)
    text = emit_task(made.tasks[0], Target.named("avx512")).text
    assert "side" not in text


def test_a_side_no_lane_takes_is_skipped_and_its_uniform_loads_with_it():
    """The scalar load under the condition is out of range, so it must not run."""
    n = 37

    def body(b: Builder, i, x, k, y, z):
        far = b("add", b.load(k, i32(0)), i32(1 << 28))
        never = b("gt", b.load(k, i), i32(100))
        (a,) = branch(b, never, lambda: [b.load(x, far)], lambda: [b.load(x, i)])
        b.store(y, a, i)

    check(body, n)


@pytest.mark.full
def test_carries_of_every_dtype_survive_divergence():
    n = 37
    _x, k, _y, _z = refs = buffers(n)
    dtypes = list(DType)
    outs = [ref_var(d, (n,), d.value) for d in dtypes]

    def body(b: Builder, i):
        firsts = [b.convert(b.load(k, i), d) for d in dtypes]

        def turn(j, *values):
            index = b("max", i32(0), j)
            step = b.load(k, index)
            return [
                b("xor", v, literal(1, v.dtype)) if v.dtype is BOOL else b("add", v, b.convert(step, v.dtype))
                for v in values
            ]

        lasts = loop(b, i32(0), b.load(k, i), i32(1), firsts, turn)
        for out, last in zip(outs, lasts, strict=True):
            b.store(out, last, i)

    made = program([*refs, *outs], task(n, body), outs)
    agrees(made, [*arguments(n), *(np.zeros(n, d.numpy) for d in dtypes)], vectors=(None, 2))


def test_unroll_is_passed_on_to_llvm():
    x, y = ref_var(F32, (16,), "x"), ref_var(F32, (16,), "y")
    b, index, inner = Builder(), scalar_var(I32, "i"), scalar_var(I32, "j")
    carry = scalar_var(F32, "a")
    with b.block() as block:
        with b.block([inner, carry]) as turn:
            after = b("add", b("mul", carry, f32(0.5)), b.load(x, index))
        (last,) = b.emit("for", i32(0), i32(50), i32(1), f32(0), blocks=[turn.close([after])], unroll=4)
        b.store(y, last, index)
    made = Task("range_for", index, i32(0), i32(16), block.close())
    assert '"llvm.loop.unroll.count", i32 4' in emit_task(made, Target.named("avx512")).text
    agrees(program([x, y], made, [y]), [np.arange(16, dtype=np.float32), np.zeros(16, np.float32)])


def test_bounds_and_constants_come_from_the_head():
    n = 40
    x, k, y, _z = refs = buffers(n)

    def head(b: Builder):
        return b("add", b.load(k, i32(0)), i32(20)), b("mul", b.load(x, i32(0)), f32(2))

    b, index = Builder(), scalar_var(I32, "i")
    stop, scale = head(b)
    unused = b.load(k, i32(39))
    with b.block() as block:
        b.store(y, b("mul", scale, b.load(x, index)), index)
    made = Task("range_for", index, b("rem", unused, i32(2)), stop, block.close(), tuple(b.current.eqns))
    agrees(program(refs, made, [y]), arguments(n))


def test_serial_tasks_run_once():
    x, _k, y, z = refs = buffers(20)

    def body(b: Builder):
        def turn(j, a):
            b.store(y, a, j)
            b.accum(z, j, i32(3))
            (c,) = branch(b, b("gt", b.load(x, j), f32(0)), lambda: [b("add", a, b.load(x, j))], lambda: [a])
            return [c]

        loop(b, i32(0), i32(20), i32(1), [f32(0)], turn)

    agrees(program(refs, serial(body), [y, z]), arguments(20))


@pytest.mark.full
def test_sixty_four_bit_indices():
    n = 37
    x, y = ref_var(F32, (n,), "x"), ref_var(F32, (n,), "y")
    b, index = Builder(), scalar_var(DType.i64, "i")
    wide = lambda v: literal(v, DType.i64)  # noqa: E731
    with b.block() as block:
        other = b("sub", wide(n - 1), index)
        (a,) = loop(b, wide(0), index, wide(1), [b.load(x, other)], lambda j, a: [b("add", a, b.load(x, j))])
        b.store(y, a, index)
    made = Task("range_for", index, wide(0), wide(n), block.close())
    agrees(program([x, y], made, [y]), arguments(n)[::2])


@pytest.mark.parametrize("n", [1, 47, 48, 49, 96, 143, 200])
def test_three_vectors_side_by_side(n: int):
    """Steps of 48 lanes, no power of two, without a loop (whole steps need no mask) and with one."""

    def short(b: Builder, i, x, k, y, z):
        b.store(y, b("mul", b.load(x, i), f32(2)), i)
        b.store(z, b("add", b.load(k, i), i), i)

    def long(b: Builder, i, x, k, y, z):
        def body(j, total):
            return b("add", total, b("mul", b.load(x, i), b.convert(j, F32)))

        (total,) = loop(b, i32(0), i32(5), i32(1), [f32(0)], lambda j, c: [body(j, c)])
        b.store(y, total, i)
        b.store(z, i, i)

    for made in (short, long):
        check(made, n, vectors=(3,))
