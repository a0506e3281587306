"""Python that loops, buffers, cells and traced values do not take part in: told with the line and a fix."""

from __future__ import annotations

import logging
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.api.messages import good, text_of

X = np.arange(8, dtype=np.float32)


def reverse(x):
    for i in reversed(qd.range(8)):
        x[i] = 1
    return x


def length(x):
    return x * len(qd.range(8))


def truth(x):
    return x + 1 if qd.ndrange(8, 2) else x


def item(x):
    return x + qd.range(8)[1]


def unknown_of_range(x):
    return x + qd.range(8).stop


def traced_key(x):
    found = {}
    for i in qd.range(8):
        found[i] = 1
    return x


def traced_element(x):
    return x * len({x[0], x[1]})


def cell_key(x):
    found = {}
    for i in qd.range(8):
        found[qd.local(0)] = x[i]
    return x


def buffer_key(x):
    return {x: 1}


def misspelt_store(x):
    for i in qd.range(8):
        c = qd.local(0.0)
        c.val = 3.0
        x[i] = c.value
    return x


def misspelt_load(x):
    for i in qd.range(8):
        c = qd.local(0.0)
        x[i] = c.valu + 1
    return x


def foreign_attribute(x):
    for i in qd.range(8):
        c = qd.local(0.0)
        x[i] = c.nothing_like_it
    return x


def misspelt_method(x):
    return x.reshap(2, 4)


def read_only(x):
    x.shape = (4, 2)
    return x


def read_only_cell(x):
    for _ in qd.range(8):
        qd.local(0.0).dtype = jnp.int32
    return x


def misspelt_place(x):
    for i in qd.range(8):
        x.at[i].ad(1.0)
    return x


def of_a_value(x):
    return x[0].nothing


KEY = "use a Python number or a name as the key; to store at a traced place, `b[i] = v` of a buffer"
VALUE = "a traced value cannot be a key of a dict or an element of a set: it stands for many values"
BOUND = "use the bound that it was given"
TEXTS: dict[Any, tuple[type[qd.QdError], str, int, str, str]] = {
    reverse: (
        qd.TraceTypeError,
        "a qd.range cannot be reversed once it is made",
        1,
        "for i in reversed(qd.range(8)):",
        "give the bounds the other way round: `qd.range(n - 1, -1, -1)`",
    ),
    length: (
        qd.TraceTypeError,
        "a qd.range has no len() and is neither true nor false: its bounds may be traced",
        1,
        "return x * len(qd.range(8))",
        BOUND,
    ),
    truth: (
        qd.TraceTypeError,
        "a qd.ndrange has no len() and is neither true nor false: its bounds may be traced",
        1,
        "return x + 1 if qd.ndrange(8, 2) else x",
        BOUND,
    ),
    item: (
        qd.TraceTypeError,
        "a qd.range cannot be indexed",
        1,
        "return x + qd.range(8)[1]",
        "compute the index from the bounds: `start + k * step`",
    ),
    unknown_of_range: (
        qd.TraceAttributeError,
        "a qd.range has no attribute `stop`",
        1,
        "return x + qd.range(8).stop",
        "",
    ),
    traced_key: (qd.TraceTypeError, VALUE, 3, "found[i] = 1", KEY),
    traced_element: (qd.TraceTypeError, VALUE, 1, "return x * len({x[0], x[1]})", KEY),
    cell_key: (
        qd.TraceTypeError,
        "a qd.local cannot be a key of a dict or an element of a set: its content is not known yet",
        3,
        "found[qd.local(0)] = x[i]",
        KEY,
    ),
    buffer_key: (
        qd.TraceTypeError,
        "a buffer cannot be a key of a dict or an element of a set: its content is not known yet",
        1,
        "return {x: 1}",
        KEY,
    ),
    misspelt_store: (
        qd.TraceAttributeError,
        "a qd.local has no attribute `val`",
        3,
        "c.val = 3.0",
        "did you mean `value`?",
    ),
    misspelt_load: (
        qd.TraceAttributeError,
        "a qd.local has no attribute `valu`",
        3,
        "x[i] = c.valu + 1",
        "did you mean `value`?",
    ),
    foreign_attribute: (
        qd.TraceAttributeError,
        "a qd.local has no attribute `nothing_like_it`",
        3,
        "x[i] = c.nothing_like_it",
        "",
    ),
    misspelt_method: (
        qd.TraceAttributeError,
        "a buffer has no attribute `reshap`",
        1,
        "return x.reshap(2, 4)",
        "did you mean `reshape`?",
    ),
    read_only: (
        qd.TraceAttributeError,
        "`shape` of a buffer cannot be set",
        1,
        "x.shape = (4, 2)",
        "store with `b[i] = v`",
    ),
    read_only_cell: (
        qd.TraceAttributeError,
        "`dtype` of a qd.local cannot be set",
        2,
        "qd.local(0.0).dtype = jnp.int32",
        "store with `c.value = v`",
    ),
    misspelt_place: (
        qd.TraceAttributeError,
        "a `b.at[i]` has no attribute `ad`",
        2,
        "x.at[i].ad(1.0)",
        "did you mean `add`?",
    ),
}


@pytest.mark.parametrize("function", TEXTS, ids=lambda f: f.__name__)
def test_text_and_recovery(function: Any) -> None:
    kind, rule, line, source, fix = TEXTS[function]
    wanted = f"{rule}\n  at FILE:{line} in {function.__name__}\n      {source}" + (f"\nhelp: {fix}" if fix else "")
    for _ in range(2):  # the second call must not find anything that the first one left
        with pytest.raises(kind) as caught:
            qd.jit(function)(X)
        assert text_of(caught.value, function) == wanted
        np.testing.assert_array_equal(qd.jit(good)(X), X + 1)


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
    assert files == {"test_refusals_python.py"}


def test_reports_of_other_callbacks_stay(caplog: pytest.LogCaptureFixture) -> None:
    import jax

    def fails(_: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(Exception, match="mine"):
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(fails, jax.ShapeDtypeStruct((), "float32"), x))(1.0))
    assert any(r.exc_info is not None and r.exc_info[0] is ZeroDivisionError for r in caplog.records)
