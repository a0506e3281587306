"""What passes and analyses have to know of the machine that a program is for.

The defaults describe the CPU; they were measured on processors with AVX2 and with AVX-512. A backend gives the
description of its own machine. Costs are operations of a lane (`analysis/cost`).

`GPU` is a graphics processor whose lanes are threads. It is described by what all of them share: registers of a thread
at half occupancy, private memory that lies in device memory, launches that take microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopyLimit:
    """How far a loop is unrolled."""

    trips: int
    cost: int
    """Operations of all copies."""

    def allows(self, trips: int, cost: int) -> bool:
        """Whether that many copies of that cost together are few enough."""
        return trips <= self.trips and cost <= self.cost


@dataclass(frozen=True, slots=True)
class AccumulationLimits:
    """How far accumulated buffers are privatised."""

    registers: int = 16
    """Places of a buffer that are summed in registers."""
    chunk_bytes: int = 1 << 18
    """Memory that a chunk of iterations may have for copies of buffers."""
    lane_bytes: int = 1 << 16
    """Memory that the lanes of a chunk may have for copies of their own."""
    copy_work: int = 4
    """Operations of the task that make one more copy of an element worth clearing and adding up."""


@dataclass(frozen=True, slots=True)
class ReverseLimits:
    """What reverse mode keeps of loops (docs/design/0017)."""

    steps: int = 1
    """Most iterations that are run again as one piece of straight code, from one kept state. On a CPU more than one
    spills registers, and stacks lie in caches."""
    held_values: int = 48
    """Values that such a piece may hold until the walk back needs them."""
    code: int = 2048
    """Operations of such a piece."""
    stack_bytes: int = 1 << 14
    """Of the stack of one loop and one lane; what needs more thins."""
    open_stack_bytes: int = 1 << 14
    """The same of a loop whose number of iterations is not known: it is taken whether used or not."""
    lane_bytes: int = 1 << 26
    """Private memory that a lane can have at all."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Limits and costs of one kind of machine."""

    live_values: int = 48
    """Scalars alive at once. A vector unit has 16 or 32 registers; a few dozen spills cost less than a pass over
    memory."""
    launch_cost: int = 1 << 18
    """Operations of a task (all iterations) that take about as long as starting one on several threads."""
    joined_cost: int = 512
    """Operations of the code of a body that is made by joining. A body of this size moves little memory for its work,
    and the time to compile it grows faster than its size."""
    drag: int = 4
    """Work without loops may join a loop that lanes leave apart when it is below one part in this of the loop."""
    private_bytes: int = 4096
    """Memory of one iteration for what is private to it."""
    divergent_branch: int = 24
    """Operations of both sides of a branch that are computed where lanes disagree."""
    uniform_branch: int = 6
    """The same where they agree."""
    near_stride: int = 4
    """Elements between the loads of neighbouring lanes that touch few cache lines."""
    unrolled: CopyLimit = CopyLimit(8, 256)
    """Loops that are unrolled unasked."""
    unrolled_away: CopyLimit = CopyLimit(32, 1024)
    """The same where copies save more than the loop: a private array, or choices by the counter, go."""
    unrolled_asked: int = 4096
    """Operations of all copies of a loop that the user wants unrolled."""
    task_cost: int = 8192
    """Operations that unrolling makes no task larger than."""
    accumulation: AccumulationLimits = AccumulationLimits()
    reverse: ReverseLimits = ReverseLimits()
    lanes: int | None = None
    """Iterations that have private memory at a time; None: those of as many threads as the options say."""
    memory_bytes: int | None = None
    """Memory of the machine; None: what is free where the program is made."""


CPU = Machine()
GPU = Machine(
    # a thread of 128 registers leaves half of the threads that a multiprocessor can run
    live_values=128,
    # 3 microseconds of some 2e13 operations a second
    launch_cost=1 << 26,
    # threads of a warp that disagree run both sides anyway; what is saved is the jump, some 10 cycles
    divergent_branch=12,
    # the more a loop has of its private arrays in registers, the better: else they are device memory
    unrolled=CopyLimit(16, 512),
    unrolled_away=CopyLimit(64, 2048),
    reverse=ReverseLimits(
        steps=10,  # more gain nothing: the stack is a tenth of the traffic of one step
        held_values=128,
        open_stack_bytes=1 << 12,  # 127 states of 16 bytes and those run again
        lane_bytes=1 << 18,  # half of what CUDA gives a thread
    ),
    # 132 multiprocessors of 2048 threads: local memory is there for all that could run
    lanes=132 * 2048,
    memory_bytes=1 << 36,
)
