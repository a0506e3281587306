"""Contraction: a buffer of which each iteration of one task uses elements of its own becomes private memory.

Before:  buffer y: ref[f32,8]                 After:  range_for i in 0:i32 : 8:i32
         range_for i in 0:i32 : 8:i32                   y: cell[f32] = cell[dtype=f32, shape=()]
           a: f32 = load x i                            a: f32 = load x i
           store y a i                                  store y a
           b: f32 = load y i                            b: f32 = load y
           c: f32 = mul b b                             c: f32 = mul b b
           store z c i                                  store z c i

Applies to buffers local to the program that no other task touches, where the indices tell iterations apart: some
components are the same in all accesses and injective (see `analysis/injectivity`); the others index the private array.
The memory is never allocated; `promote_cells` makes values of the cell. Buffers with an initial value, results, atomics
and rows above the limit stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.accesses import ATOMIC, TaskAccesses, indices_of
from qdtrace.analysis.injectivity import Injectivity
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Block, Eqn, Program, Task, Var, ref_type
from qdtrace.ir.types import RefType, Space
from qdtrace.ir.walk import bound_in_block, task_refs, walk_task
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.analysis.accesses import Access
    from qdtrace.analysis.affine import Form, Term

SIZE_LIMIT = 64
"""Elements of the largest private array that is made: the stack of a step holds one for each lane."""


@dataclass(frozen=True)
class Contract(Pass):
    """Buffers that live inside of iterations become cells."""

    name: ClassVar[str] = "contract"

    def __call__(self, program: Program) -> Program:
        """The program with less memory; the same object when there is nothing to contract."""
        candidates = set(program.buffers) - set(program.results) - set(program.initial)
        users: dict[Var, list[int]] = {}
        for number, task in enumerate(program.tasks):
            for ref in task_refs(task):
                if ref in candidates:
                    users.setdefault(ref, []).append(number)
        wanted: dict[int, list[Var]] = {}
        for ref, numbers in users.items():
            if len(numbers) == 1:
                wanted.setdefault(numbers[0], []).append(ref)
        tasks = list(program.tasks)
        gone: set[Var] = set()
        for number, refs in wanted.items():
            cells = _cells(tasks[number], refs)
            if cells:
                tasks[number] = _with_cells(tasks[number], cells)
                gone |= cells.keys()
        if not gone:
            return program
        return replace(program, tasks=tuple(tasks), buffers=tuple([b for b in program.buffers if b not in gone]))


@dataclass(frozen=True, slots=True)
class _Cell:
    """The private memory in the place of a buffer, and which index components it keeps."""

    var: Var
    kept: tuple[int, ...]


def _cells(task: Task, refs: Sequence[Var]) -> dict[Var, _Cell]:
    accesses = TaskAccesses(task)
    injectivity = Injectivity(task, accesses.forms)
    first: dict[Var, Eqn] = {}
    for eqn in walk_task(task):
        if eqn.primitive.effects and eqn.invars and isinstance(eqn.invars[0], Var):
            first.setdefault(eqn.invars[0], eqn)
    inner = {v for eqn in task.body.eqns for block in eqn.blocks for v in bound_in_block(block)}
    found: dict[Var, _Cell] = {}
    for ref in refs:
        mine = accesses.by_ref.get(ref)
        if not mine or ref in accesses.head_reads or any(a.mode == ATOMIC for a in mine):
            continue
        kind = ref_type(ref)
        same = _equal_components(mine, kind.ndim, inner) if task.kind == "range_for" else ()
        if task.kind == "range_for":
            indices = indices_of(first[ref])
            if not injectivity.keys([indices[d] for d in same]):
                continue
        kept = tuple([d for d in range(kind.ndim) if d not in same])
        shape = tuple([kind.shape[d] for d in kept])
        if prod(shape) <= SIZE_LIMIT:
            found[ref] = _Cell(Var(RefType(kind.dtype, shape, Space.LOCAL), ref.hint), kept)
    return found


def _equal_components(accesses: Sequence[Access], ndim: int, inner: set[Var]) -> tuple[int, ...]:
    """Components of the index that are the same expression in all accesses, of one value in all of an iteration.

    `inner` has the variables of loops and branches: an expression of them has other values each time around.
    """
    head = accesses[0].forms
    equal = [d for d in range(ndim) if all(a.forms[d] == head[d] for a in accesses)]
    return tuple([d for d in equal if not _uses(head[d], inner)])


def _uses(form: Form, variables: set[Var]) -> bool:
    return any(_term_uses(term, variables) for term in form.terms)


def _term_uses(term: Term, variables: set[Var]) -> bool:
    if isinstance(term, Var):
        return term in variables
    if isinstance(term.key, Var):
        return term.key in variables
    return any(_term_uses(t, variables) for t, _ in term.key[0])


def _with_cells(task: Task, cells: Mapping[Var, _Cell]) -> Task:
    allocate = PRIMITIVES["cell"]
    made: list[Eqn] = []
    for cell in cells.values():
        kind = ref_type(cell.var)
        made.append(Eqn(allocate, (), (cell.var,), {"dtype": kind.dtype, "shape": kind.shape}, (), task.loc))
    body = _rewrite(task.body, cells)
    return replace(task, body=replace(body, eqns=(*made, *body.eqns)))


def _rewrite(block: Block, cells: Mapping[Var, _Cell]) -> Block:
    eqns: list[Eqn] = []
    for eqn in block.eqns:
        if eqn.blocks:
            blocks = tuple([_rewrite(inner, cells) for inner in eqn.blocks])
            same = all(a is b for a, b in zip(blocks, eqn.blocks, strict=True))
            eqns.append(eqn if same else replace(eqn, blocks=blocks))
            continue
        ref = eqn.invars[0] if eqn.primitive.effects and eqn.invars else None
        cell = cells.get(ref) if isinstance(ref, Var) else None
        if cell is None:
            eqns.append(eqn)
            continue
        indices = indices_of(eqn)
        values = eqn.invars[1 : len(eqn.invars) - len(indices)]
        eqns.append(replace(eqn, invars=(cell.var, *values, *(indices[d] for d in cell.kept))))
    return block if all(a is b for a, b in zip(eqns, block.eqns, strict=True)) else replace(block, eqns=tuple(eqns))
