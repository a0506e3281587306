"""Fresh copies of equations: every variable that is bound inside is bound anew, so that both may stand in one task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.program import Atom, Block, Eqn, Literal, Var

if TYPE_CHECKING:
    from collections.abc import Iterable


def copy_eqns(eqns: Iterable[Eqn], env: dict[Var, Atom]) -> tuple[Eqn, ...]:
    """Copies of equations with used variables replaced by `env`; their results are added to it."""
    return tuple([_copy_eqn(eqn, env) for eqn in eqns])


def copied_atoms(atoms: Iterable[Atom], env: dict[Var, Atom]) -> tuple[Atom, ...]:
    """The atoms with variables replaced by `env`."""
    return tuple([a if isinstance(a, Literal) else env.get(a, a) for a in atoms])


def _copy_eqn(eqn: Eqn, env: dict[Var, Atom]) -> Eqn:
    invars = copied_atoms(eqn.invars, env)
    blocks = tuple([_copy_block(block, env) for block in eqn.blocks])
    return Eqn(eqn.primitive, invars, _bind(eqn.outvars, env), eqn.params, blocks, eqn.loc)


def _copy_block(block: Block, env: dict[Var, Atom]) -> Block:
    params = _bind(block.params, env)
    eqns = copy_eqns(block.eqns, env)
    return Block(params, eqns, copied_atoms(block.results, env))


def _bind(old: tuple[Var, ...], env: dict[Var, Atom]) -> tuple[Var, ...]:
    new = tuple([Var(var.type, var.hint) for var in old])
    env.update(zip(old, new, strict=True))
    return new
