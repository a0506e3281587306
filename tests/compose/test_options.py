"""Options at the level of `qd.jit`: stages, code generators, checks."""

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd


def double(x):
    for i in qd.range(x.shape[0]):
        c = qd.local(x[i])
        c += c.value
        x[i] = c.value
    return x


def test_graph_after_every_named_pass() -> None:
    low = qd.jit(double).lower(jnp.zeros(4, jnp.int32))
    assert "cell" in low.graph("trace")
    assert "cell" not in low.graph("mem2reg")
    assert low.graph("dead_code") == low.graph("simplify") == low.graph()


def test_unknown_stage() -> None:
    with pytest.raises(qd.BackendError, match=r"^needs a stage out of trace, .*mem2reg, .*, final; got 'licm'$"):
        qd.jit(double).lower(jnp.zeros(4)).graph("licm")


def test_triton_has_no_code_for_the_cpu() -> None:
    with pytest.raises(qd.BackendError) as caught:
        qd.jit(double, options={"codegen": "triton"})(jnp.zeros(4))
    assert str(caught.value) == (
        "double: needs codegen 'auto' or 'llvm' on cpu, got 'triton'\nhelp: leave codegen out"
    )


def scatter(x, k):
    out = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        out[k[i]] = x[i]
    return out


def test_debug_runs_like_the_compiled_function() -> None:
    x, k = jnp.arange(4.0), jnp.array([2, 0, 3, 1])
    want = np.array([1.0, 3.0, 0.0, 2.0], np.float32)
    np.testing.assert_array_equal(qd.jit(scatter)(x, k), want)
    with qd.options(debug=True):
        np.testing.assert_array_equal(qd.jit(scatter)(x, k), want)


@pytest.mark.parametrize(
    ("index", "error", "rule"),
    [
        ([0, 1, 2, 7], qd.BoundsError, "index 7 is out of bounds"),
        ([0, 1, 1, 3], qd.InterpreterError, "race on `out[1]`"),
    ],
)
def test_debug_names_what_was_broken(index: list[int], error: type[qd.QdError], rule: str) -> None:
    checked = qd.jit(scatter, options={"debug": True})
    with pytest.raises(error) as caught:
        checked(jnp.arange(4.0), jnp.array(index))
    assert rule in str(caught.value)
    assert "out[k[i]] = x[i]" in str(caught.value)
    np.testing.assert_array_equal(checked(jnp.arange(4.0), jnp.arange(4)), np.arange(4))
