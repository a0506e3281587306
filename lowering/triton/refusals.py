"""Reasons for which the Triton emitter refuses a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from lowering.plan.sums import Where
from lowering.triton.lanes import analyse_lanes, divergent_loop
from lowering.triton.maths import is_accurate
from lowering.triton.plan import sums_of_programs
from qdtrace.ir.carries import carried_params
from qdtrace.ir.memory import changes_its_head, reference
from qdtrace.ir.primitives import FOR, REM
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.ir.program import Eqn, Task

MOST_EQUATIONS = 2000
"""The most equations of a task: Triton's time to compile grows faster than the code."""
_ATOMIC = {
    "add": frozenset({DType.i32, DType.u32, DType.i64, DType.u64, DType.f32, DType.f64}),
    "min": frozenset({DType.i32, DType.u32, DType.i64, DType.u64}),
    "max": frozenset({DType.i32, DType.u32, DType.i64, DType.u64}),
}
_NEVER = {
    "while": "a while loop",
    "cell": "a private array",
    "atomic": "the old value of an atomic update",
    **dict.fromkeys(("lane_max", "lane_count", "lane_rank"), "iterations that wait for each other"),
    "at_most": "a loop in segments",
    "nextafter": "`nextafter`",
}


def refusal(task: Task, family: str = "cuda") -> str | None:
    """Returns why a task cannot become Triton source for a family of GPUs (`cuda`, `rocm`), or None if it can."""
    eqns = list(task.all_eqns)
    for eqn in eqns:
        if (reason := _refused(eqn, family)) is not None:
            return _at(reason, eqn)
    if len(eqns) > MOST_EQUATIONS:
        return f"{len(eqns)} equations, more than {MOST_EQUATIONS}"
    if changes_its_head(task):
        return "its bounds depend on memory that it writes"
    if (loop := divergent_loop(task.body, analyse_lanes(task))) is not None:
        return _at(loop[1], loop[0])
    return _sums_refused(TaskFacts(task))


def _at(reason: str, eqn: Eqn) -> str:
    return f"{reason} at {eqn.loc}" if eqn.loc is not None else reason


def _refused(eqn: Eqn, family: str) -> str | None:
    name = eqn.primitive.name
    if name in _NEVER:
        return _NEVER[name]
    if eqn.primitive is FOR and not isinstance(eqn.step, Literal):
        return "a loop whose step is known only at run time"
    if eqn.primitive is FOR and _hands_over(eqn):
        return "a loop that moves one carried value into another"
    if eqn.primitive.is_function or (eqn.primitive is REM and eqn.invars[0].dtype.is_float):
        dtype = eqn.invars[0].dtype
        if not is_accurate(name, dtype, family):
            return f"`{name}` for {dtype.value}: Triton's version is not within 4 ulp"
    return None


def _hands_over(loop: Eqn) -> bool:
    """Returns whether a carried variable becomes the previous value of another one and both may begin equal.

    Then Triton 3.6 to 3.9 replace it by its initial value in all iterations. Different constants, or a constant and a
    computed value, do not begin equal.
    """
    (body,) = loop.blocks
    begin = dict(zip(carried_params(loop, body), loop.initials, strict=True))
    for own, given in zip(begin, body.results, strict=True):
        if isinstance(given, Var) and given in begin and given is not own:
            one, other = begin[own], begin[given]
            if isinstance(one, Var) == isinstance(other, Var) and (isinstance(one, Var) or one == other):
                return True
    return False


def _sums_refused(facts: TaskFacts) -> str | None:
    sums = sums_of_programs(facts)
    for eqn in facts.accums:
        ref, op = reference(eqn), str(eqn.params["op"])
        if sums.where(eqn) not in (Where.SHARED, Where.ATOMIC):
            continue
        if ref.dtype not in _ATOMIC.get(op, frozenset()):
            return _at(f"atomic `{op}` of {ref.dtype.value}", eqn)
        if ref not in facts.accumulated:
            return _at("memory that it both accumulates into and accesses otherwise", eqn)
    return None
