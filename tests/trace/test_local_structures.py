"""Structures in `qd.local`: named tuples, dicts and dataclasses, whose fields are cells."""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd


@qd.dataclass
class Hit:
    t: jax.Array
    normal: jax.Array
    item: jax.Array

    @property
    def squared(self):
        return self.t**2

    def further(self, by):
        self.t += by
        return self


class Ray(NamedTuple):
    origin: jax.Array
    direction: jax.Array


X = np.array([0.25, 7.0, -3.0], np.float32)
DISTANCES = np.abs(X[:, None] - np.arange(4))


@qd.jit
def nearest(x):
    distance, item, side = qd.zeros_like(x), qd.zeros(x.shape, jnp.int32), qd.zeros((x.shape[0], 2))
    for i in qd.range(x.shape[0]):
        best = qd.local(Hit(jnp.inf, jnp.zeros(2), -1))
        for j in qd.range(4):
            hit = Hit(jnp.abs(x[i] - j), jnp.stack([j, 2.0 * j]), j)
            with qd.when(hit.t < best.t):
                best.value = hit
        distance[i], item[i], side[i] = best.t, best.item, best.normal
    return distance, item, side


@pytest.mark.parametrize("debug", [False, True])
def test_a_dataclass_is_stored_whole(debug) -> None:
    with qd.options(debug=debug):
        distance, item, side = nearest(X)
    want = DISTANCES.argmin(1)
    np.testing.assert_array_equal(distance, DISTANCES.min(1))
    np.testing.assert_array_equal(item, want)
    np.testing.assert_array_equal(side, np.stack([want, 2 * want], 1))


def test_derivatives_and_lanes_of_structures() -> None:
    slope = jax.grad(lambda x: nearest(x)[0].sum())(jnp.asarray(X))
    np.testing.assert_array_equal(slope, np.sign(X - DISTANCES.argmin(1)))
    np.testing.assert_array_equal(jax.vmap(nearest)(X[None])[0][0], DISTANCES.min(1))


def test_fields_are_read_as_values() -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            ray = qd.local(Ray(x[i], jnp.zeros(2)))
            old, before = ray.origin, ray.value
            ray.origin += 10
            ray.direction = ray.direction.at[1].set(3.0)
            x[i] = 1000 * old + 100 * before.origin + ray.origin + ray.direction[1]
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(f(np.arange(3.0)), 1101 * np.arange(3.0) + 13)


def test_a_store_reads_its_value_first() -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            ray = qd.local(Ray(x[i], 2.0))
            ray.value = Ray(ray.direction, ray.origin)
            other = qd.local(ray)  # of the present values
            ray.value = Ray(7.0, 7.0)
            ray.value = other
            a, b = ray
            x[i] = 10 * a + b
        return x

    np.testing.assert_array_equal(f(np.arange(3.0)), 20 + np.arange(3.0))


def test_structures_in_structures() -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            s = qd.local({"ray": Ray(x[i], jnp.zeros(2)), "pair": (0, 1.0)})
            ray = s["ray"]
            ray.direction = jnp.array([0.0, 3.0])
            s["ray"].origin += 1
            s["pair"][1] = 4.0
            s["pair"] = (s["pair"][0] + 2, s["pair"][1])
            s["ray"] = Ray(2 * s["ray"].origin, ray.direction)
            x[i] = s["ray"].origin + s["ray"].direction[1] + s["pair"][0] + s["pair"][1]
        return x

    np.testing.assert_array_equal(f(np.arange(3.0)), 2 * (np.arange(3.0) + 1) + 9)


def test_values_of_fields_are_swapped() -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            s = qd.local({"u": Ray(x[i], 1.0), "v": Ray(2.0, 3.0), "w": [4.0, Ray(5.0, 6.0)]})
            for _ in qd.range(2):
                s["u"], s["v"] = s["v"].value, s["u"].value
                s["u"], s["w"][1] = s["w"][1].value, s["u"].value
            s.value = {"u": s["v"], "v": s["u"], "w": [1.0, s["w"][1]]}  # all are read before one is stored
            kept = s["u"]
            kept.value = Ray(kept.direction, kept.origin)
            x[i] = 100 * kept.origin + 10 * s["u"].direction + s["v"].origin + s["w"][1].direction
        return x

    np.testing.assert_array_equal(f(np.zeros(2, np.float32)), np.full(2, 100 * 6 + 10 * 5 + 2 + 1))


def _swapped(a, b):
    a["u"], b["u"] = b["u"], a["u"]


def _swapped_lists(a, b):
    a["w"], b["w"] = b["w"], a["w"]


def _kept(a, b):
    old = a["u"]
    a["u"] = b["u"]
    b["u"] = Ray(old.direction, 0.0)


def _kept_part(a, b):
    old = a["w"][1]
    a.value = b
    old.origin = 1.0


@pytest.mark.parametrize("change", [_swapped, _swapped_lists, _kept, _kept_part])
def test_a_field_in_whose_place_another_was_stored_is_refused(change) -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            a, b = (qd.local({"u": Ray(x[i], k), "w": [k, Ray(k, k)]}) for k in (1.0, 2.0))
            change(a, b)
            x[i] = a["u"].origin
        return x

    with pytest.raises(qd.TraceTypeError, match="another one was stored in its place"):
        f(np.zeros(2, np.float32))


def test_methods_and_properties_of_the_class() -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            hit = qd.local(Hit(x[i], jnp.zeros(2), 0))
            with qd.when(x[i] > 0):
                hit.further(1.0).further(2.0)
            x[i] = hit.squared
        return x

    np.testing.assert_array_equal(f(X), np.where(X > 0, X + 3, X) ** 2)


def test_a_structure_goes_into_functions() -> None:
    @qd.jit
    def scaled(ray):
        return Ray(2 * ray.origin, 3 * ray.direction)

    def step(ray):
        return jax.lax.cond(ray.origin > 1, lambda r: r.origin + r.direction, lambda r: r.origin - r.direction, ray)

    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            ray = qd.local(Ray(x[i], 2.0))
            ray.value = scaled(ray)
            x[i] = step(ray) + step(ray.value)
        return x

    origin = 2 * np.arange(3.0)
    np.testing.assert_array_equal(f(np.arange(3.0)), 2 * np.where(origin > 1, origin + 6, origin - 6))


def test_keys_and_lanes() -> None:
    def lane(i):
        s = qd.local({"key": jax.random.fold_in(jax.random.key(0), i), "sum": 0.0})
        for _ in qd.while_(lambda: s["sum"] < 2):
            s["key"], now = jax.random.split(s["key"])
            s["sum"] += jax.random.uniform(now)
        return s["sum"]

    def one(i):
        def body(s):
            key, now = jax.random.split(s[0])
            return key, s[1] + jax.random.uniform(now)

        return jax.lax.while_loop(lambda s: s[1] < 2, body, (jax.random.fold_in(jax.random.key(0), i), 0.0))[1]

    np.testing.assert_allclose(qd.vmap(lane)(jnp.arange(4)), jax.vmap(one)(jnp.arange(4)), rtol=1e-6)


def test_two_names_of_a_structure() -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            ray = qd.local(Ray(x[i], 2.0))
            old = ray
            ray.origin = 5.0
            x[i] = old.origin
        return x

    with pytest.warns(qd.QdWarning, match="`old = ray` gives one structure two names"):
        f(X)


def test_lists_and_tuples_are_arrays() -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            pair = qd.local((x[i], 2.0))
            pair[0] += 1
            x[i] = pair[0] * pair[1]
        return x

    np.testing.assert_array_equal(f(X), 2 * (X + 1))


@pytest.mark.parametrize("name", ["update", "pop", "clear", "setdefault"])
def test_methods_that_would_replace_cells_are_refused(name) -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            state = qd.local({"t": x[i]})
            with qd.when(x[i] > 0):
                getattr(state, name)("t", 1.0)
            x[i] = state["t"]
        return x

    with pytest.raises(qd.TraceAttributeError, match=f"a structure of qd.local has no attribute `{name}`"):
        f(X)


def test_a_field_may_have_the_name_of_a_method_of_tuples() -> None:
    class Tally(NamedTuple):
        count: jax.Array
        index: jax.Array

    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            tally = qd.local(Tally(0, 1))
            tally.count += 2
            tally.index = tally.count + tally.index
            x[i] = tally.index
        return x

    np.testing.assert_array_equal(f(X), 3)
