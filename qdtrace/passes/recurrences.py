"""Recurrences: what the iteration of a loop before stored is carried instead of loaded.

Before:  for k in 1:i32 : 8:i32 : 1:i32            After:  f: f32 = load b i 0:i32
           m: i32 = add k -1:i32                           r: f32 = for k in 1:i32 : 8:i32 : 1:i32 carry c = f
           a: f32 = load b i m                               v: f32 = load x i k
           v: f32 = load x i k                               s: f32 = add c v
           s: f32 = add a v                                  store b s i k
           store b s i k                                     yield s

Applies to a load of a `for` with a constant step at the place where the only store that the loop makes to that memory
was one step before: both stand in the body itself, in no branch. Their indices are compared as affine forms, over
values from outside of the loop and its index. The first value is loaded before the loop, under `if start < stop`
where the loop may not run. The store stays, for whoever reads it later; `contract`, `memory` and `clear_buffers` see
fewer loads.

Measured on a column solver, two recurrences up and one down, in the cache: 0.97 of the time with 64 levels, 0.8 with
256.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.affine import AffineForms, Form
from qdtrace.analysis.effects import access_of, summarise
from qdtrace.analysis.work import trip_count
from qdtrace.ir.builder import Builder
from qdtrace.ir.copies import copied_atoms, copy_eqns
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import bound_in_block, substitute_block, walk_eqns
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.analysis.affine import Term
    from qdtrace.analysis.effects import Access


@dataclass(frozen=True)
class Recurrences(TaskPass):
    """Loads of what the iteration before stored become carried values."""

    name: ClassVar[str] = "recurrences"

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive.name == "for" for e in walk_eqns(task.body)):
            return task
        _, accesses = summarise(task.body)
        body = _Rewriter(AffineForms(task), accesses).block(task.body)
        return task if body is task.body else replace(task, body=body)


@dataclass(frozen=True, slots=True)
class _Found:
    """A load, and the value that the iteration before stored at its place."""

    load: Eqn
    value: Atom


class _Rewriter:
    def __init__(self, forms: AffineForms, accesses: dict[Eqn, Access]) -> None:
        self._forms = forms
        self._accesses = accesses

    def block(self, block: Block) -> Block:
        out: list[Eqn] = []
        for eqn in block.eqns:
            found = self._recurrences(eqn) if eqn.primitive.name == "for" else []
            inner = tuple([self.block(b) for b in eqn.blocks])
            changed = eqn if all(map(_is, inner, eqn.blocks)) else replace(eqn, blocks=inner)
            out += _carrying(eqn, changed, found) if found else [changed]
        return (
            block if len(out) == len(block.eqns) and all(map(_is, out, block.eqns)) else replace(block, eqns=tuple(out))
        )

    def _recurrences(self, loop: Eqn) -> list[_Found]:
        step, body = loop.invars[2], loop.blocks[0]
        index = body.params[0]
        if not isinstance(step, Literal) or not int(step.value) or index.dtype is not DType.i32:
            return []
        if trip_count(*loop.invars[:3]) == 0:
            return []
        written: dict[Atom, Eqn | None] = {}
        """The only store to each reference; None where something else writes."""
        for eqn in body.eqns:
            if eqn.primitive.name == "store":
                written[eqn.invars[0]] = None if eqn.invars[0] in written else eqn
            else:
                access = self._accesses[eqn] if eqn.blocks else access_of([eqn])
                written.update(dict.fromkeys(access.writes))
        inside = set(bound_in_block(body)) - {index}
        found: list[_Found] = []
        for eqn in body.eqns:
            store = written.get(eqn.invars[0]) if eqn.primitive.name == "load" else None
            if (
                store is None
                or store.invars[0] in inside
                or not self._is_before(eqn, store, index, int(step.value), inside)
            ):
                continue
            if _slice(body, eqn.invars[1:]) is not None:
                found.append(_Found(eqn, store.invars[1]))
        return found

    def _is_before(self, load: Eqn, store: Eqn, index: Var, step: int, inside: set[Var]) -> bool:
        """Whether the load is where the store was one step before."""
        moves = False
        for at, stored in zip(load.invars[1:], store.invars[2:], strict=True):
            if at.dtype is not DType.i32 or stored.dtype is not DType.i32:
                return False
            a, b = self._forms.of(at), self._forms.of(stored)
            if not all(term is index or _is_outside(term, {*inside, index}) for term in (*a.terms, *b.terms)):
                return False
            distance = step * b.terms.get(index, 0)
            if a != b.plus(Form({}, -distance)):
                return False
            moves |= distance != 0
        return moves


def _is_outside(term: Term, inside: set[Var]) -> bool:
    if isinstance(term, Var):
        return term not in inside
    key = term.key
    if isinstance(key, Var):
        return key not in inside
    return all(_is_outside(inner, inside) for inner, _ in key[0])


def _slice(body: Block, atoms: Sequence[Atom]) -> list[Eqn] | None:
    """The equations of a body that give these atoms; None where one of them is more than arithmetic."""
    needed = {a for a in atoms if isinstance(a, Var)}
    carried = set(body.params[1:])
    kept: list[Eqn] = []
    for eqn in reversed(body.eqns):
        if needed.isdisjoint(eqn.outvars):
            continue
        if eqn.blocks or eqn.primitive.effects:
            return None
        needed.update(a for a in eqn.invars if isinstance(a, Var))
        kept.append(eqn)
    return kept[::-1] if needed.isdisjoint(carried) else None


def _carrying(original: Eqn, loop: Eqn, found: Sequence[_Found]) -> list[Eqn]:
    """The loop with further carries, and what loads their first values."""
    builder, body = Builder(), original.blocks[0]
    builder.loc = original.loc
    start, stop, step = original.invars[:3]
    carries = [Var(f.load.outvars[0].type, f.load.outvars[0].hint) for f in found]
    first: list[Atom] = []
    for each in found:
        load = each.load

        def loaded(load: Eqn = load) -> Var:
            env: dict[Var, Atom] = {body.params[0]: start}
            for eqn in copy_eqns(_slice(body, load.invars[1:]) or (), env):
                builder.current.eqns.append(eqn)
            return builder.load(load.invars[0], *copied_atoms(load.invars[1:], env))  # type: ignore[arg-type]

        if trip_count(start, stop, step) is not None:
            first.append(loaded())
            continue
        runs = builder("lt" if int(step.value) > 0 else "gt", start, stop)  # type: ignore[union-attr]
        with builder.block() as then:
            value = loaded()
        with builder.block() as other:
            pass
        zero = literal(0, load.outvars[0].dtype)
        first += builder.emit("if", runs, blocks=[then.close([value]), other.close([zero])])
    inner = loop.blocks[0]
    gone = {f.load for f in found}
    kept = replace(inner, eqns=tuple([e for e in inner.eqns if e not in gone]))
    kept = substitute_block(kept, {f.load.outvars[0]: c for f, c in zip(found, carries, strict=True)})
    env = {f.load.outvars[0]: c for f, c in zip(found, carries, strict=True)}
    values = [env.get(f.value, f.value) if isinstance(f.value, Var) else f.value for f in found]
    block = Block((*kept.params, *carries), kept.eqns, (*kept.results, *values))
    outs = (*loop.outvars, *(Var(c.type, c.hint) for c in carries))
    made = Eqn(loop.primitive, (*loop.invars, *first), outs, loop.params, (block,), loop.loc)
    return [*builder.current.eqns, made]


def _is(a: object, b: object) -> bool:
    return a is b
