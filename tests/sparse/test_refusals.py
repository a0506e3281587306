"""What no pattern is read from, by name and with the line."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import qdtrace as qd

X = jnp.arange(1.0, 5.0)


def summed(term: Callable[[Any, Any, Any], None]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        out = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            term(x, out, i)
        return out

    return f


def outside(x: Any) -> Any:
    return jnp.sum(x**2)


def unknown_length(x: Any, out: Any, i: Any) -> None:
    for k in qd.range(i):
        out[()] += x[k] * x[i]


def while_loop(x: Any, out: Any, i: Any) -> None:
    v = qd.local(x[i])
    for _ in qd.while_(lambda: v.value > 1):
        v.value = v.value * 0.5
    out[()] += v.value


def lax_loop(x: Any, out: Any, i: Any) -> None:
    out[()] += jax.lax.while_loop(lambda v: v > 1, lambda v: v * 0.5, x[i])


def computed_index(x: Any, out: Any, i: Any) -> None:
    out[()] += x[x[i].astype(jnp.int32) % 4]


def by_product(x: Any, out: Any, i: Any) -> None:
    out.at[()].mul(x[i])


def into_the_argument(x: Any, out: Any, i: Any) -> None:
    x[i] = x[i] * 2
    out[()] += x[i]


def with_an_atomic(x: Any, out: Any, i: Any) -> None:
    qd.atomic_add(out, (), x[i])


def squared(x: Any) -> Any:
    out = qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0]):
        out[()] += x[i] ** 2
    return out[()] ** 2


def stored_twice(x: Any) -> Any:
    out = qd.zeros(2, x.dtype)
    for i in qd.range(x.shape[0]):
        out[i // 2] = x[i]
    return jnp.sum(out[...])


def behind_both(x: Any, out: Any, i: Any) -> None:
    with qd.when(x[i] > 2):
        out[i] = x[i] ** 2
    with qd.otherwise():
        out[i] = x[i]
    out[i] += x[0] * x[i]


def twice_on_one_side(x: Any, out: Any, i: Any) -> None:
    with qd.when(x[i] > 2):
        out[i] = x[i] ** 2
    with qd.otherwise():
        out[i] = x[i]
        out[i] = x[0]


def on_both_sides_of_other_trips(x: Any, out: Any, i: Any) -> None:
    for k in qd.range(2):
        with qd.when(x[k] > 2):
            out[i] = x[i] ** 2
        with qd.otherwise():
            out[i] = x[0]


def of_other_iterations(x: Any, out: Any, i: Any) -> None:
    with qd.when(x[i] > 2):
        out[i] = x[i] ** 2
    with qd.otherwise():
        out[3 - i] = x[i]


def stored(term: Callable[[Any, Any, Any], None]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        out = qd.zeros(4, x.dtype)
        for i in qd.range(x.shape[0]):
            term(x, out, i)
        return out

    return f


def two_results(x: Any) -> Any:
    return squared(x), x[0]


def changed_behind(x: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        out[i] = x[i] ** 2
    return 2 * out[...]


def chained(x: Any) -> Any:
    middle, out = qd.zeros(4, x.dtype), qd.zeros((), x.dtype)
    for i in qd.range(4):
        middle[i] = x[i] ** 2
    for i in qd.range(4):
        out[()] += middle[i] ** 2
    return out


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (outside, "a use of the argument outside of loops"),
        (summed(unknown_length), "an inner loop of unknown length"),
        (summed(while_loop), "qd.while_"),
        (summed(lax_loop), "a `lax` loop of unknown length"),
        (summed(computed_index), "an index that depends on the argument"),
        (summed(by_product), "an accumulation by mul"),
        (summed(into_the_argument), "a store into the argument"),
        (summed(with_an_atomic), "an atomic with its old value"),
        (squared, "a result that is not linear in what the loops have summed"),
        (stored_twice, "a store into an element that is written once more"),
        (stored(behind_both), "a store into an element that is written once more"),
        (stored(twice_on_one_side), "a store into an element that is written once more"),
        (stored(on_both_sides_of_other_trips), "a store into an element that is written once more"),
        (stored(of_other_iterations), "a store into an element that is written once more"),
        (two_results, "a function of 2 results"),
        (changed_behind, "an array that is more than what its loops have written"),
        (chained, "a loop that reads what loops compute"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_construct_is_named(f: Callable[[Any], Any], text: str) -> None:
    def use() -> Any:
        pattern = qd.sparsity(f)(X)
        return qd.sparse_hessian(f, pattern)(X) if pattern.is_second else None

    with pytest.raises(qd.GradientError, match=text) as caught:
        use()
    assert f is two_results or "test_refusals.py" in str(caught.value)
    assert caught.value.help


def test_arguments_are_told() -> None:
    f = summed(lambda x, out, i: None)
    with pytest.raises(qd.TraceTypeError, match=r"array of floats as argument 0, got int32\[4\]"):
        qd.sparsity(f)(jnp.arange(4))
    with pytest.raises(qd.TraceTypeError, match="needs argument 1, got 1 arguments"):
        qd.sparsity(f, 1)(X)
    with pytest.raises(qd.TraceTypeError, match="position of one argument, got -1"):
        qd.sparsity(f, -1)
    with pytest.raises(qd.TraceTypeError, match=r"make the pattern outside of jax\.jit"):
        jax.jit(lambda x: qd.sparsity(f)(x).row)(X)
    with pytest.raises(qd.TraceTypeError, match="needs a function without static arguments"):
        qd.sparsity(qd.jit(lambda x, n: x, static_argnums=1))
