"""Called functions are imported by reference: once for operands of a kind, and every use means the same."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import UnsupportedError
from qdtrace.trace.importer import Importer
from tests.importer.harness import check

RNG = np.random.default_rng(7)
X = RNG.uniform(0.5, 4, size=(7,)).astype(np.float32)
Y = RNG.uniform(-2, 2, size=(7,)).astype(np.float32)
M = RNG.normal(size=(7, 3, 3)).astype(np.float32)
TABLE = jnp.asarray(RNG.normal(size=(100,)), jnp.float32)


@pytest.fixture
def imported_primitives(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a rule ran, by primitive."""
    counts: Counter[str] = Counter()
    run = Importer.import_eqn

    def counting(self: Any, eqn: Any, env: Any) -> None:
        counts[eqn.primitive.name] += 1
        run(self, eqn, env)

    monkeypatch.setattr(Importer, "import_eqn", counting)
    return counts


@jax.jit
def helper(a: Any, b: Any) -> Any:
    return jnp.sin(a) * b + jnp.tanh(a - b), b * 0.75


def test_a_body_is_imported_at_its_first_call(imported_primitives: Counter[str]) -> None:
    def f(a: Any, b: Any) -> Any:
        for _ in range(10):
            a, b = helper(a, b)
        return a, b

    program = check(f, X, Y)
    assert imported_primitives["sin"] == imported_primitives["tanh"] == 1
    assert program.count("sin") == program.count("tanh") == 10


@pytest.mark.full
def test_600_calls_in_loop_bodies_import_once(imported_primitives: Counter[str]) -> None:
    @jax.jit
    def step(a: Any, b: Any) -> Any:
        return jnp.cosh(a) * 0.1 + b * 0.5

    @qd.jit
    def run(x: Any) -> Any:
        for _ in range(60):
            for i in qd.range(x.shape[0]):
                v = x[i]
                for _ in range(10):
                    v = step(v, x[i])
                x[i] = v
        return x

    graph = run.lower(jnp.ones(8, jnp.float32)).graph("trace")
    assert graph.count("cosh") == 600
    assert imported_primitives["cosh"] == 1
    assert imported_primitives["jit"] == 600


def test_equal_calls_are_one_value() -> None:
    program = check(lambda a, b: helper(a, b)[0] + helper(a, b)[1], X, Y)
    assert program.count("sin") == 1


def test_constants_in_operands_are_another_kind(imported_primitives: Counter[str]) -> None:
    program = check(lambda a, b: (helper(a, 2.0), helper(b, 2.0), helper(a, 3.0), helper(0.0, b)), X, Y)
    assert imported_primitives["sin"] == 3
    assert program.count("sin") == 4  # of a constant it is no constant in the graph


def test_zeros_of_both_signs_are_two_constants() -> None:
    sign = jax.jit(lambda a, b: (jnp.copysign(a, b), jnp.signbit(b) | (a > 3)))
    check(lambda a: (sign(a, jnp.float32(0.0)), sign(a, jnp.float32(-0.0))), X, exact=True)


def test_an_operand_given_twice_is_another_kind() -> None:
    larger = jax.jit(lambda a, b: (jnp.maximum(a, b), jnp.where(a > 0, a, b)))
    check(lambda a, b: (larger(a, a), larger(a, b), larger(b, a)), X, Y, exact=True)


def test_results_that_are_operands_or_constants() -> None:
    swap = jax.jit(lambda a, b: (b, a, jnp.float32(2.5), jnp.exp(a) + 1))
    check(lambda a, b: (swap(a, b), swap(b, a)), X, Y)


def test_small_arrays_and_their_shapes(imported_primitives: Counter[str]) -> None:
    square = jax.jit(lambda m: m @ m + jnp.tanh(m))
    check(lambda m: square(square(m)) + square(m.T) + square(m[:2, :2])[0, 0], M)
    assert imported_primitives["tanh"] == 2


@pytest.mark.full
def test_complex_numbers_and_keys() -> None:
    wave = jax.jit(lambda z, a: jnp.exp(z) * a + z * z)
    check(lambda a, b: wave(wave(lax.complex(a, b), a) * 0.1, b), X, Y)
    draw = jax.jit(lambda k, a: jax.random.uniform(jax.random.fold_in(k, 3)) + a)
    check(lambda k, a: draw(k, a) + draw(jax.random.fold_in(k, 1), a), jax.random.split(jax.random.key(0), 7), X)


def test_bodies_with_loops_bind_their_variables_anew(imported_primitives: Counter[str]) -> None:
    root = jax.jit(lambda a: lax.fori_loop(0, 5, lambda _, s: 0.5 * (s + a / s), a) + jnp.cosh(a))
    program = check(lambda a, b: root(a) + root(jnp.abs(b) + 1), X, Y)
    assert program.count("for") == 2
    assert imported_primitives["cosh"] == 1


def test_branches() -> None:
    pick = jax.jit(lambda a, b: lax.cond(a > b, lambda: jnp.sin(a), lambda: jnp.cos(b) * 2))
    assert check(lambda a, b: pick(a, b) + pick(b, a), X, Y).count("if") == 2


def test_tables_are_read_by_each_call() -> None:
    look = jax.jit(lambda k: TABLE[k] + jnp.sin(TABLE[(k + 1) % 100]))
    check(lambda k: look(k) + look(k * 2) + look(k), np.arange(7, dtype=np.int32))


def test_private_arrays_are_made_by_each_call() -> None:
    @jax.jit
    def blur(a: Any, n: Any) -> Any:
        rows = lax.fori_loop(0, n, lambda k, r: r.at[k % 50].add(a), jnp.zeros(50, jnp.float32))
        return rows[n % 50] + rows[0]

    check(lambda a, b: blur(a, 7) + blur(b, 7) * 2 + blur(a, 9), X, Y)


@pytest.mark.full
def test_copies_of_a_call_have_memory_of_their_own() -> None:
    @jax.jit
    def large(a: Any, n: Any) -> Any:
        rows = lax.fori_loop(0, n, lambda k, r: r.at[k % 4000].add(a), jnp.zeros(4000, jnp.float32))
        return rows[n % 50]

    def f(a: Any, n: Any) -> Any:
        for _ in range(5):
            a = large(a, n)
        return a

    program = check(f, X, np.full(7, 3, np.int32))
    assert program.count("cell") == 5


def test_an_array_in_memory_is_written_once_for_all_calls() -> None:
    look = jax.jit(lambda row, k: row[k] + jnp.sin(row[(k + 1) % 40]))
    rows = RNG.normal(size=(7, 40)).astype(np.float32)
    program = check(lambda row, k: sum(look(row, k * n % 40) for n in range(6)), rows, np.arange(7, dtype=np.int32))
    assert program.count("cell") == 2  # the first call has its own


def test_memory_of_a_call_in_a_branch_stays_there() -> None:
    look = jax.jit(lambda row, k: row[k] + jnp.sin(row[(k + 1) % 40]))
    rows = RNG.normal(size=(7, 40)).astype(np.float32)

    def f(row: Any, k: Any) -> Any:
        return lax.cond(k > 3, lambda: look(row, k), lambda: row[k] * 2) + row[k] + look(row, k)

    check(f, rows, np.arange(7, dtype=np.int32))


def test_lines_of_copies_are_those_of_their_calls() -> None:
    @qd.jit
    def run(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            first = helper(x[i], 1.5)[0]
            x[i] = helper(first, 1.5)[0]
        return x

    (staged,) = run.lower(jnp.ones(8, jnp.float32)).programs
    lines = [e.loc.line for e in staged.program.tasks[0].body.eqns if e.primitive.name == "sin" and e.loc]
    assert lines[1] == lines[0] + 1


@pytest.mark.full
def test_equations_that_compute_nothing() -> None:
    """`empty2` is left by derivatives of branches, `device_put` by sparse solvers."""
    x = np.linspace(-2, 2, 7, dtype=np.float32)
    branches = [jnp.sin, jnp.cos, jnp.tanh]
    check(jax.grad(lambda x: lax.cond(x > 0, jnp.sin, lambda v: 2 * v, x)), x)
    check(jax.grad(lambda x: lax.switch((x > 0).astype(int), branches, x) + lax.switch(2, branches, x)), x)
    a = np.tile(np.diag([1.0, 2.0, 3.0]).astype(np.float32), (7, 1, 1))
    check(lambda a, b: jax.scipy.sparse.linalg.cg(a, b * jnp.ones(3))[0], a, x)
    check(lambda x: jax.device_put(x, jax.devices()[0]) + jax.device_put(2.0), x)
    check(lambda x: lax.empty((20, 30), jnp.float32).at[2, 3].set(x)[2, 2:4] + x, x)
    check(lambda x: lax.empty((2,), jnp.complex64).at[1].set(x)[1], x)


def test_platforms() -> None:
    check(lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), X)
    check(lambda x: lax.platform_dependent(x, tpu=jnp.sin, cuda=jnp.tan, default=jnp.cos), X)
    with pytest.raises(UnsupportedError, match="`platform_dependent` has no branch for 'cpu', where the loop runs"):
        check(lambda x: lax.platform_dependent(x, tpu=jnp.sin, cuda=jnp.tan), X)


def test_ranges_of_indices_are_kinds() -> None:
    """A check or a limit that the first call's index made needless is there for the others."""
    table = jax.jit(lambda k: jnp.array([10, 20, 30, 40]).at[k].get(mode="clip") * 2 + 1)
    pick = jax.jit(lambda a, k: a[k] * 2.0)

    @qd.jit
    def clipped(out: Any) -> Any:
        for i in qd.range(4):
            out[0, i] = table(i.astype(jnp.uint32))
            out[1, i] = table((i * 7).astype(jnp.uint32))
        return out

    @qd.jit
    def checked(x: Any) -> Any:
        out = qd.zeros((2, 4), x.dtype)
        for i in qd.range(4):
            a = jnp.stack([x[0], x[1] * x[0], x[2], x[3]])
            out[0, i] = pick(a, i)
            out[1, i] = pick(a, i * 7)
        return out

    np.testing.assert_array_equal(clipped(jnp.zeros((2, 4), jnp.int32)), [[21, 41, 61, 81], [21, 81, 81, 81]])
    with pytest.raises(qd.BoundsError, match=r"^index 7 is out of bounds for axis 0 of `a` with shape \(4,\)"):
        checked(jnp.arange(4.0))


def test_equal_ranges_are_one_kind(imported_primitives: Counter[str]) -> None:
    pick = jax.jit(lambda a, k: jnp.tanh(a[k]))

    @qd.jit
    def f(x: Any) -> Any:
        out = qd.zeros((2, 4), x.dtype)
        for n in (0, 1):
            for i in qd.range(4):
                out[n, i] = pick(jnp.stack([x[0], x[1] * x[0], x[2], x[3]]), i)
        return out

    assert "bound" not in f.lower(jnp.arange(4.0)).graph("trace")
    assert imported_primitives["tanh"] == 1
