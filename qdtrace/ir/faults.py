"""Errors of failing checks, the same from the interpreter and from machine code.

Machine code keeps the text with a mark in place of the index, which is only known at run time, so `fault_of` takes the
index as text.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from qdtrace.errors import BoundsError, CheckError
from qdtrace.fault_texts import FAILED, HELP, LESS
from qdtrace.ir.primitives import BOUND, CELL, CHECK, TELL, Effect
from qdtrace.ir.program import Literal, Var, ref_type
from qdtrace.ir.types import DType
from qdtrace.ir.walk import private_bytes

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from qdtrace.errors import Loc, QdError
    from qdtrace.ir.program import Eqn, Program

ITERATION = "in iteration {}"
"""Beginning of what a `check` in a loop tells: the index of that loop."""
OF_SHARE = " of a device's share"
"""Continues that where several devices share the iterations of a task: the index counts those of one."""
TRIPS = -1
"""The `axis` of a `bound` that checks a trip count; its `buffer` is the kind of the loop."""


def checks_of(eqns: Iterable[Eqn]) -> list[Eqn]:
    """Returns the checks among equations; code refers to one by its position among those of its task."""
    return [e for e in eqns if Effect.CHECK in e.primitive.effects]


def may_fail(eqns: Iterable[Eqn]) -> bool:
    """Returns whether one of the equations is a check of an index or of a condition, or a callback."""
    return any(e.primitive in (BOUND, CHECK, TELL) for e in eqns)


def told_in_a_word(check: Eqn) -> int | None:
    """Returns which value a `check` tells where a report has room for one integer: the index of its loop, else the
    only one that is not constant. None if there is no such integer."""
    told = check.invars[1:]
    if str(check.params.get("told", "")).startswith(ITERATION):
        return 0
    found = [k for k, atom in enumerate(told) if isinstance(atom, Var)]
    fits = len(found) == 1 and told[found[0]].dtype.is_integer and told[found[0]].dtype is not DType.u64
    return found[0] if fits else None


def fault_of(eqn: Eqn, *values: str, in_a_word: bool = False) -> QdError:
    """Returns the error of a `bound` that fails for an index, or of a `check` that fails and tells values.

    `in_a_word`: of the values of a check, there is the one of `told_in_a_word` alone.
    """
    p = eqn.params
    if eqn.primitive is CHECK:
        told = str(p.get("told", "")) if eqn.loc is not None else ""  # behind the place it is found again
        if in_a_word and told.startswith(ITERATION):
            told = ITERATION
        elif in_a_word:
            told = told if told_in_a_word(eqn) is not None else ""
            values = tuple(str(a.value) if isinstance(a, Literal) else values[0] for a in eqn.invars[1:] if told)
        told = told.format(*values)
        return CheckError(FAILED + str(p["message"]), loc=eqn.loc, notes=[told] if told else ())
    (value,) = values
    if p["axis"] == TRIPS:
        most, got = int(p["size"]) - 1, f"at least {value}" if p["buffer"] == "qd.while_" else value
        rule = f"{p['buffer']} needs at most {most} iterations (most={most}), got {got}"
        return BoundsError(rule, loc=eqn.loc, help=LESS)
    rule = f"index {value} is out of bounds for axis {p['axis']} of `{p['buffer']}` with shape {p['shape']}"
    return BoundsError(rule, loc=eqn.loc, help=HELP)


def must_run(program: Program, stored: Container[Var]) -> bool:
    """Returns whether a program that writes the references in `stored` must run for its checks even if no result is
    used: it writes no result that has elements, or returns a buffer that it does not write
    (`compose/segment.with_token`)."""
    given = [v for v in program.results if v in stored]
    buffers = set(program.buffers)
    return not any(ref_type(v).size for v in given) or any(v in buffers and v not in given for v in program.results)


def largest_private(eqns: Iterable[Eqn]) -> str:
    """Returns what a failed allocation says of the line whose private arrays take most: a loop of reverse mode, or the
    array itself. It is empty if that is not known."""
    held: Counter[Loc] = Counter()
    for eqn in eqns:
        if eqn.primitive is CELL and eqn.loc is not None:
            held[eqn.loc] += private_bytes([eqn])
    if not held:
        return ""
    ((loc, nbytes),) = held.most_common(1)
    return f"; {nbytes} bytes of them an iteration are kept by the code\n  at {loc}"
