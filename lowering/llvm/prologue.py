"""The beginning of a task's function: its references and the part of the head that it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lowering.llvm.descriptions import GlobalMemory
from qdtrace.ir.dataflow import slice_of
from qdtrace.ir.primitives import Effect
from qdtrace.ir.program import Eqn, Var, ref_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.frame import Frame
    from lowering.llvm.text import Module


def alias_metadata(facts: TaskFacts, module: Module) -> tuple[dict[Var, str], str]:
    """Returns metadata of accesses to each reference, and of loads of constant memory.

    References never overlap: each written one has a scope of its own, which excludes accesses to the others.
    """
    constant = module.shared_node("!{}")
    domain = module.node(f"distinct !{{!{len(module.metadata)}}}")
    written = [r for r in facts.refs if r in facts.written]
    scopes = {r: module.node(f"distinct !{{!{len(module.metadata)}, {domain}}}") for r in written}
    aliases: dict[Var, str] = {}
    for ref in facts.refs:
        own = scopes.get(ref)
        others = [name for name in scopes.values() if name != own]
        text = f", !alias.scope {module.node(f'!{{{own}}}')}" if own else ""
        if others:
            text += f", !noalias {module.node('!{' + ', '.join(others) + '}')}"
        aliases[ref] = text
    return aliases, f", !invariant.load {constant}"


def open_function(
    f: Frame,
    aliases: tuple[dict[Var, str], str],
    pointer: Callable[[int], str],
    head: Sequence[Eqn],
    rules: Mapping[str, Callable[[Any, Eqn], None]],
) -> None:
    """Binds references to `pointer` of their numbers in the table, those that parts share behind it; emits the head."""
    own, constant = aliases
    count = f.facts.ref_count
    for n, ref in enumerate(f.facts.refs):
        invariant = "" if ref in f.facts.written else constant
        where = pointer(n if n < count else n + len(f.renewed))
        f.globals[ref] = GlobalMemory(where, ref_type(ref), own[ref], invariant)
    for n, ref in enumerate(f.renewed, count):  # not `invariant`: both pointers may be equal
        f.sources[ref] = replace(f.globals[ref], pointer=pointer(n))
    for eqn in head:
        rules[eqn.primitive.name](f, eqn)


def head_for(head: Sequence[Eqn], needed: Iterable[Var], checks: bool) -> Sequence[Eqn]:
    """Returns those equations of a head that the variables depend on, and its effects, those of checks if `checks`."""

    def is_kept(eqn: Eqn) -> bool:
        return checks if Effect.CHECK in eqn.primitive.effects else not eqn.outvars

    return slice_of(head, needed, kept=is_kept)
