"""Traced indices of arrays in a loop of `qd.jit` are checked like those of buffers; elsewhere JAX's rules hold."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

LINE = jnp.arange(5.0) * 10
TABLE = jnp.arange(20.0).reshape(4, 5)
LONG = jnp.arange(1000.0)


CHECKED: dict[str, tuple[Callable[[Any], Any], str, int, tuple[int, ...]]] = {
    "an element": (lambda k: LINE[k], "LINE", 0, (5,)),
    "an element of what is computed": (lambda k: (LINE * 2)[k], "LINE * 2", 0, (5,)),
    "the second axis": (lambda k: TABLE[-1, k], "TABLE", 1, (4, 5)),
    "of a row": (lambda k: TABLE[1][k], "TABLE[1]", 0, (5,)),
    "a new axis": (lambda k: TABLE[0, None, k].sum(), "TABLE", 1, (4, 5)),
    "with a slice": (lambda k: TABLE[1:, k].sum(), "TABLE", 1, (4, 5)),
    "with a stride": (lambda k: TABLE[::2, k].sum(), "TABLE", 1, (4, 5)),
    "i8": (lambda k: LINE[k.astype(jnp.int8)], "LINE", 0, (5,)),
    "u8": (lambda k: LINE[k.astype(jnp.uint8)], "LINE", 0, (5,)),
    "u32": (lambda k: LINE[k.astype(jnp.uint32)], "LINE", 0, (5,)),
    "several": (lambda k: LINE[jnp.stack([k, 0 * k])].sum(), "LINE", 0, (5,)),
    "several of two axes": (lambda k: TABLE[jnp.array([0, 3]), jnp.stack([0 * k, k])].sum(), "TABLE", 1, (4, 5)),
    "unsigned of two axes": (
        lambda k: TABLE[jnp.stack([0 * k, 0 * k]).astype(jnp.uint8), jnp.stack([k, k]).astype(jnp.uint8)].sum(),
        "TABLE", 1, (4, 5),
    ),
    "many, in memory": (lambda k: LONG[jnp.arange(300) + k + 696 * (k > 4)].sum(), "LONG", 0, (1000,)),
    "in fori_loop": (lambda k: lax.fori_loop(0, 1, lambda j, s: s + LINE[k + j], 0.0), "LINE", 0, (5,)),
    "in scan": (lambda k: lax.scan(lambda c, j: (c, LINE[k + j]), 0, jnp.arange(1))[1][0], "LINE", 0, (5,)),
    "in cond": (lambda k: lax.cond(k < 1000, lambda k: LINE[k], lambda k: 0.0, k), "LINE", 0, (5,)),
    "in jax.jit": (jax.jit(lambda k: LINE[k]), "LINE", 0, (5,)),
    "in jax.checkpoint": (jax.checkpoint(lambda k: LINE[k]), "LINE", 0, (5,)),
    "in jax.grad": (lambda k: jax.grad(lambda x: x[k] ** 2)(LINE).sum(), "x", 0, (5,)),
}  # fmt: skip
"""Each reads element k, with how the array is written, and the axis with its length."""

JAXS: dict[str, Callable[[Any], Any]] = {
    "get": lambda k: LINE.at[k].get(),
    "get, clip": lambda k: LINE.at[k].get(mode="clip"),
    "get, fill": lambda k: LINE.at[k].get(mode="fill", fill_value=-1.0),
    "take": lambda k: jnp.take(LINE, k, mode="clip"),
    "dynamic_slice": lambda k: lax.dynamic_slice(LINE, (k,), (2,)).sum(),
    "set": lambda k: LINE.at[k].set(1.0).sum(),
    "add": lambda k: LINE.at[k].add(1.0).sum(),
    "in jax.vmap": lambda k: jax.vmap(lambda j: LINE[j])(k + jnp.arange(2)).sum(),
    "in a qd.vmap": lambda k: qd.vmap(lambda j: LINE[j])(k + jnp.arange(2)).sum(),
    "interp": lambda k: jnp.interp(k.astype(jnp.float32), jnp.arange(5.0), LINE),
}
"""Functions of JAX, which have rules of their own."""

OUTSIDE = (5, 6, 100, -1, -5, -100)


def over(access: Callable[[Any], Any], **options: Any) -> Any:
    def function(k: Any) -> Any:
        out = qd.zeros(k.shape)
        for i in qd.range(k.shape[0]):
            out[i] = access(k[i])
        return out

    return qd.jit(function, options=options)


def indices(k: int) -> Any:
    return jnp.array([0, k, 4], jnp.int32)


@pytest.mark.parametrize("form", CHECKED)
def test_an_index_outside_of_an_array_ends_the_call(form: str) -> None:
    access, array, axis, shape = CHECKED[form]
    function = over(access)
    inside = [jax.jit(access)(k) for k in indices(2)]
    np.testing.assert_allclose(function(indices(2)), jnp.stack(inside), rtol=1e-6)
    for k in OUTSIDE:
        with pytest.raises(qd.BoundsError) as caught:
            qd.block_until_ready(function(indices(k)))
        said = str(caught.value)
        assert f"is out of bounds for axis {axis} of `{array}` with shape {shape}" in said
        assert __file__ in said
        assert "help:" in said


@pytest.mark.parametrize("form", CHECKED)
def test_the_interpreter_says_the_same(form: str) -> None:
    with pytest.raises(qd.BoundsError, match="is out of bounds for axis"):
        over(CHECKED[form][0], debug=True)(indices(7))


@pytest.mark.parametrize("bounds", ["clip", "unchecked"])
@pytest.mark.parametrize("form", [f for f in CHECKED if f[0] != "u" and f != "many, in memory"])
def test_other_modes_take_the_nearest_element(form: str, bounds: str) -> None:
    access = CHECKED[form][0]
    function = over(access, bounds=bounds)
    for k, nearest in ((7, 4), (-1, 0), (-100, 0)):
        np.testing.assert_array_equal(function(indices(k)), function(indices(nearest)))


@pytest.mark.full
@pytest.mark.parametrize("form", JAXS)
def test_functions_of_jax_keep_their_rules(form: str) -> None:
    access = JAXS[form]
    function = over(access)
    for k in (2, 4, 5, 100, -1, -100):
        want = [jax.jit(access)(j) for j in indices(k)]
        np.testing.assert_allclose(function(indices(k)), jnp.stack(want), rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("form", CHECKED)
def test_lanes_keep_the_rules_of_jax(form: str) -> None:
    access = CHECKED[form][0]
    for k in (2, 7, -1, -100):
        want = jnp.stack([jax.jit(access)(j) for j in indices(k)])
        np.testing.assert_allclose(qd.vmap(access)(indices(k)), want, rtol=1e-6)
        called = qd.jit(lambda k: qd.vmap(access)(k))
        np.testing.assert_allclose(called(indices(k)), want, rtol=1e-6)


@pytest.mark.full
def test_a_table_between_loops_is_checked_like_its_copy() -> None:
    """As in every counting sort: the ends of bins are made by jnp, and read by the next loop."""

    def ends(x: Any, by: int, *, copied: bool) -> Any:
        start = jnp.concatenate([jnp.zeros(1, x.dtype), jnp.cumsum(x)])
        start = qd.copy(start) if copied else start
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = start[i + by]
        return out

    for copied in (False, True):
        function = qd.jit(ends, static_argnames=("by", "copied"))
        assert function(jnp.arange(4.0), 1, copied=copied).tolist() == [0, 1, 3, 6]
        with pytest.raises(qd.BoundsError, match="index 5 is out of bounds for axis 0"):
            qd.block_until_ready(function(jnp.arange(4.0), 2, copied=copied))


def test_what_guards_an_access_guards_its_check() -> None:
    def guarded(k: Any) -> Any:
        out = qd.zeros(k.shape)
        for i in qd.range(k.shape[0]):
            with qd.when((k[i] >= 0) & (k[i] < 5)):
                out[i] = LINE[k[i]]
        return out

    assert qd.jit(guarded)(jnp.array([-1, 1, 9])).tolist() == [0, 10, 0]
    branch = over(lambda k: lax.cond(k < 5, lambda k: LINE[k], lambda k: -1.0, k))
    assert branch(indices(9)).tolist() == [0, -1, 40]


def test_an_index_in_the_condition_of_a_loop() -> None:
    def first_above(limit: Any) -> Any:
        out = qd.zeros(limit.shape, jnp.int32)
        for i in qd.range(limit.shape[0]):
            k = qd.local(jnp.uint8(0))
            for _ in qd.while_(lambda: LINE[k.value] <= limit[i]):  # noqa: B023
                k += 1
            out[i] = k.value
        return out

    function = qd.jit(first_above)
    assert function(jnp.array([5.0, 15.0])).tolist() == [1, 2]
    with pytest.raises(qd.BoundsError, match="index 5 is out of bounds for axis 0 of `LINE`"):
        qd.block_until_ready(function(jnp.array([5.0, 100.0])))


@pytest.mark.full
def test_derivatives_use_the_checked_index() -> None:
    def picked(x: Any, k: Any) -> Any:
        out = qd.zeros(k.shape, x.dtype)
        for i in qd.range(k.shape[0]):
            out[i] = (x[...] * 3)[k[i]] ** 2
        return out

    x = jnp.arange(5.0)
    for options, k, want in (({}, 2, [0, 0, 36, 0, 72]), ({"bounds": "clip"}, -1, [0, 0, 0, 0, 72])):
        gradient = jax.grad(lambda x: qd.jit(picked, options=options)(x, indices(k)).sum())  # noqa: B023
        assert gradient(x).tolist() == want
    with pytest.raises(qd.BoundsError, match="index -1 is out of bounds"):
        qd.block_until_ready(jax.grad(lambda x: qd.jit(picked)(x, indices(-1)).sum())(x))


def test_an_index_that_ranges_prove_costs_nothing() -> None:
    def copied(x: Any) -> Any:
        table = jnp.cumsum(x[...])
        for i in qd.range(x.shape[0]):
            x[i] = table[i]
        return x

    assert "bound" not in str(qd.jit(copied).lower(jnp.arange(9.0)).graph("trace"))
