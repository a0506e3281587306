"""Programs drawn from the cases: which dtypes, sizes, kinds of value, batch sizes and points.

A program is a few arrangements of one case, each with arguments and results of its own, in one lane function. The first
of a case is the same always and has the commonest of all; the others are drawn by a seed of the case's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .kinds import KINDS, Shape
from .points import dtype_of, info, is_inexact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .table import Case

BATCHES = (17, 17, 17, 17, 2, 1, 0)
MOST = 300_000
"""Numbers in an operand of a drawn program, over the batch."""


@dataclass(frozen=True, eq=False)
class Arrangement:
    """A case at one dtype, with one size and kind for each operand."""

    case: Case
    dtype: str
    size: int
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        size = "" if self.size < 0 else f"[{self.size}]"
        return f"{self.case.name} {self.dtype}{size} {'/'.join(self.kinds)}"

    def shapes(self) -> list[Shape]:
        """Of the operands."""
        return [o.shape(self.size) for o in self.case.operands]

    def lane(self, *arguments: Any, mirrored: bool = False) -> list[Any]:
        """Results of a lane, as a list of arrays; with `mirrored` from the other side of each branch cut."""
        made = [KINDS[k].made(x, s) for k, x, s in zip(self.kinds, arguments, self.shapes(), strict=True)]
        if mirrored and self.case.cut and made[0].dtype.kind == "c":
            (z,) = made
            sign = 1 if self.case.cut == "real" else -1
            below = jnp.signbit(jnp.imag(z) if sign == 1 else jnp.real(z))
            return [jnp.where(below, sign * jnp.conj(self.case.fn(sign * jnp.conj(z))), self.case.fn(z))]
        return [jnp.asarray(x) for x in jax.tree.leaves(self.case.fn(*made))]

    def arguments(self, rng: np.random.Generator, batch: int, *, extreme: bool) -> list[np.ndarray]:
        """Arrays with a leading axis of lanes."""
        out = []
        for operand, kind, shape in zip(self.case.operands, self.kinds, self.shapes(), strict=True):
            dtype = dtype_of(self.dtype)
            if operand.dtype is not None:
                dtype = np.dtype(operand.dtype(dtype))
            turned = kind == "view" and len(shape) == 2
            of = shape if turned else KINDS[kind].argument(shape)
            x = operand.points(rng, (batch, *of), dtype, extreme=extreme)
            out.append(_transposed(x) if turned else x)
        return out


def _transposed(x: np.ndarray) -> np.ndarray:
    """An argument whose view is this operand."""
    turned = np.swapaxes(x, 1, 2)
    return np.concatenate([np.ones_like(turned[:, :1]), turned], 1)


@dataclass(frozen=True, eq=False)
class Program:
    """Arrangements that are one lane function, with the arguments of a batch."""

    name: str
    parts: tuple[Arrangement, ...]
    batch: int
    extreme: bool
    seed: tuple[int, ...]

    def arguments(self) -> tuple[list[np.ndarray], ...]:
        """Of each part."""
        rng = np.random.default_rng(self.seed)
        return tuple(p.arguments(rng, self.batch, extreme=self.extreme) for p in self.parts)

    def alone(self, k: int) -> Program:
        """One part by itself."""
        return Program(f"{self.name}.{k}", self.parts[k : k + 1], self.batch, self.extreme, self.seed)

    def function(self, *, mirrored: bool = False) -> Callable[..., list[list[Any]]]:
        """Of one lane: arguments of each part to results of each."""
        return lambda *arguments: [p.lane(*xs, mirrored=mirrored) for p, xs in zip(self.parts, arguments, strict=True)]


def directions(program: Program, arguments: Any, rng: np.random.Generator) -> tuple[Any, Any, list[list[int]]]:
    """Tangents of inexact arguments, cotangents of inexact results, and which arguments have tangents."""
    structs = jax.eval_shape(jax.vmap(program.function()), *arguments) if program.batch else None
    active = [[k for k, x in enumerate(xs) if is_inexact(x.dtype)] for xs in arguments]
    tangents = [[_like(rng, xs[k].shape, xs[k].dtype) for k in ks] for xs, ks in zip(arguments, active, strict=True)]
    if structs is None:
        lane = jax.eval_shape(
            program.function(), *jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), arguments)
        )
        structs = jax.tree.map(lambda s: jax.ShapeDtypeStruct((0, *s.shape), s.dtype), lane)
    cotangents = [[_like(rng, s.shape, s.dtype) for s in part if is_inexact(s.dtype)] for part in structs]
    return tangents, cotangents, active


def _like(rng: np.random.Generator, shape: Shape, dtype: Any) -> np.ndarray:
    """Numbers of size about one; a result of a lane that does not depend on it has the same for all lanes."""
    dtype = np.dtype(dtype)
    x: Any = rng.uniform(0.5, 1.5, shape)
    x = x + 1j * rng.uniform(-1, 1, shape) if dtype.kind == "c" else x
    assert info(dtype).bits
    return x.astype(dtype)


def drawn(case: Case, count: int) -> Iterator[Program]:
    """The first programs of a case."""
    for k in range(count):
        seed = (*case.name.encode(), k)
        rng = np.random.default_rng(seed)
        parts = _first(case) if k == 0 else tuple(_arrangement(case, rng) for _ in range(3))
        batch = 17 if k == 0 else int(rng.choice(BATCHES))
        extreme = k > 0 and not case.differs and bool(rng.random() < 0.4)
        yield Program(f"{case.name}-{k}", parts, batch, extreme, seed)


def _first(case: Case) -> tuple[Arrangement, ...]:
    """Small operands of complex or real numbers, large ones of real numbers; one of them where code is long."""
    turn = sum(case.name.encode())
    preferred = [("float64", "float32"), ("complex128", "complex64"), ("int32",)]
    groups = [[d for d in g if d in case.among and case.accepts(d)] for g in preferred]
    found = [g[turn % len(g)] for g in groups if g][:2]
    dtypes = found or [case.dtypes[turn % len(case.dtypes)]]
    small = _arrangement_of(case, dtypes[-1], case.sizes[0], turn)
    larger = next((s for s in case.sizes if s > 16), None)
    if case.costly or larger is None:
        return (small,)
    return (small, _arrangement_of(case, dtypes[0], larger, turn + 1))


def _arrangement_of(case: Case, dtype: str, size: int, turn: int) -> Arrangement:
    return Arrangement(
        case, dtype, size, tuple(o.kinds[(turn + k) % min(3, len(o.kinds))] for k, o in enumerate(case.operands))
    )


def _arrangement(case: Case, rng: np.random.Generator) -> Arrangement:
    dtype = str(rng.choice(case.dtypes))
    weights = np.array([1.0 if s < 1000 else 0.25 for s in case.sizes])
    size = int(rng.choice(case.sizes, p=weights / weights.sum()))
    while max((prod(o.shape(size)) for o in case.operands), default=0) * 17 > MOST:
        size = int(rng.choice(case.sizes))
    return Arrangement(case, dtype, size, tuple(str(rng.choice(o.kinds)) for o in case.operands))
