"""Primitives of other packages: what they compute is their implementation, which JAX can trace.

    eqn                              the implementation, a jaxpr
      c = unvmap_any b                 { lambda ; a:bool[]. let c = reduce_or[axes=()] a in (c,) }

A package that defines a primitive gives it `def_impl` in terms of JAX, and the rules of JAX's transformations. Inside
of a task one lane is one element, so nothing is mapped: the implementation is the primitive.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import jax

from qdtrace.errors import QdError, UnsupportedError
from qdtrace.trace import compat
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from qdtrace.trace.compat import JaxprEqn, Primitive
    from qdtrace.trace.jaxprs import AnyJaxpr, Shaped

KEPT = 256
"""Most equations whose implementations are kept."""


def implementation_of(eqn: JaxprEqn, known: Sequence[np.ndarray | None] = ()) -> AnyJaxpr | None:
    """Returns the closed jaxpr of an equation whose primitive another package implements; None where it has an effect.

    `known` has the operands that are constants: where the implementation needs values, it gets those.

    Raises UnsupportedError when it needs others too, or gives something else than the equation.
    """
    if eqn.effects:
        return None
    try:
        return _traced(_Same(eqn))
    except UnsupportedError:
        if all(k is None for k in known):
            raise
        return _trace(eqn, known)


@functools.cache
def is_foreign(primitive: Primitive) -> bool:
    """Returns whether another package than JAX wrote the implementation; JAX's own runs the compiled primitive."""
    inner = primitive.impl
    while isinstance(inner, functools.partial):
        inner = inner.func
    package = (getattr(inner, "__module__", None) or "jax").partition(".")[0]
    return package not in ("jax", "jaxlib", "qdtrace")


class _Same:
    """An equation by identity, kept alive."""

    def __init__(self, eqn: JaxprEqn) -> None:
        self.eqn = eqn

    def __hash__(self) -> int:
        return id(self.eqn)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.eqn is self.eqn


@functools.lru_cache(maxsize=KEPT)
def _traced(same: _Same) -> AnyJaxpr | None:
    return _trace(same.eqn, ())


def _trace(eqn: JaxprEqn, known: Sequence[np.ndarray | None]) -> AnyJaxpr | None:
    name, function = eqn.primitive.name, eqn.primitive.impl
    avals = [v.aval for v in eqn.invars]
    operands = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]

    def run(*xs: jax.Array) -> object:
        given = [x if k is None else k for x, k in zip(xs, known, strict=True)] if known else xs
        return function(*given, **eqn.params)

    try:
        closed = jax.make_jaxpr(run)(*operands)
    except QdError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"the primitive `{name}` has no import rule, and its implementation cannot be traced",
            loc=eqn_loc(eqn),
            notes=(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",),
            help=f"compute it outside of the loop, or teach it: qd.def_import_rule({name!r}, jnp_function)",
        ) from error
    given, wanted = ([v.aval for v in xs] for xs in (compat.open_jaxpr(closed).outvars, eqn.outvars))
    if [(a.shape, a.dtype) for a in given] != [(a.shape, a.dtype) for a in wanted]:
        raise UnsupportedError(
            f"the implementation of the primitive `{name}` gives {_shown(given)}, the equation {_shown(wanted)}",
            loc=eqn_loc(eqn),
            help=f"teach it: qd.def_import_rule({name!r}, jnp_function)",
        )
    return closed


def _shown(avals: Iterable[Shaped]) -> str:
    return ", ".join(f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in avals)
