"""Tasks whose neighbouring iterations walk over neighbouring spans: what depends on the position alone is computed by
all threads of a block together, side by side in memory.

    range_for i                       a block, in shared memory, from its first span to the end of the last
      for k in lo : hi : 1              each thread, positions p = first + thread, in steps of the threads:
        c = load x (load col k)           store kept (load x (load col p)) p
        s = f s c                       wait; each thread, its iteration i:
        accum y s (load col k)            for k in lo : hi : 1
                                            s = f s (load kept k); store left s k
                                        wait; each thread, positions p:
                                          accum y (load left p) (load col p)

A thread an iteration reads and updates memory where its own span is, so the threads of a warp reach 32 places at once.
A block looks at its spans first: they must be consecutive, each beginning where the one before ends, and none much
longer than the others, as the block waits for it. A second kernel runs the iterations of other blocks as the task is
written: it keeps nothing in shared memory, as that memory is a part of the cache that such iterations need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import BYTES, MEMORY
from lowering.plan.derived_facts import PartFacts
from lowering.plan.span_memory import share_memory
from lowering.plan.span_parts import cut_spans
from lowering.plan.span_states import KeptStates, states_at_positions
from lowering.simt.devices import BUFFER_ALIGNMENT
from lowering.tables import round_up
from qdtrace.frozen import frozen
from qdtrace.ir.builder import Builder, emit_loop, ref_var, scalar_var
from qdtrace.ir.primitives import ADD
from qdtrace.ir.program import Eqn, Task, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.llvm.facts import TaskFacts
    from lowering.plan.span_parts import SpanParts
    from lowering.plan.sums import Sums
    from lowering.simt.devices import Device
    from qdtrace.ir.program import Var

BLOCK_BYTES = 48 << 10
"""Shared memory that a block may have without raising its limit."""
WORD = 4
WORDS = 4 * WORD
"""Bytes of a block's words in shared memory: whether its spans are apart, and whether a check failed in a part."""
POSITIONS = 22
"""Positions of a block for each of its threads, at most: for rows of mean length 16, all but one block in thousands
take theirs at once."""
RUNNING = 1536
"""Threads of a multiprocessor whose blocks' memory is taken of its cache: gathers in flight each hold a line of that.
On an H200 a sparse product of 67 million entries takes 0.97 ms with eight blocks of 256 threads and 200 of 256 KiB,
0.54 ms with six, 0.69 with two."""
SLOW = 16
"""Operations of an iteration of a walk from which blocks are smaller, as they wait for their longest span, and fewer
run at a time. The gradient of ragged rows takes 1.70 ms with 128 threads and `SLOW_RUNNING`, 1.78 with 256, 2.4 with
`RUNNING`; sparse products take 1 % more with 128 threads."""
SLOW_RUNNING = 896
SLOW_POSITIONS = 20
MOST_PERCENT = 86
"""The most shared memory of a multiprocessor that is taken of its cache, in percent."""
SHARED_BYTES = 228 << 10
"""The most shared memory of a multiprocessor, of which `Launch.held` is a part."""
RESERVED = 1 << 10
"""Shared memory that the driver takes for each block."""
FEWEST = 32
"""The fewest iterations for each multiprocessor: for fewer the code is not worth to be there twice."""
MOST_PRIVATE = 64
"""The most private memory of an iteration: stacks of states need the cache, too. The gradient of ragged rows, with each
state kept, takes 4.0 ms in parts in place of 3.1."""
SHARE = 8
"""A span may have one in so many of the positions that its block holds, as the other threads wait for it."""
STATES_SHARE = 4
"""The same where the walks keep states, which the task as written runs again: with a mean length of 100 the gradient of
ragged rows takes 1.96 ms, 2.50 with `SHARE`; the rows themselves 1.03 in place of 0.88."""
FREE = 64
"""Positions that a span may have always."""


@frozen(eq=False)
class BlockSpans:
    """The parts of a task, which a block runs one after another."""

    parts: SpanParts
    look: tuple[Eqn, ...]
    """Equations that compute the ends of an iteration's span."""
    span: Var
    """A reference with the first position that the block holds, and the end of the last."""
    before: PartFacts | None
    """A task over the threads of the block; so is `after`."""
    rows: PartFacts
    after: PartFacts | None
    most: int
    """Positions that a block holds."""
    threads: int
    """Threads of a block."""
    running: int
    """Threads of a multiprocessor whose blocks' memory is taken of its cache."""
    share: int
    """A span may have one in so many of the positions that its block holds."""

    @property
    def ends(self) -> int:
        """Bytes of the first positions, or of the ends, of a block's spans."""
        return _ends(self.parts, self.threads)

    @property
    def places(self) -> tuple[int, ...]:
        """Byte offsets of what is kept in its memory, then the size of that."""
        places = [0]
        for ref in self.parts.kept:
            places.append(round_up(places[-1] + self.most * BYTES[MEMORY[ref.dtype]], BUFFER_ALIGNMENT))
        return tuple(places)

    @property
    def held_percent(self) -> int:
        """The part of a multiprocessor's shared memory that blocks may take together."""
        each = self.places[-1] + WORDS + 2 * self.ends + RESERVED
        return min(MOST_PERCENT, -(-100 * each * self.running // (self.threads * SHARED_BYTES)))

    @property
    def shared(self) -> tuple[Var, ...]:
        """References that the parts take behind those of the task."""
        return (self.span, *self.parts.kept)


def plan_spans(
    facts: TaskFacts, sums: Sums, device: Device, iterations: int, threads: int, slow_threads: int
) -> BlockSpans | None:
    """Returns the parts of a task that gains by them, for a thread an iteration in blocks of `threads`, or of
    `slow_threads` if its walks are slow; or None."""
    task = facts.task
    if task.kind != "range_for" or iterations < FEWEST * device.multiprocessors:
        return None
    found = states_at_positions(task) or KeptStates(task, {}, {})
    if not found.states and facts.private_bytes > MOST_PRIVATE:
        return None
    parts = cut_spans(found.task, facts.written, set(facts.accumulated) - sums.own, found.states)
    look = None if parts is None else facts.repeatable(task.body.eqns, (parts.first, parts.last))
    if parts is None or look is None:
        return None
    parts = share_memory(parts)
    origins = {**found.origins, **{e: found.origins.get(of, of) for e, of in parts.origins.items()}}
    span = ref_var(parts.first.dtype, (2,), "span")
    shared = (span, *parts.kept)

    def part(made: Task) -> PartFacts:
        return PartFacts(made, facts, origins, shared)

    def over_threads(made: Task | None) -> PartFacts | None:
        return None if made is None else part(positions_of_threads(made, span, threads))

    rows = part(parts.rows)
    slow = rows.loop_body_cost >= SLOW
    threads = slow_threads if slow else threads
    running, share = SLOW_RUNNING if slow else RUNNING, STATES_SHARE if found.states else SHARE
    each = max(1, sum(BYTES[MEMORY[ref.dtype]] for ref in parts.kept))
    left = BLOCK_BYTES - WORDS - 2 * _ends(parts, threads) - BUFFER_ALIGNMENT * len(parts.kept)
    most = min((SLOW_POSITIONS if slow else POSITIONS) * threads, left // each)
    before, after = over_threads(parts.before), over_threads(parts.after)
    return BlockSpans(parts, look, span, before, rows, after, most, threads, running, share)


def _ends(parts: SpanParts, threads: int) -> int:
    return round_up(threads * BYTES[MEMORY[parts.first.dtype]], BUFFER_ALIGNMENT)


def positions_of_threads(part: Task, span: Var, threads: int) -> Task:
    """Returns a task over positions as one over the threads of a block, each with every so manieth position."""
    position, thread, b = part.index, scalar_var(DType.i32, "thread"), Builder()
    assert position is not None
    kind = position.dtype
    low, high = (b.load(span, literal(k, DType.i32)) for k in range(2))
    first = b("add", low, b.convert(thread, kind))
    left = b("add", b("sub", high, first), literal(threads - 1, kind))

    def turn(k: Var, _: list[Var]) -> list[Var]:
        b.append(Eqn(ADD, (first, b("mul", k, literal(threads, kind))), (position,)))
        for eqn in part.body.eqns:
            b.append(eqn)
        return []

    bounds = literal(0, kind), b("div", left, literal(threads, kind)), literal(1, kind)
    emit_loop(b, bounds, (), turn, index="k")
    ends = literal(0, DType.i32), literal(threads, DType.i32)
    return Task("range_for", thread, *ends, b.current.close(), part.head, part.name, part.loc)
