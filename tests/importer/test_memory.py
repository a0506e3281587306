"""Values above the scalar budget: private memory, loops, limits."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.special import i0e

import qdtrace as qd
from tests.importer.harness import check, imported

RNG = np.random.default_rng(6)
LONG = RNG.normal(size=(2, 300)).astype(np.float32)
SQUARE = RNG.normal(size=(2, 20, 20)).astype(np.float32)

LARGE = {
    "elementwise": lambda x: jnp.sin(x) * 2 + x,
    "broadcast": lambda x: x[:, None] * jnp.ones(2) + x[0],
    "reduce": lambda x: (x.sum(), x.max(), jnp.argmax(x), x.mean()),
    "reshape": lambda x: x.reshape(3, 100).sum(0),
    "transpose": lambda x: x.reshape(20, 15).T,
    "slices": lambda x: x[10:280:3] - x[::-1][:90],
    "concatenate": lambda x: jnp.concatenate([x[:5], x, x[7:]]),
    "pad": lambda x: jnp.pad(x, (3, 4)),
    "where": lambda x: jnp.where(x > 0, x, -2 * x),
    "cumsum": lambda x: (jnp.cumsum(x), lax.cummax(x, reverse=True)),
    "sort": lambda x: (jnp.sort(x), jnp.argsort(x)),
    "stack": lambda x: jnp.stack([x, -x], 1).sum(1),
    "matmul": lambda x: x.reshape(20, 15) @ x.reshape(15, 20),
    "matvec": lambda x: x.reshape(20, 15) @ x[:15],
    "dot": lambda x: x @ x,
    "gather": lambda x: x[jnp.array([3, 299, -1, 17])],
    "table": lambda x: x[jnp.clip((x[:4] * 50).astype(jnp.int32), 0, 299)],
    "scatter": lambda x: x.at[::7].set(0.0).at[5].add(1.0),
    "histogram": lambda x: jnp.zeros(20).at[jnp.clip((x * 3 + 10).astype(jnp.int32), 0, 19)].add(1.0),
    "iota": lambda x: x * jnp.arange(300.0),
    "convert": lambda x: (x * 10).astype(jnp.int32).astype(jnp.uint8),
    "split": lambda x: [jnp.sum(p) for p in jnp.split(x, 3)],
    "complex": lambda x: jnp.abs(jnp.sum(jnp.exp(1j * x))),
    "scan over rows": lambda x: lax.scan(lambda c, r: (c + r.sum(), c * r), 0.0, x.reshape(30, 10)),
    "vmap": lambda x: jax.vmap(lambda a: a * a + 1)(x),
    "gradient": lambda x: jax.grad(lambda x: jnp.sum(jnp.sin(x) * x))(x),
    "softmax": lambda x: jax.nn.softmax(x),
    "tile": lambda x: jnp.tile(x[:100], 4),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_values(name):
    # 300 terms: another order of summation than XLA's.
    program = check(LARGE[name], LONG, rtol=2e-4, atol=2e-4)
    assert program.count("for") >= 1
    assert program.count() < 1000  # no operation is written out 300 times (loads and stores of the harness are)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_tables_of_integers_in_loops(dtype):
    """Those that rise evenly along each axis are computed, others are read; lengths of an axis go from 1 to 48."""
    rng = np.random.default_rng(len(dtype))
    tables = []
    for sides in ((48,), (6, 8), (1, 3, 16), (4, 4, 3), (24, 2)):
        steps = rng.integers(-40, 40, len(sides))
        even = rng.integers(100) + sum(step * k for step, k in zip(steps, np.indices(sides), strict=True))
        odd = even.copy()
        odd[(-1,) * odd.ndim] += 1
        tables += [t.astype(dtype) for t in (even, odd, 0 * even)]  # they wrap
    tables.append(np.broadcast_to(np.arange(6, dtype=dtype)[:, None], (6, 8)))

    def f(x):
        return [x[100:148].reshape(t.shape) * jnp.asarray(t) for t in tables]

    program = check(f, LONG, rtol=1e-6)
    assert program.count("load") < 45  # as many as the operands have, and 10 less than with all tables


def test_equations_do_not_grow_with_the_size():
    def f(m):
        return jnp.linalg.norm(m @ jnp.tanh(m) - m, axis=0)

    small, large = (
        imported(f, m).count() - m[0].size for m in (SQUARE, RNG.normal(size=(2, 40, 40)).astype(np.float32))
    )
    assert large < small * 2.5  # the stores of the operand are written out by the harness


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda m: m[:3] @ m[0], id="three rows"),
        pytest.param(lambda m: m.T @ m[1, :20], id="a vector of scalars"),
        pytest.param(lambda m: jnp.einsum("ij,ik->jk", m[:, :4], m[:, :4]), id="sixteen sums"),
        pytest.param(lambda m: (m[:3] * 1j + m[3:6]) @ m[0], id="complex"),
        pytest.param(lambda m: m.reshape(2, 200).sum(1), id="two totals"),
        pytest.param(lambda m: (m * 1j).reshape(4, 100).sum(1).imag, id="complex totals"),
        pytest.param(lambda m: m.reshape(4, 10, 10).max((1, 2)), id="maxima over two axes"),
        pytest.param(lambda m: m.astype(jnp.float16).reshape(4, 100).sum(1), id="narrow totals"),
    ],
)
def test_few_sums_share_a_loop(f):
    program = check(f, SQUARE, rtol=2e-3 if "float16" in str(jax.eval_shape(f, SQUARE[0])) else 1e-5, atol=1e-4)
    assert program.count() < 950  # of these, 820 are the stores of the operand


def test_results_of_elementwise_chains_reuse_memory():
    assert imported(lambda x: jnp.sin(x) * 2 + 1, LONG).count("cell") == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: (x @ w[0]) * (x @ w[1]) * (x @ w[2]),
        lambda x, w: jnp.einsum("ij,jk->ik", x, w[0]) + x.reshape(6, 8) @ w[1],
    ],
)
def test_scalars_of_several_products_are_stored_once(f):
    x = jnp.asarray(RNG.normal(size=(2, 6, 8)).astype(np.float32))
    w = jnp.asarray(RNG.normal(size=(3, 8, 8)).astype(np.float32))
    mapped = qd.jit(lambda x: qd.vmap(lambda x: f(x, w))(x))
    graph = mapped.lower(x).graph("trace")
    assert len(re.findall(r"load arg0 i k", graph)) == 1  # by one loop
    assert not re.search(r"\bs(_\d+)?: cell", graph)
    np.testing.assert_allclose(mapped(x), jax.vmap(lambda x: f(x, w))(x), rtol=1e-4, atol=1e-4)  # XLA sums otherwise


@pytest.mark.full
def test_many_long_functions_of_elements():
    f = lambda v: sum(i0e(v + k) for k in range(12))  # noqa: E731
    x = RNG.normal(size=(2, 256))
    with jax.enable_x64(True):
        np.testing.assert_allclose(qd.vmap(f)(x), jax.vmap(f)(x), rtol=1e-12)


@pytest.mark.full
def test_what_was_read_is_read_again_as_it_was():
    @qd.jit
    def f(x):
        out = qd.copy(x)
        for i in qd.range(x.shape[0]):
            row = out[i]
            near = row * 0.5 + 1
            out[i] = jnp.zeros_like(row)
            for _ in qd.range(3):
                out[i] += i0e(row) * near + i0e(near)
        return out

    x = RNG.normal(size=(2, 40)).astype(np.float32)
    near = x * 0.5 + 1
    np.testing.assert_allclose(f(x), 3 * (i0e(x) * near + i0e(near)), rtol=1e-5)


@pytest.mark.full
def test_rules_of_arrays_that_a_long_function_left_in_memory():
    @jax.custom_jvp
    def ruled(x):
        return x * x

    ruled.defjvp(lambda p, t: (p[0] * p[0], 7 * p[0] * t[0]))

    @qd.jit
    def f(x):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            row, y = x[i], i0e(x[i])
            for _ in qd.range(1):
                out[i] = ruled(y) + lax.stop_gradient(y) * row
        return out

    x = RNG.normal(size=(2, 40)).astype(np.float32)
    want = jax.grad(lambda x: jnp.sum(ruled(i0e(x)) + lax.stop_gradient(i0e(x)) * x))(x)
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(x), want, rtol=1e-4, atol=1e-5)


ROWS_OF_W = {
    "whole": lambda w: w,
    "shape": lambda w: w.reshape(2, 6),
    "axes": lambda w: w.reshape(2, 6).T[::-1],
    "every other one": lambda w: w[1::2],
    "sum of axes": lambda w: w.reshape(2, 6).T.reshape(12),
    "uneven": lambda w: w[jnp.array([0, 1, 2, 4, 8, 9, 10, 11])],
}


@pytest.mark.parametrize("name", ROWS_OF_W)
def test_parameters_are_read_by_the_number_of_a_trip(name):
    """Few elements of memory that nothing writes are scalars, and in loops loads again, where they lie evenly."""
    read, w = ROWS_OF_W[name], RNG.normal(size=12).astype(np.float32)
    shape = read(jnp.asarray(w)).shape
    x = RNG.normal(size=(3, 9, *shape)).astype(np.float32)
    m = RNG.normal(size=(9, 9)).astype(np.float32)

    def f(x, w):
        return (m @ jnp.sin(x).reshape(9, -1)).reshape(x.shape) + read(w)

    with qd.options(array_mapping="lanes"):
        traced = qd.jit(lambda x, w: qd.vmap(f, (0, None))(x, w)).lower(x, w).graph("trace")
        np.testing.assert_allclose(qd.vmap(f, (0, None))(x, w), jax.vmap(f, (0, None))(x, w), rtol=1e-4, atol=1e-5)
    if name not in ("sum of axes", "uneven"):
        assert "select" not in traced
        assert traced.count(" load c") <= 4 + np.prod(shape)


def test_an_index_of_a_lane_chooses_among_scalars():
    """A gather takes longer than some selects: only indices that all lanes share are loads."""
    k, w = np.arange(40, dtype=np.int32) % 12, RNG.normal(size=12).astype(np.float32)
    f = lambda k, w: jnp.sum(jnp.stack([w[:6], w[6:]])[:, k % 6])  # noqa: E731
    np.testing.assert_allclose(qd.vmap(f, (0, None))(k, w), jax.vmap(f, (0, None))(k, w), rtol=1e-6)


def test_memory_that_is_written_is_not_read_again():
    """Scalars are what was read before."""

    @qd.jit
    def f(x, w):
        out = qd.zeros((3, 30, 12), jnp.float32)
        for i in qd.range(3):
            row = w[:]
            for k in qd.range(12):
                w[k] = 7.0
            out[i] = jnp.sin(x[i]) + row
        return out

    x, w = RNG.normal(size=(1, 30, 12)).astype(np.float32), RNG.normal(size=12).astype(np.float32)
    x = np.broadcast_to(x, (3, 30, 12))
    np.testing.assert_allclose(f(x, w)[0], np.sin(x[0]) + w, rtol=1e-5, atol=1e-6)
