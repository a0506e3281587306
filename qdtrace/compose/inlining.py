"""Calls of functions of `jax.jit` in a traced function, whose equations take the calls' places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.trace import compat
from qdtrace.trace.structure import named, on_operands

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jax.typing import ArrayLike

    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import JaxprEqn


class Inlining:
    """Puts the equations of the functions of `jax.jit` that are called in the places of their calls."""

    def __init__(self) -> None:
        self.constants: dict[jaxprs.Var, ArrayLike] = {}
        """New variables of known values."""
        self.names: dict[object, jaxprs.Atom] = {}
        """Maps a variable of the given equations to what stands for it."""

    def items(self, items: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
        """Yields equations and regions in order."""
        for item in items:
            eqn = on_operands(item, self.names)
            if eqn.primitive is not compat.jit_p or eqn.effects:
                yield eqn
                continue
            closed = eqn.params["jaxpr"]
            jaxpr = compat.open_jaxpr(closed)
            local: dict[object, jaxprs.Atom] = dict(zip(jaxpr.invars, eqn.invars, strict=True))
            for var, value in zip(jaxpr.constvars, compat.constants_of(closed), strict=True):
                local[var] = own = compat.new_var(var)
                self.constants[own] = value
            for inner in jaxpr.eqns:
                made = on_operands(inner, local)
                local.update((v, compat.new_var(v)) for v in inner.outvars)
                outvars = named(made.outvars, local)  # of the line of the call: JAX keeps the trace of its first one
                yield from self.items([made.replace(outvars=outvars, source_info=eqn.source_info)])
            self.names.update(zip(eqn.outvars, self.named(named(jaxpr.outvars, local)), strict=True))

    def named(self, atoms: Iterable[jaxprs.Atom | None]) -> list[jaxprs.Atom]:
        """Returns what stands for variables now."""
        return named(atoms, self.names)

    def variable(self, var: jaxprs.Var) -> jaxprs.Var:
        """Returns the variable that stands for another one now."""
        found = self.names.get(var, var)
        assert not isinstance(found, compat.Literal)
        return found
