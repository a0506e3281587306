"""Steps with control flow and random numbers: loops of any number of trips, whose state is any tree, also of keys."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .calls import call
from .steps import STEPS, Draw, Step, is_key, is_number, tame, whole


def mixed(x: Any, extra: Any) -> Any:
    """The next state of a leaf: the same shape and dtype, changed by a number."""
    if is_key(x):
        return jax.vmap(lambda k: jax.random.fold_in(k, 3))(x.ravel()).reshape(x.shape)
    if x.dtype == np.bool_:
        return ~x
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return (tame(x) * 0.5 + extra.astype(jnp.float32)).astype(x.dtype)
    return x * 3 + 1


def tree_of(d: Draw, leaves: Any) -> Any:
    """Leaves in a tree that has nothing in some places."""
    shape = d.of((0, 1, 2, 3))
    if shape == 0:
        return tuple(leaves), None
    if shape == 1:
        return {"b": list(leaves), "a": (), "none": None}
    return (leaves[0], {}, (), leaves[1:]) if shape == 2 else (None, ((), *leaves))


def _placed(d: Draw) -> Callable[[Any], Any]:
    """`tree_of` with its choice made."""
    kind = d.of((0, 1, 2, 3))
    fixed = Draw(d.rng, d.avals)
    fixed.of = lambda choices: choices[kind]  # type: ignore[method-assign]
    return lambda leaves: tree_of(fixed, leaves)


def _number(x: Any) -> Any:
    """A number for what a leaf holds."""
    if is_key(x):
        return jnp.sum(jax.random.key_data(x) % 7).astype(jnp.float32) * 0.01
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.real(jnp.sum(tame(x))).astype(jnp.float32)
    return jnp.sum(x % 2 if x.dtype != np.bool_ else x).astype(jnp.float32)


def scan(d: Draw) -> Step | None:
    chosen = d.some(3)
    if chosen is None:
        return None
    length, reverse, place = d.of((0, 0, 1, 2, 5, 6)), bool(d.rng.random() < 0.3), _placed(d)
    kind = d.of(("xs", "xs", "none", "empty"))

    def run(a: Any, b: Any, c: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            extra = sum((_number(v) for v in jax.tree.leaves(x)), jnp.float32(0))
            return jax.tree.map(lambda v: mixed(v, extra), carry), (None, carry, x)

        xs = {"xs": c, "none": None, "empty": (jnp.zeros((length, 0)), ())}[kind]
        return lax.scan(body, place([a, b]), xs, None if kind == "xs" else length, reverse=reverse)

    return Step(f"scan {kind} {length}{' reverse' * reverse}", chosen, run)


def loop(d: Draw) -> Step | None:
    chosen = d.some(2)
    if chosen is None:
        return None
    trips, kind, place = d.of((0, 1, 3, 7)), d.of(("fori", "while", "traced")), _placed(d)

    def run(a: Any, b: Any) -> Any:
        def body(k: Any, s: Any) -> Any:
            return jax.tree.map(lambda v: mixed(v, _number(b)), s)

        if kind == "fori":
            return lax.fori_loop(0, trips, body, place([a, b]))
        if kind == "traced":
            count = (jnp.abs(_number(b)) * 3).astype(jnp.int32) % (trips + 1)
            return lax.while_loop(lambda s: s[0] < count, lambda s: (s[0] + 1, body(0, s[1])), (0, place([a, b])))
        return lax.while_loop(lambda s: s[0] < trips, lambda s: (s[0] + 1, body(0, s[1])), (jnp.uint8(0), place([a])))

    return Step(f"{kind} {trips}", chosen, run)


def branch(d: Draw) -> Step | None:
    chosen = d.some(3)
    if chosen is None:
        return None
    place, kind = _placed(d), d.of(("cond", "switch", "one"))

    def run(c: Any, a: Any, b: Any) -> Any:
        change = lambda s: jax.tree.map(lambda v: mixed(v, _number(a)), s)  # noqa: E731
        which = (jnp.abs(_number(c)) * 4).astype(jnp.int32)
        if kind == "cond":
            return lax.cond(which % 2 == 0, change, lambda s: s, place([a, b]))
        if kind == "one":
            return lax.switch(which, [change], place([a, b]))
        return lax.switch(which - 1, [change, lambda s: s, lambda s: change(change(s))], place([a, b]))

    return Step(kind, chosen, run)


def mapped(d: Draw) -> Step | None:
    chosen = d.some(2)
    if chosen is None:
        return None
    kind = d.of(("map", "vmap", "jit", "custom_jvp", "none"))

    @jax.custom_jvp
    def ruled(tree: Any) -> Any:
        return tree

    ruled.defjvp(lambda p, t: (ruled(*p), jax.tree.map(lambda x: x, t[0])))

    def run(a: Any, b: Any) -> Any:
        one = lambda x: (mixed(x, _number(b)), None, {"n": _number(x)})  # noqa: E731
        if kind == "map":
            return lax.map(one, a)
        if kind == "vmap":
            return jax.vmap(one)(a)
        if kind == "custom_jvp":
            return ruled((a, None, (), [b]))
        return jax.jit(lambda x, n, e: (one(x), n, e))(a, None, ())

    return Step(kind, chosen, run)


DRAWS: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda k: jax.random.uniform(k, (3,)),
    "uniform of none": lambda k: jax.random.uniform(k, (0,)),
    "uniform rows": lambda k: jax.random.uniform(k, (2, 0)),
    "normal": lambda k: jax.random.normal(k, (2,)),
    "bits": lambda k: jax.random.bits(k, (3,), np.uint8),
    "wide bits": lambda k: jax.random.bits(k, (3,), np.uint64),
    "randint": lambda k: jax.random.randint(k, (4,), 0, 7),
    "small integers": lambda k: jax.random.randint(k, (4,), -128, 127, np.int8),
    "wide integers": lambda k: jax.random.randint(k, (), 0, 2**62, np.int64),
    "no integers": lambda k: jax.random.randint(k, (0, 2), 0, 7),
    "complex normal": lambda k: jax.random.normal(k, (2,), np.complex64),
    "split": lambda k: jax.random.split(k, 3),
    "split into none": lambda k: jax.random.split(k, 0),
    "fold_in": lambda k: jax.random.fold_in(k, 7),
    "key_data": jax.random.key_data,
    "clone": jax.random.clone,
    "permutation": lambda k: jax.random.permutation(k, 5),
    "permutation of none": lambda k: jax.random.permutation(k, jnp.zeros((0, 2))),
    "choice": lambda k: jax.random.choice(k, jnp.arange(4), (2,)),
    "bernoulli": lambda k: jax.random.bernoulli(k, 0.5, (3,)),
    "categorical": lambda k: jax.random.categorical(k, jnp.zeros((2, 3))),
}


def random(d: Draw) -> Step | None:
    chosen = d.some(1, lambda a: is_key(a) and not a.shape)
    if chosen is None:
        return None
    name = d.of(list(DRAWS))
    return Step(name, chosen, DRAWS[name])


KEYS: dict[str, Callable[[Any], Any]] = {
    "first": lambda k: k[0],
    "ravel": jnp.ravel,
    "turned": lambda k: k[::-1],
    "none of them": lambda k: k[:0],
    "row": lambda k: k[None],
    "stacked": lambda k: jnp.stack([k, k]),
    "where": lambda k: jnp.where(jnp.arange(k.size).reshape(k.shape) % 2 == 0, k, k),
    "draws": lambda k: jax.vmap(jax.random.uniform)(k.ravel()),
    "splits": lambda k: jax.vmap(lambda x: jax.random.split(x, 2))(k.ravel()),
    "data": jax.random.key_data,
    "data and back": lambda k: jax.random.wrap_key_data(jax.random.key_data(k)),
    "set": lambda k: k.at[0].set(k[-1]),
}


def of_keys(d: Draw) -> Step | None:
    chosen = d.some(1, is_key)
    if chosen is None:
        return None
    name = d.of(list(KEYS))
    return Step(f"keys {name}", chosen, KEYS[name])


def new_key(d: Draw) -> Step | None:
    chosen = d.some(1, lambda a: is_number(a) and not a.shape)
    if chosen is None:
        return None
    raw = bool(d.rng.random() < 0.4)

    def run(x: Any) -> Any:
        seed = (jnp.abs(_number(x)) * 8).astype(jnp.uint32)
        return jax.random.split(jax.random.PRNGKey(seed))[0] if raw else jax.random.key(seed)

    return Step("raw key" if raw else "key", chosen, run)


def reduced(d: Draw) -> Step | None:
    chosen = d.some(2, is_number)
    if chosen is None:
        return None
    return Step("window", chosen, lambda x, y: x + whole(y).astype(x.dtype))


ALL = (*STEPS, *STEPS, *[call] * 8, scan, scan, loop, branch, mapped, random, random, of_keys, new_key, reduced)
"""Draws of steps, each as often as it is here."""
