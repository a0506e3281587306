"""Arguments in functions of JAX that compare arguments with results: arrays where nothing stores into them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import TraceTypeError

X, M = np.linspace(0.5, 2.0, 4).astype(np.float32), np.arange(1, 7, dtype=np.float32).reshape(2, 3)


def tree_of_results(x, m):
    return jax.tree.map(lambda a, b: a - 0.1 * b, {"x": x, "m": m}, {"x": x * 2, "m": m * 3})


def step_of_descent(x, m):
    state = {"x": x, "m": m}
    slope = jax.grad(lambda s: (s["x"] ** 2).sum() + s["m"].sum())(state)
    return jax.tree.map(lambda a, b: a - 0.1 * b, state, slope)


def cube(v):
    return (v**3).sum()


def scan_over(x, m):
    return lax.scan(lambda c, a: (c + a["m"].sum() * a["x"], c), 0.0, {"x": x[:2], "m": m})


def carried_in_part(x, m):
    return lax.fori_loop(0, 3, lambda _, s: (s[0], s[1] + 1), (x, m))


def exchanged(x, m):
    return lax.fori_loop(0, 3, lambda _, s: (s[1], s[0] * 2), (x, x + 1))


def loop_around_a_function(x, m):
    @qd.jit
    def half(y):
        for i in qd.range(y.shape[0]):
            y[i] = y[i] * 0.5
        return y

    return lax.fori_loop(0, 3, lambda _, x: half(x), x)


def root(x, m):
    newton = lambda f, y: lax.fori_loop(0, 20, lambda _, y: y - f(y) / (3 * y**2), y)  # noqa: E731
    return lax.custom_root(lambda y: y**3 - x, x, newton, lambda g, y: y / g(jnp.ones_like(y)))


def shapes(x, m):
    parts = lax.expand_dims(x, (0,)), lax.reshape(m, (3, 2)), lax.rev(x, (0,)), lax.pad(x, 0.0, [(1, 1, 0)])
    return parts, lax.dynamic_update_slice(x, jnp.zeros(2), (1,)), lax.sort(x), lax.top_k(x, 2), lax.clamp(0.7, x, 1.5)


def asserts_a_type(x, m):
    assert isinstance(x, jax.Array)
    return x * 2


def checks_a_type(x, m):
    if not isinstance(m, jax.Array):
        raise RuntimeError(f"needs an array, got a {type(m).__name__}")
    return m * 2


PROGRAMS = {
    "asserted type": asserts_a_type,
    "checked type": checks_a_type,
    "operation": lambda x, m: lax.add(x, x),
    "operations on shapes": shapes,
    "tree of results": tree_of_results,
    "step of descent": step_of_descent,
    "vjp": lambda x, m: jax.vjp(jnp.sin, x)[1](x),
    "jvp": lambda x, m: jax.jvp(jnp.sin, (x,), (jnp.ones(4),)),
    "linearize": lambda x, m: jax.linearize(jnp.sin, x)[1](jnp.ones(4)),
    "hessian": lambda x, m: jax.hessian(cube)(x),
    "linear transpose": lambda x, m: jax.linear_transpose(lambda v: 2 * v, x)(x),
    "grad of an update": lambda x, m: jax.grad(lambda v: cube(v.at[0].set(2.0)))(x),
    "vmap of an update": lambda x, m: jax.vmap(lambda v: v.at[0].add(2.0))(m),
    "scan over": scan_over,
    "map": lambda x, m: lax.map(lambda a: a * 2, x),
    "scan with a carry": lambda x, m: lax.scan(lambda c, _: (c * 1.5, c.sum()), x, None, length=3),
    "carried in part": carried_in_part,
    "exchanged": exchanged,
    "loop around a function": loop_around_a_function,
    "while": lambda x, m: lax.while_loop(lambda x: x.sum() < 100, lambda x: x * 2, x),
    "branch": lambda x, m: lax.cond(x[0] > 0, lambda x: x * 2, lambda x: x, x),
    "branches that choose": lambda x, m: lax.cond(x[0] > 0, lambda a, b: a, lambda a, b: b, x, x * 2),
    "branches of a closure": lambda x, m: lax.cond(x[0] < 0, lambda: x, lambda: x * 2),
    "switch": lambda x, m: lax.switch(jnp.int32(1), [lambda x: x, lambda x: x + 1], x),
    "reduction": lambda x, m: lax.reduce(x, 0.0, lax.add, (0,)),
    "solver": lambda x, m: jax.scipy.sparse.linalg.cg(lambda v: 2 * v, x)[0],
    "linear solver": lambda x, m: lax.custom_linear_solve(lambda v: 2 * v, x, lambda mv, b: b / 2),
    "root": root,
    "callback": lambda x, m: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((4,), jnp.float32), x),
}


def close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)  # other order of operations


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_of_jax_take_arguments(name):
    close(qd.jit(PROGRAMS[name])(X, M), PROGRAMS[name](jnp.asarray(X), jnp.asarray(M)))


@pytest.mark.full
@pytest.mark.parametrize("name", ["exchanged", "branch", "scan with a carry"])
def test_derivatives_go_through(name):
    f = lambda f: lambda x: sum(cube(leaf) for leaf in jax.tree.leaves(f(x, M)))  # noqa: E731
    close(jax.grad(f(qd.jit(PROGRAMS[name])))(jnp.asarray(X)), jax.grad(f(PROGRAMS[name]))(jnp.asarray(X)))


def test_an_argument_that_nothing_stores_into_is_an_array_beside_one_that_is_stored_into():
    @qd.jit
    def f(x, out):
        for i in qd.range(x.shape[0]):
            out[i] += x[i]
        return lax.fori_loop(0, 2, lambda _, v: v * 2, x), out

    close(f(X, X), (4 * X, 2 * X))


def test_an_argument_is_stored_into_behind_its_loop():
    @qd.jit
    def f(x):
        y = lax.fori_loop(0, 2, lambda _, v: v * 2, x)
        for i in qd.range(x.shape[0]):
            x[i] = y[i]
        return x

    with pytest.raises(TraceTypeError) as caught:
        f(X)
    first, *_, last = str(caught.value).splitlines()
    assert first == "jax.lax functions and transformations need values, got a buffer or a cell"
    assert last == "help: load from it: `x[i]`, `x[...]` or `c.value`"


def test_a_buffer_made_in_the_function_is_given_by_its_content():
    def f(x, *, whole):
        y = qd.zeros(4)
        for i in qd.range(4):
            y[i] = x[i]
        return lax.fori_loop(0, 2, lambda _, v: v * 2, y[...] if whole else y)

    close(qd.jit(f, static_argnames="whole")(X, whole=True), 4 * X)
    with pytest.raises(TraceTypeError, match="got a buffer or a cell"):
        qd.jit(f, static_argnames="whole")(X, whole=False)


def test_an_assertion_that_fails_is_raised_as_it_is():
    @qd.jit
    def f(x):
        assert x.shape == (5,), "five numbers"
        return x

    with pytest.raises(AssertionError, match=r"\Afive numbers") as caught:
        f(X)
    assert caught.value.__context__ is None


def test_another_mistake_is_told_as_itself():
    @qd.jit
    def f(x):
        y = lax.fori_loop(0, 2, lambda _, v: v * 2, x)
        return y if y[0] > 0 else x

    with pytest.raises(TraceTypeError, match="`a if condition else b` needs a static value"):
        f(X)
