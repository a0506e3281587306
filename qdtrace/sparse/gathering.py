"""The walk of a body that evaluates what is known, and finds which elements are loaded and written."""

from __future__ import annotations

import functools
from dataclasses import field
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from qdtrace.frozen import mutable
from qdtrace.sparse.layouts import layout_of
from qdtrace.sparse.reading import type_of
from qdtrace.sparse.walk import Walk
from qdtrace.trace import compat, markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.tree import body_of, bounds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.trace.compat import JaxprEqn


@mutable(eq=False)
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
        cell = eqn.outvars[0] if eqn.primitive is markers.local_p else eqn.invars[0]
        if self.values or cell not in self.reading.active:
            self.set_cell(eqn)

    def load(self, eqn: JaxprEqn) -> None:
        is_entry = eqn.invars[0] is self.reading.handle
        if is_entry:
            self.read.append(self._first(eqn, 1))
            if not self.values:
                self._reach(eqn, 1)
                return
        out = self._loaded(self.env[eqn.invars[0]], eqn, 1)
        self.env[eqn.outvars[0]] = out
        if is_entry:
            self.entries.append(out)
        else:
            self.kept[self.key(eqn)] = [out]

    def write(self, eqn: JaxprEqn) -> None:
        self.written.append(self._first(eqn, 2))
        if not self.values:
            self._reach(eqn, 2)
        if self.adjoints:
            adjoint = self.adjoints[eqn.invars[0]]
            self.weights.append(self._loaded(adjoint, eqn, 2) if adjoint.ndim else adjoint)

    def _reach(self, eqn: JaxprEqn, first: int) -> None:
        """Checks the indices of an access that is not made: places of a pattern are inside of arrays."""
        with compat.source_info_util.user_context(eqn.source_info.traceback):
            markers.reach_p.bind(self.env[eqn.invars[0]], *self._safe(eqn, first), slices=eqn.params["slices"])

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
