"""Walks that read graphs: equations in order, the variables that they use and bind. `rebuild` makes new graphs."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from qdtrace.ir.primitives import CELL
from qdtrace.ir.program import Block, Var, walk_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qdtrace.ir.program import Eqn, Task


def blocks_of(task: Task) -> tuple[Block, ...]:
    """Returns the head (as a block without parameters) and the body of a task."""
    return Block((), task.head, (task.start, task.stop)), task.body


def walk_eqns(block: Block) -> Iterator[Eqn]:
    """Yields every equation of the block, in program order."""
    return walk_all(block.eqns)


def is_rare(eqn: Eqn) -> bool:
    """Returns whether the blocks of an equation hardly ever run, so that their cost is ignored (`if[rare=true]`)."""
    return bool(eqn.params.get("rare"))


def walk_often(block: Block) -> Iterator[Eqn]:
    """Yields every equation of the block but those that hardly ever run."""
    return walk_all(block.eqns, lambda eqn: not is_rare(eqn))


def walk_inside(eqn: Eqn) -> Iterator[Eqn]:
    """Yields every equation in the blocks of one, in program order."""
    return chain.from_iterable([walk_all(block.eqns) for block in eqn.blocks])


def is_innermost(eqn: Eqn) -> bool:
    """Returns whether an equation is a loop without a loop inside."""
    return eqn.primitive.loops and not any(e.primitive.loops for e in walk_inside(eqn))


def walk_nested(block: Block, around: tuple[Eqn, ...] = ()) -> Iterator[tuple[Eqn, tuple[Eqn, ...]]]:
    """Yields every equation of the block, as `walk_eqns` does, with the equations around it, outermost first."""
    for eqn in block.eqns:
        yield eqn, around
        for inner in eqn.blocks:
            yield from walk_nested(inner, (*around, eqn))


def levels_of(task: Task) -> dict[Var, int]:
    """Returns the number of blocks around each variable: 1 in head and body; references from outside have no entry."""
    found: dict[Var, int] = {} if task.index is None else {task.index: 1}
    for block in blocks_of(task):
        for eqn, around in walk_nested(block):
            found.update(dict.fromkeys(eqn.outvars, len(around) + 1))
            for inner in eqn.blocks:
                found.update(dict.fromkeys(inner.params, len(around) + 2))
    return found


def used_vars(eqn: Eqn) -> Iterator[Var]:
    """Yields the variables read by the equation or anywhere in its blocks (those bound inside included)."""
    own = [atom for atom in eqn.invars if atom.__class__ is Var]
    return chain(own, *map(used_in_block, eqn.blocks)) if eqn.blocks else iter(own)  # type: ignore[arg-type]


def used_in_block(block: Block) -> Iterator[Var]:
    """Yields the variables read anywhere in the block."""
    pending = [(iter(block.eqns), block.results)]
    while pending:
        eqns, results = pending[-1]
        for eqn in eqns:
            for atom in eqn.invars:
                if atom.__class__ is Var:
                    yield atom  # type: ignore[misc]
            if eqn.blocks:
                pending += [(iter(inner.eqns), inner.results) for inner in reversed(eqn.blocks)]
                break
        else:
            pending.pop()
            for atom in results:
                if atom.__class__ is Var:
                    yield atom  # type: ignore[misc]


def bound_in_block(block: Block) -> Iterator[Var]:
    """Yields the variables bound anywhere in the block."""
    yield from block.params
    for eqn in block.eqns:
        yield from eqn.outvars
        for inner in eqn.blocks:
            yield from bound_in_block(inner)


def free_vars(block: Block) -> dict[Var, None]:
    """Returns the variables used but not bound in the block, in order of first use."""
    bound = set(bound_in_block(block))
    return {v: None for v in used_in_block(block) if v not in bound}


def private_bytes(eqns: Iterable[Eqn]) -> int:
    """Returns the bytes of the cells and private arrays that the equations make, those in their blocks included."""
    return sum(v.type.nbytes for e in walk_all(eqns) if e.primitive is CELL for v in e.outvars)  # type: ignore[union-attr]
