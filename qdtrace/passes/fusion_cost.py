"""The cost model of task fusion: weighs saved memory traffic against register pressure and divergence.

Only a legal pair is judged. The figures are estimates for a decision, one iteration of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.ir.primitives import LOAD, STORE

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.analysis.index.affine import Form
    from qdtrace.analysis.machine import Machine
    from qdtrace.ir.program import Var
    from qdtrace.passes.fusion_groups import Group, Prepared


@frozen(slots=True)
class Gain:
    """The estimated gain of a fusion per iteration."""

    places: int
    """Number of values that pass from one body to the other in registers."""
    pays: bool
    reason: str


def _stream(form: Form) -> object:
    """Returns the terms of a form, which are equal for forms that differ by a constant."""
    return form.key[0]


def judge(group: Group, task: Prepared, is_dead_after: Callable[[Var], bool], machine: Machine) -> Gain:
    """Returns the gain of fusing a task with a group; `is_dead_after(ref)` says if a reference is dead after both."""
    saved, places = _saved(group, task)
    one, two = group.weight, task.weight
    both = one.before(two, places)
    if both.size > machine.joined_cost:
        why = f"saves {saved} bytes an iteration, but bodies of {one.size} and {two.size} operations are long enough"
        return Gain(places, False, why)
    live = both.live
    if saved and live > machine.live_values and live > max(one.live, two.live):
        return Gain(places, False, f"saves {saved} bytes an iteration, but {live} values would be alive at once")
    if one.open_loop and two.open_loop:
        return Gain(places, False, "both have loops that lanes leave at different times")
    if one.open_loop != two.open_loop:
        why = _drag(group, task, is_dead_after, machine)
        if why:
            return Gain(places, False, why)
    if saved:
        return Gain(places, True, f"saves {saved} bytes an iteration")
    iterations = task.memory.iterations
    if iterations is not None and iterations.count * max(one.operations, two.operations) <= machine.launch_cost:
        return Gain(0, True, "both are small: saves a launch")
    return Gain(0, False, "they share no element: joining would only save a launch")


def _saved(group: Group, task: Prepared) -> tuple[int, int]:
    """Returns the bytes that the task finds in registers or cache, and the number of values in registers."""
    saved = places = 0
    for ref, accesses in task.memory.shared.items():
        others = group.by_ref.get(ref)
        if not others:
            continue
        indices = [m.index for m in others]
        exact = {tuple(f.key for f in index) for index in indices}
        near = {tuple(map(_stream, index)) for index in indices}
        for eqn in accesses:
            index = task.memory.index(eqn)
            if not any(f.terms for f in index):
                continue  # one place for all iterations
            if tuple(f.key for f in index) in exact:
                saved += ref.dtype.itemsize
                places += eqn.primitive in (LOAD, STORE)
            elif tuple(map(_stream, index)) in near:
                saved += ref.dtype.itemsize
    return saved, places


def _drag(group: Group, task: Prepared, is_dead_after: Callable[[Var], bool], machine: Machine) -> str:
    """Returns why code without loops should not be fused with a divergent loop; empty if it may be."""
    one, two = group.weight, task.weight
    loop, plain = (two.operations, one.operations) if two.open_loop else (one.operations, two.operations)
    if plain * machine.drag > loop:
        return "the one has a loop that lanes leave at different times, the other too much work without one"
    if two.open_loop and not all(is_dead_after(ref) for ref in group.written):
        return "stores in front of a loop that lanes leave at different times keep lanes from being refilled"
    return ""
