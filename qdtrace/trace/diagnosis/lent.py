"""Buffers that functions of JAX got as arguments, changed and gave back, as in `y = lax.fori_loop(0, n, body, x)`.

In JAX x and y are two arrays, and here one piece of memory: JAX makes another object for it. The use of both is
refused, as after `y = x.at[k].set(v)` (`aliases`).
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from qdtrace.frozen import mutable
from qdtrace.trace.compat import trace_of

if TYPE_CHECKING:
    from qdtrace.trace.diagnosis.swaps import Memory


@mutable(eq=False)
class Loan:
    """A buffer that was flattened, and what has been done since."""

    buffer: Memory
    first: int
    """Number of changes before."""
    is_used: bool = False
    """True once the buffer was used under its own name, so in the function that JAX calls."""


@mutable(eq=False)
class Loans:
    """The buffers of a trace that were flattened, and the changes by `b.at[k].set(v)` whose result is used."""

    last: dict[int, Loan] = field(default_factory=dict[int, Loan])
    """The last loan of each tracer, by identity."""
    changes: list[tuple[str, Memory]] = field(default_factory=list["tuple[str, Memory]"])
    """Method and buffer of each change."""
    given: dict[object, list[int]] = field(default_factory=dict[object, "list[int]"])
    """The tracers, by identity, of the buffers that a function of JAX gets, in order, by its trace."""

    def lend(self, buffer: Memory) -> None:
        """Notes a buffer that is flattened."""
        self.last.pop(id(buffer.tracer), None)  # the last one is the last in order, too
        self.last[id(buffer.tracer)] = Loan(buffer, len(self.changes))

    def use(self, buffer: Memory) -> None:
        """Notes the use of a buffer."""
        loan = self.last.get(id(buffer.tracer))
        if loan is not None and loan.buffer is buffer:
            loan.is_used = True

    def returned(self, made: Memory) -> tuple[Loan, str] | None:
        """Returns the loan that JAX made an object for, and the method that changed it in between; None for others.

        The result of a loop of unknown length has a tracer of its own: it is the one buffer of its form that was lent
        last.
        """
        trace = trace_of(made.tracer)
        lent = [one for one in self.last.values() if trace_of(one.buffer.tracer) is trace]
        if not lent:
            self.given.setdefault(trace, []).append(id(made.tracer))
            return None
        if (loan := self.last.get(id(made.tracer))) is None:
            latest = max(one.first for one in lent)
            loans = [one for one in lent if one.first == latest and _form(one.buffer) == _form(made)]
            if len(loans) != 1:
                return None
            (loan,) = loans
        for method, inner in self.changes[loan.first :]:
            if trace_of(inner.tracer) is not trace and _form(inner) == _form(made):
                own = self._lent_for(inner, lent)
                if own is None or own is loan or _form(own.buffer) != _form(inner):
                    return loan, method
        return None

    def _lent_for(self, inner: Memory, lent: list[Loan]) -> Loan | None:
        """Returns which of the last loans a function of JAX got as `inner`; None if that is no argument of it."""
        given = self.given.get(trace_of(inner.tracer), [])
        if id(inner.tracer) not in given or len(given) > len(lent):
            return None
        return lent[given.index(id(inner.tracer)) - len(given)]


def _form(buffer: Memory) -> tuple[object, object]:
    return buffer.shape, buffer.dtype
