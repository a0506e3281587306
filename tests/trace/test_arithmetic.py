"""Operators of scalars record what JAX's record, whatever the other operand is."""

import enum
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace import arithmetic

OPERATORS = [getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "lt", "le", "gt", "ge", "eq", "ne")]
MIRRORED = dict(zip(OPERATORS[4:], [operator.gt, operator.ge, operator.lt, operator.le, *OPERATORS[8:]], strict=True))
DTYPES = ["float32", "int32", "uint8", "bool", "bfloat16"]
WIDE = ["float64", "int64", "float32"]
OTHERS = [
    2, -1, 0, True, 2**31 - 1, -(2**31), 0.1, -0.0, 1e-40, 1e300, float("inf"), float("nan"), 1j,
    np.float32(0.1), np.int32(3), np.array(2.0, np.float32), np.arange(3, dtype=np.float32),
]  # fmt: skip


def recorded(function, make, *operands):
    """The equations of a function of scalars, or the kind of error that it raises."""
    try:
        closed = jax.make_jaxpr(lambda *values: function(*map(make, values)))(*operands)
    except (TypeError, ValueError, OverflowError) as error:
        return type(error)
    return str(closed), [v.aval for v in closed.jaxpr.outvars]


def same(function, *operands):
    found = recorded(function, arithmetic.as_scalar, *operands)
    if mirrored := MIRRORED.get(function):  # what a comparison with a tracer of JAX's own may be recorded as
        assert found in [recorded(f, lambda x: x, *operands) for f in (function, lambda a, b: mirrored(b, a))]
    else:
        assert found == recorded(function, lambda x: x, *operands)


def plain(x):
    """A tracer of JAX's own."""
    return jnp.abs(x)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
def test_with_constants(function, dtype):
    x = jnp.ones((), dtype)
    for other in OTHERS:
        same(lambda v, c=other: function(v, c), x)
        same(lambda v, c=other: function(c, v), x)


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_with_traced_values(function):
    for first in DTYPES:
        for second in DTYPES:
            same(function, jnp.ones((), first), jnp.ones((), second))
        same(function, jnp.ones((), first), jnp.ones(3, first))
        same(function, jnp.ones((), first), 2)  # a traced number of a weak type
        same(function, jnp.ones(3, first), jnp.ones((), first))
        same(function, 0.5, jnp.ones((), first))


@pytest.mark.parametrize("function", OPERATORS[:4], ids=lambda f: f.__name__)
def test_beside_a_tracer_of_jax(function):
    x, y = jnp.float32(1), jnp.float32(2)
    same(lambda a, b: function(plain(a), b), x, y)
    same(lambda a, b: function(a, plain(b)), x, y)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_with_x64(function):
    with jax.enable_x64(True):
        for first in WIDE:
            for other in (*OTHERS, 2**40, -(2**63)):
                same(lambda v, c=other: function(v, c), jnp.ones((), first))
            for second in WIDE:
                same(function, jnp.ones((), first), jnp.ones((), second))


def test_chains_and_negation():
    same(lambda a, b: -(a * 2 - b) / (1 - a) + (b < a), jnp.float32(1), jnp.float32(2))
    same(lambda a: -a + (-a) // 2 % 3, jnp.int32(5))


def test_an_operator_calls_no_function_of_numpy(monkeypatch):
    def refused(*_):
        raise AssertionError

    def run(a, b):
        a, b = arithmetic.as_scalar(a), arithmetic.as_scalar(b)
        return (plain(a) + b * 2.0 - 1) / (3 - a)

    for name in ("_add", "_sub", "_mul", "_truediv", "_radd", "_rsub", "_rmul"):
        monkeypatch.setattr(jax.core.ShapedArray, name, staticmethod(refused))
    jax.make_jaxpr(run)(jnp.float32(1), jnp.float32(2))


@pytest.mark.full
def test_values_under_transformations():
    def scaled(a):
        return arithmetic.as_scalar(a) * 3 + a

    assert jax.grad(scaled)(2.0) == 4
    assert jax.vmap(scaled)(jnp.arange(3.0)).tolist() == [0, 4, 8]
    assert jax.jit(jax.vmap(jax.grad(scaled)))(jnp.arange(3.0)).tolist() == [4, 4, 4]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "uint32", "bool", "float16", "float32"])
@pytest.mark.parametrize("place", ["element", "scalar", "lane"])
def test_a_member_of_an_enumeration_is_refused(dtype, place):
    kind = enum.Enum("kind", {"FLUID": 0, "SOLID": 1})

    @qd.jit
    def found(x, k):
        for i in qd.range(2):
            x[i] = jnp.where((k if place == "scalar" else k[i]) == kind.SOLID, 1, 0)
        return x

    k = jnp.ones(() if place == "scalar" else 2, dtype)
    lanes = qd.vmap(lambda k: jnp.where(k != kind.SOLID, 1, 0))
    with pytest.raises(qd.TraceTypeError, match=r"`kind.SOLID` of an enum.Enum equals no number"):
        _ = lanes(k) if place == "lane" else found(jnp.zeros(2), k)
