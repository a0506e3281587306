"""Evaluates the body of a loop, whose cells become values and whose short loops are written out.

A body is walked twice. `Gathering` evaluates all that is known, loads what the argument has at the indices that it
meets, and keeps what it has evaluated. `Local` evaluates the rest as a pure function of what was loaded, which JAX
differentiates: no memory is left in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from qdtrace.frozen import mutable
from qdtrace.sparse.reading import type_of
from qdtrace.trace import compat, markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.structure import static_bounds
from qdtrace.trace.tree import body_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.sparse.reading import Reading
    from qdtrace.trace.compat import JaxprEqn

_WRITES = {markers.store_p, markers.accum_p}


@mutable(eq=False)
class Walk(ABC):
    """A walk through a body."""

    reading: Reading
    env: dict[Any, Any]
    cells: dict[Any, Any] = field(default_factory=dict[Any, Any])
    path: tuple[int, ...] = ()
    """The iterations of the loops that are written out."""

    def value(self, atom: Any) -> Any:
        """Returns the value of an atom."""
        return atom.val if isinstance(atom, Literal) else self.env[atom]

    def is_active(self, eqn: JaxprEqn) -> bool:
        """Returns whether an equation depends on the argument."""
        return any(not isinstance(a, Literal) and a in self.reading.active for a in eqn.invars)

    def run(self, items: Sequence[JaxprEqn]) -> None:
        """Evaluates equations."""
        for eqn in items:
            primitive = eqn.primitive
            if primitive is markers.for_p:
                self._written_out(eqn)
            elif primitive is markers.when_p:
                self.when(eqn)
            elif primitive is markers.reach_p:
                pass  # no value depends on it
            elif primitive is markers.check_p:
                self.check(eqn)
            elif primitive in _WRITES:
                self.write(eqn)
            elif primitive is markers.load_p:
                self.load(eqn)
            elif primitive in (markers.local_p, markers.lset_p):
                self.change_cell(eqn)
            elif self.is_active(eqn):
                self.active(eqn)
            else:
                self.known(eqn)

    def _written_out(self, region: JaxprEqn) -> None:
        trips = static_bounds(region)
        assert trips is not None  # `reading` refuses others
        path, jaxpr = self.path, body_of(region)
        for k in trips:
            self.path = (*path, k)
            self.env[jaxpr.invars[0]] = np.int32(k)
            self.run(jaxpr.eqns)
        self.path = path

    def evaluate(self, eqn: JaxprEqn) -> None:
        """Evaluates an equation of values or cells."""
        if eqn.primitive is markers.lget_p:
            self.env[eqn.outvars[0]] = _at(self.cells[eqn.invars[0]], self._index(eqn, 1))
            return
        with compat.source_info_util.user_context(eqn.source_info.traceback):
            out = compat.bind_eqn(eqn, [self.value(a) for a in eqn.invars])
        self.env.update(zip(eqn.outvars, out, strict=True))

    def _index(self, eqn: JaxprEqn, first: int) -> tuple[Any, ...]:
        indices = iter(eqn.invars[first:])
        return tuple(self.value(next(indices)) if s is None else slice(*s) for s in eqn.params["slices"])

    def set_cell(self, eqn: JaxprEqn) -> None:
        """Evaluates the making of a cell, or a store into one."""
        if eqn.primitive is markers.local_p:
            self.cells[eqn.outvars[0]] = jnp.asarray(self.value(eqn.invars[0]), type_of(eqn.outvars[0]).dtype)
            return
        cell, index, value = eqn.invars[0], self._index(eqn, 2), self.value(eqn.invars[1])
        old = self.cells[cell]
        self.cells[cell] = jnp.asarray(value, old.dtype) if not index else old.at[index].set(value)

    # What the two walks do.
    @abstractmethod
    def write(self, eqn: JaxprEqn) -> None:
        """Meets a store or an accumulation."""

    @abstractmethod
    def check(self, eqn: JaxprEqn) -> None:
        """Meets a check."""

    @abstractmethod
    def load(self, eqn: JaxprEqn) -> None:
        """Meets a load."""

    @abstractmethod
    def when(self, region: JaxprEqn) -> None:
        """Meets a condition."""

    @abstractmethod
    def change_cell(self, eqn: JaxprEqn) -> None:
        """Meets the making of a cell, or a store into one."""

    @abstractmethod
    def active(self, eqn: JaxprEqn) -> None:
        """Meets an equation that depends on the argument."""

    @abstractmethod
    def known(self, eqn: JaxprEqn) -> None:
        """Meets one that does not."""


def _at(content: Any, index: tuple[Any, ...]) -> Any:
    return content[index] if index else content
