"""`jax.debug.breakpoint` in loops and lanes: which values of an iteration it shows.

JAX hands over the tracers among the variables of all frames. Here a `qd.local` stands for its value, frames of packages
have no variables, and what cannot be read at this place (a value of another loop, a buffer, an array of many elements)
is a text that says so.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import jax

from qdtrace.errors import QdError
from qdtrace.trace import hooks
from qdtrace.trace.buffers import Buffer
from qdtrace.trace.cells import Cell
from qdtrace.trace.context import get_current
from qdtrace.trace.own_files import is_own_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.trace.compat import JaxprEqn

MOST = 256
"""Most elements of an array that is shown."""


DEEPEST = 20
"""Most levels of containers in a variable that is shown."""


class _Unseen:
    def __repr__(self) -> str:
        return "<not known at this breakpoint: a value of another loop, a buffer, or an array of many elements>"


_UNSEEN = _Unseen()


def _variables(file: str, variables: dict[str, object]) -> dict[str, object]:
    if get_current() is None:
        return variables
    if not is_own_file(file):
        return {}
    return {name: _value(v) for name, v in variables.items() if not name.startswith("__") and _is_finite(v)}


def _is_finite(variable: object, around: tuple[object, ...] = ()) -> bool:
    """Returns whether a container ends within the levels that are shown, and is not in itself.

    JAX takes containers apart in C++: where that goes too deep, Python counts its frames wrongly from then on.
    """
    if len(around) > DEEPEST or any(variable is one for one in around):
        return False
    looked = iter((False,))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            children = jax.tree.leaves(variable, is_leaf=lambda _: next(looked, True))  # those of one level
    except (TypeError, ValueError, DeprecationWarning):  # keys without an order; generators, which JAX warns of
        return False
    is_leaf = len(children) == 1 and children[0] is variable and not isinstance(variable, (dict, list))
    return is_leaf or all(_is_finite(child, (*around, variable)) for child in children)


def _value(variable: object) -> object:
    if isinstance(variable, Buffer):
        return _UNSEEN
    if not isinstance(variable, Cell):
        return variable
    try:
        return variable.value
    except QdError:
        return _UNSEEN


hooks.change_breakpoint_frames(_variables)


def showing(eqn: JaxprEqn, seen: Sequence[bool]) -> JaxprEqn:
    """Returns the equation of a breakpoint with only those operands that are `seen`."""
    if all(seen):
        return eqn
    callback = eqn.params["callback"]

    def call(*values: object) -> object:
        left = iter(values)
        return callback(*(next(left) if one else _UNSEEN for one in seen))

    call.__qualname__ = "breakpoint.<locals>.call"
    operands = [a for a, one in zip(eqn.invars, seen, strict=True) if one]
    return eqn.replace(invars=operands, params={**eqn.params, "callback": call})
