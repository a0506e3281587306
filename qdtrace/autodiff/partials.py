"""Partial derivatives of linear operations, by which an adjoint of the result becomes an adjoint of the operand.

A partial derivative is a product with a number. `select` chooses instead of multiplying, so that an infinite or NaN
value of the side not taken adds nothing.

JAX's rules make a program that is linear in its tangents. Any other operation on tangents comes from a rule of a user
or from an iterative solver, and is refused. Where memory holds a tangent and other values in turn, `sure` are only
those variables that are zero if the tangents are: the others count as constants where linearity requires it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.errors import GradientError
from qdtrace.ir.primitives import FMA, MUL
from qdtrace.ir.program import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from qdtrace.ir.builder import Builder
    from qdtrace.ir.primitives import Primitive
    from qdtrace.ir.program import Atom, Eqn

    Partial = Callable[[Atom], Atom]


def partials(
    b: Builder, eqn: Eqn, operands: Sequence[Atom], out: Atom, active: Container[Atom], sure: Container[Atom]
) -> tuple[Partial | None, ...]:
    """Returns the partial derivatives of an equation of scalars, one per operand, None for one that is not active.

    The factors are emitted when a function is called. Raises GradientError for an operation that is not linear in
    what is `sure` to be a tangent.
    """
    changing = [a in active and a.dtype.is_float for a in eqn.invars]
    prim = eqn.primitive
    if prim.locally_constant or not out.dtype.is_float or not any(changing):
        return (None,) * len(operands)
    tangents = [changes and a in sure for a, changes in zip(eqn.invars, changing, strict=True)]
    if not is_linear(prim, tangents):
        raise not_linear(eqn, f"`{prim.name}` of one")
    if prim.slope_reads is None:
        return (None,) * len(operands)
    if prim in (MUL, FMA) and any(tangents[:2]):
        changing[:2] = tangents[:2]
    found = _parts(b, prim.name, operands, out)
    return tuple(p if changes else None for p, changes in zip(found, changing, strict=True))


def not_linear(eqn: Eqn, what: str) -> GradientError:
    """Returns the error for an equation that is not linear in tangents; `what` says what was found instead."""
    return GradientError(
        f"needs a linear function of tangents to be transposed, got {what}",
        loc=eqn.loc,
        help="write the rule without it; a solver goes into lax.custom_linear_solve, with at most 256 elements in each "
        "array that it takes, its matrix included",
    )


def is_linear(prim: Primitive, changing: Sequence[bool]) -> bool:
    """Returns whether each operand that changes has a partial derivative that reads no operand that changes."""
    if prim.slope_reads is None:
        return not any(changing)
    reads = [read for read, changes in zip(prim.slope_reads, changing, strict=True) if changes]
    return all(read is not None and not any(changing[k] for k in read) for read in reads)


def _parts(b: Builder, name: str, ins: Sequence[Atom], out: Atom) -> tuple[Partial | None, ...]:
    same = lambda t: t  # noqa: E731
    times = lambda factor: lambda t: b("mul", t, factor)  # noqa: E731
    match name:
        case "add":
            return same, same
        case "sub":
            return same, lambda t: b("neg", t)
        case "neg":
            return (lambda t: b("neg", t),)
        case "mul":
            return times(ins[1]), times(ins[0])
        case "fma":
            return times(ins[1]), times(ins[0]), same
        case "div":
            return lambda t: b("div", t, ins[1]), None
        case "select":
            zero = literal(0, out.dtype)
            return None, lambda t: b("select", ins[0], t, zero), lambda t: b("select", ins[0], zero, t)
        case _:
            return (lambda t: b.convert(t, ins[0].dtype),)
