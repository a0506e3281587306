"""Races that an argument decides by what it holds: told by the first call that brings its elements.

A function is traced on arrays without elements, so `h[k[i]] = h[k[i]] + v` is right or not by what a call hands over.
Each call of a `qd.jit` function with arrays looks once at what its trace left open; what others trace, it does not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from qdtrace.analysis.known_races import known_race
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from qdtrace.analysis.accesses import Accesses, Race
    from qdtrace.ir.program import Var


class Doubt(NamedTuple):
    """A task that may race, by what arguments hold."""

    accesses: Accesses
    arrays: Mapping[Var, Any]
    """Elements of references that are known."""
    fixed: AbstractSet[Var]
    """References that nothing stores to."""
    warn: Callable[[Race], None]
    numbers: Mapping[Var, int] = {}
    """Numbers of the arguments' leaves, by the references that have their elements."""

    def tell(self, leaves: Sequence[Any]) -> None:
        """Warns of a race that the arguments make."""
        given = {v: leaves[number] for v, number in self.numbers.items()}
        found = known_race(self.accesses, {**self.arrays, **given}, self.fixed).race
        if found is not None:
            self.warn(found)

    def is_decided(self, leaves: Sequence[Any]) -> bool:
        """Returns whether the arguments are arrays of these shapes whose elements are here."""
        return all(
            number < len(leaves)
            and not isinstance(leaves[number], Tracer)
            and np.shape(leaves[number]) == ref_type(ref).shape
            and _is_readable(leaves[number])
            for ref, number in self.numbers.items()
        )


def _is_readable(array: Any) -> bool:
    return not isinstance(array, jax.Array) or (not array.is_deleted() and array.is_fully_addressable)
