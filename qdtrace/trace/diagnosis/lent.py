"""Buffers that functions of JAX got as arguments, changed and gave back, as in `y = lax.fori_loop(0, n, body, x)`.

In JAX x and y are two arrays, and here one piece of memory: JAX makes another object for it. The use of both is
refused, as after `y = x.at[k].set(v)` (`aliases`).

JAX calls a function of `jax.jit` once for arguments of one kind, and then takes the jaxpr that it has made: what the
function changes is remembered by that.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from qdtrace.frozen import mutable
from qdtrace.trace.compat import (
    equations_since,
    inner_jaxprs,
    last_equation,
    open_jaxpr,
    recorded,
    trace_of,
    variable_of,
)
from qdtrace.trace.forwarding import origin_of
from qdtrace.trace.markers import BUFFER_ACCESSES, READS

if TYPE_CHECKING:
    from qdtrace.trace.diagnosis.swaps import Memory
    from qdtrace.trace.jaxprs import Jaxpr

_CHANGED: WeakKeyDictionary[Jaxpr, dict[int, str]] = WeakKeyDictionary()
"""The methods that change arguments of functions that JAX has called, by their places, counted from the end."""


@mutable(eq=False)
class Loan:
    """A buffer that was flattened, and what has been done since."""

    buffer: Memory
    first: int
    """Number of changes before."""
    is_used: bool = False
    """True once the buffer was used under its own name, so in the function that JAX calls."""
    recorded: int = 0
    """Number of equations of its trace before."""
    is_written: bool = False
    """True once Python has stored into it."""


@mutable(eq=False)
class Loans:
    """The buffers of a trace that were flattened, and the changes by `b.at[k].set(v)` whose result is used."""

    last: dict[int, Loan] = field(default_factory=dict[int, Loan])
    """The last loan of each tracer, by identity."""
    changes: list[tuple[str, Memory]] = field(default_factory=list["tuple[str, Memory]"])
    """Method and buffer of each change."""
    told: dict[int, object] = field(default_factory=dict[int, object])
    """The trace, by the number of a change, at whose level a later change stands for it."""
    given: dict[object, list[int]] = field(default_factory=dict[object, "list[int]"])
    """The tracers, by identity, of the buffers that a function of JAX gets, in order, by its trace."""

    def lend(self, buffer: Memory) -> None:
        """Notes a buffer that is flattened."""
        self.last.pop(id(buffer.tracer), None)  # the last one is the last in order, too
        self.last[id(buffer.tracer)] = Loan(buffer, len(self.changes), recorded=len(recorded(trace_of(buffer.tracer))))

    def use(self, buffer: Memory) -> None:
        """Notes the use of a buffer."""
        loan = self.last.get(id(buffer.tracer))
        if loan is not None and loan.buffer is buffer:
            loan.is_used = True

    def write(self, buffer: Memory) -> None:
        """Notes a store by Python."""
        if (loan := self.last.get(id(buffer.tracer))) is not None:
            loan.is_written = True

    def returned(self, made: Memory) -> tuple[Loan, str] | None:
        """Returns the loan that JAX made an object for, and the method that changed it in between; None for others."""
        trace = trace_of(made.tracer)
        lent = [one for one in self.last.values() if trace_of(one.buffer.tracer) is trace]
        if not lent:
            self.given.setdefault(trace, []).append(id(made.tracer))
            return None
        loan = self.last.get(id(made.tracer)) or self._behind(made, lent)
        if loan is None:
            return None
        method = self._change_by_call(loan) or self._change_since(loan, made, lent) or _change_inlined(loan)
        if method is None:
            return None
        self.changes.append((method, loan.buffer))  # and whoever calls this function changes what it gives
        return loan, method

    def _behind(self, made: Memory, lent: list[Loan]) -> Loan | None:
        """Returns the loan that a result with a tracer of its own is: that of a loop of unknown length, or of a call.

        If JAX has hidden that, it is the one buffer of its form that was lent last.
        """
        if (last := last_equation(trace_of(made.tracer))) is not None:
            by_handle = {variable_of(one.buffer.tracer): one for one in lent}
            if (handle := origin_of(variable_of(made.tracer), last[0], {*by_handle})) is not None:
                return by_handle[handle]
        latest = max(one.first for one in lent)
        loans = [one for one in lent if one.first == latest and _form(one.buffer) == _form(made)]
        return loans[0] if len(loans) == 1 else None

    def _change_by_call(self, loan: Loan) -> str | None:
        """Returns the method by which the function that JAX has just called changed a loan; None if none is known."""
        if (last := last_equation(trace_of(loan.buffer.tracer))) is None:
            return None
        eqn, operands = last
        for jaxpr in map(open_jaxpr, inner_jaxprs(eqn)):
            changed = _CHANGED.setdefault(jaxpr, {})
            places = {variable: k for k, variable in enumerate(jaxpr.invars, -len(jaxpr.invars))}
            for method, inner in self.changes[loan.first :]:
                if (place := places.get(variable_of(inner.tracer))) is not None:
                    changed.setdefault(place, method)
            for place, method in changed.items():
                if -place <= len(operands) and self.last.get(id(operands[place])) is loan:
                    return method
        return None

    def _change_since(self, loan: Loan, made: Memory, lent: list[Loan]) -> str | None:
        """Returns the method that changed a buffer of the form of a loan's, which may be another one of the function
        where JAX has given that other variables."""
        trace = trace_of(made.tracer)
        for k, (method, inner) in enumerate(self.changes[loan.first :], loan.first):
            told = self.told.get(k, trace)
            if trace_of(inner.tracer) is not trace and told is trace and _form(inner) == _form(made):
                own = self._lent_for(inner, lent)
                if own is None or own is loan or _form(own.buffer) != _form(inner):
                    self.told[k] = trace
                    return method
        return None

    def _lent_for(self, inner: Memory, lent: list[Loan]) -> Loan | None:
        """Returns which of the last loans a function of JAX got as `inner`; None if that is no argument of it."""
        given = self.given.get(trace_of(inner.tracer), [])
        if id(inner.tracer) not in given or len(given) > len(lent):
            return None
        return lent[given.index(id(inner.tracer)) - len(given)]


def _change_inlined(loan: Loan) -> str | None:
    """Returns "set" where JAX has recorded a store that Python did not: of a function of `jax.jit(inline=True)`."""
    made = () if loan.is_written else equations_since(trace_of(loan.buffer.tracer), loan.recorded)
    stores = (e for e in made if e.primitive in BUFFER_ACCESSES - READS)
    return "set" if any(e.in_tracers[0] is loan.buffer.tracer for e in stores) else None


def _form(buffer: Memory) -> tuple[object, object]:
    return buffer.shape, buffer.dtype
