"""The check of `debug="nans"`: no operation may make NaN of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.errors import InterpreterError

if TYPE_CHECKING:
    from qdtrace.errors import Loc
    from qdtrace.interpret.numpy_rules import Function


def watched(function: Function, name: str, loc: Loc | None) -> Function:
    """Returns the function with a check that raises if the result is NaN and no operand is."""

    def run(*operands: Any) -> Any:
        out = function(*operands)
        if out != out and all(x == x for x in operands):
            raise InterpreterError(
                f"`{name}` makes NaN of {', '.join(map(str, operands))}",
                loc=loc,
                help="keep the operands where the result is a number; where NaN is meant, debug=True does not look",
            )
        return out

    return run
