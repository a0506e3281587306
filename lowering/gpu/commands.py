"""What a call enqueues: a list that is known when a program is compiled.

All that a command takes is a *place*: bytes into a slot. The slots are the operands and results of the call, and behind
them one at address 0, so that numbers are places too, and one where the program's words of failures are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.gpu.fill import FILL, THREADS
from lowering.runtime.layout import Place, static_bounds
from lowering.tables import FIELD
from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lowering.runtime.layout import Clear, Layout
    from lowering.simt.code import Launch

MOST_BLOCKS = (1 << 31) - 1
"""Of a launch."""
MOST_CHECKS = (1 << 16) - 1
"""Of a task: the number of the one that failed is part of a word."""


@dataclass(frozen=True, slots=True)
class TaskKernels:
    """What launching a task needs to know of its code."""

    refs: tuple[int, ...]
    """The references that its kernels take, as numbers among those of the task."""
    launches: tuple[Launch, ...]
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Fills memory with a number of one, two or four bytes."""

    place: Place
    width: int
    number: int
    count: int


@dataclass(frozen=True, slots=True)
class Run:
    """Launches a kernel."""

    symbol: str
    """Of the kernel in the module of the handler."""
    label: str
    """For people."""
    blocks: int
    threads: int
    arguments: tuple[Place, ...]
    shared_bytes: int = 0


Command = Fill | Run


def kernel_symbol(task: int, launch: int) -> str:
    """The name of a kernel in the module of the handler."""
    return f"qd_kernel_{task}_{launch}"


def plan_commands(layout: Layout, tasks: Sequence[TaskKernels], scratch: Place) -> tuple[Command, ...]:
    """The commands of a call, in order; `scratch` is where the memory of kernels is."""
    return tuple(_commands(layout, tasks, scratch))


def watches(layout: Layout) -> bool:
    """Whether anything may fail, so that the program has words for it, one a task."""
    return any(layout.faults)


def _commands(layout: Layout, tasks: Sequence[TaskKernels], scratch: Place) -> Iterator[Command]:
    clears = list(layout.clears)
    for k, kernels in enumerate(tasks):
        while clears and clears[0].before == k:
            yield _fill(layout, clears.pop(0))
        yield from _launches(layout, k, kernels, scratch)
    for clear in clears:
        yield _fill(layout, clear)


def _number(layout: Layout, value: int) -> Place:
    return Place(layout.slot_count, value)


def _fill(layout: Layout, clear: Clear) -> Command:
    pattern = clear.value * (FIELD // len(clear.value))
    for width in (4, 2, 1):  # the widest that it can be: fewer numbers
        if pattern == pattern[:width] * (FIELD // width) and not clear.nbytes % width:
            return Fill(clear.place, width, int.from_bytes(pattern[:width], "little"), clear.nbytes // width)
    count = clear.nbytes // FIELD
    number = int.from_bytes(pattern, "little", signed=True)
    arguments = (clear.place, _number(layout, count), _number(layout, number))
    return Run(FILL, FILL, -(-count // THREADS), THREADS, arguments)


def _launches(layout: Layout, k: int, kernels: TaskKernels, scratch: Place) -> Iterator[Run]:
    task = layout.program.tasks[k]
    bounds = static_bounds(task)
    start, stop = bounds or (0, 0)
    if bounds and start >= stop:
        return
    checks = len(layout.faults[k])
    if checks > MOST_CHECKS:
        raise BackendError(f"{task.name}: needs at most {MOST_CHECKS} checks, got {checks}", loc=task.loc)
    refs = [layout.places[layout.task_refs[k][n]] for n in kernels.refs]
    word = Place(layout.slot_count + 1, k * FIELD) if watches(layout) else _number(layout, 0)
    memory = scratch if kernels.scratch_bytes else _number(layout, 0)
    arguments = (*refs, _number(layout, start), _number(layout, stop), word, memory)
    for n, launch in enumerate(kernels.launches):
        blocks = launch.blocks_for(stop - start)
        if blocks > MOST_BLOCKS:
            most = MOST_BLOCKS * launch.threads * launch.group
            raise BackendError(f"{task.name}: needs at most {most} iterations, got {stop - start}", loc=task.loc)
        taken = arguments + (_number(layout, 0),) * launch.null_arguments
        label = f"{task.name}: {launch.name}"
        yield Run(kernel_symbol(k, n), label, blocks, launch.threads, taken, launch.shared_bytes)
