"""A function to differentiate with its operands: what is timed of it, as a primal and as a gradient."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Case:
    """A function of JAX arrays."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    """The operands that it is differentiated by."""
    bars: Any = None
    """Adjoints of the results; ones when it is None."""
    fixed: tuple[Any, ...] = ()
    """Operands that stand before those and are not differentiated by."""

    def primal(self) -> Run:
        """A call of the function."""
        given = [jnp.asarray(a) for a in (*self.fixed, *self.given)]
        compiled = jax.jit(self.function)
        return Run(lambda _: jax.block_until_ready(compiled(*given)), _arrays)

    def reverse(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Its reverse mode, giving adjoints of `given`, with what it takes: adjoints of the results, all operands."""
        given = [jnp.asarray(a) for a in (*self.fixed, *self.given)]
        bars = self.bars
        if bars is None:
            bars = jax.tree.map(lambda s: np.ones(s.shape, s.dtype), jax.eval_shape(self.function, *given))
        bars = jax.tree.map(jnp.asarray, bars)

        def adjoints(bars: Any, *operands: Any) -> Any:
            fixed, varied = operands[: len(self.fixed)], operands[len(self.fixed) :]
            return jax.vjp(functools.partial(self.function, *fixed), *varied)[1](bars)

        return adjoints, (bars, *given)

    def gradient(self) -> Run:
        """A call of its reverse mode: adjoints of the operands. The results themselves are not asked for."""
        function, given = self.reverse()
        compiled = jax.jit(function)
        return Run(lambda _: jax.block_until_ready(compiled(*given)), _arrays)


Cases = dict[str, "Callable[..., Case]"]


def primals(cases: Mapping[str, Callable[..., Case]]) -> dict[str, Callable[..., Run]]:
    """Runs of the functions."""
    return {name: lambda make=make, **given: make(**given).primal() for name, make in cases.items()}


def gradients(cases: Mapping[str, Callable[..., Case]]) -> dict[str, Callable[..., Run]]:
    """Runs of their reverse mode."""
    return {name: lambda make=make, **given: make(**given).gradient() for name, make in cases.items()}


def _arrays(out: Any) -> tuple[Any, ...]:
    return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(out))
