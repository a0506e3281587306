"""Cuts a lane's function into parts that XLA runs once for the whole batch, and parts of the loop over lanes.

A product of two matrices in a lane is a loop of one thread; of all lanes it is one call of a batched library. Where all
lanes reach such an equation together, outside of any loop that they may leave at different times, XLA runs it
(docs/design/0045). The jaxpr of one element is cut into *stages*, in turn of the whole batch and of the loop.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from qdtrace.frozen import frozen
from qdtrace.lanes.elements import SPECTRAL
from qdtrace.lanes.limits import behind, largest_result, stays
from qdtrace.trace import compat
from qdtrace.trace.products import FACTORISATIONS, matrix_multiplications, multiplications

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from qdtrace.lanes.limits import Limits

_NAME = re.compile(r"^(.+)\.batch_of_(\d+)$")
_REGISTERS = 256
"""The most elements of an array of a lane that is held as scalars."""
_ROW = 8
"""Columns from which on a row of a result fills a vector, or half of one."""


_PROGRAMS = frozenset(
    {"qd_call", "qd_derivative", "qd_loop", "qd_loop_directional", "qd_loop_adjoints", "qd_busy", "qd_somewhere"}
)
"""Primitives of programs of `qd.jit` functions, and of loops of XLA around them."""


@frozen
class Stage:
    """Equations of a lane's function that run together."""

    eqns: tuple[Any, ...]
    batched: bool
    """True: XLA runs them for all lanes at once. False: they are a loop over lanes."""


def stages_of(jaxpr: Any, varies: Collection[Any], limits: Limits | None) -> list[Stage]:
    """Returns the stages of the jaxpr of one element; none where all of it stays in the loop over lanes.

    Args:
        jaxpr: the jaxpr.
        varies: those of its variables that differ from lane to lane (`dependent` on what does).
        limits: sizes from which on XLA is faster; None: whatever may run for the whole batch does so.
    """
    opened = compat.open_jaxpr(jaxpr)
    eqns: list[Any] = opened.eqns
    if compat.has_markers(opened.effects):
        return []
    whole = [calls_programs((eqn,)) for eqn in eqns]
    if any(eqn.effects for eqn, is_whole in zip(eqns, whole, strict=True) if is_whole):
        return []
    bound = [stays(eqn) and not is_whole for eqn, is_whole in zip(eqns, whole, strict=True)]
    last = behind(eqns, bound) if limits is not None and limits.rows_behind else [False] * len(eqns)
    given = _given(eqns, opened.invars, varies)
    heavy = [
        not is_bound
        and (
            limits is None
            or is_whole
            or is_last
            or _is_heavy_inside(eqn, varies, limits)
            or _reads_rows(eqn, given, limits)
            or _sorts(eqn, limits)
        )
        for eqn, is_bound, is_last, is_whole in zip(eqns, bound, last, whole, strict=True)
    ]
    if not any(heavy):
        return []
    at = _earliest(eqns, bound, heavy)
    if not any(h and k == 0 for h, k in zip(heavy, at, strict=True)):
        at = [max(k, 1) for k in at]  # what comes first is no work for the whole batch
    _sink(eqns, at, [b or h for b, h in zip(bound, heavy, strict=True)], opened.outvars)
    stages = [Stage(tuple(e for e, k in zip(eqns, at, strict=True) if k == n), n % 2 == 0) for n in range(max(at) + 1)]
    return [stage for stage in stages if stage.eqns]


def calls_programs(eqns: Iterable[Any]) -> bool:
    """Returns whether equations run programs, which a lane has not inside: they are for all lanes at once."""
    return any(e.primitive.name in _PROGRAMS for e in compat.all_eqns(eqns))


def jaxprs_of(stages: Sequence[Stage], results: Sequence[Any]) -> list[Any]:
    """Returns each stage as a jaxpr: of the variables that it reads, those of its own that others read."""
    wanted = {v for v in results if isinstance(v, compat.Var)}
    found: list[Any] = []
    for stage in reversed(stages):
        made = [v for eqn in stage.eqns for v in eqn.outvars]
        inside = set(made)
        read = dict.fromkeys(
            v for eqn in stage.eqns for v in eqn.invars if isinstance(v, compat.Var) and v not in inside
        )
        found.insert(0, compat.jaxpr_of(stage.eqns, list(read), [v for v in made if v in wanted]))
        wanted |= read.keys()
    return found


def named(f: Any, size: int) -> str:
    """Returns the name of stages of the whole batch, which `described` reads."""
    return f"{getattr(f, '__name__', type(f).__name__)}.batch_of_{size}"


def described(eqn: Any) -> tuple[str, int, str, str] | None:
    """Returns name, number of elements, code generator and reason of a stage of the whole batch.

    None for any other equation.
    """
    found = _NAME.match(str(eqn.params.get("name", "")))
    if found is None:
        return None
    one = _largest(compat.open_jaxpr(eqn.params["jaxpr"]).eqns)
    shape = "x".join(map(str, largest_result(one).shape))
    is_group = one.primitive.name == "qd_group"
    who = "a group of threads for each lane" if is_group else "array operations of XLA for all lanes together"
    codegen = "triton" if is_group else "xla"
    if is_group and one.params["by_threads"]:
        who, codegen = "a thread for each lane, and a group of threads in derivatives", "llvm"
    return found[0], int(found[2]), codegen, f"{who}; the largest: {one.primitive} of {shape}"


def _largest(eqns: Iterable[Any]) -> Any:
    """Returns the equation whose results have most elements among those that a batched library has, inner ones too."""
    known = FACTORISATIONS | SPECTRAL | {"dot_general", "qd_product", "qd_panels", "conv_general_dilated"}
    every = list(compat.all_eqns(tuple(eqns)))
    groups = [e for e in every if e.primitive.name == "qd_group"]
    return max(groups or [e for e in every if e.primitive.name in known] or every, key=lambda e: largest_result(e).size)


def _earliest(eqns: Sequence[Any], bound: Sequence[bool], heavy: Sequence[bool]) -> list[int]:
    """Returns the first stage in which each equation can run: those of the whole batch have even numbers."""
    known: dict[Any, int] = {}
    at: list[int] = []
    for eqn, is_bound, is_heavy in zip(eqns, bound, heavy, strict=True):
        stage = max((known.get(v, 0) for v in eqn.invars if isinstance(v, compat.Var)), default=0)
        if (is_bound and stage % 2 == 0) or (is_heavy and stage % 2 == 1):
            stage += 1
        at.append(stage)
        known.update(dict.fromkeys(eqn.outvars, stage))
    return at


def _sink(eqns: Sequence[Any], at: list[int], fixed: Sequence[bool], results: Sequence[Any]) -> None:
    """Moves an equation to the stage that reads it first, if what it reads is no larger than what it makes."""
    kept = {v for v in results if isinstance(v, compat.Var)}
    first: dict[Any, int] = {}
    for k in range(len(eqns) - 1, -1, -1):
        eqn = eqns[k]
        operands: list[Any] = [v for v in eqn.invars if isinstance(v, compat.Var)]
        readers = [first[v] for v in eqn.outvars if v in first]
        grows = sum(v.aval.size for v in operands) <= sum(v.aval.size for v in eqn.outvars)
        if readers and grows and not fixed[k] and kept.isdisjoint(eqn.outvars):
            at[k] = max(at[k], min(readers))
        for v in operands:
            first[v] = min(first.get(v, at[k]), at[k])


def _given(eqns: Sequence[Any], arguments: Sequence[Any], varies: Collection[Any]) -> set[Any]:
    """Returns the arguments that differ from lane to lane, and what is one of them with its axes in another order."""
    found = {v for v in arguments if v in varies}
    for eqn in eqns:
        if eqn.primitive is lax.transpose_p and eqn.invars[0] in found:
            found.update(eqn.outvars)
    return found


def _reads_rows(eqn: Any, given: Collection[Any], limits: Limits) -> bool:
    """Returns whether an equation is a product of two matrices in memory with rows that fill a vector."""
    if eqn.primitive is not lax.dot_general_p or eqn.outvars[0].aval.ndim != 2:
        return False
    known = all(isinstance(v, compat.Var) and v in given for v in eqn.invars)
    return known and eqn.outvars[0].aval.shape[-1] >= _ROW and multiplications(eqn) >= limits.given


def _sorts(eqn: Any, limits: Limits) -> bool:
    """Returns whether an equation, or a call, sorts lines that are long, outside of loops."""
    called = compat.called_jaxpr(eqn)
    if called is not None:
        return any(_sorts(e, limits) for e in compat.open_jaxpr(called).eqns)
    if eqn.primitive not in (lax.sort_p, lax.top_k_p):
        return False
    line = eqn.invars[0].aval.shape[eqn.params.get("dimension", eqn.params.get("axis", -1))]
    return line * (len(eqn.invars) if eqn.primitive is lax.sort_p else 3) >= limits.sorted


def _is_heavy_inside(eqn: Any, varies: Collection[Any], limits: Limits) -> bool:
    """Returns whether a batched library is faster at an equation, or at one inside of it."""
    return any(_is_heavy(e, varies if e is eqn else None, limits) for e in compat.all_eqns((eqn,)))


def _is_heavy(eqn: Any, varies: Collection[Any] | None, limits: Limits) -> bool:
    """Returns whether a batched library is faster at an equation; `varies` is None where that is not known."""
    name = eqn.primitive.name
    if eqn.primitive in (lax.dot_general_p, lax.conv_general_dilated_p):
        return matrix_multiplications(eqn) >= _least(eqn, varies, limits)
    if name not in FACTORISATIONS and name not in SPECTRAL:
        return False
    matrix = eqn.invars[0].aval
    is_real_eigen = eqn.primitive is lax.linalg.eig_p and not jnp.issubdtype(matrix.dtype, jnp.complexfloating)
    least = limits.eigen if is_real_eigen else limits.spectral if name in SPECTRAL else limits.side
    return min(matrix.shape[-2:], default=0) >= least


def _least(eqn: Any, varies: Collection[Any] | None, limits: Limits) -> int:
    """Returns from how many multiplications on a product is for the whole batch."""
    arrays = [v for v in (*eqn.invars, *eqn.outvars) if v.aval.size > 1]
    least = limits.product
    if any(v.aval.size > _REGISTERS for v in arrays):
        least = min(least, limits.in_memory)
    if varies is not None and any(isinstance(v, compat.Var) and v not in varies for v in eqn.invars):
        least = min(least, limits.shared)
    return least
