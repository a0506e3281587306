"""Loops whose bounds are loads from captured arrays: what derivatives keep of them, and that values are JAX's."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace import counters
from qdtrace.autodiff.loops.known import with_known_trips
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from tests.autodiff.derive import derive
from tests.autodiff.lanes import advance, each
from tests.autodiff.machines import MACHINES, programs_for, stacks_of
from tests.autodiff.row_walk import walk

LANES = 9
DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


def reductions():
    return counters.counts["size_reductions"]


def rows(rng, dtype, lanes=LANES):
    """Where rows begin: some are empty, some end before they begin."""
    lengths = rng.choice([0, 0, 1, 2, 3, 7, 12, -4], lanes)
    start = np.concatenate([[0], np.cumsum(lengths)])
    return jnp.asarray(start - start.min(), dtype)


# arrays of a kind of structure, and the first number, the end and the step of lane i's loop
KINDS = {
    "rows": (lambda rng, d: (rows(rng, d),), lambda i, row: (row[i], row[i + 1], 1)),
    "backwards": (lambda rng, d: (rows(rng, d),), lambda i, row: (row[i + 1], row[i], -1)),
    "in steps": (lambda rng, d: (rows(rng, d),), lambda i, row: (row[i], row[i + 1], 3)),
    "all but the last": (lambda rng, d: (rows(rng, d),), lambda i, row: (row[i], row[i + 1].astype(int) - 1, 1)),
    "gathered": (
        lambda rng, d: (rows(rng, d, 70), jnp.asarray(rng.integers(0, 70, LANES), d)),
        lambda i, row, cell: (row[cell[i].astype(int)], row[cell[i].astype(int) + 1], 1),
    ),
    "counts": (lambda rng, d: (jnp.asarray(rng.integers(0, 14, LANES), d),), lambda i, n: (0, n[i], 1)),
    "begins and counts": (
        lambda rng, d: tuple(jnp.asarray(rng.integers(0, 14, LANES), d) for _ in range(2)),
        lambda i, begin, n: (begin[i], begin[i] + n[i], 1),
    ),
    "pairs": (
        lambda rng, d: (jnp.asarray(rng.integers(0, 14, (LANES, 2)), d),),
        lambda i, pair: (pair[i, 0], pair[i, 1], 1),
    ),
}
MOST = 16
"""No loop here has more iterations."""


def made(kind, arrays):
    """The function of a kind of structure, which it captures, and JAX's of the same meaning."""
    bounds = KINDS[kind][1]

    def signed(b):
        return b.astype(int) if getattr(b, "dtype", None) in ("u4", "u8") else b

    @each
    def f(i, x):
        a = qd.local(x[i])
        for k in qd.range(*map(signed, bounds(i, *arrays))):
            a.value = advance(a.value, k, x[i])
        return a.value

    def lane(i, x):
        first, end, step = (jnp.asarray(b).astype(int) for b in bounds(i, *arrays))

        def one(a, t):
            k = first + t * step
            return jnp.where((end - k) * step > 0, advance(a, k, x), a), None

        return jax.lax.scan(one, x, jnp.arange(MOST))[0]

    return f, lambda x: jax.vmap(lane)(jnp.arange(x.shape[0]), x)


@pytest.mark.sample(full=5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.full
def test_values_and_derivatives(kind, seed):
    rng = np.random.default_rng([seed, *map(ord, kind)])
    dtype = DTYPES[(seed + 3 * list(KINDS).index(kind)) % len(DTYPES)]
    if kind == "begins and counts" and dtype == "u1":
        dtype = "u2"
    f, theirs = made(kind, KINDS[kind][0](rng, dtype))
    x, dx = rng.uniform(0.2, 1.4, LANES), rng.normal(size=LANES)
    np.testing.assert_allclose(f(x), theirs(x), rtol=1e-12)
    for ours, want in zip(jax.jvp(f, (x,), (dx,)), jax.jvp(theirs, (x,), (dx,)), strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-9)
    want = jax.vjp(theirs, x)[1](dx)[0]
    machine = str(rng.choice(list(MACHINES)))
    with programs_for(MACHINES[machine]):
        np.testing.assert_allclose(jax.vjp(f, x)[1](dx)[0], want, rtol=1e-9)
    batch = np.stack([dx, x])
    np.testing.assert_allclose(jax.vmap(jax.vjp(f, x)[1])(batch)[0][0], want, rtol=1e-9)
    xs = np.stack([x, x[::-1]])
    slopes = jax.vmap(jax.grad(lambda x: f(x).sum()))(xs)
    np.testing.assert_allclose(slopes[1], jax.grad(lambda x: theirs(x).sum())(xs[1]), rtol=1e-9)


@pytest.mark.cpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["i4", "u1", "i8"])
def test_bytes(kind, dtype):
    """At most twice what the longest loop needs, rounded up."""
    f, _ = made(kind, KINDS[kind][0](np.random.default_rng(0), dtype))
    low = qd.jit(jax.grad(lambda x: f(x).sum())).lower(np.ones(LANES))
    (choice,) = low.storage
    assert choice.thinned_bits is None
    assert choice.nbytes <= 2 * MOST * 8


def csr(start):
    f = qd.jit(lambda x: walk(start, x))
    return lambda x: f(x).sum()


def kept(f, x):
    return sum(choice.nbytes for choice in qd.jit(jax.grad(f)).lower(x).storage)


@pytest.mark.cpu
def test_stacks_of_a_gpu():
    """Rows of up to 256 entries, for all threads that run at a time: 658 MB where nothing is known of them."""
    start = jnp.asarray(np.concatenate([[0], np.cumsum(np.arange(300) % 257)]))
    low = qd.jit(jax.grad(csr(start))).lower(jnp.ones(start[-1], jnp.float32), target="sm_90")
    assert low.memory_analysis()["stack_per_lane"] == (256 // 8 + 7) * 4
    assert low.memory_analysis()["stacks"] <= 100e6


@pytest.mark.full
@pytest.mark.cpu
def test_reductions():
    """One for the first call and none after it; an equal array has its own, and so has one of another length."""
    x = jnp.ones(13)
    start, equal = jnp.array([0, 3, 3, 8, 9, 13]), jnp.array([0, 3, 3, 8, 9, 13])
    before = reductions()
    for _ in range(3):
        jax.grad(csr(start))(x)
    assert reductions() - before == 1
    jax.grad(csr(equal))(x)
    assert reductions() - before == 2


@pytest.mark.cpu
@pytest.mark.full
def test_other_arrays_in_the_place_of_one():
    """Programs of equal text but for the limits do not share what they keep, and those with equal limits share all."""
    x = jnp.linspace(0.1, 1.0, 64)
    starts = [[0, 8, 16, 16, 9, 9, 9], [0, 0, 64, 64, 64, 0, 0], [0, 7, 15, 16, 16, 2, 2], [0, 0, 0, 64, 63, 63, 64]]
    starts = list(map(jnp.array, starts))
    gradients = [jax.grad(csr(start))(x) for start in starts]
    for start, got in zip(starts, gradients, strict=True):
        length = start[1:] - start[:-1]

        def theirs(x, start=start, length=length):
            step = lambda i: lambda a, t: (jnp.where(t < length[i], jnp.sin(a) * x[start[i] + t], a), None)  # noqa: E731
            return sum(jax.lax.scan(step(i), x[0], jnp.arange(64))[0] for i in range(6))

        np.testing.assert_allclose(got, jax.grad(theirs)(x), rtol=1e-9)
    assert [kept(csr(start), x) for start in starts] == [8 * 8, 64 * 8, 8 * 8, 64 * 8]
    programs = counters.counts["programs"]
    for start in starts:
        jax.grad(csr(start))(x)
    assert counters.counts["programs"] == programs


@pytest.mark.usefixtures("young_heap")
@pytest.mark.cpu
def test_an_array_that_is_gone_is_no_array_at_its_address():
    x = jnp.linspace(0.1, 1.0, 64)
    for long in (4, 64, 8, 32, 2, 16):
        start = jnp.array([0, long, long, 64, 64 - long, 64 - long, 64])
        assert kept(csr(start), x) == 8 * (64 if long < 32 else long)
        del start
        gc.collect()


@pytest.mark.full
def test_a_deleted_array():
    start = jnp.array([0, 3, 13])
    gradient = jax.jit(jax.grad(csr(start)))
    first = gradient(jnp.ones(13))
    assert gradient(jnp.ones(13)).tolist() == first.tolist()
    start.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        jax.grad(csr(start))(jnp.ones(13))


@pytest.mark.cpu
def test_an_argument_has_no_limits():
    """Another array may be given to the same program."""
    before = reductions()
    x, start = jnp.ones(64), jnp.array([0, 3, 13])
    f = qd.jit(walk)
    (choice,) = qd.jit(jax.grad(lambda x: f(start, x).sum())).lower(x).storage
    assert "known only at run time" in choice.reason
    assert reductions() == before


@pytest.mark.full
@pytest.mark.cpu
def test_an_array_that_the_function_changes_has_none():
    start = jnp.array([0, 1, 2])

    @qd.jit
    def f(x):
        own, out = qd.copy(start), qd.zeros(2, x.dtype)
        for i in qd.range(3):
            own[i] *= 20
        for i in qd.range(2):
            a = qd.local(x[0])
            for k in qd.range(own[i], own[i + 1]):
                a.value = jnp.sin(a.value) * x[k]
            out[i] = a.value
        return out.sum()

    x = jnp.linspace(0.1, 1.0, 64)
    np.testing.assert_allclose(jax.grad(f)(x), jax.grad(csr(start * 20))(x), rtol=1e-12)


@pytest.mark.full
def test_an_array_of_numpy_that_changes_afterwards():
    """What is captured is the content at the first call."""
    start = np.array([0, 3, 13])

    @qd.jit
    def f(x):
        out = qd.zeros(2, x.dtype)
        for i in qd.range(2):
            a = qd.local(x[0])
            for k in qd.range(jnp.asarray(start)[i], jnp.asarray(start)[i + 1]):
                a.value = jnp.sin(a.value) * x[k]
            out[i] = a.value
        return out.sum()

    x = jnp.linspace(0.1, 1.0, 64)
    gradient = jax.jit(jax.grad(f))
    want = gradient(x)
    start[:] = [0, 1, 60]
    assert gradient(x).tolist() == want.tolist()
    np.testing.assert_allclose(want, jax.grad(csr(jnp.array([0, 3, 13])))(x), rtol=1e-12)


@pytest.mark.full
@pytest.mark.cpu
def test_loops_in_loops():
    rng = np.random.default_rng(3)
    outer, inner = rows(rng, "i4"), rows(rng, "i4", 40)

    @each
    def f(i, x):
        a = qd.local(x[i])
        for j in qd.range(outer[i], outer[i + 1]):
            for k in qd.range(inner[j], inner[j + 1]):
                a.value = advance(a.value, k, x[i])
        return a.value

    def theirs(x):
        def lane(i, x):
            def of(j, a):
                step = lambda a, t: (jnp.where(inner[j] + t < inner[j + 1], advance(a, inner[j] + t, x), a), None)  # noqa: E731
                return jax.lax.scan(step, a, jnp.arange(MOST))[0]

            one = lambda a, t: (jnp.where(outer[i] + t < outer[i + 1], of(outer[i] + t, a), a), None)  # noqa: E731
            return jax.lax.scan(one, x, jnp.arange(MOST))[0]

        return jax.vmap(lane)(jnp.arange(LANES), x)

    x = rng.uniform(0.2, 1.4, LANES)
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(x), jax.grad(lambda x: theirs(x).sum())(x), rtol=1e-9)
    low = qd.jit(jax.grad(lambda x: f(x).sum())).lower(x)
    assert [choice.nbytes for choice in low.storage] == [16 * 8, 16 * 8]


@pytest.mark.cpu
@pytest.mark.full
def test_lanes_of_vmap_and_loops_that_are_left_early():
    start = jnp.asarray(rows(np.random.default_rng(1), "i4", 50))

    def row(c, x):
        return jax.lax.fori_loop(start[c], start[c + 1], lambda k, a: advance(a, k, x), x)

    lanes = qd.vmap(row)
    theirs = jax.vmap(lambda c, x: jax.lax.scan(
        lambda a, t: (jnp.where(start[c] + t < start[c + 1], advance(a, start[c] + t, x), a), None),
        x, jnp.arange(MOST))[0])  # fmt: skip
    x, c = np.linspace(0.2, 1.4, 30), np.arange(30) + 10
    want = jax.grad(lambda x: theirs(c, x).sum())(x)
    np.testing.assert_allclose(jax.grad(lambda x: lanes(c, x).sum())(x), want, rtol=1e-9)
    assert kept(lambda x: lanes(c, x).sum(), x) == 16 * 8

    @each
    def left(i, x):
        a = qd.local(x[i])
        for k in qd.range(start[i], start[i + 1]):
            qd.break_if(a.value > 1.3)
            a.value = advance(a.value, k, x[i])
        return a.value

    qd.check_grads(left, (x,), modes=("rev",), order=1)
    assert kept(lambda x: left(x).sum(), x) <= 16 * (8 + 4 + 1)


CUT = """
program f(x: ref[f64,2], n: ref[i32,2] in (0, 3))
  buffer y: ref[f64,2]
  range_for i in 0:i32 : 2:i32
    v0: f64 = load x i
    v1: i32 = load n i
{loop}
    store y v2 i
  return y
"""
CUT_LOOPS = {
    "for": """    v2: f64 = for k in 0:i32 : v1 : 1:i32 carry c = v0
      v3: f64 = mul c c
      yield v3""",
    "while": """    v2: f64, v4: i32 = while carry c = v0, d = 0:i32
      v5: bool = lt d v1
      v6: bool = gt c 0.0:f64
      v7: bool = and v5 v6
      test v7
      v3: f64 = mul c c
      v8: i32 = add d 1:i32
      yield v3, v8""",
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("loop", CUT_LOOPS)
def test_a_derivative_never_runs_past_its_stack(loop, machine):
    """Where an index has left the array, or somebody runs the program with another one, a loop that has too many
    iterations has none."""
    program = with_known_trips(parse_program(CUT.format(loop=CUT_LOOPS[loop]).replace("(0, 3)", "(0, 3, 8)")))
    assert not program.limits
    made = derive(program, (), (True,), (True, False), stacks=stacks_of(MACHINES[machine]))
    (adjoint,) = evaluate(made, [np.array([1.5, 1.5]), np.array([2, 6], np.int32), np.ones(2)])
    assert adjoint.tolist() == [4 * 1.5**3, 1.0]


@pytest.mark.full
def test_arrays_that_an_inner_function_captures() -> None:
    """Functions of equal text, whose inner functions have captured other arrays."""

    def scaled(table):
        inner = jax.jit(lambda i: table[i])

        @each
        def f(i, x):
            return jnp.sin(x[i]) * inner(i)

        return f

    x = np.linspace(0.1, 1.0, 80)
    for factor in (1.0, 3.0, 1.0):
        table = jnp.arange(101) * factor
        slopes = jax.grad(lambda x, table=table: scaled(table)(x).sum())(x)
        np.testing.assert_allclose(slopes, np.cos(x) * table[:80], rtol=1e-12)
        _, along = jax.jvp(scaled(table), (x,), (np.ones_like(x),))
        np.testing.assert_allclose(along, np.cos(x) * table[:80], rtol=1e-12)
