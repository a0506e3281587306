"""The beginning of a task's function: its references and the part of the head that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowering.llvm.descriptions import GlobalMemory
from qdtrace.ir.primitives import Effect
from qdtrace.ir.program import Eqn, Task, Var, ref_type
from qdtrace.ir.walk import used_vars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
    """Binds each reference to `pointer` of its number, and emits equations of the head."""
    own, constant = aliases
    for n, ref in enumerate(f.facts.refs):
        invariant = "" if ref in f.facts.written else constant
        f.globals[ref] = GlobalMemory(pointer(n), ref_type(ref), own[ref], invariant)
    for eqn in head:
        rules[eqn.primitive.name](f, eqn)


def used_by_body(task: Task) -> set[Var]:
    """Returns the variables that the body of a task reads or returns."""
    needed = {a for a in task.body.results if isinstance(a, Var)}
    for eqn in task.body.eqns:
        needed.update(used_vars(eqn))
    return needed


def head_for(task: Task, needed: set[Var], checks: bool) -> list[Eqn]:
    """Returns equations of the head that the variables depend on, and its effects, those of checks if `checks`."""
    kept: list[Eqn] = []
    for eqn in reversed(task.head):
        wanted = checks if Effect.CHECK in eqn.primitive.effects else not eqn.outvars
        if wanted or not needed.isdisjoint(eqn.outvars):
            needed.update(used_vars(eqn))
            kept.append(eqn)
    return kept[::-1]
