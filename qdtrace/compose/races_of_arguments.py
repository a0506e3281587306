"""Warns of races that depend on the elements of arguments, at the first call that brings them.

A function is traced on arrays without elements. Whether two iterations of `h[k[i]] = h[k[i]] + v` store to one element
depends on `k`, so each call of a `qd.jit` function looks once at the arrays that its trace has left open. Where
`jax.jit` or `jax.vmap` trace the call, it looks at the arrays that those were given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from qdtrace.analysis.known_races import known_race
from qdtrace.compose.known_arguments import contents_of, is_linearised
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

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

    kept: Race | None = None
    """The race of stores of which any may stay, which is one of gradients alone."""

    def settle(self, leaves: Sequence[object]) -> Doubt | None:
        """Warns of a race that the arguments of a call make; returns what is left of the doubt."""
        if self.kept is not None:
            if not any(map(is_linearised, leaves)):
                return self
            self.warn(self.kept)
            return None
        if any(number >= len(leaves) for number in self.numbers.values()):
            return self
        given = {v: contents_of(leaves[number]) for v, number in self.numbers.items()}
        calls = max(map(len, given.values()))
        if any(len(c) not in (1, calls) or np.shape(c[0]) != ref_type(v).shape for v, c in given.items() if calls):
            return self
        found: Race | None = None
        for k in range(calls):
            arrays = {**self.arrays, **{v: c[k % len(c)] for v, c in given.items()}}
            race = known_race(self.accesses, arrays, self.fixed).race
            found = found if race is None else race
            if race is not None and race.kind != "stored":
                self.warn(race)
                return None
        if found is not None:
            return self._replace(kept=found).settle(leaves)
        return None if calls else self
