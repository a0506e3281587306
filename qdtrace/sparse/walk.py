"""Evaluates the body of a loop, whose cells become values and whose short loops are written out.

A body is walked twice. `Gathering` evaluates all that is known, loads what the argument has at the indices that it
meets, and keeps what it has evaluated. `Local` evaluates the rest as a pure function of what was loaded, which JAX
differentiates: no memory is left in it.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.sparse.layouts import layout_of
from qdtrace.sparse.reading import static_bounds, type_of
from qdtrace.trace import compat, markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.tree import body_of, bounds_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.sparse.reading import Reading
    from qdtrace.trace.compat import JaxprEqn

_WRITES = {markers.store_p, markers.accum_p}


@dataclass(eq=False)
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


@dataclass(eq=False)
class Gathering(Walk):
    """The walk that finds places. Active values are computed, too, if `values`: conditions may need them."""

    values: bool = False
    guard: Any = None
    is_unsure: bool = False
    """True below a condition that is active and has no value here."""
    entries: list[Any] = field(default_factory=list[Any])
    """The values of the argument's loads, if `values`."""
    read: list[Any] = field(default_factory=list[Any])
    """First elements or rows of these loads; -1 where one is not made."""
    written: list[Any] = field(default_factory=list[Any])
    """The same of writes of outputs."""
    weights: list[Any] = field(default_factory=list[Any])
    """Changes of the result by changes of the written elements, if `adjoints` are given."""
    adjoints: Mapping[Any, Any] = field(default_factory=dict[Any, Any])
    kept: dict[Any, list[Any]] = field(default_factory=dict[Any, "list[Any]"])

    def key(self, eqn: JaxprEqn) -> Any:
        """Returns what tells an equation in an iteration of loops that are written out."""
        return id(eqn), self.path

    def known(self, eqn: JaxprEqn) -> None:
        self.evaluate(eqn)
        self.kept[self.key(eqn)] = [self.env[v] for v in eqn.outvars]

    def active(self, eqn: JaxprEqn) -> None:
        if self.values:
            self.evaluate(eqn)

    def check(self, eqn: JaxprEqn) -> None:
        if self.values:
            holds = self.value(eqn.invars[0])
            with compat.source_info_util.user_context(eqn.source_info.traceback):
                holds = holds if self.guard is None else holds | ~self.guard
                markers.check_p.bind(holds, **eqn.params)

    def change_cell(self, eqn: JaxprEqn) -> None:
        if self.values or self._cell_of(eqn) not in self.reading.active:
            self.set_cell(eqn)

    def _cell_of(self, eqn: JaxprEqn) -> Any:
        return eqn.outvars[0] if eqn.primitive is markers.local_p else eqn.invars[0]

    def load(self, eqn: JaxprEqn) -> None:
        is_entry = eqn.invars[0] is self.reading.handle
        if is_entry:
            self.read.append(self._first(eqn, 1))
            if not self.values:
                return
        out = self._loaded(self.env[eqn.invars[0]], eqn, 1)
        self.env[eqn.outvars[0]] = out
        if is_entry:
            self.entries.append(out)
        else:
            self.kept[self.key(eqn)] = [out]

    def write(self, eqn: JaxprEqn) -> None:
        self.written.append(self._first(eqn, 2))
        if self.adjoints:
            adjoint = self.adjoints[eqn.invars[0]]
            self.weights.append(self._loaded(adjoint, eqn, 2) if adjoint.ndim else adjoint)

    def _loaded(self, handle: Any, eqn: JaxprEqn, first: int) -> Any:
        with compat.source_info_util.user_context(eqn.source_info.traceback):
            return markers.load_p.bind(handle, *self._safe(eqn, first), slices=eqn.params["slices"])

    def when(self, region: JaxprEqn) -> None:
        (predicate,) = bounds_of(region)
        before = self.guard, self.is_unsure, dict(self.cells)
        if self.values or isinstance(predicate, Literal) or predicate not in self.reading.active:
            taken = self.value(predicate)
            self.guard = taken if self.guard is None else self.guard & taken
        else:
            self.is_unsure = True
        self.run(body_of(region).eqns)
        self.guard, self.is_unsure, cells = before[0], before[1], before[2]
        for cell, old in cells.items():
            if self.cells[cell] is not old:
                self.cells[cell] = jnp.where(self.value(predicate), self.cells[cell], old)

    def _dynamic(self, eqn: JaxprEqn, first: int) -> list[tuple[int, Any]]:
        axes = [axis for axis, s in enumerate(eqn.params["slices"]) if s is None]
        shape = type_of(eqn.invars[0]).shape
        return [(shape[axis], self.value(a)) for axis, a in zip(axes, eqn.invars[first:], strict=True)]

    def _safe(self, eqn: JaxprEqn, first: int) -> list[Any]:
        """Returns indices that stay inside where the access is not made."""
        found = self._dynamic(eqn, first)
        if self.is_unsure:
            return [jnp.clip(jnp.asarray(i), 0, n - 1) for n, i in found]
        return [i if self.guard is None else jnp.where(self.guard, i, 0) for _, i in found]

    def _first(self, eqn: JaxprEqn, first: int) -> Any:
        guard = self.guard
        found = self._dynamic(eqn, first)
        if self.is_unsure:
            inside = functools.reduce(lambda a, b: a & b, [(i >= 0) & (i < n) for n, i in found], jnp.bool_(True))
            guard = inside if guard is None else guard & inside
        begin = layout_of(eqn).first([i for _, i in found])
        return begin if guard is None else jnp.where(guard, begin, -1)


@dataclass(eq=False)
class Local(Walk):
    """The walk of a pure function: `entries` are what the argument's loads give, in their order."""

    kept: dict[Any, list[Any]] = field(default_factory=dict[Any, "list[Any]"])
    entries: list[Any] = field(default_factory=list[Any])
    outs: list[Any] = field(default_factory=list[Any])
    """Values that were written."""

    def known(self, eqn: JaxprEqn) -> None:
        self.env.update(zip(eqn.outvars, self.kept[id(eqn), self.path], strict=True))

    def active(self, eqn: JaxprEqn) -> None:
        self.evaluate(eqn)

    def check(self, eqn: JaxprEqn) -> None:
        """Leaves a check to the other walk, which makes it once."""

    def change_cell(self, eqn: JaxprEqn) -> None:
        self.set_cell(eqn)

    def load(self, eqn: JaxprEqn) -> None:
        if eqn.invars[0] is self.reading.handle:
            self.env[eqn.outvars[0]] = self.entries.pop(0)
        else:
            self.known(eqn)

    def write(self, eqn: JaxprEqn) -> None:
        handle, value = eqn.invars[:2]
        shape = tuple(len(range(*s)) for s in eqn.params["slices"] if s is not None)
        self.outs.append(jnp.broadcast_to(jnp.asarray(self.value(value), type_of(handle).dtype), shape))

    def when(self, region: JaxprEqn) -> None:
        before, outer, entries = dict(self.cells), self.outs, list(self.entries)

        def taken() -> Any:
            self.outs = []
            self.run(body_of(region).eqns)
            found = [self.cells[c] for c in before], self.outs
            self.cells = dict(before)
            return found

        def left() -> Any:
            return [*before.values()], [jnp.zeros(s.shape, s.dtype) for s in shapes[1]]

        shapes = jax.eval_shape(taken)
        self.entries = entries
        cells, outs = lax.cond(self.value(bounds_of(region)[0]), taken, left)
        self.cells = dict(zip(before, cells, strict=True))
        self.outs = [*outer, *outs]
