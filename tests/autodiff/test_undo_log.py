"""Loops that change elements of private arrays: what their stores overwrite is kept, and the walk back undoes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.analysis.index.most_trips import MostTrips
from qdtrace.analysis.machine import CPU, GPU
from qdtrace.autodiff.loops.policy import Stacks
from qdtrace.autodiff.undo_plan import Planner
from qdtrace.ir.parser import parse_program
from tests.autodiff import array_loops
from tests.autodiff.derive import derive
from tests.autodiff.machines import MACHINES, limited
from tests.autodiff.test_random_tasks import case_of
from tests.lowering.harness import KERNELS

RNG = np.random.default_rng(0)
ROWS = RNG.uniform(0.5, 1.5, (20, 12))


def put(s, steps=30):
    """An American put by a tree: each step changes each value of a row, from its neighbour."""
    up = jnp.exp(0.03 + 0.01 * s[0])
    p = (1.01 - 1 / up) / (up - 1 / up)
    row = jnp.maximum(1 - s[1] * up ** (2.0 * jnp.arange(steps + 1) - steps), 0)

    def step(n, row):
        m = steps - 1 - n

        def one(j, row):
            spot = s[1] * up ** (2.0 * j - m)
            return row.at[j].set(jnp.maximum((p * row[j + 1] + (1 - p) * row[j]) / 1.001, 1 - spot))

        return lax.fori_loop(0, m + 1, one, row)

    return lax.fori_loop(0, steps, step, row)[0]


def cholesky(a, size=6):
    """A factor in place, column by column."""
    a = jnp.tile(a, 3).reshape(size, size)
    a = a @ a.T + size * jnp.eye(size, dtype=a.dtype)

    def column(j, m):
        m = m.at[j, j].set(jnp.sqrt(lax.fori_loop(0, j, lambda k, s: s - m[j, k] * m[j, k], m[j, j])))

        def row(r, m):
            return m.at[r, j].set(lax.fori_loop(0, j, lambda k, t: t - m[r, k] * m[j, k], m[r, j]) / m[j, j])

        return lax.fori_loop(j + 1, size, row, m)

    return jnp.sum(jnp.tril(lax.fori_loop(0, size, column, a)) ** 3)


def pivoting(a, size=6):
    """Elimination with exchanged rows: data say where stores go."""
    a = jnp.tile(a, 3).reshape(size, size) + jnp.sin(jnp.arange(36.0, dtype=a.dtype) ** 2).reshape(size, size)

    def column(j, m):
        best = lax.fori_loop(j, size, lambda r, b: jnp.where(jnp.abs(m[r, j]) > jnp.abs(m[b, j]), r, b), j)

        def exchange(k, m):
            first, second = m[j, k], m[best, k]
            return m.at[j, k].set(second).at[best, k].set(first)

        m = lax.fori_loop(0, size, exchange, m)

        def row(r, m):
            factor = m[r, j] / m[j, j]
            return lax.fori_loop(j, size, lambda k, m: m.at[r, k].set(m[r, k] - factor * m[j, k]), m)

        return lax.fori_loop(j + 1, size, row, m)

    m = lax.fori_loop(0, size, column, a)
    return jnp.sum(m * jnp.cos(m))


def stack(c):
    """A stack whose height is data, in a loop whose number of iterations is data."""
    count = (c[0] * 20).astype(int) % 25

    def step(k, state):
        row, top = state
        push = jnp.sin(c[k % 12] * k) > 0.1
        row = jnp.where(push, row.at[top].set(jnp.sin(row[jnp.maximum(top - 1, 0)] + c[k % 12])), row)
        row = lax.cond(push, lambda r: r, lambda r: r.at[jnp.maximum(top - 1, 0)].multiply(0.5), row)
        return row, jnp.clip(jnp.where(push, top + 1, top - 1), 0, 69)

    row, top = lax.fori_loop(0, jnp.minimum(count, 24), step, (jnp.tile(c, 6), 3))
    return jnp.sum(row * row) + row[top]


LANES = {f.__name__: f for f in (put, cholesky, pivoting, stack)}


@pytest.mark.cpu
@pytest.mark.parametrize("name", LANES)
@pytest.mark.full
def test_gradients_are_those_of_jax(name):
    f = LANES[name]
    got = jax.grad(lambda c: qd.vmap(f)(c).sum())(ROWS)
    # JAX has no reverse mode of loops to a counter
    np.testing.assert_allclose(got, jax.vmap(jax.jacfwd(f))(ROWS), rtol=1e-9, atol=1e-11)


def factor(size):
    """A Cholesky factor of a private array."""

    @qd.jit
    def f(a):
        out = qd.empty(a.shape, a.dtype)
        for i in qd.range(a.shape[0]):
            m = qd.local(a[i])
            for j in qd.range(size):
                s = qd.local(m[j, j])
                for k in qd.range(j):
                    s.value -= m[j, k] * m[j, k]
                m[j, j] = jnp.sqrt(s.value)
                for r in qd.range(j + 1, size):
                    t = qd.local(m[r, j])
                    for k in qd.range(j):
                        t.value -= m[r, k] * m[j, k]
                    m[r, j] = t.value / m[j, j]
            for r in qd.range(size):
                for k in qd.range(r + 1):
                    out[i, r, k] = m[r, k]
        return out

    return f


@pytest.mark.parametrize("target", [None, "sm_90"])
@pytest.mark.parametrize(("size", "most"), [(12, 4000), (20, 10_000), (30, 24_000)])
def test_bytes_of_a_cholesky_factor(size, most, target):
    more = {} if target is None else {"target": target}
    low = qd.jit(jax.grad(lambda a: factor(size)(a).sum())).lower(np.ones((5, size, size), np.float32), **more)
    (task,) = [t for t in low.tasks if "reverse" in t.name]
    assert 0 < task.private_bytes + task.kernel_scratch <= most
    log = 4 * size * size
    reason = f"what its stores to private arrays overwrite is kept, not the arrays: {log} bytes a lane"
    assert [(c.nbytes, c.reason) for c in low.storage if c.nbytes > 4 * size] == [(log, reason)]


@pytest.mark.full
@pytest.mark.cpu
def test_a_log_that_ad_stack_memory_does_not_leave():
    """Copies thin, logs do not."""
    f = jax.grad(lambda a: qd.vmap(lambda s: put(s, 100))(a).sum())
    args = np.ones((64, 12))
    plenty = qd.jit(f).lower(args)
    assert any("overwrite is kept" in c.reason and c.nbytes == 100 * 100 * 8 for c in plenty.storage)
    with qd.options(ad_stack_memory=0.0):
        little = qd.jit(f).lower(args)
    assert max(c.nbytes for c in little.storage if "overwrite is kept" in c.reason) == 100 * 8


HEAD = """program p(x: ref[f64,6x70], p: ref[i32,70])
  buffer y: ref[f64,6]
  range_for i in 0:i32 : 6:i32
    c: cell[f64,70] = cell[dtype=f64, shape=(70)]
    for k in 0:i32 : 70:i32 : 1:i32
      v: f64 = load x i k
      store c v k
"""
TAIL = """    r: f64 = load c 3:i32
    store y r i
  return y
"""
BODIES = {
    "counter": ("      store c s k1\n", [()]),
    "element of an array": ("      q: i32 = load p k1\n      store c s q\n", [()]),
    "data": ("      q: i32 = convert[dtype=i32] e\n      store c s q\n", [(2,)]),
    "carried": ("      store c s t\n", [(2,)]),
    "branch on a counter": (
        "      b: bool = lt k1 3:i32\n      if b\n        store c s k1\n      else\n        store c e 2:i32\n",
        [(), (), ()],
    ),
    "branch on data": ("      b: bool = lt e 0.5:f64\n      if b\n        store c s k1\n", [(0,), ()]),
    "loop to a counter": ("      for j in 0:i32 : k1 : 1:i32\n        store c s j\n", [(), ()]),
    "loop to data": ("      m: i32 = min t 9:i32\n      for j in 0:i32 : m : 1:i32\n        store c s j\n", [(1,), ()]),
    "loop in steps": ("      for j in 8:i32 : k1 : -2:i32\n        accum[op=add] c s j\n", [(), ()]),
}


def planned(body):
    text = HEAD + (
        "    z: i32 = for k1 in 0:i32 : 7:i32 : 1:i32 carry t = 0:i32\n      e: f64 = load c k1\n      s: f64 = sin e\n"
        f"{body}      u: i32 = add t 1:i32\n      h: bool = lt e 0.7:f64\n      w: i32 = select h u t\n      yield w\n"
    )
    program = parse_program(text + TAIL)
    (task,) = program.tasks
    planner = Planner(task, MostTrips(task), CPU.reverse, lambda: 1 << 20)
    (array,) = [e.outvar for e in task.all_eqns if e.primitive.name == "cell"]
    assert planner.plan(array, task.body, lambda nbytes: nbytes > 0)
    return program, planner.log


@pytest.mark.parametrize("name", BODIES)
def test_what_is_kept(name):
    body, kept = BODIES[name]
    program, log = planned(body)
    assert [site.kept for site in log.sites.values()] == kept
    rng = np.random.default_rng(0)
    case = case_of(program, [rng.uniform(0, 1, (6, 70)), rng.integers(0, 70, 70, dtype=np.int32)], 0)
    tangents, adjoints = case.run()
    np.testing.assert_allclose(np.vdot(case.adjoints[0], tangents[0]), np.vdot(case.direction[0], adjoints[0]))


NEVER = {
    "open loop": "    for k1 in 0:i32 : n : 1:i32\n      e: f64 = load c 2:i32\n      store c e k1\n",
    "open loop inside": (
        "    for k1 in 0:i32 : 7:i32 : 1:i32\n      e: f64 = load c 2:i32\n"
        "      for j in 0:i32 : n : 1:i32\n        store c e j\n"
    ),
    "open step": (
        "    for k1 in 0:i32 : 7:i32 : n\n      e: f64 = load c 2:i32\n      store c e k1\n"
    ),
    "loop without a count inside": (
        "    for k1 in 0:i32 : 7:i32 : 1:i32\n      e: f64 = load c 2:i32\n"
        "      j: i32 = while carry j1 = 0:i32\n        b: bool = lt j1 5:i32\n        test b\n"
        "        store c e j1\n        j2: i32 = add j1 1:i32\n        yield j2\n"
    ),
    "no load": "    for k1 in 0:i32 : 7:i32 : 1:i32\n      store c 1.0:f64 k1\n",
}


@pytest.mark.parametrize("name", NEVER)
def test_what_has_no_log(name):
    program = parse_program(HEAD + "    n: i32 = load p i\n" + NEVER[name] + TAIL)
    (task,) = program.tasks
    planner = Planner(task, MostTrips(task), CPU.reverse, lambda: 1 << 20)
    (array,) = [e.outvar for e in task.all_eqns if e.primitive.name == "cell"]
    assert not planner.plan(array, task.body, lambda _: True)
    assert not planner.log.sites


def test_no_log_where_there_is_no_room_or_it_does_not_pay():
    program, _ = planned(BODIES["counter"][0])
    (task,) = program.tasks
    (array,) = [e.outvar for e in task.all_eqns if e.primitive.name == "cell"]
    assert not Planner(task, MostTrips(task), CPU.reverse, lambda: 55).plan(array, task.body, lambda _: True)
    assert not Planner(task, MostTrips(task), CPU.reverse, lambda: 56).plan(array, task.body, lambda n: n < 56)
    assert Planner(task, MostTrips(task), CPU.reverse, lambda: 56).plan(array, task.body, lambda n: n < 57)


@pytest.mark.parametrize(
    ("size", "stores", "is_undone"), [(8, 8, True), (8, 9, False), (63, 64, False), (64, 128, True), (64, 129, False)]
)
def test_logs_are_longer_than_copies_of_large_arrays_alone(size, stores, is_undone):
    """Seven iterations with so many stores each. They load so much that a tape does not pay."""
    lines = ""
    for j in range(stores):
        at = f"{j % size}:i32"
        lines += f"      e{j}: f64 = load c {at}\n      d{j}: f64 = load c k1\n      s{j}: f64 = mul e{j} d{j}\n"
        lines += f"      store c s{j} {at}\n"
    text = f"""program p(x: ref[f64,6x70])
  buffer y: ref[f64,6]
  range_for i in 0:i32 : 6:i32
    c: cell[f64,{size}] = cell[dtype=f64, shape=({size})]
    for k in 0:i32 : {size}:i32 : 1:i32
      v: f64 = load x i k
      store c v k
    for k1 in 0:i32 : 7:i32 : 1:i32
{lines}    r: f64 = load c 3:i32
    store y r i
  return y
"""
    stacks = Stacks()
    derive(parse_program(text), [], [True], [True], stacks=stacks)
    logs = [c.nbytes for c in stacks.choices if "overwrite is kept" in c.reason]
    assert (7 * stores * 8 in logs) == is_undone


def of_arrays(seed):
    return case_of(array_loops.random_arrays(seed), array_loops.arguments(seed), seed)


LONG = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 300)]


@pytest.mark.full
@pytest.mark.parametrize("seed", [*range(6), *LONG])
def test_forward_and_reverse_are_transposed(seed):
    case = of_arrays(seed)
    for machine in MACHINES.values():
        case.check_transposed(machine)


@pytest.mark.full
def test_random_programs_have_logs():
    """Of most programs drawn above, with operands that are kept in some."""
    made = [of_arrays(seed) for seed in range(12)]
    choices = []
    for case in made:
        stacks = Stacks()
        derive(case.program, [], case.out, case.wrt, stacks=stacks)
        choices.append([c for c in stacks.choices if "overwrite is kept" in c.reason])
    assert sum(bool(c) for c in choices) >= 6


@pytest.mark.sample(full=44)
@pytest.mark.full
@pytest.mark.parametrize(
    "target", [*(pytest.param(t, marks=pytest.mark.cpu) for t in ("avx512", "avx2", "scalar")), KERNELS]
)
@pytest.mark.parametrize("seed", [*range(12, 16), *LONG[:40]])
def test_machine_code(seed, target):
    of_arrays(seed).check_reverse((CPU, GPU, limited(GPU, stack_bytes=0, open_stack_bytes=0))[seed % 3], target)
