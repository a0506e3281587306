"""An error that a library raises while a program runs is the error of the call: its words, the user's line."""

import functools
import re

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
import pytest

import qdtrace as qd
from qdtrace.errors import CheckError, UnsupportedError

X = np.linspace(-1.0, 3.0, 9, dtype=np.float32)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def positive(a):
    return eqx.error_if(a, a < 0, "a is negative") * 2  # positive


def chosen(a):
    return eqx.branched_error_if(a, a > 1.25, jnp.int32(a), ["none", "one", "two", "three"]) ** 2  # chosen


def nested(a):
    def step(k, x):
        return jax.lax.cond(x > 4, lambda x: eqx.error_if(x, x > 5, "x is too large"), lambda x: x, x * 1.5)  # nested

    return jax.lax.fori_loop(0, 3, step, a)


def solve(a, **options):
    control = dfx.PIDController(rtol=1e-5, atol=1e-5)
    field = lambda t, y, a: -a * y  # noqa: E731
    solution = dfx.diffeqsolve(  # solve
        dfx.ODETerm(field), dfx.Tsit5(), 0.0, 1.0, 0.1, 1.0, args=a, stepsize_controller=control, max_steps=8, **options
    )
    return solution.ys, solution.result._value


def root(a, **options):
    found = optx.root_find(lambda y, a: y * y + a, optx.Newton(1e-5, 1e-5), 1.0, a, max_steps=16, **options)  # root
    return found.value, found.result._value


def singular(a):
    return lx.linear_solve(lx.MatrixLinearOperator(jnp.ones((2, 2)) * a), jnp.ones(2), lx.LU()).value  # singular


def message_of(f, x) -> str:
    with pytest.raises(CheckError) as error:
        qd.vmap(f)(x)
    return str(error.value).replace(__file__, "here.py")


def place(name: str) -> str:
    with open(__file__) as source:
        line = next(k for k, text in enumerate(source, 1) if text.rstrip().endswith(f"  # {name}"))
    return f"\n  at here.py:{line} in {name}"


@pytest.mark.parametrize(
    ("f", "good", "message"),
    [
        (positive, X[3:], "a is negative"),
        (nested, X[:4], "x is too large"),
        (solve, X, r"The maximum number of solver steps was reached. Try increasing `max_steps`."),
        (root, -X[3:], "The maximum number of steps was reached in the nonlinear solver."),
    ],
)
@pytest.mark.full
def test_the_words_of_the_library_and_the_line_of_the_user(f, good, message) -> None:
    bad = X * 1000 if f is solve else X
    text = message_of(f, bad)
    assert text.startswith(f"check failed: {message}")
    assert place(f.__name__) in text
    want = jax.vmap(lambda a: f(a, throw=False) if f in (solve, root) else f(a))(good)
    for g, w in zip(jax.tree.leaves(qd.vmap(f)(good)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4)


def test_a_singular_system() -> None:
    text = message_of(singular, X)
    assert text.startswith("check failed: A linear solver returned non-finite (NaN or inf) output.")
    assert place("singular") in text


@pytest.mark.parametrize(("start", "message"), [(1.5, "one"), (2.0, "two"), (3.5, "three"), (9.0, "three")])
def test_one_message_of_several(start, message) -> None:
    text = message_of(chosen, np.float32([0.5, start]))
    assert text.startswith(f"check failed: {message}\n")
    assert place("chosen") in text
    np.testing.assert_allclose(qd.vmap(chosen)(X[:5]), X[:5] ** 2)


@pytest.mark.full
def test_not_thrown_is_no_error() -> None:
    values, results = qd.vmap(lambda a: root(a, throw=False))(X)
    assert results.dtype == np.int32
    want = jax.vmap(lambda a: root(a, throw=False))(X)[1]
    np.testing.assert_array_equal(results, want)
    assert np.isfinite(values[X < 0]).all()


@pytest.mark.parametrize("dtype", ["complex64", "float16", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3)])
def test_values_of_any_dtype_and_shape(dtype, shape) -> None:
    value = lambda a: jnp.broadcast_to(a, shape).astype(dtype)  # noqa: E731
    checked = lambda a: eqx.error_if(value(a), a < 0, "a is negative")  # noqa: E731
    np.testing.assert_array_equal(qd.vmap(checked)(X[3:]), jax.vmap(value)(X[3:]))
    if shape != (0, 3):
        assert "a is negative" in message_of(checked, X)


def test_derivatives_check_where_they_use_the_value() -> None:
    assert "a is negative" in message_of(jax.grad(lambda a: positive(a) ** 2), X)
    assert "a is negative" in message_of(lambda a: jax.jvp(positive, (a,), (a,)), X)
    np.testing.assert_allclose(qd.vmap(jax.grad(positive))(X), 2.0)  # of a value that nobody uses


def test_an_error_without_use_is_none() -> None:
    def unused(a):
        eqx.error_if(a, a < 0, "never raised")
        return a

    np.testing.assert_array_equal(qd.vmap(unused)(X), X)


@pytest.mark.parametrize("kind", ["nan", "off"])
def test_other_ways_to_go_on(kind) -> None:
    got = qd.vmap(lambda a: eqx.error_if(a, a < 0, "negative", on_error=kind))(X)
    np.testing.assert_array_equal(got, np.where((X < 0) & (kind == "nan"), np.nan, X))


def test_other_callbacks_of_equinox_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=re.escape("`pure_callback` calls Python, which a loop body cannot do")):
        qd.vmap(lambda a: eqx.error_if(a, a < 0, "negative", on_error="breakpoint"))(X)


def test_messages_that_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from qdtrace.trace.importer.libraries import equinox

    monkeypatch.setattr(equinox.inspect, "getclosurevars", lambda f: equinox.inspect.ClosureVars({}, {}, {}, set()))
    with pytest.raises(UnsupportedError) as error:
        qd.vmap(functools.partial(positive))(X)  # another function: it was compiled before
    text = str(error.value).replace(__file__, "here.py")
    assert text.startswith(
        "this release of Equinox keeps the messages of `eqx.error_if` where they are not found" + place("positive")
    )
    assert text.endswith("help: use qd.check, or a release that the tests are run with (`libs` in pyproject.toml)")
