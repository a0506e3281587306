"""Answers of JAX that surprise, as data: a function, points, and what value and slopes are there.

Expected numbers are written down, not computed: a release of JAX that changes one is seen. `newer` has those of
jax 0.12 where they differ from 0.10.2, `compiled` those of `jax.jit(jax.vmap(f))` where it differs from JAX eagerly,
and so from a lane. `said` is the line of docs/coverage.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

NAN, INF = np.nan, np.inf
LAX, NUMPY = "jax/_src/lax/lax.py", "jax/_src/numpy"


@dataclass(frozen=True)
class Row:
    """A question and its answers at some points; each operand has the points as its first axis."""

    name: str
    f: Callable[..., Any]
    points: Sequence[Any]
    value: Any
    source: str
    """Where JAX decides it."""
    slopes: Sequence[Any] = ()
    """Adjoints of each float operand, for an adjoint of one."""
    along: Any = None
    """The tangent of the result along ones, if it is asked for."""
    newer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What differs in jax 0.12: `value`, `slopes` or `along`."""
    compiled: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What differs in `jax.jit(jax.vmap(f))`, by the same names."""
    said: str = ""
    """The line of the page; empty if lanes do what most would expect."""
    rtol: float = 1e-6
    is_checked: bool = False
    """A body refuses the index, which the user writes."""

    def expected(self, way: str, *, compiled: bool = False) -> Any:
        """What JAX of this version gives."""
        is_new = jax.__version_info__ >= (0, 12)
        found = self.newer.get(way, getattr(self, way)) if is_new else getattr(self, way)
        if not compiled or way not in self.compiled:
            return found
        made = self.compiled[way]
        return made.get("newer" if is_new else "older", found) if isinstance(made, dict) else made


ROWS: list[Row] = []


def f32(*values: Any) -> np.ndarray:
    """Points of numbers or vectors."""
    return np.array(values, np.float32)


def pairs(*points: tuple[float, float]) -> tuple[np.ndarray, ...]:
    """Points of two numbers."""
    return tuple(np.array(v, np.float32) for v in zip(*points, strict=True))


def ask(name: str, f: Callable[..., Any], *points: Any, value: Any, source: str, **more: Any) -> None:
    """Adds a row."""
    ROWS.append(Row(name, f, points, value, source, **more))


def c64(*values: complex) -> np.ndarray:
    """Points of complex numbers."""
    return np.array(values, np.complex64)
