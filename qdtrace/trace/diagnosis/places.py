"""Instructions of the user's program that recorded equations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qdtrace.trace.compat import Var
from qdtrace.trace.diagnosis.bytecode import code_map
from qdtrace.trace.diagnosis.statement import path_at
from qdtrace.trace.markers import READS
from qdtrace.trace.own_files import is_own_file
from qdtrace.trace.source import expression_at, frames_in
from qdtrace.tracebacks import is_hidden

if TYPE_CHECKING:
    import ast
    from collections.abc import Mapping
    from types import CodeType

    from qdtrace.trace.compat import JaxprEqn


class Place(NamedTuple):
    """An instruction of the user."""

    code: CodeType
    at: int

    def operations(self) -> list[str]:
        """Returns the names of the instruction and of the next one."""
        codes = code_map(self.code)
        return [one.opname for one in codes.instructions[codes.at(self.at) :][:2]]

    def updated(self) -> str | None:
        """Returns the variable that it sets, if it is an in-place operator."""
        codes = code_map(self.code)
        return codes.updated(codes.at(self.at))

    def is_dropped(self, *kinds: str) -> bool:
        """Returns whether it is a call, or an operation of other `kinds`, that is a statement of its own."""
        operation, following = self.operations()
        return following == "POP_TOP" and operation.startswith(("CALL", *kinds))

    def is_compared(self) -> bool:
        """Returns whether its source is in a comparison."""
        codes = code_map(self.code)
        return codes.is_compared(codes.at(self.at))

    def expression(self) -> ast.AST | None:
        """Returns its expression or statement; None if its source is not known."""
        return expression_at(self.code, self.at)

    def path(self) -> tuple[ast.AST, ...]:
        """Returns the syntax nodes around it, the outermost first; nothing if its source is not known."""
        return path_at(self.code, self.at)


def read_place(operand: object, makers: Mapping[Var, JaxprEqn]) -> Place | None:
    """Returns the user's instruction that has read an operand from a buffer or a cell; None for any other operand."""
    maker = makers.get(operand) if isinstance(operand, Var) else None
    return place_of(maker) if maker is not None and maker.primitive in READS else None


def place_of(eqn: JaxprEqn) -> Place | None:
    """Returns the user's instruction that recorded an equation; None if a library was between."""
    for code, at in frames_in(eqn.source_info.traceback):
        if not is_hidden(code.co_filename):
            return Place(code, at) if is_own_file(code.co_filename) else None
    return None
