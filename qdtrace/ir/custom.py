"""Derivative rules that users and libraries give: the primitive `custom`, and programs without it.

    z: f32 = custom[rule="safe_sqrt", result=0] y x

is `y`, and its derivative is what the rule says of `x`; of `y` it has none. With no operand but `y` it has no
derivative at all (`stop_gradient`). One equation stands for each result of a rule; equations of one rule have the
same operands. Nothing but differentiation looks at it: the passes that make code get programs without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_program

if TYPE_CHECKING:
    from qdtrace.ir.program import Block, Eqn, Program


class Rule(Protocol):
    """A rule with its functions; `str` of it is the name that graphs show.

    Parameters of both blocks are the operands, and then one tangent for each that is a float, or one adjoint for each
    result. Results are tangents of all results, or adjoints of operands that are floats.
    """

    is_exact: bool
    """Its derivative is that of the value, so derivatives of higher order are symmetric."""

    def tangents(self) -> Block:
        """Directional derivatives. Raises GradientError when the rule is for reverse mode alone."""
        ...

    def adjoints(self) -> Block:
        """Adjoints of operands."""
        ...


@dataclass(frozen=True)
class Part:
    """What an accumulation by `op` takes of the tangent of a value.

    The equation has the tangent and the value; `autodiff/extremes` finds out how much it is before a program is
    differentiated.
    """

    op: str

    is_exact = True

    def __str__(self) -> str:
        return f"part of {self.op}"

    def tangents(self) -> Block:
        """There is none."""
        raise AssertionError(str(self))

    adjoints = tangents


class _WithoutRules(Rebuilder):
    def visit(self, eqn: Eqn) -> None:
        if eqn.primitive.name == "custom":
            self.env[eqn.outvars[0]] = self.atom(eqn.invars[0])
        else:
            super().visit(eqn)


def without_rules(program: Program) -> Program:
    """The program with the values of its `custom` equations; the same object when it has none."""
    if not any(e.primitive.name == "custom" for e in walk_program(program)):
        return program
    return program.map_tasks(lambda task: _WithoutRules().rebuild_task(task))
