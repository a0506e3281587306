"""Code to which a recorded length is no int: `type(n)`, `jax.tree`. What runs has to be what a plain number gives."""

import builtins
import dataclasses
import fractions
import statistics
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd


@dataclasses.dataclass
class Counted:
    n: int


kind_of = type


def as_int(n: Any) -> Any:
    return n if type(n) is int else 7


def by_default(n: Any, kind: Any = type) -> int:
    return 1 if kind(n) is int else 2


def with_a_bound(n: Any) -> int:
    """Asks first, so that no guard tells of the bound."""
    return 5 if type(n) is int and n > 25 else 1


ASKS: dict[str, Callable[[Any], Any]] = {
    "is": as_int,
    "and a bound": with_a_bound,
    "a key": lambda n: {int: lambda: n, float: lambda: 2}.get(type(n), lambda: 3)(),
    "a name": lambda n: len(type(n).__name__),
    "another name": lambda n: 1 if kind_of(n) is int else 2,
    "a default": by_default,
    "a module": lambda n: 1 if builtins.type(n) is int else 2,
    "map": lambda n: 1 if list(map(type, [n])) == [int] else 2,
    "a subclass": lambda n: 1 if issubclass(type(n), int) else 2,
    "made again": lambda n: type(n)(3.7),
    "evaluated": lambda n: eval("1 if type(n) is int else 2", {"n": n}),
    "a leaf": lambda n: 1 if isinstance(jax.tree.leaves((n,))[0], int) else 2,
    "a mapped leaf": lambda n: sum(jax.tree.map(lambda v: v * 2 if isinstance(v, int) else 7, (n, 3))),
    "a structure": lambda n: 1 if jax.tree.structure((n,)) == jax.tree.structure((3,)) else 2,
    "all leaves": lambda n: 1 if jax.tree_util.all_leaves([n]) else 2,
}
DOES_NOT: dict[str, Callable[[Any], Any]] = {
    "isinstance": lambda n: 1 if isinstance(n, int) else 2,
    "the class": lambda n: 1 if n.__class__ is int else 2,
    "a dataclass": lambda n: dataclasses.asdict(Counted(n))["n"],
    "arithmetic": lambda n: (3 * n - 1) // 2,
    "the lesser": lambda n: min(n, 25),
}
KNOWS: dict[str, Callable[[Any], Any]] = {
    "a fraction": lambda n: float(fractions.Fraction(n, 3)),
    "a mean": lambda n: float(statistics.mean([n, 3, 4])),
}


def adding(number: Callable[[Any], Any]) -> Callable[..., Any]:
    def added(x: Any) -> Any:
        n = x.shape[0]
        k = number(n)
        for i in qd.range(n):
            x[i] = x[i] + k
        return x

    return added


def as_of_numbers(number: Callable[[Any], Any], lengths: Any) -> qd.Stats:
    """Returns the work of the last call; all results are those of the plain numbers."""
    one = qd.jit(adding(number), sizes="any")
    for n in lengths:
        before = qd.stats()
        found = one(jnp.ones(n))
        work = qd.stats() - before
        np.testing.assert_array_equal(found, np.full(n, np.float32(1) + np.float32(number(n))))
    return work


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ASKS)
def test_code_that_asks_for_types_finds_those_of_numbers(name: str) -> None:
    as_of_numbers(ASKS[name], (10, 11, 13, 20, 30))


@pytest.mark.parametrize("name", KNOWS)
def test_libraries_that_ask_for_types_know_the_number(name: str) -> None:
    as_of_numbers(KNOWS[name], (10, 11, 13, 20, 30))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", DOES_NOT)
def test_what_asks_otherwise_is_not_traced(name: str) -> None:
    assert as_of_numbers(DOES_NOT[name], (10, 11, 13, 30, 31, 41, 42)).traces == 0


def test_code_behind_another_decision_is_watched_too() -> None:
    def number(n: Any) -> Any:
        return as_int(n) if n > 100 else n

    as_of_numbers(number, (10, 11, 13, 20, 101, 120, 31))


def test_a_profile_of_the_user_stays_and_no_length_is_recorded() -> None:
    seen = []

    def look(frame: Any, event: str, _: object) -> None:
        seen.append(event)

    one = qd.jit(adding(lambda n: n), sizes="any")
    sys.setprofile(look)
    try:
        for n in (10, 11, 13, 20):
            one(jnp.ones(n))
        assert sys.getprofile() is look
    finally:
        sys.setprofile(None)
    before = len(seen)
    work = qd.stats()
    np.testing.assert_array_equal(one(jnp.ones(50)), jnp.full(50, 51.0))
    assert (len(seen), (qd.stats() - work).traces) == (before, 1)


def test_a_rule_of_a_derivative_that_asks() -> None:
    def loss(x: Any) -> Any:
        n = x.shape[0]

        @jax.custom_jvp
        def scaled(v: Any) -> Any:
            return v * 2

        scaled.defjvp(lambda given, moved: (given[0] * 2, moved[0] * (3.0 if type(n) is int else 7.0)))
        total = qd.zeros(())
        for i in qd.range(n):
            total[()] += scaled(x[i])
        return total

    one = qd.jit(loss, sizes="any")
    for n in (10, 11, 13, 20, 30, 41):
        np.testing.assert_array_equal(jax.grad(one)(jnp.ones(n)), jnp.full(n, 3.0))


@pytest.mark.parametrize("number", [lambda n: len(f"{n:>5}"), lambda n: n.bit_length()])
def test_of_a_function_that_asks_for_the_number_itself_nothing_is_recorded(number: Callable[[Any], Any]) -> None:
    work = as_of_numbers(number, (10, 11, 13, 20, 30, 41))
    assert (work.traces, work.programs) == (1, 0)
