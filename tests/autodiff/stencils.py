"""Random stencils, whose body runs in loops of `qd.jit` and, with arrays for indices, as an oracle of JAX.

Indices are offset, wrapped, clamped, mirrored, or guarded by a condition; terms are linear, products or functions;
outputs are stored or accumulated into; steps follow each other.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp

import qdtrace as qd

SIZES = (0, 1, 2, 3, 7, 64)
DTYPES = (jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16)


@dataclass(frozen=True)
class Term:
    """A value of an array at an offset index, and what is made of it."""

    array: int
    offsets: tuple[int, ...]
    modes: tuple[str, ...]
    kind: str
    factor: float

    def index(self, at: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[tuple[Any, ...], Any]:
        """Returns the index at an iteration, and a condition or None."""
        found: list[Any] = []
        inside = None
        for i, offset, mode, n in zip(at, self.offsets, self.modes, shape, strict=True):
            j = i + offset
            match mode:
                case "wrap":
                    j = j % n
                case "mirror":
                    j = n - 1 - i
                case "guard":
                    ok = (j >= 0) & (j < n)
                    inside = ok if inside is None else inside & ok
                    j = jnp.clip(j, 0, n - 1)
                case _:  # "clamp"
                    j = jnp.clip(j, 0, n - 1)
            found.append(j)
        return tuple(found), inside

    def value(self, arrays: list[Any], at: tuple[Any, ...]) -> Any:
        """Returns the term of an iteration."""
        array = arrays[self.array]
        index, inside = self.index(at, array.shape)
        x = array[index]
        if self.kind == "product":
            x = x * arrays[0][at]
        elif self.kind == "function":
            x = jnp.sin(x)
        x = x * jnp.asarray(self.factor, array.dtype)
        return x if inside is None else jnp.where(inside, x, jnp.zeros_like(x))


@dataclass(frozen=True)
class Stencil:
    """Outputs of terms, over the elements of arrays of one shape but for a margin."""

    shape: tuple[int, ...]
    margin: int
    dtype: Any
    outputs: tuple[tuple[Term, ...], ...]
    adds: bool
    steps: int

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The range of each axis."""
        return [(min(self.margin, n), max(n - self.margin, min(self.margin, n))) for n in self.shape]

    def kernel(self, arrays: list[Any]) -> list[Any]:
        """Runs one step in a loop of `qd.jit`."""
        own = arrays[: len(self.outputs)]
        outs = [qd.copy(a) if self.adds else qd.zeros(self.shape, self.dtype) for a in own]
        for at in qd.ndrange(*self.ranges):
            for out, terms in zip(outs, self.outputs, strict=True):
                value = sum(t.value(arrays, at) for t in terms)
                if self.adds:
                    out[at] += value
                else:
                    out[at] = value
        return outs

    def oracle(self, arrays: list[Any]) -> list[Any]:
        """Runs one step as operations of JAX on all iterations at once."""
        at = tuple(jnp.meshgrid(*(jnp.arange(*r) for r in self.ranges), indexing="ij"))
        outs: list[Any] = []
        for array, terms in zip(arrays, self.outputs, strict=False):
            start = array if self.adds else jnp.zeros(self.shape, self.dtype)
            outs.append(start.at[at].add(sum(t.value(arrays, at) for t in terms)))
        return outs

    def loss(self, step: Any, weights: list[Any], *arrays: Any) -> Any:
        """Returns a weighted sum of the outputs of all steps."""
        found = list(arrays)
        for _ in range(self.steps):
            found = [*step(found), *found[len(self.outputs) :]]
        return sum((w * jnp.cos(a) * a).sum() for w, a in zip(weights, found, strict=True))


def random_stencil(rng: Random, dtypes: tuple[Any, ...] = DTYPES) -> Stencil:
    """Draws a stencil."""
    ndim = rng.choice((1, 2, 2, 3))
    shape = tuple(rng.choice(SIZES if ndim == 1 else SIZES[:5]) for _ in range(ndim))
    if ndim == 2 and rng.random() < 0.2:
        shape = (64, 64)
    arrays = rng.choice((1, 1, 2))
    regular = rng.choice(("", "wrap", "clamp", "guard"))
    modes = ("wrap", "wrap", "clamp", "guard", "mirror")

    def term() -> Term:
        offsets = tuple(rng.choice((-2, -1, -1, 0, 0, 0, 1, 1, 3)) for _ in shape)
        mode = tuple(regular or rng.choice(modes) for _ in shape)
        kind = rng.choice(("linear", "linear", "product", "function"))
        return Term(rng.randrange(arrays), offsets, mode, kind, rng.choice((1.0, -0.5, 0.25)))

    outputs = tuple(tuple(term() for _ in range(rng.randrange(1, 5))) for _ in range(rng.choice((1, arrays))))
    steps = rng.choice((1, 1, 2))
    return Stencil(shape, rng.choice((0, 0, 1)), rng.choice(dtypes), outputs, rng.random() < 0.4, steps)


def kernel(stencil: Stencil) -> Any:
    """Returns a step as a function that is compiled once."""
    return qd.jit(stencil.kernel) if stencil.steps == 1 else jax.jit(qd.jit(stencil.kernel))
