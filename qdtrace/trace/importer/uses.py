"""Who reads the results of equations: what may be written over, what may wait for its reader, and what is dead.

The value of an elementwise equation waits when one equation reads it, and reads each element once: then both are one
loop, and no temporary lies in memory between them.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.trace import compat
from qdtrace.trace.importer.values import Formula, Value, hold
from qdtrace.trace.markers import REGIONS
from qdtrace.trace.pruning import prune
from qdtrace.trace.rows import ELEMENTWISE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from qdtrace.trace.compat import Jaxpr, JaxprEqn, Var
    from qdtrace.trace.jaxprs import Atom

_VIEWS = frozenset(("reshape", "squeeze", "transpose", "rev", "copy"))
_SPREADING = _VIEWS | {"broadcast_in_dim", "stop_gradient"}
_ONCE = frozenset(
    ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor", "argmax",
     "argmin", "cumsum", "cumprod", "cummax", "cummin", "qd_store", "qd_lset")
)  # fmt: skip


@frozen(eq=False)
class Uses:
    """The reads of one list of equations (or of regions among them)."""

    eqns: Sequence[JaxprEqn]
    """The equations, without those that no result depends on: derivatives leave such, and failing in one that JAX drops
    would be wrong."""
    last: Mapping[Var, int]
    """Position of the last equation that reads a variable; behind all for a result."""
    reader: Mapping[Var, JaxprEqn]
    """The equation that reads a variable, where it is one, once."""

    def release(self, position: int, eqn: JaxprEqn, held: dict[Var, Value]) -> list[Value]:
        """Lets go of operands that no later equation reads, unless this one reads them twice, by one name or by two.

        Gives those among them that show other arrays: these must not change before the equation has read them.
        """
        shown: list[Value] = []
        operands = [v for v in eqn.invars if not isinstance(v, compat.Literal) and v in held]
        read = Counter(id(held[v]) for v in operands)
        for var in operands:
            if self.last.get(var) == position and read[id(held[var])] == 1:
                value = held.pop(var)
                if isinstance(value, Formula):
                    shown.append(value)
                else:
                    hold(value, -1)
        return shown

    def may_wait(self, eqn: JaxprEqn) -> bool:
        """Returns whether the value of an equation may be computed where it is read."""
        return eqn.primitive.name in ELEMENTWISE and self._is_read_once(eqn.outvars[0])

    def is_spread(self, var: Var, least: int) -> bool:
        """Returns whether an array is read once, as numbers of rows of a larger one, of more than `least` elements.

        Between them are views, and functions of an element and of numbers.
        """
        reader = self.reader.get(var)
        if reader is None:
            return False
        if reader.primitive is compat.jit_p:
            uses, parameter = _inside(reader, var)
            return uses.is_spread(parameter, least)
        if reader.primitive.name in _SPREADING:
            return self.is_spread(reader.outvars[0], least)
        if reader.primitive.name not in ELEMENTWISE:
            return False
        (out,) = reader.outvars
        if out.aval.size > least and any(v.aval.size > least for v in reader.invars if v is not var):
            return True
        return all(v is var or v.aval.size == 1 for v in reader.invars) and self.is_spread(out, least)

    def _is_read_once(self, var: Var) -> bool:
        reader = self.reader.get(var)
        if reader is None:
            return False
        if reader.primitive is compat.jit_p:
            uses, parameter = _inside(reader, var)
            return uses._is_read_once(parameter)
        name = reader.primitive.name
        if name in _VIEWS:
            return self._is_read_once(reader.outvars[0])
        return name in ELEMENTWISE or name in _ONCE


def _inside(call: JaxprEqn, var: Var) -> tuple[Uses, Var]:
    """Returns the reads of the function that a `jit` equation calls, and its parameter that is given a variable."""
    jaxpr = compat.open_jaxpr(call.params["jaxpr"])
    place = next(k for k, v in enumerate(call.invars) if v is var)
    return uses_of_jaxpr(jaxpr), jaxpr.invars[place]


@lru_cache(maxsize=1024)
def uses_of_jaxpr(jaxpr: Jaxpr) -> Uses:
    """Returns the reads of a jaxpr."""
    return uses_of_items(prune(jaxpr.eqns, jaxpr.outvars, ()), jaxpr.outvars)


def uses_of_items(items: Sequence[JaxprEqn], results: Iterable[Atom] = ()) -> Uses:
    """Returns the reads of equations and regions; what a region reads is not known to be read once."""
    last: dict[Var, int] = {}
    count: Counter[Var] = Counter()
    reader: dict[Var, JaxprEqn] = {}
    for position, item in enumerate(items):
        for var in item.invars:
            if not isinstance(var, compat.Literal):
                last[var] = position
                count[var] += 2 if item.primitive in REGIONS else 1
                reader[var] = item
    for var in results:
        if not isinstance(var, compat.Literal):
            last[var] = len(items)
            count[var] += 2
    return Uses(items, last, {var: eqn for var, eqn in reader.items() if count[var] == 1})
