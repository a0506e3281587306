"""Proof that two variables of a jaxpr whose regions are being built have one value.

`h[k] += v` names its element twice, once for the load and once for the store, and each time whatever the index needs
is recorded anew: the conversion of a narrow integer, the read of a cell or of a buffer, arithmetic in a `__getitem__`
of the user's. Equations that do the same to equal operands give equal values; reads do so while nothing is written.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.frozen import mutable
from qdtrace.trace import markers
from qdtrace.trace.compat import JaxprEqn, Literal, Tracer, Var

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from jax.typing import ArrayLike

    from qdtrace.trace.jaxprs import Atom
    from qdtrace.trace.structure import OpenBody

_LIMIT = 1000
"""Most pairs of variables to look at. Indices need few; values that need more are taken for different."""


@mutable
class History:
    """Record of equations, constants, reads and writes so far."""

    makers: dict[Var, JaxprEqn] = field(default_factory=dict)
    constants: dict[Var, ArrayLike] = field(default_factory=dict[Var, "ArrayLike"])
    reads: dict[Var, tuple[OpenBody, int]] = field(default_factory=dict)
    """Result of a load or read -> its region and time."""
    writes: dict[Var, int] = field(default_factory=dict)
    """Handle -> time of the last equation that may have written it."""

    def read(self, value: Var) -> tuple[OpenBody | None, bool]:
        """Returns the region in which a value was read (None: it is no read), and whether memory still holds it."""
        if isinstance(value, Literal) or value not in self.reads:
            return None, False
        home, time = self.reads[value]
        handle: Any = self.makers[value].invars[0]
        return home, time > self.writes.get(handle, 0)

    def all_equal(self, first: Sequence[Atom], second: Sequence[Atom]) -> bool:
        """Returns whether each atom of one list surely has the value of its partner in the other."""
        work: list[tuple[Atom, Atom]] = []
        seen: set[tuple[Var, Var]] = set()

        def add(a: Sequence[Atom], b: Sequence[Atom]) -> bool:
            if len(a) != len(b):
                return False
            work.extend((x, y) for x, y in zip(a, b, strict=True) if x is not y)
            return True

        if not add(first, second):
            return False
        while work:
            a, b = work.pop()
            if isinstance(a, Literal) or isinstance(b, Literal) or a in self.constants or b in self.constants:
                if not self._equal_constants(a, b):
                    return False
                continue
            if (a, b) in seen:
                continue
            seen.add((a, b))
            make_a, make_b = self.makers.get(a), self.makers.get(b)
            if make_a is None or make_b is None or len(seen) > _LIMIT:
                return False
            if make_a.outvars.index(a) != make_b.outvars.index(b) or not self._do_the_same(make_a, make_b, a, b):
                return False
            if not add(make_a.invars, make_b.invars):
                return False
        return True

    def _equal_constants(self, a: Atom, b: Atom) -> bool:
        if not all(isinstance(x, Literal) or x in self.constants for x in (a, b)):
            return False
        x, y = (v.val if isinstance(v, Literal) else self.constants[v] for v in (a, b))
        if a.aval.shape != b.aval.shape or a.aval.dtype != b.aval.dtype or isinstance(x, Tracer):
            return False
        return x is y or (a.aval.size == 1 and bool(np.asarray(x) == np.asarray(y)))

    def _do_the_same(self, first: JaxprEqn, second: JaxprEqn, a: Var, b: Var) -> bool:
        if first.primitive is not second.primitive or not _same_params(first.params, second.params):
            return False
        if first.primitive in markers.READS:
            (home, early), (other, late) = self.reads[a], self.reads[b]
            handle: Any = first.invars[0]
            return home is other and min(early, late) > self.writes.get(handle, 0)
        return not first.effects


def _same_params(a: dict[str, object], b: dict[str, object]) -> bool:
    try:
        return a is b or bool(a == b)
    except ValueError:  # an array among them: not equal by itself
        return False
