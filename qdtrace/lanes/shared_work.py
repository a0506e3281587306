"""Says how much work equations of a lane are, and which of them are computed once (docs/design/0086)."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING, Any

from jax import lax

from qdtrace.trace import compat
from qdtrace.trace.products import FACTORISATIONS, is_loop, matrix_multiplications, trips_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

PER_ELEMENT = 4
"""Operations for each element of its results from which on an equation is work: reading costs as much as fewer."""
PER_READ = 8
"""The same for all that is computed once together."""
FOLDED, MOST_FOLDED = 256, 2048
"""The most elements of an array of constants that are numbers in lanes, and operations that make all of them."""
_MOVES = frozenset({
    "bitcast_convert_type", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "dynamic_slice", "eq",
    "expand_dims", "gather", "iota", "pad", "random_unwrap", "random_wrap", "reshape", "rev", "slice", "split",
    "squeeze", "stop_gradient", "transpose",
})  # fmt: skip
_CHEAP = frozenset({
    "abs", "add", "add_any", "and", "ceil", "clamp", "floor", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "neg",
    "not", "or", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "square", "sub",
    "xor",
})  # fmt: skip
_FOLDING = frozenset({
    "cos", "div", "dot_general", "exp", "integer_pow", "log", "pow", "reduce_sum", "rsqrt", "select_n", "sin", "sqrt",
    "stack", "tanh",
}) | _CHEAP | {name for name in _MOVES if not name.startswith("random")}  # fmt: skip
"""The primitives that the importer folds, if all their operands are numbers."""
_OF_OPERANDS = ("arg", "cum", "reduce", "sort")
_DEAR, _LATE = 16, 4
"""Operations of a function of the maths library; of a cheap one that waits for the one before, as in loops and sums."""


def is_var(v: Any) -> bool:
    """Returns whether an atom is a variable."""
    return isinstance(v, compat.Var)


def is_same(eqn: Any, same: Collection[Any]) -> bool:
    """Returns whether lanes differ in no operand of an equation, and it has no effect."""
    return not eqn.effects and all(v in same for v in eqn.invars if is_var(v))


def constants_of(eqns: Iterable[Any], given: Iterable[Any]) -> set[Any]:
    """Returns the variables that the importer makes numbers of: small arrays that follow from no argument.

    Products with them fold, or are the same ones, where an array in memory would be read by each lane.
    """
    found = {v for v in given if v.aval.size <= FOLDED}
    work = 0
    for eqn in eqns:
        is_small = all(v.aval.size <= FOLDED for v in (*eqn.invars, *eqn.outvars))
        if not is_small or eqn.primitive.name not in _FOLDING:
            continue
        if is_same(eqn, found) and work + work_of(eqn) <= MOST_FOLDED:
            work += work_of(eqn)
            found.update(eqn.outvars)
    return found


def once_of(
    eqns: list[Any], same: Collection[Any], wanted: Iterable[Any] = (), constants: Collection[Any] = ()
) -> list[bool]:
    """Returns of each equation whether it is computed once: work, what follows and is no larger, and what both need.

    Args:
        eqns: the equations.
        same: variables in which no lane differs.
        wanted: those of them that are needed besides.
        constants: those of them that are numbers in lanes.
    """
    once = [False] * len(eqns)
    made: set[Any] = set()
    for k, eqn in enumerate(eqns):
        follows = not _grows(eqn) and any(is_var(v) and v in made for v in eqn.invars)
        is_constant = all(v in constants for v in eqn.outvars)
        if is_same(eqn, same) and not is_constant and (follows or is_work(eqn)):
            once[k] = True
            made.update(eqn.outvars)
    needed = set(wanted)
    for k in range(len(eqns) - 1, -1, -1):
        once[k] = once[k] or not needed.isdisjoint(eqns[k].outvars)
        if once[k]:
            needed.update(v for v in eqns[k].invars if is_var(v))
    return once


def rest_of(
    eqns: list[Any], once: list[bool], results: Iterable[Any], constants: Collection[Any] = ()
) -> tuple[list[Any], set[Any]]:
    """Returns what is left for lanes, and all variables that this and the results read.

    What is no work and larger than what it reads, like a broadcast, is computed in both places; so are constants.
    """
    read = {v for v in results if is_var(v)}
    rest: list[Any] = []
    for eqn, is_once in zip(reversed(eqns), reversed(once), strict=True):
        again = (_grows(eqn) and not is_work(eqn)) or all(v in constants for v in eqn.outvars)
        if not is_once or (again and not read.isdisjoint(eqn.outvars)):
            rest.append(eqn)
            read.difference_update(eqn.outvars)
            read.update(v for v in eqn.invars if is_var(v))
    return rest[::-1], read


def _grows(eqn: Any) -> bool:
    return sum(v.aval.size for v in eqn.invars) < sum(v.aval.size for v in eqn.outvars)


def is_work(eqn: Any) -> bool:
    """Returns whether an equation takes longer than to read what it makes."""
    return work_of(eqn) >= max(1, PER_ELEMENT * sum(v.aval.size for v in eqn.outvars))


def work_of(eqn: Any) -> int:
    """Returns about how many operations an equation is, in vectors as others are."""
    inner = [e for one in compat.inner_jaxprs(eqn) for e in compat.open_jaxpr(one).eqns]
    if inner:
        return trips_of(eqn) * sum(map(work_of, inner)) * (_LATE if is_loop(eqn) else 1)
    name = eqn.primitive.name
    made, given = (sum(v.aval.size for v in vs) for vs in (eqn.outvars, eqn.invars))
    if name in _MOVES:
        return 0
    if name.startswith(_OF_OPERANDS):
        return max(made, given) * (round(log2(given + 1)) if eqn.primitive is lax.sort_p else _LATE)
    if name in FACTORISATIONS:
        return _LATE * matrix_multiplications(eqn)
    return matrix_multiplications(eqn) or made * (1 if name in _CHEAP else _DEAR)
