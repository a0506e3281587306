"""Donated arguments: a new result takes over their memory where that is right, and never changes a value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

N = 1 << 16
BYTES = 4 * N
# JAX warns of a donation that was of no use.
pytestmark = pytest.mark.filterwarnings("error")


def values(seed: int = 0, shape: tuple[int, ...] = (N,)) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def chain(x):
    for k in range(4):
        y = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            y[i] = x[i] * 2 + k
        x = y
    return x


def pair(x, y):
    """The second result is touched first."""
    a, b = qd.empty_like(x), qd.empty_like(y)
    for i in qd.range(x.shape[0]):
        b[i] = x[i] + y[i]
        a[i] = x[i] * y[i]
    return a, b


def stencil(x):
    y = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        y[i] = x[i] + x[(i + 1) % x.shape[0]]
    return y


def is_in_place(f, *args, **settings) -> bool:
    """Whether no result is computed in other memory than that of the arguments."""
    plan = qd.jit(f, **settings).lower(*args).compile().memory_analysis()
    fresh = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return fresh + plan.temp_size_in_bytes < 0.1 * BYTES


@pytest.mark.full
def test_a_chain_is_in_place() -> None:
    assert is_in_place(chain, jnp.zeros(N), donate_argnums=0)
    x = jnp.asarray(values())
    place = x.unsafe_buffer_pointer()
    y = qd.jit(chain, donate_argnums=0)(x)
    assert y.unsafe_buffer_pointer() == place
    assert x.is_deleted()
    np.testing.assert_array_equal(y, qd.jit(chain)(values()))


def test_the_graph_shows_it() -> None:
    low = qd.jit(chain, donate_argnums=0).lower(jnp.zeros(8))
    assert "buffer y_3: ref[f32,8] in x" in low.graph("trace")
    assert "buffer" not in low.graph()
    assert "return x" in low.graph()
    assert "buffer y: ref[f32,8]\n" in qd.jit(chain).lower(jnp.zeros(8)).graph()


def test_the_graph_of_a_donation_is_another_one() -> None:
    """Neither takes the program of the other, whichever comes first."""
    for settings in ({}, {"donate_argnums": 0}, {}):
        x = jnp.asarray(values())
        np.testing.assert_allclose(qd.jit(chain, **settings)(x), values() * 16 + 11, rtol=1e-5)
        assert x.is_deleted() == bool(settings)
    one, other = (qd.jit(chain, **s).lower(jnp.zeros(8)).programs[0] for s in ({}, {"donate_argnums": 0}))
    assert one != other
    assert other == qd.jit(chain, donate_argnums=0).lower(jnp.zeros(8)).programs[0]


def test_what_is_read_elsewhere_keeps_its_memory() -> None:
    """XLA copies the result then."""
    assert not is_in_place(stencil, jnp.zeros(N), donate_argnums=0)
    x = values()
    np.testing.assert_array_equal(qd.jit(stencil, donate_argnums=0)(jnp.asarray(x)), x + np.roll(x, -1))


def test_what_is_read_in_earlier_loops_only() -> None:
    def f(x):
        y, z = stencil(x), qd.empty_like(x)
        for i in qd.range(x.shape[0], fuse=False):
            z[i] = y[i] * y[i]
        return z

    x = values()
    want = qd.jit(f)(x)
    assert "return x" in qd.jit(f, donate_argnums=0).lower(x).graph()
    np.testing.assert_array_equal(qd.jit(f, donate_argnums=0)(jnp.asarray(x)), want)


# ---------------------------------------------------------------------- which argument, which result
def test_pairs_are_those_of_jax() -> None:
    x, y = values(1), values(2)
    assert is_in_place(pair, jnp.zeros(N), jnp.zeros(N), donate_argnums=(0, 1))
    a, b = jnp.asarray(x), jnp.asarray(y)
    places = a.unsafe_buffer_pointer(), b.unsafe_buffer_pointer()
    got = qd.jit(pair, donate_argnums=(0, 1))(a, b)
    assert tuple(g.unsafe_buffer_pointer() for g in got) == places
    np.testing.assert_array_equal(got[0], x * y)
    np.testing.assert_array_equal(got[1], x + y)


@pytest.mark.parametrize("donated", [(), (0,), (1,), (0, 1)])
def test_every_subset(donated: tuple[int, ...]) -> None:
    x, y = values(1), values(2)
    args = jnp.asarray(x), jnp.asarray(y)
    got = qd.jit(pair, donate_argnums=donated)(*args)
    np.testing.assert_array_equal(got[0], x * y)
    np.testing.assert_array_equal(got[1], x + y)
    for k, arg in enumerate(args):
        assert arg.is_deleted() == (k in donated)


@pytest.mark.parametrize(
    ("settings", "args", "kwargs"),
    [
        ({"donate_argnums": 1}, (2.0,), ()),
        ({"donate_argnums": (1,), "static_argnums": 0}, (2.0,), ()),
        ({"donate_argnums": 1}, (2.0,), ("x",)),
        ({"donate_argnames": "x"}, (2.0,), ()),
        ({"donate_argnames": ("x",)}, (2.0,), ("x",)),
    ],
)
def test_ways_to_name_an_argument(settings, args, kwargs) -> None:
    def scaled(factor, x):
        y = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            y[i] = factor * x[i]
        return y

    x = jnp.asarray(values())
    given = (args, {"x": x}) if kwargs else ((*args, x), {})
    low = qd.jit(scaled, **settings).lower(*given[0], **given[1])
    assert "return x" in low.graph()
    np.testing.assert_array_equal(qd.jit(scaled, **settings)(*given[0], **given[1]), 2 * values())
    assert x.is_deleted()


@pytest.mark.full
def test_a_pytree() -> None:
    def step(state, dt):
        x, v = qd.empty_like(state["x"]), qd.empty_like(state["v"])
        for i in qd.range(x.shape[0]):
            for d in range(3):
                v[i, d] = state["v"][i, d] - dt * state["x"][i, d]
                x[i, d] = state["x"][i, d] + dt * v[i, d]
        return {"x": x, "v": v}

    shape = (N // 3, 3)
    state = {"x": values(1, shape), "v": values(2, shape)}
    want = qd.jit(step)(state, 0.5)
    assert is_in_place(step, state, 0.5, donate_argnums=0)
    got = qd.jit(step, donate_argnums=0)(jax.tree.map(jnp.asarray, state), 0.5)
    for name in state:
        np.testing.assert_array_equal(got[name], want[name])


def test_other_types_are_not_taken() -> None:
    def widened(x):
        y = qd.empty(x.shape, jnp.int32)
        for i in qd.range(x.shape[0]):
            y[i] = x[i].astype(jnp.int32)
        return y

    low = qd.jit(widened, donate_argnums=0).lower(jnp.zeros(8))
    assert " in x" not in low.graph("trace")


# ---------------------------------------------------------------------- who else reads the argument
def test_the_argument_is_returned_too() -> None:
    def f(x):
        return chain(x), x

    x = values()
    y, same = qd.jit(f, donate_argnums=0)(jnp.asarray(x))
    np.testing.assert_array_equal(y, qd.jit(chain)(x))
    np.testing.assert_array_equal(same, x)


@pytest.mark.full
def test_array_code_reads_the_argument_later() -> None:
    def f(x):
        y = chain(x)
        return y, jax.lax.cummax(x[...])

    x = values()
    y, most = qd.jit(f, donate_argnums=0)(jnp.asarray(x))
    np.testing.assert_array_equal(y, qd.jit(chain)(x))
    np.testing.assert_array_equal(most, np.maximum.accumulate(x))


@pytest.mark.full
def test_a_later_loop_reads_the_argument() -> None:
    def f(x):
        y = chain(x)
        top = jnp.sort(y[...])[-1]  # XLA's, between two programs
        z = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            z[i] = x[i] * top
        return y, z

    x = values()
    want = qd.jit(f)(x)
    low = qd.jit(f, donate_argnums=0).lower(x)
    assert " in x" not in low.graph("trace").split("program f")[1]
    for got, right in zip(qd.jit(f, donate_argnums=0)(jnp.asarray(x)), want, strict=True):
        np.testing.assert_array_equal(got, right)


def test_the_argument_is_an_operand_twice() -> None:
    def f(x):
        table = x[...]
        y = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            y[i] = x[i] + table[(i + 1) % x.shape[0]]
        return y

    x = values()
    np.testing.assert_array_equal(qd.jit(f, donate_argnums=0)(jnp.asarray(x)), x + np.roll(x, -1))


def test_one_array_as_two_arguments() -> None:
    x = jnp.asarray(values())
    got = qd.jit(pair, donate_argnums=0)(x, jnp.copy(x))
    np.testing.assert_array_equal(got[0], values() * values())


# ---------------------------------------------------------------------- JAX around
def test_a_loop_of_donated_steps() -> None:
    step = qd.jit(chain, donate_argnums=0)
    run = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, c: step(c), x), donate_argnums=0)
    plan = run.lower(jnp.zeros(N)).compile().memory_analysis()
    assert plan.temp_size_in_bytes < 0.1 * BYTES
    want = values()
    for _ in range(3):
        want = qd.jit(chain)(want)
    np.testing.assert_array_equal(run(jnp.asarray(values())), want)


def test_a_donation_inside_leaves_arguments_outside_alone() -> None:
    step = qd.jit(chain, donate_argnums=0)
    x = jnp.asarray(values())
    y, same = jax.jit(lambda x: (step(x), x + 0))(x)
    np.testing.assert_array_equal(y, qd.jit(chain)(values()))
    np.testing.assert_array_equal(same, values())
    np.testing.assert_array_equal(x, values())


def test_a_donation_outside_is_not_known() -> None:
    outside = jax.jit(qd.jit(chain), donate_argnums=0)
    x = jnp.asarray(values())
    np.testing.assert_array_equal(outside(x), qd.jit(chain)(values()))
    assert x.is_deleted()
    assert " in x" not in qd.jit(lambda x: qd.jit(chain)(x)).lower(jnp.zeros(8)).graph("trace")


@pytest.mark.full
def test_in_a_batch() -> None:
    x = values(3, (4, 100))
    got = jax.vmap(qd.jit(chain, donate_argnums=0))(jnp.asarray(x))
    np.testing.assert_array_equal(got, jnp.stack([qd.jit(chain)(row) for row in x]))


def test_under_debug() -> None:
    x = values(4, (50,))
    got = qd.jit(chain, donate_argnums=0, options={"debug": True})(jnp.asarray(x))
    np.testing.assert_allclose(got, qd.jit(chain)(x), rtol=1e-6)
