# ruff: noqa: B023
"""Random programs that are linear in some arrays, made of tasks, and their known operands.

A program is a list of tasks, each a function of the arrays that the tasks before it made (the first are unknown) and
of known arrays. Each task makes one array of the same length, so any order of them is a program.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd

Piece = Callable[[Any, Any, "Known"], Any]

PIECES: dict[str, Piece] = {}


@dataclass
class Known:
    """The known operands of a program, each a buffer or a value inside of it."""

    scale: Any
    place: Any
    mask: Any
    first: Any
    columns: Any
    entries: Any


jax.tree_util.register_dataclass(Known, [*Known.__annotations__], [])


def piece(f: Piece) -> Piece:
    """Adds a task to the table."""
    PIECES[f.__name__] = f
    return f


@piece
def stencil(x, y, known):
    n = x.shape[0]
    out = qd.zeros_like(x)
    for i in qd.range(1, n - 1):
        out[i] = 2.0 * x[i] - known.scale[i] * x[i - 1] + 0.5 * y[i + 1]
    out[0] = x[0] - y[n - 1]
    return out


@piece
def wrapped(x, y, known):
    n = x.shape[0]
    out = qd.empty_like(x)
    for i in qd.range(n):
        out[i] = x[(i + 1) % n] / known.scale[i] - y[jnp.maximum(i - 2, 0)]
    return out


@piece
def gathered(x, y, known):
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = known.scale[i] * x[known.place[i]] + y[i]
    return out


@piece
def scattered(x, y, known):
    out = qd.copy(y)
    for i in qd.range(x.shape[0]):
        out[known.place[i]] += known.scale[i] * x[i]
        out[i] -= 0.25 * x[i]
    return out


@piece
def rows(x, y, known):
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        total = qd.local(y[i])
        for k in qd.range(known.first[i], known.first[i + 1]):
            total += known.entries[k] * x[known.columns[k]]
        out[i] = total
    return out


@piece
def chosen(x, y, known):
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = jnp.where(known.mask[i], x[i], known.scale[i] * y[i]) + jnp.where(i > 1, -y[i], 0)
    return out


@piece
def guarded(x, y, known):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        with qd.when(known.mask[i]):
            out[i] = x[i] - y[known.place[i]]
        with qd.otherwise():
            out[i] += 3.0 * y[i]
    return out


@piece
def solved(x, y, known):
    out = qd.copy(x)
    for i in qd.range(1, x.shape[0], serial=True):
        out[i] = (out[i] - 0.5 * out[i - 1]) / known.scale[i]
    for i in qd.range(x.shape[0]):
        out[i] += y[i]
    return out


@piece
def triangles(x, y, known):
    """Solves a small triangular system in place, the same in each lane but for its right side."""
    n = x.shape[0]
    out = qd.empty_like(x)
    for i in qd.range(n):
        row = qd.local(jnp.stack([x[i], y[i], x[known.place[i]]]))
        for j in qd.range(3):
            for k in qd.range(j):
                row[j] -= 0.25 * known.scale[k] * row[k]
            row[j] /= known.scale[j]
        out[i] = row[0] + row[1] - row[2]
    return out


@piece
def carried(x, y, known):
    out = qd.empty_like(x)
    n = x.shape[0]
    for i in qd.range(n):
        step = lambda j, s: (0.5 * s[0] + x[(i + j) % n], s[0] - 0.25 * s[1])  # noqa: E731
        first, second = jax.lax.fori_loop(0, known.place[i] % 4, step, (y[i], jnp.zeros_like(y[i])))
        out[i] = first - known.scale[i] * second
    return out


@piece
def counted(x, y, known):
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        value, count = qd.local(x[i]), qd.local(0)
        for _ in qd.while_(lambda: count.value < known.place[i] % 5):
            value.value = 0.75 * value + known.scale[count.value] * y[i]
            qd.break_if(known.mask[i] & (count.value > 1))
            count += 1
        out[i] = value
    return out


@piece
def branched(x, y, known):
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        sides = [lambda: (x[i], y[i]), lambda: (-y[i], 2.0 * x[i]), lambda: (x[i] + y[i], jnp.zeros_like(x[i]))]
        first, second = jax.lax.switch(known.place[i] % 3, sides)
        out[i] = first - known.scale[i] * second
    return out


@piece
def scaled_in_place(x, y, known):
    out = qd.copy(x)
    for i in qd.range(x.shape[0]):
        out[i] *= known.scale[i]
        out[i] -= y[i]
        out[i] /= 2.0
    return out


@piece
def of_arrays(x, y, known):
    return qd.copy(jnp.cumsum(x[...]) * 0.25 - y[::-1] * known.scale[...])


@piece
def small_arrays(x, y, known):
    n = x.shape[0]
    out = qd.empty_like(x)
    for i in qd.range(n):
        window = jnp.stack([x[jnp.minimum(i + k, n - 1)] for k in range(3)])
        turned = jnp.asarray([[1.0, 0.5, 0.0], [0.0, -1.0, 2.0], [0.25, 0.0, 1.0]], window.real.dtype) @ window
        out[i] = turned.sum() + known.scale[i] * turned[1] + y[i]
    return out


def program(seed: int, jit: Callable[..., Any] = qd.jit) -> Any:
    """Returns a function of two unknown arrays and of known ones, of one to four tasks."""
    draw = random.Random(seed)
    picked = [draw.choice(sorted(PIECES)) for _ in range(draw.randint(1, 4))]
    reads = [(draw.randrange(2 + k), draw.randrange(2 + k)) for k in range(len(picked))]
    several = draw.random() < 0.3

    def f(u, v, known):
        made = [u, v]
        for name, (a, b) in zip(picked, reads, strict=True):
            made.append(PIECES[name](made[a], made[b], known))
        return {"last": made[-1], "first": made[2]} if several else made[-1]

    f.__name__ = "_".join(picked)
    return jit(f)


def operands(seed: int, dtype: Any, n: int = 7) -> tuple[Any, Any, Known]:
    """Returns random operands of a program."""
    rng = np.random.default_rng(seed)

    def numbers(size: int) -> Any:
        found = rng.uniform(-1, 1, size)
        if np.issubdtype(dtype, np.complexfloating):
            found = found + 1j * rng.uniform(-1, 1, size)
        return jnp.asarray(found, dtype)

    first = np.concatenate([[0], np.cumsum(rng.integers(0, 4, n))])
    known = Known(
        scale=numbers(n) + 2,
        place=jnp.asarray(rng.integers(0, n, n), jnp.int32),
        mask=jnp.asarray(rng.random(n) < 0.5),
        first=jnp.asarray(first, jnp.int32),
        columns=jnp.asarray(rng.integers(0, n, first[-1] + 1), jnp.int32),
        entries=numbers(first[-1] + 1),
    )
    return numbers(n), numbers(n), known
