"""Small questions about jaxprs and values that staging asks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.errors import TraceTypeError
from qdtrace.ir.types import DType
from qdtrace.trace import compat
from qdtrace.trace.physical import is_pair, part_dtype
from qdtrace.trace.tree import loc_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax import Array
    from typing_extensions import TypeIs

    from qdtrace.errors import Loc
    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import AnyJaxpr, Jaxpr, JaxprEqn
    from qdtrace.trace.jaxprs import Shaped


def is_literal(atom: jaxprs.Atom) -> TypeIs[compat.Literal]:
    """Returns whether an atom is a constant, not a variable."""
    return isinstance(atom, compat.Literal)


def physical_type(aval: Shaped, where: JaxprEqn | None = None) -> tuple[tuple[int, ...], DType]:
    """Returns shape and dtype of the array behind an abstract value; `where` is the equation or region that needs it.

    Raises TraceTypeError for an element type that graphs do not have, UnsupportedError for a kind of random key.
    """
    dtype = part_dtype(aval.dtype, lambda: _loc(where))
    if dtype is None:
        raise TraceTypeError(
            f"buffers and loops need one of {', '.join(d.value for d in DType)}, got {aval.dtype}",
            loc=_loc(where),
            help="convert it with .astype outside of the function, or outside of the loop",
        )
    return ((*aval.shape, 2) if is_pair(aval) else tuple(aval.shape)), dtype


def evaluate_jaxpr(
    given: AnyJaxpr,
    values: Sequence[Array],
    evaluate: Callable[[JaxprEqn, Sequence[Array]], Sequence[Array]],
    constants: Sequence[Array] = (),
) -> list[Array]:
    """Returns the results of a jaxpr, each of whose equations `evaluate` evaluates; `constants` are an open one's."""
    jaxpr = compat.open_jaxpr(given)
    known = constants or compat.constants_of(given)
    env: dict[jaxprs.Atom, Array] = dict(zip(jaxpr.constvars, known, strict=True))
    env.update(zip(jaxpr.invars, values, strict=True))

    def value(atom: jaxprs.Atom) -> Array:
        return atom.val if is_literal(atom) else env[atom]

    for eqn in jaxpr.eqns:
        with compat.settings_of(eqn):
            env.update(zip(eqn.outvars, evaluate(eqn, [*map(value, eqn.invars)]), strict=True))
    return [*map(value, jaxpr.outvars)]


def largest_size(eqn: JaxprEqn) -> int:
    """Returns the elements of the largest value of an equation and of those inside of it."""
    values = (v for e in compat.all_eqns([eqn]) for v in (*e.invars, *e.outvars))
    return max((int(np.prod(v.aval.shape)) for v in values), default=0)


def _loc(where: JaxprEqn | None) -> Loc | None:
    return None if where is None else loc_of(where)


def has_marker(eqn: JaxprEqn, name: str) -> bool:
    """Returns whether an equation of that primitive is anywhere inside."""
    return any(name in _names_inside(compat.open_jaxpr(j)) for j in compat.inner_jaxprs(eqn))


@functools.lru_cache(maxsize=1024)
def _names_inside(jaxpr: Jaxpr) -> frozenset[str]:
    """Returns the names of primitives in a jaxpr; a function that is called often is searched once."""
    inner = (_names_inside(compat.open_jaxpr(j)) for e in jaxpr.eqns for j in compat.inner_jaxprs(e))
    return frozenset(e.primitive.name for e in jaxpr.eqns).union(*inner)
