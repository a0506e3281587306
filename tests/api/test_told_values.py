"""What a failing `qd.check` tells, of drawn conditions: the iteration, and the values that NumPy has there."""

import random
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

SIZE = 37
DTYPES = ["float32", "int32", "int8", "uint8", "uint32", "bfloat16", "float16", "bool"]
SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip
HOLDS = re.compile(r"in iteration (\d+): (\S+) (\S+) (\S+?) does not hold")


def in_loop(x: Any, y: Any, holds: Callable[[Any, Any], Any]) -> Any:
    for i in qd.range(SIZE):
        qd.check(holds(x[i], y[i]), "no")
    return x


def in_inner_loop(x: Any, y: Any, holds: Callable[[Any, Any], Any]) -> Any:
    for i in qd.range(SIZE):
        for _ in qd.range(3):
            with qd.when(i >= 0):
                qd.check(holds(x[i], y[i]), "no")
        qd.check(i >= 0, "never")
    return x


def in_lanes(x: Any, y: Any, holds: Callable[[Any, Any], Any]) -> Any:
    def lane(a: Any, b: Any) -> Any:
        qd.check(holds(a, b), "no")
        return a

    return qd.vmap(lane)(x, y)


def in_order(x: Any, y: Any, holds: Callable[[Any, Any], Any]) -> Any:
    for i in qd.range(SIZE, serial=True):
        qd.check(holds(x[i], y[i]), "no")
    return x


PLACES = [in_loop, in_inner_loop, in_lanes, in_order]


@pytest.mark.full
@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("seed", range(8))
def test_a_failing_check_tells_iteration_and_values(place: Callable[..., Any], seed: int) -> None:
    draw = random.Random(f"{place.__name__}{seed}")
    dtype, sign = DTYPES[seed], draw.choice(list(SIGNS))
    low = 0 if dtype.startswith(("u", "b")) and dtype != "bfloat16" else -9
    x, y = (jnp.array([draw.randint(low, 9) for _ in range(SIZE)]).astype(dtype) for _ in range(2))
    fails = [k for k in range(SIZE) if not SIGNS[sign](np.asarray(x)[k], np.asarray(y)[k])]
    for options in ({}, {"debug": True}, {"num_threads": 1}):
        f = qd.jit(lambda x, y: place(x, y, SIGNS[sign]), options=options)
        if not fails:
            qd.block_until_ready(f(x, y))
            continue
        with pytest.raises(qd.CheckError) as caught:
            qd.block_until_ready(f(x, y))
        (note,) = caught.value.notes
        found = HOLDS.fullmatch(note)
        assert found, note
        k = int(found[1])
        assert k in fails
        if options:  # in order
            assert k == fails[0]
        a, b = float(x[k]), float(y[k])
        # What is compared may come out with its sides exchanged: `b > a` where `a < b` is written.
        assert (float(found[2]), found[3], float(found[4])) in ((a, sign, b), (b, sign.translate(_EXCHANGED), a))


_EXCHANGED = str.maketrans("<>", "><")


@pytest.mark.full
def test_two_comparisons_are_told() -> None:
    def f(x: Any) -> Any:
        for i in qd.range(SIZE):
            qd.check((x[i] >= 0) & (x[i] < 30), "not in range")
        return x

    with pytest.raises(qd.CheckError) as caught:
        qd.block_until_ready(qd.jit(f)(jnp.arange(SIZE).at[2:].set(0).at[20].set(31)))
    assert caught.value.notes == ("in iteration 20: 31 >= 0 and 31 < 30 do not both hold",)


def test_a_condition_that_no_loop_changes_is_told_without_an_iteration() -> None:
    def f(x: Any, n: Any) -> Any:
        for i in qd.range(SIZE):
            qd.check(n > 5, "few")
            x[i] = 0.0
        return x

    with pytest.raises(qd.CheckError) as caught:
        qd.block_until_ready(qd.jit(f)(jnp.ones(SIZE), 3))
    assert caught.value.notes == ("3 > 5 does not hold",)


def test_errors_of_xla_and_of_derivatives_tell_it() -> None:
    def lane(v: Any) -> Any:
        qd.check(v < 20.5, "large")
        return v * v

    x = jnp.arange(22.0)
    note = "in iteration 21: 21 < 20.5 does not hold"
    with pytest.raises(Exception, match=note) as caught:
        jax.block_until_ready(jax.jit(qd.vmap(lane))(x))
    error = qd.explain(caught.value)
    assert isinstance(error, qd.CheckError)
    assert error.notes == (note,)
    with pytest.raises(qd.CheckError, match=note):
        qd.block_until_ready(jax.grad(lambda x: qd.vmap(lane)(x).sum())(x))
