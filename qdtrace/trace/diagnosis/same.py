"""Comparison of two traces of the same code: whether they recorded the same equations, and the first difference.

Variables are paired as they are bound; what is bound elsewhere must be the very same, or a constant with equal content.
"""

from __future__ import annotations

import enum
from itertools import zip_longest
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.frozen import frozen
from qdtrace.trace import compat, markers
from qdtrace.trace.compat import JaxprEqn, Literal, Var

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from qdtrace.trace.jaxprs import AnyJaxpr, Atom


_OWN_PARAMS = ("uid", "loc", "called")
"""Parameters of markers that no two traces share."""
_ENDS = {*markers.ENDS, markers.again_end_p}


@frozen
class Difference:
    """The first equations at which two lists differ; None for a list that has ended."""

    one: JaxprEqn | None
    two: JaxprEqn | None
    is_reference: bool = False
    """True if operands are values of different places, and not only different constants."""


class Comparison:
    """Pairs the variables of two traces."""

    def __init__(
        self,
        one: Mapping[Var, object] | None = None,
        two: Mapping[Var, object] | None = None,
        left_out: frozenset[int] = frozenset(),
        around: Comparison | None = None,
    ) -> None:
        self.pairs: dict[Var, Var] = {}
        self._one = one or {}
        self._two = two or {}
        """Constant variables of each trace with their values."""
        self._left_out = left_out
        """Regions of the first trace (by uid) that the second one does not have."""
        self._free: tuple[set[Var], set[Var]] = set(), set()
        """Inputs that may be paired as they are met."""
        self._around = around
        """Comparison of the equations with a parameter that holds these jaxprs."""

    def equations(
        self, one: Sequence[JaxprEqn], two: Sequence[JaxprEqn], ignored: Container[int] = ()
    ) -> Difference | None:
        """Returns the first difference, but for operands of those of `one` that are ignored (by identity)."""
        for a, b in zip_longest(_without(one, self._is_left_out), two):
            if a is not None and b is not None and self._left_out and not self._left_out.isdisjoint(regions_in(a)):
                found = self._inner(a, b)
                if found is not None:
                    return found
                self.pair(a.outvars, b.outvars)
                continue
            if a is None or b is None or not self._same_operation(a, b):
                return Difference(a, b)
            for x, y in zip(a.invars, b.invars, strict=True):
                if not self.same_atom(x, y) and id(a) not in ignored:
                    return Difference(a, b, isinstance(x, Var) or isinstance(y, Var))
            self.pair(a.outvars, b.outvars)
        return None

    def _is_left_out(self, eqn: JaxprEqn) -> bool:
        return eqn.primitive in markers.BEGINS and eqn.params["uid"] in self._left_out

    def _inner(self, a: JaxprEqn, b: JaxprEqn) -> Difference | None:
        """Compares control flow that holds a region which is left out, so that it may capture fewer values."""
        if a.primitive is not b.primitive or len(a.outvars) != len(b.outvars):
            return Difference(a, b)
        for x, y in zip(compat.inner_jaxprs(a), compat.inner_jaxprs(b), strict=True):
            mine, theirs = compat.open_jaxpr(x), compat.open_jaxpr(y)
            if mine is theirs:
                continue  # JAX has kept the first trace
            inner = Comparison(constants(x), constants(y), self._left_out, self)
            inner._free = set(mine.invars), set(theirs.invars)
            found = inner.equations(without_second_trips(mine.eqns), without_second_trips(theirs.eqns))
            if found is not None:
                return found
            if not all(map(inner.same_atom, mine.outvars, theirs.outvars)):
                return Difference(a, b)
        return None

    def pair(self, one: Sequence[Var], two: Sequence[Var]) -> None:
        """Notes that these mean the same."""
        self.pairs.update(zip(one, two, strict=True))

    def same_atom(self, x: Atom, y: Atom) -> bool:
        """Returns whether two operands mean the same value."""
        if isinstance(x, Literal) or isinstance(y, Literal):
            return isinstance(x, Literal) and isinstance(y, Literal) and x.aval == y.aval and _same_value(x.val, y.val)
        if x in self.pairs:
            return self.pairs[x] is y
        if x is y:
            return True
        if x in self._free[0] and y in self._free[1] and x.aval == y.aval:
            self._free[1].discard(y)
            self.pairs[x] = y
            return True
        return x in self._one and y in self._two and self._same_constant(self._one[x], self._two[y])

    def _same_constant(self, a: object, b: object) -> bool:
        """Returns whether constants mean the same; a jaxpr in a parameter may have captured a traced value as one."""
        if a is b or not (isinstance(a, compat.Tracer) and isinstance(b, compat.Tracer)):
            return _same_value(a, b)
        x, y = compat.variable_of(a), compat.variable_of(b)
        around: Comparison | None = self
        while around is not None:
            if x in around.pairs or any(y is v for v in around.pairs.values()):
                return around.pairs.get(x) is y
            around = around._around
        # neither is bound here: values of two traces that have ended, or of the one around both
        return compat.trace_of(a) is not compat.trace_of(b) and a.aval == b.aval

    def _same_operation(self, a: JaxprEqn, b: JaxprEqn) -> bool:
        return (
            a.primitive is b.primitive
            and len(a.invars) == len(b.invars)
            and len(a.outvars) == len(b.outvars)
            and a.params.keys() == b.params.keys()
            and all(_same_param(v, b.params[k], self) for k, v in a.params.items() if k not in _OWN_PARAMS)
        )


def same_jaxpr(one: AnyJaxpr, two: AnyJaxpr, around: Comparison | None = None) -> bool:
    """Returns whether two jaxprs, open or closed, compute the same; second trips inside of them do not count.

    `around` compares the equations that hold them.
    """
    a, b = compat.open_jaxpr(one), compat.open_jaxpr(two)
    if a is b and compat.constants_of(one) is compat.constants_of(two):
        return True
    if len(a.invars) != len(b.invars) or len(a.outvars) != len(b.outvars):
        return False
    if any(x.aval != y.aval for x, y in zip(a.invars, b.invars, strict=True)):
        return False
    comparison = Comparison(constants(one), constants(two), around=around)
    comparison.pair(a.invars, b.invars)
    if len(a.constvars) == len(b.constvars) and not compat.constants_of(one):
        comparison.pair(a.constvars, b.constvars)
    if comparison.equations(without_second_trips(a.eqns), without_second_trips(b.eqns)) is not None:
        return False
    return all(comparison.same_atom(x, y) for x, y in zip(a.outvars, b.outvars, strict=True))


def constants(jaxpr: AnyJaxpr) -> dict[Var, object]:
    """Returns the constant variables of a jaxpr with their values."""
    return dict(zip(compat.open_jaxpr(jaxpr).constvars, compat.constants_of(jaxpr), strict=False))


def without_second_trips(eqns: Sequence[JaxprEqn]) -> Sequence[JaxprEqn]:
    """Returns the equations without those of second trips."""
    return _without(eqns, lambda eqn: eqn.primitive is markers.again_p)


def _without(eqns: Sequence[JaxprEqn], begins: Callable[[JaxprEqn], bool]) -> Sequence[JaxprEqn]:
    """Returns the equations without those from one that `begins` to the end marker of its region."""
    kept: list[JaxprEqn] = []
    begin: JaxprEqn | None = None
    for eqn in eqns:
        if begin is not None:
            ends = eqn.primitive in _ENDS and eqn.params["uid"] == begin.params["uid"]
            begin = None if ends else begin
        elif begins(eqn):
            begin = eqn
        else:
            kept.append(eqn)
    return kept


def regions_in(eqn: JaxprEqn) -> set[int]:
    """Returns regions that the equation begins, or holds in an inner jaxpr, by uid."""
    return {one.params["uid"] for one in compat.all_eqns([eqn]) if one.primitive in markers.BEGINS}


def _same_param(a: object, b: object, around: Comparison) -> bool:
    if a is b:
        return True
    if compat.is_jaxpr(a) and compat.is_jaxpr(b):
        return same_jaxpr(a, b, around)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_same_param(v, w, around) for v, w in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same_param(v, b[k], around) for k, v in a.items())
    if isinstance(a, _VALUES) and isinstance(b, _VALUES):
        return _same_value(a, b)
    # What is left are functions and other objects made anew by each trace, which JAX keeps beside a jaxpr.
    return type(a) is type(b)


_VALUES = (bool, int, float, complex, str, bytes, np.generic, np.ndarray, np.dtype, enum.Enum, jax.Array)


def _same_value(a: object, b: object) -> bool:
    if a is b:
        return True
    if isinstance(a, compat.Tracer) or isinstance(b, compat.Tracer):
        return False
    if isinstance(a, (np.ndarray, jax.Array, np.generic)) and isinstance(b, (np.ndarray, jax.Array, np.generic)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if jnp.issubdtype(a.dtype, jax.dtypes.extended):
            a, b = jax.random.key_data(a), jax.random.key_data(b)  # type: ignore[arg-type]
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()
    if isinstance(a, (float, complex)) and type(a) is type(b):
        return repr(a) == repr(b)
    return type(a) is type(b) and bool(a == b)
