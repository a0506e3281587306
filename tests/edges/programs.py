"""Random programs: steps on arguments that lanes have of their own or share, in trees with nothing in some places."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .flow import ALL
from .steps import DTYPES, SHAPES, Draw, Step, is_key

LANES = (3, 3, 3, 1, 5, 0)
MOST = 700
"""Elements of a value of a lane."""
TRIES = 6
"""Draws of a kind of step, some of which JAX refuses."""


@dataclass(frozen=True, eq=False)
class Program:
    """A function of one lane: steps on leaves of its arguments; some values so far are its results."""

    steps: tuple[Step, ...]
    results: tuple[int, ...]
    arguments: tuple[Any, ...]
    in_axes: tuple[Any, ...]
    seed: int

    def __call__(self, *arguments: Any) -> Any:
        values = [jnp.asarray(x) for x in jax.tree.leaves(arguments)]
        for step in self.steps:
            values += jax.tree.leaves(step.function(*(values[k] for k in step.operands)))
        return {"all": tuple(values[k] for k in self.results), "nothing": ((), None)}

    @property
    def forward(self) -> bool:
        """Derivatives are those of forward mode: JAX has no other of a loop whose trips depend on values."""
        return any(s.name.startswith(("while", "traced")) for s in self.steps)

    def __str__(self) -> str:
        leaves = ", ".join(f"{x.dtype}{x.shape}" for x in jax.tree.leaves(self.arguments))
        return f"seed {self.seed}: {leaves} -> {'; '.join(map(str, self.steps))} -> {self.results}"


def _content(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        drawn = rng.integers(0, 9, shape).astype(dtype)
        edge = np.where(rng.random(shape) < 0.5, dtype.type(bounds.max), dtype.type(bounds.min))
        return np.where(rng.random(shape) < 0.2, edge, drawn)
    numbers = rng.uniform(-2, 2, shape)
    return (numbers + 1j * rng.uniform(-2, 2, shape) if dtype.kind == "c" else numbers).astype(dtype)


def _argument(rng: np.random.Generator, lanes: int) -> tuple[Any, int | None]:
    """An array for all lanes, and its axis of lanes; None where lanes share it."""
    shape = SHAPES[rng.integers(len(SHAPES))]
    axis = [0, 0, 0, -1, None][rng.integers(5)]
    whole = shape if axis is None else (lanes, *shape) if axis == 0 else (*shape, lanes)
    if rng.random() < 0.15:
        words = rng.integers(0, 2**32, (*whole, 2), np.uint32)
        keys = jax.random.wrap_key_data(jnp.asarray(words))
        return keys, axis
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
    return np.asarray(_content(rng, whole, dtype)), axis


def drawn(seed: int, length: int = 5) -> Program:
    """The program of a seed. Steps that JAX refuses are left out."""
    rng = np.random.default_rng(seed)
    lanes = LANES[rng.integers(len(LANES))]
    made = [_argument(rng, lanes) for _ in range(int(rng.integers(1, 4)))]
    made.append((np.linspace(0.1, 0.9, lanes), 0))
    leaves, axes = [list(x) for x in zip(*made, strict=True)]
    arguments = ({"x": leaves[0], "none": None}, (), *leaves[1:])
    in_axes = ({"x": axes[0], "none": None}, None, *axes[1:])
    avals = [_lane_aval(x, a) for x, a in zip(leaves, axes, strict=True)]
    steps: list[Step] = []
    for _ in range(20 * length):
        if len(steps) == length:
            break
        draw = Draw(rng, avals)
        kind = draw.of(ALL)
        for _ in range(TRIES):
            step = kind(draw)
            outs = None if step is None else results_of(step, avals)
            if step is not None and outs is not None:
                steps.append(step)
                avals = [*avals, *outs]
                break
    new = range(len(leaves), len(avals))
    results = tuple(sorted({*(k for k in new if rng.random() < 0.6), len(avals) - 1}))
    return Program(tuple(steps), results, arguments, in_axes, seed)


def _lane_aval(x: Any, axis: int | None) -> Any:
    shape = list(x.shape)
    if axis is not None:
        del shape[axis]
    return jax.ShapeDtypeStruct(tuple(shape), x.dtype)


def results_of(step: Step, avals: list[Any]) -> list[Any] | None:
    """What a step gives; None where JAX refuses it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = jax.tree.leaves(jax.eval_shape(step.function, *(avals[k] for k in step.operands)))
    except Exception:  # whatever JAX raises for such operands
        return None
    # tangents of integers are no values that a buffer holds
    return None if any(x.size > MOST or x.dtype == jax.dtypes.float0 for x in found) else found


def gradient(batched: Callable[..., Any], arguments: Any, *, forward: bool) -> tuple[Callable[..., Any], list[Any]]:
    """The gradient of a sum of the results by inexact arguments, or its tangent, and these."""
    leaves, tree = jax.tree.flatten(arguments)
    moved = [k for k, x in enumerate(leaves) if not is_key(x) and jnp.issubdtype(x.dtype, jnp.inexact)]

    def total(*values: Any) -> Any:
        given = dict(zip(moved, values, strict=True))
        outs = jax.tree.leaves(batched(*jax.tree.unflatten(tree, [given.get(k, x) for k, x in enumerate(leaves)])))
        inexact = [x for x in outs if not is_key(x) and jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum((jnp.real(jnp.sum(jnp.sin(x))).astype(float) for x in inexact), jnp.zeros(()))

    tangent = lambda *xs: jax.jvp(total, xs, tuple(map(jnp.ones_like, xs)))[1]  # noqa: E731
    return tangent if forward else jax.grad(total, tuple(range(len(moved)))), [leaves[k] for k in moved]
