"""Traversal and rebuilding of graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def blocks_of(task: Task) -> tuple[Block, ...]:
    """The head (as a block without parameters) and the body of a task."""
    return Block((), task.head, (task.start, task.stop)), task.body


def walk_eqns(block: Block) -> Iterator[Eqn]:
    """Every equation of the block and, after it, those of its blocks, in program order."""
    for eqn in block.eqns:
        yield eqn
        for inner in eqn.blocks:
            yield from walk_eqns(inner)


def walk_task(task: Task) -> Iterator[Eqn]:
    """Every equation of a task, head first."""
    for block in blocks_of(task):
        yield from walk_eqns(block)


def walk_program(program: Program) -> Iterator[Eqn]:
    """Every equation of the program."""
    for task in program.tasks:
        yield from walk_task(task)


def used_vars(eqn: Eqn) -> Iterator[Var]:
    """Variables read by the equation or anywhere in its blocks (those bound inside included)."""
    for atom in eqn.invars:
        if isinstance(atom, Var):
            yield atom
    for block in eqn.blocks:
        yield from used_in_block(block)


def used_in_block(block: Block) -> Iterator[Var]:
    """Variables read anywhere in the block."""
    for eqn in block.eqns:
        yield from used_vars(eqn)
    for atom in block.results:
        if isinstance(atom, Var):
            yield atom


def bound_in_block(block: Block) -> Iterator[Var]:
    """Variables bound anywhere in the block."""
    yield from block.params
    for eqn in block.eqns:
        yield from eqn.outvars
        for inner in eqn.blocks:
            yield from bound_in_block(inner)


def free_vars(block: Block) -> dict[Var, None]:
    """Variables used but not bound in the block, in order of first use."""
    bound = set(bound_in_block(block))
    return {v: None for v in used_in_block(block) if v not in bound}


def task_refs(task: Task) -> dict[Var, None]:
    """Global references a task uses, in order of first use."""
    found: dict[Var, None] = {}
    for block in blocks_of(task):
        for var in free_vars(block):
            if var is not task.index and var.type.__class__.__name__ == "RefType":
                found[var] = None
    return found


def substitute_atom(atom: Atom, env: Mapping[Var, Atom]) -> Atom:
    """The replacement of a variable, or the atom itself."""
    return env.get(atom, atom) if isinstance(atom, Var) else atom


def substitute_block(block: Block, env: Mapping[Var, Atom]) -> Block:
    """The block with free variables replaced; the same object when nothing changed."""
    if not env:
        return block
    eqns = tuple(substitute_eqn(e, env) for e in block.eqns)
    results = tuple(substitute_atom(a, env) for a in block.results)
    same = all(a is b for a, b in zip(eqns, block.eqns, strict=True))
    same = same and all(a is b for a, b in zip(results, block.results, strict=True))
    return block if same else Block(block.params, eqns, results)


def substitute_eqn(eqn: Eqn, env: Mapping[Var, Atom]) -> Eqn:
    """The equation with used variables replaced; the same object when nothing changed."""
    invars = tuple(substitute_atom(a, env) for a in eqn.invars)
    blocks = tuple(substitute_block(b, env) for b in eqn.blocks)
    same = all(a is b for a, b in zip(invars, eqn.invars, strict=True))
    same = same and all(a is b for a, b in zip(blocks, eqn.blocks, strict=True))
    return eqn if same else replace(eqn, invars=invars, blocks=blocks)


def map_tasks(program: Program, fn: Callable[[Task], Task | None]) -> Program:
    """The program with each task replaced (None drops it); the same object when nothing changed."""
    tasks = tuple(t for t in map(fn, program.tasks) if t is not None)
    if len(tasks) == len(program.tasks) and all(a is b for a, b in zip(tasks, program.tasks, strict=True)):
        return program
    return replace(program, tasks=tasks)
