"""Updates that nobody reads: `y.at[k].set(v)` as a statement gives a new array, `row = b[i]; row += v` a new value."""

from __future__ import annotations

import ast
import contextlib
from typing import TYPE_CHECKING

from qdtrace.errors import TraceValueError, warn
from qdtrace.trace import markers
from qdtrace.trace.compat import Var
from qdtrace.trace.diagnosis.bytecode import code_map
from qdtrace.trace.diagnosis.places import place_of, read_place
from qdtrace.trace.diagnosis.statements import warn_of_statements
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.diagnosis.places import Place
    from qdtrace.trace.diagnosis.statements import Inlined

_PARTS = ("BINARY_SUBSCR", "BINARY_SLICE", "GET_ITER", "FOR_ITER", "UNPACK_SEQUENCE")
"""Instructions that take a part out of an array."""


def check_dropped(eqns: Sequence[JaxprEqn], calls: Sequence[Inlined], *, is_function: bool) -> None:
    """Refuses a statement of the user that updates an array and does nothing with the new one; warns, once a function,
    of other statements whose value is dropped, and of one that updates a value that was loaded, if nobody reads the
    new one. `calls` are those of functions whose equations stand in their place.

    Raises TraceValueError at its line.
    """
    used = {v for e in eqns for v in e.invars if isinstance(v, Var)}  # of a buffer, the new content is stored
    unused = [e for e in eqns if e.outvars and used.isdisjoint(e.outvars)]
    calls = [call for call in calls if used.isdisjoint(v for v in call.results if isinstance(v, Var))]
    makers = {v: e for e in eqns for v in e.outvars} if is_function and (unused or calls) else {}
    lost: dict[Place | None, tuple[str, JaxprEqn]] = {}
    for eqn in unused:
        place, text = None, ""
        with contextlib.suppress(Exception):  # a diagnosis: where it fails, the trace goes on
            place = place_of(eqn)
            text = _lost(place, eqn, makers) if place and makers else ""
        if eqn.primitive.name.startswith("scatter") and place and place.is_dropped():
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
    if makers:
        with contextlib.suppress(SyntaxError, ValueError):
            warn_of_statements(eqns, unused, calls, makers)


def _sorted(place: Place, eqn: JaxprEqn, makers: Mapping[Var, JaxprEqn]) -> str:
    """Returns how to keep the result of a statement `a.sort()`; empty for any other."""
    if "sort" not in (eqn.primitive.name, eqn.params.get("name")) or not place.is_dropped():
        return ""
    call = place.expression()
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "sort":
        return ""
    if not all(isinstance(argument, ast.Constant) for argument in call.args):
        return ""  # `jnp.sort(x)`, which nobody takes for a change
    source = read_place(eqn.invars[0], makers)
    is_memory = source is not None and isinstance(source.expression(), ast.Attribute)  # the content of `x.sort`
    return f"{ast.unparse(call.func.value)}{'[...]' * is_memory} = {ast.unparse(call)}"


def _lost(place: Place, eqn: JaxprEqn, makers: Mapping[Var, JaxprEqn]) -> str:
    """Returns what to say of an in-place operator whose left operand was loaded, and whose result no code reads."""
    name, codes = place.updated(), code_map(place.code)
    if name is None or codes.is_used(name, codes.at(place.at) + 1):
        return ""
    maker: JaxprEqn | None = eqn
    source: Place | None = place
    while maker is not None and source is not None and source.updated():
        maker = makers.get(maker.invars[0]) if maker.invars and isinstance(maker.invars[0], Var) else None
        source = maker and place_of(maker)
    if maker is None or source is None:
        return ""
    is_buffer = maker.primitive in markers.READS
    if not is_buffer and source.operations()[0] not in _PARTS:
        return ""
    fix = "store it where it was loaded: `b[i] += v`" if is_buffer else "keep the new array: `a = a.at[k].add(v)`"
    statement, origin = place.expression(), source.expression()
    text = f"`{ast.unparse(statement)}`" if isinstance(statement, ast.AugAssign) else "an in-place operator"
    if text[0] == "`" and isinstance(origin, ast.Subscript | ast.Attribute) and source.code is place.code:
        _, operator, value = text.strip("`").split(" ", 2)
        left, array = ast.unparse(origin), ast.unparse(origin.value)
        fix = f"store it where it was loaded: `{left} {operator} {value}`"
        if not is_buffer:
            new = f"{array}.at{left.removeprefix(array)}.set({left} {operator[:-1]} {value})"
            fix = f"keep the new array: `{array} = {new}`"
    return f"{text} changes nothing: `{name}` is a value that was loaded, and nobody reads the new one\nhelp: {fix}"
