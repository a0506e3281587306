"""Random functions whose loops gather: their terms, guards, layouts of the argument and ways to load it are drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd

POINTS = 6


def pair(a: Any, b: Any) -> Any:
    """Returns a function of two rows that is not linear in any of their elements."""
    return jnp.sum(jnp.sin(a) * jnp.cos(2 * b) + a * a * b)


@dataclass
class Program:
    """A function of an argument x, indices and weights, and arguments for it."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    text: str


def draw(seed: int, *, array: bool) -> Program:
    """Returns a program that gives a scalar, or an array."""
    rng = np.random.default_rng(seed)
    width = int(rng.integers(1, 4))
    layout = ["rows", "columns", "numbers"][rng.integers(3)]
    arity, count = int(rng.integers(1, 4)), int(rng.integers(0, 8)) + (seed % 7 != 0)
    guard = ["none", "known", "active", "border"][rng.integers(4)]
    way = ["rows", "elements", "cell", "loop"][rng.integers(4)]
    terms, after = int(rng.integers(1, 3)), ["plain", "scaled", "sum"][rng.integers(3)]
    scatter = bool(rng.integers(2))
    shape = {"rows": (POINTS, width), "columns": (width, POINTS), "numbers": (POINTS,)}[layout]
    x = jnp.asarray(rng.normal(size=shape), jnp.float32)
    ends = jnp.asarray(rng.integers(0, POINTS, (count, arity)), jnp.int32)
    weights = jnp.asarray(rng.normal(size=count), jnp.float32)

    def row(x: Any, k: Any) -> Any:
        if layout == "numbers":
            return x[k]
        if layout == "columns":
            return x[:, k]
        return jnp.stack([x[k, c] for c in range(width)]) if way == "elements" else x[k]

    def term(x: Any, ends: Any, i: Any) -> Any:
        if way == "cell":
            total = qd.local(jnp.zeros((), x.dtype))
            for k in range(arity):
                total.value = total.value * 0.5 + pair(row(x, ends[i, k]), row(x, ends[i, 0]))
            return total.value
        if way == "loop":
            total = qd.local(jnp.zeros((), x.dtype))
            for k in qd.range(arity):
                total.value = total.value * 0.5 + pair(row(x, ends[i, k]), row(x, i % POINTS))
            return total.value
        rows = [row(x, ends[i, k]) for k in range(arity)]
        return sum(pair(a, b) for a in rows for b in rows[:2])

    def guarded(x: Any, ends: Any, weights: Any, i: Any, write: Any) -> None:
        if guard == "none":
            write(weights[i] * term(x, ends, i))
            return
        if guard == "border":  # loads beyond the end where it does not hold
            with qd.when(i + 1 < weights.shape[0]):
                write(weights[i + 1] * pair(row(x, ends[i + 1, 0]), row(x, ends[i, 0])))
            return
        holds = weights[i] > 0 if guard == "known" else jnp.sum(row(x, ends[i, 0])) > 0
        with qd.when(holds):
            write(weights[i] * term(x, ends, i))

    def scalar(x: Any, ends: Any, weights: Any) -> Any:
        out = qd.zeros(3, x.dtype) if after == "sum" else qd.zeros((), x.dtype)
        for _ in range(terms):
            for i in qd.range(ends.shape[0]):

                def write(value: Any, i: Any = i) -> None:
                    out[i % 3 if after == "sum" else ()] += value

                guarded(x, ends, weights, i, write)
        if after == "sum":
            return jnp.sum(out[...] * jnp.arange(1.0, 4.0)) / 3
        return 0.5 * out[()] - 1 if after == "scaled" else out

    def vector(x: Any, ends: Any, weights: Any) -> Any:
        out = qd.zeros(POINTS if scatter else (ends.shape[0], 2), x.dtype)
        for i in qd.range(ends.shape[0]):

            def write(value: Any, i: Any = i) -> None:
                if scatter:
                    out[ends[i, 0]] += value
                else:
                    out[i] = jnp.stack([value, value * value])

            guarded(x, ends, weights, i, write)
        return out

    text = f"{layout} {width} x {arity} x {count}, {guard}, {way}, {terms} loops, {after if not array else scatter}"
    return Program(vector if array else scalar, (x, ends, weights), text)


def dense(program: Program, *, array: bool) -> np.ndarray:
    """Returns the derivatives that JAX's transformations of the whole function give, flattened."""
    whole = (jax.jacobian if array else jax.hessian)(qd.jit(program.f))(*program.args)
    return np.asarray(whole).reshape(-1, program.args[0].size)
