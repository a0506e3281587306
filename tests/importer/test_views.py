"""Views of arrays in memory: an update in place waits for those that still read, and for nobody else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.importer.harness import check
from tests.importer.test_implementations import defined

X = np.random.default_rng(0).normal(size=(3, 21)).astype(np.float32)
ZERO = np.zeros(3, np.int32)


def stages(x, read):
    """Rows of a table, each computed from those before and stored in place."""

    def step(k, table):
        return table.at[k].set(jnp.sin(read(table, k)) + x[k])

    return lax.fori_loop(0, 7, step, x.reshape(7, 3) * 0)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda t, k: t[k - 1], id="row"),
        pytest.param(lambda t, k: jnp.arange(7.0, dtype=t.dtype) @ t, id="product"),
        pytest.param(lambda t, k: jnp.sum(t.T, 1), id="transposed"),
        pytest.param(lambda t, k: jnp.sum(jnp.flip(t.reshape(3, 7)), 1), id="reshaped and reversed"),
        pytest.param(lambda t, k: jax.jit(lambda t: t[::-1][1:4].sum(0))(t), id="inside of a call"),
        pytest.param(lambda t, k: jnp.where(t[1:4] > 0, t[1:4], t[2:5]).sum(0), id="three slices"),
    ],
)
def test_reading_through_a_view_makes_no_copy(read):
    program = check(lambda x: stages(x, read), X)
    # one array for the loop; what a read needs beside it has another shape
    cells = [e.outvars[0].type.shape for e in equations(program) if e.primitive.name == "cell"]
    assert cells.count((7, 3)) == 1


def equations(program):
    return program.program.all_eqns


@pytest.mark.full
@pytest.mark.parametrize(
    "update",
    [
        pytest.param(lambda x: x.at[1:].set(x[:-1]), id="shifted onto itself"),
        pytest.param(lambda x: x.at[:-1].set(x[1:]), id="shifted back"),
        pytest.param(lambda x: x.at[:].set(x[::-1]), id="reversed"),
        pytest.param(lambda x: lax.dynamic_update_slice(x, x[:18], (3,)), id="dynamic"),
        pytest.param(lambda x: jax.jit(lambda x: x.at[2:].add(x[:-2]))(x), id="inside of a call"),
        pytest.param(lambda x: jax.jit(lambda a, b: a.at[1:].set(b))(x, x[:-1]), id="view as an operand of a call"),
        pytest.param(lambda x: (lambda v: x.at[0].set(v[3]) + v[::-1])(x[::-1]), id="view read later"),
        pytest.param(
            lambda x: (lambda v: v[2:].at[0].set(7.0).mean() * 0.1 + x.at[3].set(v[3]))(x[1:]), id="view of a view"
        ),
        pytest.param(lambda x: x.reshape(3, 7).T.reshape(21).at[4].set(x[5]), id="transposed"),
        pytest.param(lambda x: lax.cond(x[0] > 0, lambda v: x.at[1:].set(v), lambda v: x, x[:-1]), id="branch"),
    ],
)
def test_an_update_does_not_change_what_is_read(update):
    check(lambda x: lax.fori_loop(0, 3, lambda _, x: update(jnp.sin(x)), x), X)
    check(lambda x, k: lax.fori_loop(0, 3 + k, lambda i, x: update(x.at[i].add(1.0)), x), X, ZERO)


def test_equations_without_use_are_not_imported():
    wants = defined("wants_values_unused", lambda x: jnp.float32(float(x[0])), lambda x: x.update(shape=()))

    def f(x):
        def step(k, x):
            wants.bind(x)
            return x + 1

        return jax.jit(lambda x: (x * 2, wants.bind(x))[0])(lax.fori_loop(0, 3, step, x))

    from tests.importer.harness import imported

    (got,) = imported(f, X)(X)
    np.testing.assert_allclose(got, (X + 3) * 2, rtol=1e-6)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda t: t[::-1], id="reversed"),
        pytest.param(lambda t: t[2:, 1:], id="offset"),
        pytest.param(lambda t: t[::2], id="every second"),
        pytest.param(lambda t: t.T[::-1], id="transposed"),
        pytest.param(lambda t: t.reshape(3, 7), id="reshaped"),
        pytest.param(lambda t: jnp.concatenate([t, t[::-1]]), id="concatenated"),
        pytest.param(lambda t: jnp.roll(t, 2, 0), id="rolled"),
        pytest.param(lambda t: jnp.pad(t, 1), id="padded"),
        pytest.param(lambda t: jnp.triu(t) + jnp.arange(7.0)[:, None], id="formula"),
    ],
)
def test_wide_indices_read_through_a_view(view, wide):
    def f(x):
        seen = view(lax.fori_loop(0, 7, lambda k, t: t.at[k].set(jnp.sin(t[k])), x.reshape(7, 3)))
        read = lambda k, s: s * 0.5 + lax.dynamic_slice(seen, (k, k % 2), (1, 1))[0, 0]  # noqa: E731
        return lax.fori_loop(0, 3, read, x[0])

    with jax.enable_x64(wide):
        check(f, X.astype(np.float64 if wide else np.float32))
