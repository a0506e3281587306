"""The commands that a call enqueues: a list that is known when a program is compiled.

Every argument of a command is a *place*: a byte offset into a slot. The slots are the operands and results of the call,
then one at address 0, so that numbers are places too, then one at the program's words of failures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowering.gpu.fill import FILL, THREADS
from lowering.runtime.layout import Place
from lowering.simt.series import FILL_BYTES
from lowering.tables import FIELD
from qdtrace.analysis.index.trips import static_bounds
from qdtrace.errors import BackendError
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lowering.runtime.layout import Clear, Layout
    from lowering.runtime.native import Piece
    from lowering.simt.code import Launch

MOST_BLOCKS = (1 << 31) - 1
"""Hardware limit on the blocks of one launch."""
BLOCK = -1
"""The slot of arguments in shared memory of the block."""
MOST_CHECKS = (1 << 16) - 1
"""Checks that one task may have: the number of a failed check is part of a word."""


@frozen(slots=True)
class TaskKernels:
    """The facts about a task's code that its launches need."""

    refs: tuple[int, ...]
    """Numbers of the task's references that its kernels take."""
    launches: tuple[Launch, ...]
    scratch_bytes: int


@frozen(slots=True)
class Command:
    """A launch of a kernel, or a fill of memory by the driver: a record of `tables.COMMAND`."""

    places: tuple[Place, ...]
    """Arguments of the kernel, or the memory to fill."""
    blocks: int
    """Blocks of the launch, or how many numbers are filled in."""
    symbol: str = ""
    """Symbol of the kernel in the handler's module; empty for a fill."""
    label: str = ""
    """Human-readable name of the launch, for errors and profiles."""
    threads: int = 0
    shared_bytes: int = 0
    width: int = 0
    """Bytes of the number that the driver fills memory with, 1, 2 or 4; 0 for a launch."""
    number: int = 0


def kernel_symbol(task: int, launch: int) -> str:
    """Returns the name of a kernel in the module of the handler."""
    return f"qd_kernel_{task}_{launch}"


def plan_commands(layout: Layout, pieces: Mapping[Piece[Any], TaskKernels], scratch: Place) -> tuple[Command, ...]:
    """Returns the commands of a call, in order; `scratch` is the place of the kernels' scratch memory."""
    return tuple(_commands(layout, pieces, scratch))


def filled_before(layout: Layout) -> dict[int, int]:
    """Returns the bytes that are cleared before each task, without tasks that need no clearing."""
    found: dict[int, int] = {}
    for clear in layout.clears:
        found[clear.before] = found.get(clear.before, 0) + clear.nbytes
    return found


def steps_of(layout: Layout, tasks: range) -> list[Clear | int]:
    """Returns the steps of a series' kernel, in order: the fills that it does itself, and numbers of tasks."""
    filled = filled_before(layout)
    steps: list[Clear | int] = []
    for k in tasks:
        if filled.get(k, 0) <= FILL_BYTES:
            steps += [clear for clear in layout.clears if clear.before == k]
        steps.append(k)
    return steps


def watches(layout: Layout) -> bool:
    """Returns whether any check may fail, so that the program has a word of failure for each task."""
    return any(layout.faults)


def _commands(layout: Layout, pieces: Mapping[Piece[Any], TaskKernels], scratch: Place) -> Iterator[Command]:
    for piece, kernels in pieces.items():
        steps = steps_of(layout, piece.tasks) if piece.in_series else []
        inside = [step for step in steps if not isinstance(step, int)]
        yield from (_fill(layout, c) for c in layout.clears if c.before == piece.tasks.start and c not in inside)
        if piece.in_series:
            yield _series(layout, piece.tasks, kernels, steps)
        else:
            yield from _launches(layout, piece.tasks.start, kernels, scratch)
    count = len(layout.program.tasks)
    yield from (_fill(layout, clear) for clear in layout.clears if clear.before == count)


def _series(layout: Layout, tasks: range, kernels: TaskKernels, steps: Sequence[Clear | int]) -> Command:
    """Returns the launch of a series; its arguments are in the order that `simt.emit_series` defines."""
    first, last = (layout.program.tasks[k] for k in (tasks[0], tasks[-1]))
    taken: list[Place] = []
    for step in steps:
        if isinstance(step, int):
            _few_checks(layout, step)
            taken += [layout.places[v] for v in layout.task_refs[step]]
        else:
            taken.append(step.place)
    nothing = _number(layout, 0)
    (launch,) = kernels.launches
    label = f"{first.name}: {launch.name}" if first is last else f"{first.name} to {last.name}: {launch.name}"
    given = (nothing if place.slot == BLOCK else place for place in taken)
    arguments = (*given, nothing, nothing, _word(layout, tasks[0]), nothing)
    return Command(arguments, launch.blocks, kernel_symbol(tasks[0], 0), label, launch.threads)


def _word(layout: Layout, k: int) -> Place:
    """Returns the place of a task's word of failure, or address 0 if the program has no checks."""
    return Place(layout.slot_count + 1, k * FIELD) if watches(layout) else _number(layout, 0)


def _few_checks(layout: Layout, k: int) -> None:
    checks, task = len(layout.faults[k]), layout.program.tasks[k]
    if checks > MOST_CHECKS:
        raise BackendError(f"{task.name}: needs at most {MOST_CHECKS} checks, got {checks}", loc=task.loc)


def _number(layout: Layout, value: int) -> Place:
    return Place(layout.slot_count, value)


def _fill(layout: Layout, clear: Clear) -> Command:
    pattern = clear.value * (FIELD // len(clear.value))
    for width in (4, 2, 1):  # the widest unit needs the fewest stores
        if pattern == pattern[:width] * (FIELD // width) and not clear.nbytes % width:
            number = int.from_bytes(pattern[:width], "little")
            return Command((clear.place,), clear.nbytes // width, width=width, number=number)
    count = clear.nbytes // FIELD
    number = int.from_bytes(pattern, "little", signed=True)
    arguments = (clear.place, _number(layout, count), _number(layout, number))
    return Command(arguments, -(-count // THREADS), FILL, FILL, THREADS)


def _launches(layout: Layout, k: int, kernels: TaskKernels, scratch: Place) -> Iterator[Command]:
    task = layout.program.tasks[k]
    bounds = static_bounds(task)
    start, stop = bounds or (0, 0)
    if bounds and start >= stop:
        return
    _few_checks(layout, k)
    refs = [layout.places[layout.task_refs[k][n]] for n in kernels.refs]
    memory = scratch if kernels.scratch_bytes else _number(layout, 0)
    arguments = (*refs, _number(layout, start), _number(layout, stop), _word(layout, k), memory)
    for n, launch in enumerate(kernels.launches):
        blocks = launch.blocks_for(stop - start)
        if blocks > MOST_BLOCKS:
            most = MOST_BLOCKS * launch.threads * launch.group
            raise BackendError(f"{task.name}: needs at most {most} iterations, got {stop - start}", loc=task.loc)
        taken = arguments + (_number(layout, 0),) * launch.null_arguments
        label = f"{task.name}: {launch.name}"
        yield Command(taken, blocks, kernel_symbol(k, n), label, launch.threads, launch.shared_bytes)
