"""Updates that a statement drops: `y.at[k].set(v)` gives a new array, and `row = b[i]; row += v` a new value."""

from __future__ import annotations

import ast
import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from qdtrace.errors import TraceValueError, warn
from qdtrace.trace import markers
from qdtrace.trace.compat import Var, all_eqns
from qdtrace.trace.diagnosis.bytecode import code_map
from qdtrace.trace.own_files import is_own_file, is_user_file
from qdtrace.trace.source import eqn_loc, expression_at
from qdtrace.trace.tree import equations_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType

    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.tree import Region

_PARTS = ("BINARY_SUBSCR", "BINARY_SLICE", "GET_ITER", "FOR_ITER", "UNPACK_SEQUENCE")
"""Instructions that take a part out of an array."""


def check_dropped(root: Region) -> None:
    """Refuses a statement of the user that updates an array and does nothing with the new one; warns, once a function,
    of one that updates a value that was loaded, if nobody reads the new one.

    Raises TraceValueError at its line.
    """
    eqns = [*all_eqns([*equations_in(root.items)])]
    used = {v for e in eqns for v in e.invars if isinstance(v, Var)}  # of a buffer, the new content is stored
    unused = [e for e in eqns if e.outvars and used.isdisjoint(e.outvars)]
    makers = {v: e for e in eqns for v in e.outvars} if root.is_function and unused else {}
    lost: dict[_Place | None, tuple[str, JaxprEqn]] = {}
    for eqn in unused:
        place, text = None, ""
        with contextlib.suppress(Exception):  # a diagnosis: where it fails, the trace goes on
            place = _place(eqn)
            text = _lost(place, eqn, makers) if place and makers else ""
        if eqn.primitive.name.startswith("scatter") and place and place.operations() == ["CALL", "POP_TOP"]:
            raise TraceValueError(
                "`y.at[k].set(v)` of an array gives a new array, and this statement drops it",
                loc=eqn_loc(eqn),
                help="make y a buffer in front of the loops, `y = qd.copy(y)`, which the statement changes; or keep "
                "the new array: `y = y.at[k].set(v)`",
            )
        if place and (fix := _sorted(place, eqn, makers)):
            raise TraceValueError(
                "`.sort()` gives a sorted array and changes none, and this statement drops it",
                loc=eqn_loc(eqn),
                help=f"keep it: `{fix}`",
            )
        if text:
            lost.setdefault(place, (text, eqn))
    for text, eqn in lost.values():
        warn(text, eqn_loc(eqn))


class _Place(NamedTuple):
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


def _place(eqn: JaxprEqn) -> _Place | None:
    """Returns the user's instruction that recorded an equation; None if a library was between."""
    traceback = eqn.source_info.traceback
    for code, at in () if traceback is None else zip(*traceback.raw_frames(), strict=True):
        if is_user_file(code.co_filename):
            return _Place(code, at) if is_own_file(code.co_filename) else None
    return None


def _sorted(place: _Place, eqn: JaxprEqn, makers: Mapping[Any, JaxprEqn]) -> str:
    """Returns how to keep the result of a statement `a.sort()`; empty for any other."""
    if "sort" not in (eqn.primitive.name, eqn.params.get("name")) or place.operations() != ["CALL", "POP_TOP"]:
        return ""
    call = expression_at(*place)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "sort":
        return ""
    if not all(isinstance(argument, ast.Constant) for argument in call.args):
        return ""  # `jnp.sort(x)`, which nobody takes for a change
    operand = eqn.invars[0]
    maker = makers.get(operand) if isinstance(operand, Var) else None
    source = _place(maker) if maker is not None and maker.primitive in markers.READS else None
    is_memory = source is not None and isinstance(expression_at(*source), ast.Attribute)  # the content of `x.sort`
    return f"{ast.unparse(call.func.value)}{'[...]' * is_memory} = {ast.unparse(call)}"


def _lost(place: _Place, eqn: JaxprEqn, makers: Mapping[Any, JaxprEqn]) -> str:
    """Returns what to say of an in-place operator whose left operand was loaded, and whose result no code reads."""
    name, codes = place.updated(), code_map(place.code)
    if name is None or codes.is_used(name, codes.at(place.at) + 1):
        return ""
    maker: JaxprEqn | None = eqn
    source: _Place | None = place
    while maker is not None and source is not None and source.updated():
        maker = makers.get(maker.invars[0]) if maker.invars and isinstance(maker.invars[0], Var) else None
        source = maker and _place(maker)
    if maker is None or source is None:
        return ""
    is_buffer = maker.primitive in markers.READS
    if not is_buffer and source.operations()[0] not in _PARTS:
        return ""
    fix = "store it where it was loaded: `b[i] += v`" if is_buffer else "keep the new array: `a = a.at[k].add(v)`"
    statement, origin = expression_at(*place), expression_at(*source)
    text = f"`{ast.unparse(statement)}`" if isinstance(statement, ast.AugAssign) else "an in-place operator"
    if text[0] == "`" and isinstance(origin, ast.Subscript | ast.Attribute) and source.code is place.code:
        _, operator, value = text.strip("`").split(" ", 2)
        left, array = ast.unparse(origin), ast.unparse(origin.value)
        fix = f"store it where it was loaded: `{left} {operator} {value}`"
        if not is_buffer:
            new = f"{array}.at{left.removeprefix(array)}.set({left} {operator[:-1]} {value})"
            fix = f"keep the new array: `{array} = {new}`"
    return f"{text} changes nothing: `{name}` is a value that was loaded, and nobody reads the new one\nhelp: {fix}"
