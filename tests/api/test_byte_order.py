"""NumPy arrays in the other byte order are read right, in every call."""

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

ORDER = ">" if sys.byteorder == "little" else "<"
KINDS = ["f4", "f2", "i4", "i2", "u4", "c8"]


def swapped(kind: str) -> np.ndarray:
    return np.arange(1, 5).astype(ORDER + kind)


def increment(x):
    for i in qd.range(x.shape[0]):
        x[i] = x[i] + 1
    return x


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_first_and_later_calls(kind: str) -> None:
    want = np.arange(2, 6)
    for before in (False, True):
        f, mapped, tree = qd.jit(increment), qd.vmap(lambda v: v + 1), qd.jit(lambda d, k: increment(d["x"][0]) + 0 * k)
        native = np.arange(1, 5).astype(kind)
        if before:  # compiled by now: JAX would not look at the byte order again
            f(native), mapped(native), tree({"x": (native,)}, k=1)
        for got in (f(swapped(kind)), mapped(swapped(kind)), tree({"x": (swapped(kind),)}, k=1), f(x=swapped(kind))):
            assert got.dtype == jnp.dtype(kind)
            np.testing.assert_array_equal(got, want)
    assert qd.jit(increment).lower(swapped(kind)).as_text("graph").startswith("program increment")


def table(x):
    other = swapped("f4")
    out, copied = qd.zeros_like(other), qd.copy(other)
    for i in qd.range(4):
        c = qd.local(other)
        out[i] = c[i] + copied[i]
    x[...] = other
    return x, out, qd.full(2, other[1]), qd.zeros(2, ORDER + "f4")


def test_constants() -> None:
    x, out, full, zeros = qd.jit(table)(np.zeros(4, np.float32))
    np.testing.assert_array_equal(x, [1, 2, 3, 4])
    np.testing.assert_array_equal(out, [2, 4, 6, 8])
    np.testing.assert_array_equal(full, [2, 2])
    assert zeros.dtype == np.float32


def given_to_jax(x):
    return x[...] + jnp.asarray(swapped("f4"))


def test_what_jax_refuses_is_told() -> None:
    with pytest.raises(qd.TraceTypeError) as caught:
        qd.jit(given_to_jax)(np.zeros(4, np.float32))
    error: Any = caught.value
    assert error.rule == "JAX needs arrays of numbers in the byte order of this machine, got one of another kind"
    assert error.help == "convert it: `x.astype(x.dtype.newbyteorder('='))`"
    assert error.loc.function == "given_to_jax"
