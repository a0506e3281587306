"""Decides which array work of all lanes runs as groups of a GPU's threads, and writes it as such."""

from __future__ import annotations

import functools
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import linalg

from qdtrace.groups.primitive import grouped, kernels
from qdtrace.groups.work import FACTORS, LEAST, MOST, PRODUCT, work_of
from qdtrace.lanes.products import rewritten
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MATRIX = 2


def refusal(jaxpr: Any, mapped: Sequence[bool]) -> str | None:
    """Returns the reason why a jaxpr of one lane is no group of its own; None if it is one."""
    work = work_of(jaxpr)
    operands = zip(compat.open_jaxpr(jaxpr).invars, mapped, strict=True)
    is_shared = any(_is_matrix(v.aval) and not is_mapped for v, is_mapped in operands)
    if is_shared and any(not all(_is_matrix(v.aval) for v in e.invars) for e in work.products):
        return "a matrix that all lanes share, times vectors: one product of all lanes is faster"
    if not work.products and not work.factors:
        return "no product"
    kernel = kernels()
    if kernel.is_left_to_xla(jaxpr):
        return "one product of few terms, or of a transposed matrix"
    return kernel.refusal(jaxpr, mapped)


def _is_matrix(aval: Any) -> bool:
    return sum(n > 1 for n in aval.shape) >= _MATRIX


def with_groups(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of arrays whose batched products and factorisations run as groups, one by one.

    A solve of what the one before it found, with the same matrix to 32 x 32 (LU has two), is one group with it.
    """
    return rewritten(f, lambda eqns: [one for pair in zip((None, *eqns), eqns, strict=False) for one in _ours(*pair)])


def _ours(before: Any, eqn: Any) -> list[Any]:
    """Returns the equations of a group in the place of an equation of a batch, where there is one."""
    if before is not None and _continues(before, eqn):  # what is left of the first one alone is dead code
        found = _factors((before, eqn))
        if found is not None:
            return compat.inlined(found, eqn.replace(invars=before.invars))
    rule = _RULES.get(eqn.primitive.name)
    found = None if rule is None else rule(eqn)
    return [eqn] if found is None else compat.inlined(found, eqn)


def _continues(before: Any, eqn: Any) -> bool:
    names = {e.primitive.name for e in (before, eqn)}
    is_chain = names == {"triangular_solve"} and [before.invars[0], before.outvars[0]] == eqn.invars
    return is_chain and eqn.invars[0].aval.shape[-1] <= MOST


def _product(eqn: Any) -> Callable[..., Any] | None:
    (contracted, batch) = eqn.params["dimension_numbers"]
    avals = [v.aval for v in eqn.invars]
    if len(contracted[0]) != 1 or len(batch[0]) != 1 or any(a.ndim != _MATRIX + 1 for a in avals):
        return None
    axes = [b for (b,) in batch]
    inner = tuple((c - (b < c),) for (c,), b in zip(contracted, axes, strict=True))
    params: dict[str, Any] = {**eqn.params, "dimension_numbers": (inner, ((), ())), "out_sharding": None}
    one = functools.partial(lax.dot_general, **params)
    lanes = [jax.ShapeDtypeStruct((*a.shape[:b], *a.shape[b + 1 :]), a.dtype) for a, b in zip(avals, axes, strict=True)]
    if not all(map(_is_matrix, lanes)) or refusal(jax.make_jaxpr(one)(*lanes), (True, True)) is not None:
        return None

    def run(x: Any, y: Any) -> Any:
        operands = (jnp.moveaxis(z, b, 0) for z, b in zip((x, y), axes, strict=True))
        return grouped(lambda x, y: [one(x, y)], (True, True))(*operands)[0]

    return run


def _factor(eqn: Any) -> Callable[..., Any] | None:
    return _factors((eqn,))


def _factors(eqns: Sequence[Any]) -> Callable[..., Any] | None:
    """Returns a factorisation or solve of all lanes as a group, or a solve and one of what it finds."""
    first, *others = eqns
    *_, side, columns = first.outvars[0].aval.shape
    if first.primitive is linalg.triangular_solve_p and columns == 1 and LEAST < side < MOST:
        return None  # a warp finds them as fast as XLA's library, or slower: 0.95 to 1.0 of its speed
    lead = first.invars[0].aval.shape[:-2]
    lanes = [jax.ShapeDtypeStruct(v.aval.shape[-2:], v.aval.dtype) for v in first.invars]

    def one(*xs: Any) -> list[Any]:
        made = compat.bind_eqn(first, list(xs))
        for eqn in others:
            made = compat.bind_eqn(eqn, [xs[0], *made])
        return made

    flags = [True] * len(lanes)
    if not lead or 0 in lead or refusal(jax.make_jaxpr(one)(*lanes), flags) is not None:
        return None

    def run(*xs: Any) -> Any:
        made = grouped(one, flags)(*(x.reshape(prod(lead), *x.shape[-2:]) for x in xs))
        return [y.reshape(*lead, *y.shape[1:]) for y in made]

    return run


_RULES = {PRODUCT: _product, **dict.fromkeys(FACTORS, _factor)}
