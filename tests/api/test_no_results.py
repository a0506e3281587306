"""Functions that return nothing: JAX runs nothing of them, and a warning says so."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import qdtrace as qd

if TYPE_CHECKING:
    from collections.abc import Callable


def stores(x: Any) -> None:
    for i in qd.range(3):
        x[i] = 1


def checks(x: Any) -> None:
    for i in qd.range(3):
        qd.check(x[i] < 1, "no")


def one_store(x: Any) -> None:
    x[0] = 1


def whole(x: Any) -> None:
    x[...] = 1


def one_sum(x: Any) -> None:
    x[0] += 1


def one_product(x: Any) -> None:
    x.at[0].mul(2)


def one_atomic(x: Any) -> None:
    qd.atomic_max(x, 0, 1)


def one_check(x: Any) -> None:
    qd.check(x[0] < 0, "no")


def of_arrays(x: Any) -> None:
    qd.check((x[...] < 0).all(), "no")


def known(x: Any) -> None:
    qd.check(False, "no")


def under_when(x: Any) -> None:
    with qd.when(x[0] < 1):
        x[1] = 2


def while_of_tasks(x: Any) -> None:
    for _ in qd.while_(lambda: x[0] < 1):
        x[0] += 1


def in_lax(x: Any) -> None:
    def store(k: Any, c: Any) -> Any:
        x[k] = 1
        return c

    lax.fori_loop(0, 3, store, 0)


EFFECTS = {
    stores: "for i in", checks: "for i in", one_store: "x[0] = 1", whole: "x[...] = 1", one_sum: "x[0] += 1",
    one_product: "mul", one_atomic: "qd.atomic_max", one_check: "qd.check", of_arrays: "qd.check", known: "qd.check",
    under_when: "qd.when", while_of_tasks: "qd.while_", in_lax: "fori_loop",
}  # fmt: skip


def nothing(x: Any) -> None:
    """No effect is lost."""


def reads(x: Any) -> None:
    _ = x[0] + 1
    _ = x[...].sum()


def allocates(x: Any) -> None:
    qd.zeros(3)
    qd.empty_like(x)
    qd.copy(x)


def lines(f: Callable[..., Any], code: str) -> list[int]:
    with open(__file__) as file:
        text = file.read().splitlines()
    first = f.__code__.co_firstlineno
    return [n for n in range(first, first + 8) if code in text[n - 1]][:1]


@pytest.mark.parametrize("f", EFFECTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("around", [qd.jit, lambda f: jax.jit(qd.jit(f)), lambda f: qd.jit(f, options={"debug": True})])
def test_a_warning_names_the_line(f: Callable[..., Any], around: Any) -> None:
    with pytest.warns(qd.QdWarning) as caught:
        assert around(f)(jnp.zeros(3)) is None
    (warning,) = caught
    assert str(warning.message) == (
        f"`{f.__name__}` returns nothing, so nothing of it runs: no loop, no store, no check\n"
        "help: return the buffers that it stores to; where it only checks, return an argument and use that one"
    )
    assert warning.filename == __file__
    assert [warning.lineno] == lines(f, EFFECTS[f])


@pytest.mark.parametrize("f", [nothing, reads, allocates], ids=lambda f: f.__name__)
def test_without_effects_there_is_nothing_to_say(f: Callable[..., Any]) -> None:
    assert qd.jit(f)(jnp.zeros(3)) is None


def test_a_function_that_another_one_calls() -> None:
    """Between loops it is as if called by itself; in a loop what it does is done."""

    @qd.jit
    def between(x):
        qd.jit(checks)(x[...])
        return x

    with pytest.warns(qd.QdWarning, match="`checks` returns nothing"):
        assert between(jnp.ones(3)).tolist() == [1, 1, 1]

    @qd.jit
    def inside(x):
        for i in qd.range(3):
            qd.jit(one_of)(x, i)
        return x

    def one_of(x, i):
        qd.check(x[i] < 2, "no")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inside(jnp.ones(3)).tolist() == [1, 1, 1]
        with pytest.raises(qd.CheckError, match="check failed: no"):
            qd.block_until_ready(inside(jnp.full(3, 2.0)))
