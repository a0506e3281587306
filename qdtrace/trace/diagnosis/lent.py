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

    def lend(self, buffer: Memory) -> None:
        """Notes a buffer that is flattened."""
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
        if (loan := self.last.get(id(made.tracer))) is None:
            trace = trace_of(made.tracer)
            loans = [one for one in self.last.values() if trace_of(one.buffer.tracer) is trace]
            latest = max((one.first for one in loans), default=0)
            loans = [one for one in loans if one.first == latest and _form(one.buffer) == _form(made)]
            if len(loans) != 1:
                return None
            (loan,) = loans
        for method, inner in self.changes[loan.first :]:
            if trace_of(inner.tracer) is not trace_of(made.tracer) and _form(inner) == _form(made):
                return loan, method
        return None


def _form(buffer: Memory) -> tuple[object, object]:
    return buffer.shape, buffer.dtype
