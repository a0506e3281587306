"""What errors of functions show beside their text, and how Python asks for attributes of buffers and cells."""

import logging
from typing import Any

import numpy as np
import pytest

import qdtrace as qd

X = np.arange(8, dtype=np.float32)


def test_attributes_can_be_asked_for() -> None:
    """`hasattr` and `getattr` with a default work as for any object."""

    @qd.jit
    def f(x):
        assert not hasattr(x, "nothing")
        assert hasattr(x, "sum")
        for i in qd.range(8):
            c = qd.local(1.0)
            assert getattr(c, "nothing", 3) == 3
            x[i] = c.value
        return x

    np.testing.assert_array_equal(f(X), np.ones(8))


def beside(x):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = x[i - 1]
    return out


def test_debug_says_only_what_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """No report of JAX beside the error, and no frames of the interpreter in it."""
    with (
        caplog.at_level(logging.DEBUG, "jax._src.callback"),
        qd.options(debug=True),
        pytest.raises(qd.QdError) as caught,
    ):
        qd.jit(beside)(X)
    assert "out[i] = x[i - 1]" in str(caught.value)
    assert caplog.records == []
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    files = {entry.path.name for entry in caught.traceback}
    assert files == {"test_shown_errors.py"}


def test_reports_of_other_callbacks_stay(caplog: pytest.LogCaptureFixture) -> None:
    import jax

    def fails(_: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(Exception, match="mine"):
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(fails, jax.ShapeDtypeStruct((), "float32"), x))(1.0))
    assert any(r.exc_info is not None and r.exc_info[0] is ZeroDivisionError for r in caplog.records)
