"""Random functions of a lane with arrays inside: products, factorisations and loops in any order."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

State = dict[str, Any]

SIDES = (1, 2, 3, 4, 7, 8, 15, 16, 17, 18, 27, 33)


def _halved(s: State) -> State:
    """Iterates as often as the lane's number asks for."""
    start = jnp.abs(s["x"].real).astype(jnp.float32) * 8 + 1
    trips = lax.while_loop(lambda c: c[0] > 1, lambda c: (c[0] / 2, c[1] + 1), (start, 0))[1]
    return {**s, "x": s["x"] * 0.5, "k": s["k"] + trips}


def _spd(s: State) -> Any:
    n = s["m"].shape[0]
    return s["m"] @ s["m"].T.conj() / n + 2 * jnp.eye(n, dtype=s["m"].dtype)


STEPS: dict[str, Callable[[State], State]] = {
    "product": lambda s: {**s, "m": s["m"] @ s["a"]},
    "product of what all lanes share": lambda s: {**s, "m": (s["a"] @ s["a"].T) @ s["m"] / s["a"].shape[0]},
    "product of transposed": lambda s: {**s, "m": s["m"].T @ s["a"].T},
    "product with itself": lambda s: {**s, "m": jnp.einsum("ki,kj->ij", s["m"], s["m"]) / s["m"].shape[0]},
    "product with a vector": lambda s: {**s, "v": jnp.tanh(s["m"] @ s["v"])},
    "outer product": lambda s: {**s, "m": s["m"] + jnp.outer(s["v"], s["v"]) * 0.1},
    "einsum": lambda s: {**s, "v": jnp.einsum("ij,kj,k->i", s["m"], s["a"], s["v"]) / s["m"].shape[0]},
    "number of an array": lambda s: {**s, "x": s["x"] + jnp.sum(s["m"]) / s["m"].size},
    "array of a number": lambda s: {**s, "v": s["v"] * s["x"] + jnp.sin(s["v"])},
    "factorisation": lambda s: {**s, "m": jnp.linalg.cholesky(_spd(s))},
    "solve": lambda s: {**s, "v": jnp.linalg.solve(_spd(s), s["v"])},
    "triangular solve": lambda s: {
        **s, "v": jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(_spd(s)), s["v"], lower=True)
    },
    "loop that lanes leave": _halved,
    "loop of all": lambda s: {
        **s, "m": lax.fori_loop(0, 3, lambda _, m: 0.5 * m @ s["a"] + jnp.eye(m.shape[0], dtype=m.dtype), s["m"])
    },
    "scan": lambda s: {**s, "v": lax.scan(lambda c, x: (0.5 * c + x, c * x), s["x"], s["v"])[1]},
    "branch": lambda s: {
        **s, "m": lax.cond(s["x"].real > 0, lambda m: m @ s["a"], lambda m: 2 * m, s["m"])
    },
    "element": lambda s: {**s, "v": s["v"].at[s["k"] % s["v"].size].set(s["x"])},
    "helper": lambda s: {**s, "m": jax.jit(lambda m, a: a @ m + m)(s["m"], s["a"])},
    "checkpoint": lambda s: {**s, "v": jax.checkpoint(lambda m, v: jnp.cos(m @ v))(s["m"], s["v"])},
}  # fmt: skip


def function_of(names: tuple[str, ...]) -> Callable[..., Any]:
    """Returns the function of one lane that runs these steps."""

    def lane(a: Any, m: Any, v: Any, x: Any) -> State:
        state = {"a": a, "m": m, "v": v, "x": x, "k": jnp.int32(1)}
        for name in names:
            state = STEPS[name](state)
        return {key: state[key] for key in "mvxk"}

    return lane


def loop_of(names: tuple[str, ...], trips: int) -> Callable[..., Any]:
    """Returns the function of one lane that runs these steps again and again, with matrices that do not grow."""
    step = function_of(names)

    def lane(a: Any, m: Any, v: Any, x: Any) -> State:
        def again(s: State, _: None) -> tuple[State, Any]:
            s = {key: value.astype(s[key].dtype) for key, value in step(a, s["m"], s["v"], s["x"]).items()}
            s = {**s, "m": jnp.tanh(s["m"]), "v": jnp.tanh(s["v"]), "x": jnp.tanh(s["x"])}
            return s, (s["x"], s["v"])

        state, seen = lax.scan(again, {"m": m, "v": v, "x": x, "k": jnp.int32(1)}, None, length=trips)
        return {**state, "seen": seen}

    return lane


def draw(seed: int) -> tuple[tuple[str, ...], tuple[Any, ...], tuple[int | None, ...]]:
    """Draws steps, arguments and axes; `a` is the same in all lanes in one of two programs."""
    rng = np.random.default_rng(seed)
    names = tuple(rng.choice(list(STEPS), size=rng.integers(1, 6)))
    n, lanes = int(rng.choice(SIDES)), int(rng.choice((1, 2, 3, 17)))
    dtype = np.dtype(str(rng.choice(("float32", "float32", "float64", "complex128"))))

    def array(*shape: int) -> Any:
        values = rng.normal(size=shape)
        return (values + 1j * rng.normal(size=shape) if dtype.kind == "c" else values).astype(dtype)

    shared = bool(rng.integers(2))
    a = array(n, n) if shared else array(lanes, n, n)
    scale = dtype.type(np.sqrt(n))
    args = a / scale, array(lanes, n, n) / scale, array(lanes, n), array(lanes)
    return names, args, (None if shared else 0, 0, 0, 0)
