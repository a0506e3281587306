"""The machine model: limits and costs of the target that passes and analyses use.

The defaults describe the CPU; they were measured on processors with AVX2 and with AVX-512. A backend describes
its own machine. Costs are operations of a lane (`analysis/cost`).

`GPU` describes what graphics processors share, with the numbers of an H200; a lane is a thread. Its backends put in how
many threads their chip runs.
"""

from __future__ import annotations

from qdtrace.frozen import frozen


@frozen(slots=True)
class CopyLimit:
    """Limits on the copies of a loop's body that unrolling makes."""

    trips: int
    cost: int
    """Largest number of operations in all copies together."""

    def allows(self, trips: int, cost: int) -> bool:
        """Returns whether that many copies, of that total cost, are within the limits."""
        return trips <= self.trips and cost <= self.cost


@frozen(slots=True)
class AccumulationLimits:
    """Limits on the privatised copies of accumulated buffers."""

    registers: int = 16
    """Largest number of elements of a buffer that are summed in registers."""
    chunk_bytes: int = 1 << 18
    """Bytes of privatised copies that a chunk of iterations may have."""
    lane_bytes: int = 1 << 14
    """Bytes of privatised copies that the lanes of a chunk may have together."""
    copy_work: int = 4
    """Smallest number of operations of a task per element and copy at which another copy pays."""


@frozen(slots=True)
class ReverseLimits:
    """Limits on the checkpoints and recomputation of loops in reverse mode (docs/design/0017)."""

    steps: int = 1
    """Largest number of iterations that are recomputed as one piece of straight code, from one checkpoint. On a CPU
    more than one spills registers, and stacks lie in caches."""
    held_values: int = 48
    """Largest number of values that such a piece may keep live for its reverse."""
    code: int = 2048
    """Largest number of operations in such a piece."""
    stack_bytes: int = 1 << 14
    """Bytes of checkpoints that one loop and one lane may keep; a loop that needs more keeps fewer and recomputes."""
    open_stack_bytes: int = 1 << 14
    """The same limit for a loop of unknown trip count, whose stack is allocated whether it is used or not."""
    open_arrays: int = 8
    """Factor on that limit where private arrays are a part of the state and the loop has another one inside: running
    its iterations again takes longer than what more memory costs, fewer lanes side by side."""
    lane_bytes: int = 1 << 26
    """Largest private memory of one lane."""


@frozen(slots=True)
class Machine:
    """Limits and costs of one kind of machine."""

    platform: str = "cpu"
    """JAX's name of the platform, by which `lax.platform_dependent` chooses."""
    live_values: int = 48
    """Largest number of scalars live at once. A vector unit has 16 or 32 registers; a few dozen spills cost less than
    a pass over memory."""
    launch_cost: int = 1 << 18
    """Operations of a task (all iterations) that take about as long as a launch on several threads."""
    joined_cost: int = 512
    """Largest number of operations in a body made by fusion. A body of this size moves little memory for its work, and
    the time to compile it grows faster than its size."""
    drag: int = 4
    """Code without loops may be fused with a divergent loop if its work times this is at most the loop's work."""
    private_bytes: int = 4096
    """Bytes of private memory that the contraction of buffers may use in one iteration."""
    divergent_branch: int = 24
    """Largest cost of both sides of a divergent branch at which both are computed."""
    uniform_branch: int = 6
    """Largest cost of both sides of a uniform branch at which both are computed."""
    scalars: int = 256
    """Largest number of elements of an array of a lane that is written out as scalars."""
    scalars_of_matrices: int = 64
    """The same in a task that mostly multiplies matrices, or computes on rows in a loop, and for sums of products that
    are unrolled to take an array apart. Loops over private memory run as fast for these and compile sooner."""
    scalars_of_rows: int = 31
    """The same where iterations mostly compute on rows as a whole, and not in a loop. Loops over elements are then
    fused, and become vectors along rows, where scalars of neighbouring iterations lie far apart in memory."""
    near_stride: int = 4
    """Largest stride in elements at which the loads of neighbouring lanes touch few cache lines."""
    unrolled: CopyLimit = CopyLimit(8, 256)
    """Limits for a loop that is unrolled without being asked for."""
    unrolled_away: CopyLimit = CopyLimit(31, 1024)
    """Limits for a loop whose copies save more than the loop: a private array, or choices by the counter, disappear."""
    unrolled_asked: int = 4096
    """Largest number of operations in all copies of a loop that the user wants unrolled."""
    jammed: int = 4
    """Iterations of a loop over sums of products that run side by side, at most where private arrays are no rows."""
    written_out: int = 16
    """Most products of a sum that are written out for its operands to be registers, where loops are jammed."""
    task_cost: int = 8192
    """Largest number of operations of a task after unrolling."""
    accumulation: AccumulationLimits = AccumulationLimits()
    reverse: ReverseLimits = ReverseLimits()
    lanes: int | None = None
    """Iterations that have private memory at a time; None means those of the threads in the options."""
    memory_bytes: int | None = None
    """Bytes of memory of the machine; None means the free memory where the program is made."""

    @property
    def keeps_rows(self) -> bool:
        """True if private arrays may stay rows where others would be scalars; threads have none."""
        return self.scalars_of_rows < self.scalars


CPU = Machine()
GPU = Machine(
    platform="cuda",
    # of 255 registers some hold addresses, and with 128 a multiprocessor runs a quarter of its threads, which is enough
    live_values=128,
    scalars_of_matrices=256,  # a private array that stays one is memory of the device
    scalars_of_rows=256,
    # 2 microseconds of some 1e13 operations a second
    launch_cost=1 << 24,
    # a private array that stays one is memory of the device; counting takes instructions of each lane
    unrolled=CopyLimit(16, 512),
    jammed=8,
    unrolled_away=CopyLimit(64, 2048),
    # copies of arrays are in shared memory
    accumulation=AccumulationLimits(chunk_bytes=1 << 15, lane_bytes=0, copy_work=1),
    reverse=ReverseLimits(
        # then the stack is little beside the arithmetic: Lorenz takes 0.55 ms with 5 and with 10, 0.89 with 1
        steps=10,
        held_values=128,
        open_arrays=1,
        open_stack_bytes=1 << 12,  # 128 states of 16 bytes, and those that are run again
        lane_bytes=1 << 22,  # in scratch: two thousand threads run then
    ),
    # local memory is there for all threads that could run
    lanes=132 * 2048,
    memory_bytes=1 << 36,
)
