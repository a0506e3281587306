"""Transposes that JAX and libraries give: the primitive `custom`, and programs without it.

    z: f32 = custom[rule="linear_solve", result=0] y x

has the value of `y`; the rule computes the adjoint of `x` from that of `z`, and `y` has none. With no operand but `y`
it has no derivative at all (`stop_gradient`). Each result of a rule is one equation; equations of one rule have the
same operands. Only differentiation uses it: the passes that make code get programs without it.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Protocol

from qdtrace.frozen import frozen
from qdtrace.ir.primitives import CUSTOM
from qdtrace.ir.program import literal
from qdtrace.ir.rebuild import Rebuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from qdtrace.errors import GradientError, Loc
    from qdtrace.ir.program import Atom, Block, Eqn, Program, Var

    Tangents = tuple[Block, Sequence[Var], Sequence[Atom]]


class Rule(Protocol):
    """The transpose of a linear function; graphs show its `str` as the name."""

    residuals: int | None
    """Number of leading operands that a function known by its transpose alone reads; None for other functions."""

    def adjoints_of(self, active: tuple[bool, ...]) -> Block:
        """Returns a block of the adjoints of all float operands; `active` says which of them have a derivative.

        Its parameters are the operands, and then an adjoint of each result.
        """
        ...

    @property
    def loc(self) -> Loc | None:
        """Line of the call."""
        ...

    def tangents(self) -> Iterator[Tangents]:
        """Yields a block of tangents, its parameters that are parts of the direction, and those of its results that are
        tangents, for each derivative of a user's function that the transpose is."""
        ...

    def operands_of(self, result: int) -> Sequence[int]:
        """Returns the numbers of the operands that a result depends on."""
        ...

    def vanishing(self, result: int) -> Sequence[Sequence[int]]:
        """Returns sets of numbers of operands: if all of one are zero, the result is."""
        ...

    def refused(self) -> GradientError:
        """Returns the error to raise if the value of such a function is needed."""
        ...


@frozen
class Part:
    """The share of the tangent of a value that an accumulation by `op` passes on to memory.

    The equation has the tangent and the value; `autodiff/extremes` finds out how much it is before a program is
    transposed.
    """

    op: str
    directions: int = 1
    """Set of directions of the tangent, one bit each."""

    def __str__(self) -> str:
        return f"part of {self.op}"


def operands_of(eqn: Eqn) -> Sequence[Atom]:
    """Returns what the result of a `custom` equation depends on, behind its value if there is something."""
    rule: Rule | Part | str = eqn.params["rule"]
    operands = eqn.invars[1:]
    if not operands or isinstance(rule, str | Part):
        return operands or eqn.invars
    return [operands[k] for k in rule.operands_of(eqn.params["result"])]


def vanishing(eqn: Eqn) -> Sequence[Sequence[Atom]]:
    """Returns sets of operands of a `custom` equation: if all of one are zero, its result is."""
    rule: Rule | Part | str = eqn.params["rule"]
    operands = eqn.invars[1:]
    if not operands or isinstance(rule, str | Part):
        return [[a] for a in operands or eqn.invars]
    return [[operands[k] for k in some] for some in rule.vanishing(eqn.params["result"])]


def is_part(eqn: Eqn) -> bool:
    """Returns whether an equation is the share of a tangent that an accumulation takes."""
    return eqn.primitive is CUSTOM and isinstance(eqn.params["rule"], Part)


def updated(make: Callable[..., Atom], op: str, before: Sequence[Atom], values: Sequence[Atom]) -> Atom:
    """Returns the tangent of `op(memory, value)` along a set of directions; of two that tie each has half, as in JAX.

    `before` and `values` have tangents along each set, whose bits are directions, up to this one. The first of each
    is what the memory held and the value.
    """
    whole = len(values) - 1
    if op == "mul":
        terms = [make("mul", before[k], values[whole - k]) for k in range(whole + 1) if k & whole == k]
        return reduce(partial(make, "add"), terms)
    if not whole:
        return make(op, before[0], values[0])
    first, second = (before[0], values[0]) if op == "max" else (values[0], before[0])
    change, tangent = before[whole], values[whole]
    half = make("mul", make("add", change, tangent), literal(0.5, change.dtype))
    rest = make("select", make("lt", first, second), tangent, half)
    return make("select", make("gt", first, second), change, rest)


class _WithoutRules(Rebuilder):
    def visit(self, eqn: Eqn) -> None:
        if eqn.primitive is CUSTOM:
            self.env[eqn.outvars[0]] = self.atom(eqn.invars[0])
        else:
            super().visit(eqn)


def without_rules(program: Program) -> Program:
    """Returns the program with `custom` equations replaced by their values, or the program itself if it has none."""
    if not any(e.primitive is CUSTOM for e in program.all_eqns):
        return program
    return program.map_tasks(lambda task: _WithoutRules().rebuild_task(task))
