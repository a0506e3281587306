"""Finds faults of a traced program before it runs: races, reads of unset buffers, endless loops.

The first two are warnings, and the program runs all the same: nothing here proves that the user needs the
elements that are wrong. A loop that never ends is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax.core import Tracer

from qdtrace.analysis.accesses import Accesses
from qdtrace.analysis.certain_races import certain_race
from qdtrace.analysis.known_races import known_race
from qdtrace.analysis.lost_updates import lost_updates
from qdtrace.compose.races_of_arguments import Doubt
from qdtrace.compose.staged import note_doubt
from qdtrace.errors import TraceValueError, warn
from qdtrace.ir.memory import reference, written
from qdtrace.ir.primitives import ATOMIC, LOAD, STORE, WHILE
from qdtrace.ir.program import Literal, Var, is_global
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.analysis.accesses import Race
    from qdtrace.ir.program import Atom, Eqn, Program, Task

_ORDER = "iterations run in no order"
_ONE = "all iterations of the loop store to the same element of `{name}`, and which value stays is not determined"
_RACES = {
    "steps": (
        _ONE,
        "steps in time come one after the other: `qd.range(n, serial=True)`, a Python loop, or lax.fori_loop around a "
        "qd.jit function that makes one step",
    ),
    "update": (
        _ONE,
        "accumulate: `b[k] += v`, or `b.at[k].min(v)`, `max`, `mul`; or run the loop in one thread, in order: "
        "`qd.range(n, serial=True)`",
    ),
    "last": (
        _ONE,
        "give each iteration an element of its own, `b[i] = v`, or run the loop in one thread, in order: "
        "`qd.range(n, serial=True)`",
    ),
    "neighbour": (
        "an iteration reads an element of `{name}` that another iteration stores, before or after it does",
        "store into another buffer, made in front of the loop: `new = qd.copy(x)`; or run the loop in one thread, in "
        "order: `qd.range(n, serial=True)`",
    ),
    "counted": (
        "an iteration reads an element of `{name}` that other iterations accumulate, before or after they do",
        "`old = qd.atomic_add(b, k, v)` accumulates and gives each iteration an old value of its own; or run the loop "
        "in one thread, in order: `qd.range(n, serial=True)`",
    ),
    "twice": (
        "two iterations store to the same element of `{name}`, and which value stays is not determined",
        "accumulate: `b[k] += v`; or run the loop in one thread, in order: `qd.range(n, serial=True)`",
    ),
    "stored": (
        "two iterations store to the same element of `{name}`: one value stays, and any of them gets the element's "
        "gradient",
        "run the loop in one thread, in order: `qd.range(n, serial=True)`",
    ),
}


_FIXES = {
    "add": "accumulate, which loses nothing: `b[k] += v`",
    "sub": "accumulate, which loses nothing: `b[k] -= v`",
    **{op: f"accumulate, which loses nothing: `b.at[k].{op}(v)`" for op in ("mul", "min", "max")},
    None: "run the loop in one thread, in order: `qd.range(n, serial=True)`",
}
_LOST = (
    "a race where two iterations have one index: both load the element of `{name}`, and what one of them stores is lost"
)


def check_foreseen(program: Program, operands: Mapping[Var, object], *, debug: bool) -> None:
    """Warns with `QdWarning` at the user's line of each task that races in every run, and of each buffer that is read
    unset; a run with `debug` finds both. `operands` are the values of parameters, where the trace knows them. Raises
    TraceValueError at a `qd.while_` that nothing in its task can end."""
    _refuse_endless(program)
    if not debug:
        _warn_of_races(program, operands)
        _warn_of_unset(program)


def _warn_of_races(program: Program, operands: Mapping[Var, object]) -> None:
    stored = {ref for task in program.tasks for ref in written(walk_eqns(task.body))}
    fixed = {v for v in operands if v not in stored}
    constants = {v: operands[v] for v in fixed if not isinstance(operands[v], Tracer)}
    for accesses in map(Accesses, program.tasks):
        race = certain_race(accesses)
        found = [race] if race is not None else lost_updates(accesses)
        if not found:
            known = known_race(accesses, constants, fixed)
            found = [known.race] if known.race is not None else []
            if found and found[0].kind == "stored":
                note_doubt({}, Doubt(accesses, constants, fixed, _warn, kept=found.pop()))
            elif not found and known.missing:
                note_doubt({v: operands[v] for v in known.missing}, Doubt(accesses, constants, fixed, _warn))
        for one in found:
            _warn(one)


def _warn(race: Race) -> None:
    is_lost = race.kind == "lost"
    rule, fix = (_LOST, _FIXES[race.operation]) if is_lost else _RACES[race.kind]
    text = rule.format(name=reference(race.store).hint)
    warn(f"{text}\nhelp: {fix}" if is_lost else f"a race: {text}, as {_ORDER}\nhelp: {fix}", race.store.loc)


def _refuse_endless(program: Program) -> None:
    for task in program.tasks:
        loops = [e for e in walk_eqns(task.body) if e.primitive is WHILE and not e.outvars]
        if not loops:
            continue
        shared = {ref for ref in written(walk_eqns(task.body)) if is_global(ref)}
        for loop in loops:
            if _is_endless(loop, shared):  # what other iterations change may end it
                raise TraceValueError(
                    "the condition of this qd.while_ reads nothing that its body changes, so it never ends",
                    loc=loop.loc,
                    help="let it read a qd.local or an element of a buffer that the body changes, "
                    "`qd.while_(lambda: c.value > 0)`, not a value loaded before; or leave the loop with qd.break_if",
                )


def _is_endless(loop: Eqn, shared: set[Var]) -> bool:
    test, body = loop.blocks
    (condition,) = test.results
    if isinstance(condition, Literal) and not condition.value:
        return False
    asks = [*walk_eqns(test)]
    changed = {*shared, *written(asks), *written(walk_eqns(body))}
    return not any(e.invars[0] in changed for e in asks if e.primitive in (LOAD, ATOMIC))


def _warn_of_unset(program: Program) -> None:
    unset = {b for b in program.buffers if b not in program.initial}
    for task in program.tasks:
        if not unset:
            return
        _warn_of_reads(task, unset)


def _warn_of_reads(task: Task, unset: set[Var]) -> None:
    """Warns of reads of `unset` buffers that the task does not store to; removes those that it touches from `unset`."""
    first: dict[Atom, Eqn] = {}
    stored: set[Atom] = set()
    for eqn in (*task.head, *walk_eqns(task.body)):
        prim = eqn.primitive
        if prim.is_access and is_global(eqn.invars[0]) and eqn.invars[0] in unset:
            if prim is STORE or (prim is ATOMIC and eqn.params["op"] in ("exchange", "cas")):
                stored.add(eqn.invars[0])
            first.setdefault(eqn.invars[0], eqn)
    for buffer, eqn in first.items():
        if not isinstance(buffer, Var):
            continue
        unset.discard(buffer)
        if buffer not in stored:
            does = "read" if eqn.primitive is LOAD else "added to"
            warn(
                f"`{buffer.hint}` is {does} before anything is stored in it: qd.empty leaves its elements undefined\n"
                "help: make it with qd.zeros or qd.full",
                eqn.loc,
            )
