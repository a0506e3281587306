"""What passes and analyses have to know of the machine that a program is for.

The defaults describe the CPU; they were measured on processors with AVX2 and with AVX-512. A backend gives the
description of its own machine. Costs are operations of a lane (`analysis/cost`).

`GPU` describes what graphics processors share, with the numbers of an H200; a lane is a thread. Its backends put in how
many threads their chip runs.
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

    platform: str = "cpu"
    """JAX's name for such machines: what `lax.platform_dependent` chooses by."""
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
    platform="cuda",
    # of 255 registers some hold addresses, and with 128 a multiprocessor runs a quarter of its threads, which is enough
    live_values=128,
    # 2 microseconds of some 1e13 operations a second
    launch_cost=1 << 24,
    # a private array that stays one is memory of the device; counting takes instructions of each lane
    unrolled=CopyLimit(16, 512),
    unrolled_away=CopyLimit(64, 2048),
    # copies of arrays are in shared memory
    accumulation=AccumulationLimits(chunk_bytes=1 << 15, lane_bytes=0, copy_work=1),
    reverse=ReverseLimits(
        # then the stack is little beside the arithmetic: Lorenz takes 0.55 ms with 5 and with 10, 0.89 with 1
        steps=10,
        held_values=128,
        open_stack_bytes=1 << 12,  # 128 states of 16 bytes, and those that are run again
        lane_bytes=1 << 22,  # in scratch: two thousand threads run then
    ),
    # local memory is there for all threads that could run
    lanes=132 * 2048,
    memory_bytes=1 << 36,
)
