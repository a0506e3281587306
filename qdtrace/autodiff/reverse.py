"""Reverse mode: a program that computes adjoints of inputs from adjoints of results.

The reverse of a program runs those tasks again whose results are needed, then one reverse task for each task, from last
to first. A reverse task has the range of its task: each iteration runs the body again for its values (a *sweep*), then
walks back over it. The adjoint of memory is memory of the same shape. In the walk back, a load adds to the adjoint of
its element; a store reads it and sets it to 0, at once where other iterations may store there (`atomics`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress, repeat
from typing import TYPE_CHECKING

from qdtrace.analysis.index.most_trips import MostTrips
from qdtrace.analysis.index.trips import task_values
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.adjoints import Adjoints, Backward
from qdtrace.autodiff.array_tape import choose_for_arrays
from qdtrace.autodiff.atomics import check_atomics, contested_stores
from qdtrace.autodiff.loops.cut import with_cut_loops
from qdtrace.autodiff.loops.every_state import EveryState
from qdtrace.autodiff.loops.needed import Needed
from qdtrace.autodiff.loops.policy import LoopSize, Stacks
from qdtrace.autodiff.loops.reverse_loop import Loops
from qdtrace.autodiff.loops.segment_length import most_steps
from qdtrace.autodiff.loops.segments import Segments
from qdtrace.autodiff.loops.slots import Slots
from qdtrace.autodiff.loops.thinning import Thinning
from qdtrace.autodiff.loops.trip_counts import constant_trips, is_counted
from qdtrace.autodiff.residuals import Given, Unchecked
from qdtrace.autodiff.rows import with_private_rows
from qdtrace.autodiff.sweep import Sweep
from qdtrace.autodiff.versions import Versions, written_by
from qdtrace.autodiff.write_once import found_behind, settled
from qdtrace.autodiff.zeros import zeros_of
from qdtrace.errors import GradientError
from qdtrace.ir.builder import Builder
from qdtrace.ir.copies import copy_task
from qdtrace.ir.primitives import LOAD
from qdtrace.ir.program import Block, Program, Var, literal, ref_type
from qdtrace.ir.walk import is_innermost, private_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.autodiff.loops.replay import Storage
    from qdtrace.autodiff.volatile import Accesses
    from qdtrace.ir.program import Atom, Eqn, Task
    from qdtrace.ir.types import DType


def reverse(
    program: Program,
    inputs: Sequence[Var],
    results: Sequence[Var],
    known: Given | None = None,
    stacks: Stacks | None = None,
    wanted: Sequence[bool] | None = None,
) -> Program:
    """Returns the program that computes the adjoints of `inputs`, all or the `wanted` ones, in order; the inputs are
    parameters, and taken as zero.

    Its parameters are those of the program, then the contents that are `known`, then the adjoints of `results`, in
    order. The choices of storage for loops are added to `stacks`. Raises GradientError if the program has no reverse.
    """
    known = known or Given(program, ())
    stacks = stacks or Stacks()
    cut = with_cut_loops(program)
    zeros = lambda: zeros_of(cut, inputs, active_variables(cut, inputs, results))  # noqa: E731 - asked for large rows only
    program = with_private_rows(cut, zeros, stacks.limits.open_stack_bytes)
    active = active_variables(program, inputs, results)
    zero = zeros_of(program, inputs, active)
    loads = (e for e in program.all_eqns if e.primitive is LOAD and e.outvar in active)
    sure = zero if any(e.invars[0] not in zero for e in loads) else active
    given = {v: Var(v.type, f"{v.hint}_bar") for v in results}
    adjoints: dict[Var, Var] = dict(given)
    buffers: list[Var] = []
    initial = {}
    for var in (*program.params, *program.buffers):
        if (var in active or var in inputs) and var not in adjoints:
            adjoints[var] = Var(var.type, f"{var.hint}_bar")
            buffers.append(adjoints[var])
            initial[adjoints[var]] = literal(0, var.dtype)
    refs = [task.refs for task in program.tasks]
    numbers = [k for k, used in enumerate(refs) if any(v in active for v in used)]
    accessed = {k: settled(program.tasks[k], zero) for k in numbers}
    needed: list[tuple[int, Var]] = []
    for k in numbers:
        needed += [(k, ref) for ref in refs[k] if ref not in zero]
        needed += [(k + 1, ref) for ref in found_behind(accessed[k])]
    again = _run_again(program, accessed, known, zero)
    versions = Versions(program, needed, set(numbers) - again)
    # The primal has run all checks if it hands over contents.
    tasks = [Unchecked().rebuild_task(t) for t in versions.tasks] if known.params else list(versions.tasks)
    scratch: list[Var] = []
    for k in reversed(numbers):
        task = program.tasks[k]
        found = accessed[k]
        before = {ref: known.content(k, ref) or versions.before[k, ref] for ref in refs[k] if ref not in zero}
        memory = dict(before)
        for ref in found.volatile:
            copy = Var(ref.type, ref.hint)
            scratch.append(copy)
            initial[copy] = literal(0, ref.dtype)
            tasks.append(copy_task(memory[ref], copy))
            memory[ref] = copy
        behind = {ref: known.content(k + 1, ref) or versions.before[k + 1, ref] for ref in found_behind(found)}
        is_checked = k in again or bool(known.params)
        trips = MostTrips(task)
        choose_for_arrays(task, found, zero, trips, stacks)
        sweep = Sweep(Builder(), memory, (before, behind), found, zero, is_checked=is_checked)
        tasks.append(_reverse_task(task, sweep, trips, active, sure, adjoints, stacks))
    made = replace(
        program,
        params=(*program.params, *known.params.values(), *(given[v] for v in results)),
        buffers=(*versions.buffers, *buffers, *scratch),
        tasks=tuple(tasks),
        results=tuple(adjoints[v] for v in compress(inputs, repeat(True) if wanted is None else wanted)),
        initial={**versions.initial, **initial},
        donated_from={},
    )
    check_atomics(made, frozenset(adjoints.values()))
    return made


def _run_again(program: Program, accessed: Mapping[int, Accesses], known: Given, zero: frozenset[Var]) -> set[int]:
    """Returns the numbers of tasks whose results a reverse task needs. The reverse of any other makes its checks."""
    wanted: set[Var] = set()
    again: set[int] = set()
    for k in reversed(range(len(program.tasks))):
        task = program.tasks[k]
        if k in accessed:
            wanted |= {v for v in found_behind(accessed[k]) if known.content(k + 1, v) is None}
        if not wanted.isdisjoint(written_by(task)):
            again.add(k)
            wanted |= task.refs.keys() - zero
        if k in accessed:
            loaded = {e.invars[0] for e in task.all_eqns if e.primitive is LOAD}
            wanted |= {v for v in loaded if isinstance(v, Var) and v not in zero and known.content(k, v) is None}
    return again


def _reverse_task(
    task: Task,
    sweep: Sweep,
    trips: MostTrips,
    active: frozenset[Var],
    sure: frozenset[Var],
    adjoints: Mapping[Var, Var],
    stacks: Stacks,
) -> Task:
    """Returns the reverse of one task, which `sweep` emits."""
    builder, found, zero = sweep.builder, sweep.accesses, sweep.zero
    sweep.tape.measure(task, trips)
    contested = contested_stores(task, active)
    backward = Backward(sweep, active, sure, {v: a for v, a in adjoints.items() if v in active}, contested)

    needed = Needed(task, found.volatile, active, zero)

    def storage(eqn: Eqn, state: Sequence[DType], arrays: Sequence[Var]) -> Storage | Segments:
        if found.log.nbytes(eqn):
            found.log.allocate(sweep, eqn)
            stacks.add_log(found.log.nbytes(eqn), eqn.loc)
        slots = lambda capacity: Slots(sweep.private, state, arrays, capacity)  # noqa: E731 - one for each stack
        used = private_bytes(sweep.hoisted)
        is_exact, most = constant_trips(eqn) is not None, most_steps(eqn, needed, stacks.limits)
        nbytes = sum(d.itemsize for d in state) + sum(ref_type(a).nbytes for a in arrays)
        size = LoopSize(trips.of(eqn), nbytes, is_exact, most, bool(arrays), not is_innermost(eqn))
        choice = stacks.choose(size, used, eqn.loc)
        bits = choice.thinned_bits
        kept = EveryState(slots(choice.slots)) if bits is None else Thinning(slots(choice.slots), bits)
        if choice.steps == 1:
            return kept
        rest = slots(choice.rest) if choice.rest else None
        return Segments(kept, rest, choice.steps, is_counted=is_counted(eqn))

    Loops(sweep, backward, needed, storage, trips)
    env = {}
    with builder.block() as head:
        sweep.plain(task.head, env, live=True)
    index = task.index and Var(task.index.type, task.index.hint)
    start, stop = sweep.atoms(env, (task.start, task.stop))
    with builder.block() as body:
        if task.index is not None and index is not None:
            env[task.index] = _from_the_end(builder, index, start, stop) if contested else index
        sweep.recorded(task.body.eqns, env, live=True)
        walked = Adjoints()
        backward.walk((*task.head, *task.body.eqns), env, walked)
    _need_room(task, sweep, stacks)
    whole = Block((), (*sweep.hoisted, *body.eqns))
    return replace(
        task, index=index, start=start, stop=stop, head=tuple(head.eqns), body=whole, name=f"{task.name}_reverse"
    )


def _from_the_end(builder: Builder, index: Var, start: Atom, stop: Atom) -> Atom:
    """Returns the iteration as far from the end as the index is from the start. Where one thread runs all iterations,
    what is left of stores to one element is the last one, and the first that its reverse comes to."""
    last = builder("sub", builder("add", start, stop), literal(1, stop.dtype))
    return builder("sub", last, index)


def _need_room(task: Task, sweep: Sweep, stacks: Stacks) -> None:
    taped = sweep.tape.nbytes
    values = task_values(task) if taped else None
    room = stacks.room(1 if task.index is None else None if values is None else values.count, taped)
    if taped > room:
        raise GradientError(
            f"{task.name}: reverse mode keeps {taped} bytes an iteration of memory that loops load and "
            f"change, more than the {room} that the option ad_stack_memory leaves",
            loc=task.loc,
            help="raise ad_stack_memory, run fewer iterations at a time (num_threads), or change less memory",
        )
    held = private_bytes(sweep.hoisted)
    limit = stacks.limits.lane_bytes
    if held <= limit:
        return
    notes = [f"{taped} bytes are values of memory that loops load and change"] if taped else []
    largest = max(stacks.choices, key=lambda c: c.nbytes, default=None)
    if largest is not None and largest.nbytes:
        notes.append(f"the loop that keeps most: {largest}")
    raise GradientError(
        f"{task.name}: reverse mode needs at most {limit} bytes of private memory an iteration, got {held}",
        loc=task.loc,
        notes=notes,
        help="run the loop from outside (lax.scan around a qd.jit function of fewer iterations), or change less memory",
    )
