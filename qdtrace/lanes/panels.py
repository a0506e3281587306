"""Array work of a batch in panels: on a CPU, in place of XLA's.

XLA calls a library for one matrix of the batch after the other. Here 16 lanes lie side by side, element by element, so
that their loops are vectors, and nothing is gathered (docs/design/0046). A factorisation or a triangular solve is one
task. So is a loop over products of matrices, whose arrays stay in panels from its first step to its last (0055).
"""

from __future__ import annotations

import functools
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from qdtrace.api import jit
from qdtrace.backend import has_masks
from qdtrace.errors import UnsupportedError
from qdtrace.groups.primitive import batch_of, transposed, with_more_lanes
from qdtrace.groups.work import lanes_of
from qdtrace.lanes.plan import Part
from qdtrace.lanes.products import rewritten, with_products
from qdtrace.lanes.short_rows import is_sum, summed
from qdtrace.trace import compat
from qdtrace.trace.allocation import empty
from qdtrace.trace.dependence import dependent
from qdtrace.trace.loops import ndrange
from qdtrace.trace.products import multiplications

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

panels_p = compat.Primitive("qd_panels")
"""The jaxpr of one lane, `jaxpr`, for lanes along the first axis of the operands that are `mapped`, and of all results.

Where none of them is mapped there is one lane, without such an axis.
"""
panels_p.multiple_results = True
FACTORS = frozenset({"cholesky", "lu", "triangular_solve"})
_PLAIN = FACTORS | {"lu_pivots_to_permutation"}
SIDES = range(2, 65)
"""Sides of matrices: 16 of the largest are what the second cache of a core holds."""
LOOP_SIDES = range(49)
"""The same in a loop, whose task reads several of them."""
STEPS = 8
"""The fewest steps of a loop for which panels are made and taken apart again."""
HELD = 1 << 14
"""The most elements of a lane that a loop results in: a panel of them fits into half of the second cache."""
CALL_SIDE = 49
"""The least side of a matrix for which a call's other operations are work on its panel."""
NARROW_CALL_SIDE = 17
"""The same for processors without masks, where these passes take XLA as long as the factorisation itself."""
CALL_EQUATIONS = 16
"""The most equations of such a call."""
DTYPES = (jnp.float32, jnp.float64)
MOVED = 64
"""The fewest elements of a lane that tasks move into panels and back."""
PANEL = 16
"""Lanes that lie side by side: those of a vector, or of some vectors."""


def with_kernels(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of arrays whose products, factorisations, solves and sums of many matrices run our way."""
    return with_products(f, lambda eqn: summed(eqn) if is_sum(eqn) else _factored(eqn))


def with_tasks(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of one lane whose loops over products of matrices, and whose calls of functions that factorise
    one, run in panels once it is mapped."""

    def change(eqn: Any) -> list[Any]:
        if not is_loop(eqn) and not is_call(eqn):
            return [eqn]
        lane = jax.make_jaxpr(lambda *xs: compat.bind_eqn(eqn, list(xs)))(*(v.aval for v in eqn.invars))
        flags = (False,) * len(eqn.invars)
        return compat.inlined(lambda *xs: panels_p.bind(*xs, jaxpr=lane, mapped=flags), eqn)

    return rewritten(f, lambda eqns: [one for eqn in eqns for one in change(eqn)])


def is_factor(eqn: Any) -> bool:
    """Returns whether panels are faster at a factorisation or solve: there are enough matrices, none of them large."""
    if eqn.primitive.name not in FACTORS:
        return False
    avals = [v.aval for v in eqn.invars]
    sides = {n for a in avals for n in a.shape[-2:]}
    if any(a.dtype not in DTYPES or a.ndim < 3 for a in avals):
        return False
    return prod(avals[0].shape[:-2]) >= PANEL and avals[0].shape[-1] in SIDES and min(sides) > 0 and max(sides) in SIDES


def is_loop(eqn: Any) -> bool:
    """Returns whether panels are faster at a loop of one lane: most of its work are products of small matrices."""
    if eqn.primitive is not lax.scan_p or eqn.effects or eqn.params["length"] < STEPS:
        return False
    if sum(v.aval.size for v in eqn.outvars) > HELD:
        return False
    leaves = _leaves(eqn, LOOP_SIDES)
    products = [e for e in leaves if e.primitive is lax.dot_general_p]
    of_matrices = [e for e in products if all(_is_matrix(v.aval) for v in e.invars)]
    return sum(map(multiplications, products)) < 2 * sum(map(multiplications, of_matrices))


def is_call(eqn: Any) -> bool:
    """Returns whether an equation calls a function that factorises one large matrix, like `jnp.linalg.cholesky`.

    What it does with the matrix besides costs less in panels, which caches hold, than for all lanes in turn.
    """
    if compat.called_jaxpr(eqn) is None or eqn.effects or sum(v.aval.size for v in eqn.outvars) > HELD:
        return False
    leaves = _leaves(eqn, range(SIDES.stop))
    factors = [e for e in leaves if e.primitive.name in FACTORS]
    if len(factors) != 1 or len(leaves) > CALL_EQUATIONS:
        return False
    a = factors[0].invars[0].aval
    return a.dtype in DTYPES and a.ndim == 2 and min(a.shape) >= (CALL_SIDE if has_masks() else NARROW_CALL_SIDE)


def _leaves(eqn: Any, sides: range) -> list[Any]:
    """Returns the equations inside of an equation; none if the importer has no rules for them, or arrays are large."""
    from qdtrace.trace.importer.registry import RULES, load_rules  # the importer's modules are loaded late

    load_rules()
    inner = list(compat.all_eqns((eqn,)))
    leaves = [e for e in inner if not compat.holds_jaxpr(e)]
    known = all(e.primitive.name in RULES or e.primitive.name in _PLAIN for e in leaves)
    fits = all(n in sides for e in inner for v in (*e.invars, *e.outvars) for n in v.aval.shape[-2:])
    return leaves if known and fits else []


def _is_matrix(aval: Any) -> bool:
    return sum(n > 1 for n in aval.shape) == 2


def _factored(eqn: Any) -> list[Any]:
    """Returns the equations of a factorisation or solve in panels in the place of one of XLA's, where there is one."""
    if not is_factor(eqn):
        return [eqn]
    types = tuple((v.aval.shape[-2:], v.aval.dtype) for v in eqn.invars)
    lane = _factor_of(eqn.primitive, tuple(eqn.params.items()), types)

    def run(*xs: Any) -> list[Any]:
        lead = xs[0].shape[:-2]
        flat = [x.reshape(prod(lead), *x.shape[-2:]) for x in xs]
        made = panels_p.bind(*flat, jaxpr=lane, mapped=(True,) * len(flat))
        return [y.reshape(*lead, *y.shape[1:]) for y in made]

    return compat.inlined(run, eqn)


@functools.cache
def _factor_of(primitive: Any, params: Any, types: Any) -> Any:
    """Returns the jaxpr of a primitive of one matrix: the same object for the same one, which is compiled once."""

    def run(*xs: Any) -> Any:
        return primitive.bind(*xs, **dict(params))

    return jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(*one) for one in types))


def _lowered(*operands: Any, jaxpr: Any, mapped: Sequence[bool]) -> list[Any]:
    """Runs the kernel on panels, and puts lanes behind each other again; what the importer refuses is left to XLA."""
    if any(mapped):
        count = lanes_of(operands, mapped)
        panels = -(-count // PANEL)

        def panelled(x: Any) -> Any:
            x = jnp.pad(x, ((0, panels * PANEL - count), *[(0, 0)] * (x.ndim - 1)))
            x = x.reshape(panels, PANEL, *x.shape[1:])
            return _side_by_side(x) if _is_moved(x) else jnp.moveaxis(x, 1, -1)

        def lanes(y: Any) -> Any:
            y = _apart(y) if _is_moved(y) else jnp.moveaxis(y, -1, 1)
            return y.reshape(panels * PANEL, *y.shape[2:])[:count]

        given = [panelled(x) if m else x for x, m in zip(operands, mapped, strict=True)]
        with suppress(UnsupportedError):
            return [lanes(y) for y in _kernel(*given, jaxpr=jaxpr, mapped=tuple(mapped), panels=panels)]
    return batch_of(jaxpr, mapped)(*operands)


def _run_panels(*operands: Any, jaxpr: Any, mapped: Sequence[bool], panels: int) -> list[Any]:
    """Runs the jaxpr of a lane as one task over panels and their lanes, the last axis."""
    run = compat.function_of(jaxpr)
    types = [v.aval for v in compat.open_jaxpr(jaxpr).outvars]
    outs = [empty((panels, *y.shape, PANEL), y.dtype) for y in types]
    parts = [Part(x) for x in operands]
    for panel, lane in ndrange(panels, PANEL).over(run):
        own = (x.select(0, panel).select(-1, lane) if m else x for x, m in zip(parts, mapped, strict=True))
        for out, y in zip(outs, run(*(x.value(lazy=False) for x in own)), strict=True):
            out[(panel, *[slice(None)] * (out.ndim - 2), lane)] = y
    return outs


def _is_moved(x: Any) -> bool:
    """Returns whether a task takes less time than XLA to put lanes side by side, and apart again."""
    return x.size >= MOVED * len(x) * PANEL and x.dtype in DTYPES and not has_masks()


@jit
def _side_by_side(x: Any) -> Any:
    """Moves the lanes of panels from the second axis to the last: elements of each lane are vectors, and transposed."""
    panels, _, *shape = x.shape
    out, x = empty((panels, prod(shape), PANEL), x.dtype), x.reshape(panels, PANEL, prod(shape))
    for panel, element in ndrange(panels, prod(shape)):
        for lane in range(PANEL):
            out[panel, element, lane] = x[panel, lane, element]
    return out.reshape(panels, *shape, PANEL)


@jit
def _apart(y: Any) -> Any:
    """Moves the lanes of panels from the last axis to the second."""
    panels, *shape, _ = y.shape
    out, y = empty((panels, PANEL, prod(shape)), y.dtype), y.reshape(panels, prod(shape), PANEL)
    for panel, element in ndrange(panels, prod(shape)):
        for lane in range(PANEL):
            out[panel, lane, element] = y[panel, element, lane]
    return out.reshape(panels, PANEL, *shape)


_kernel: Any = jit(_run_panels, static_argnames=("jaxpr", "mapped", "panels"))


def _types(*operands: Any, jaxpr: Any, mapped: Sequence[bool]) -> list[Any]:
    lead = (lanes_of(operands, mapped),) if any(mapped) else ()
    outs = compat.open_jaxpr(jaxpr).outvars
    return [compat.array_type((*lead, *v.aval.shape), v.aval.dtype, operands) for v in outs]


def _tangents(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, mapped: Sequence[bool]
) -> tuple[Any, Any]:
    """Runs JAX's rules for the batch with kernels of single equations, for JAX to take values and tangents apart."""
    moves = [type(t) is not ad.Zero for t in tangents]
    opened = compat.open_jaxpr(jaxpr)
    moving = dependent(jaxpr, (v for v, m in zip(opened.invars, moves, strict=True) if m))
    results: list[Any] = [v if isinstance(v, compat.Var) else None for v in opened.outvars]
    dense = [v in moving and jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in results]

    def rule(primals: Any, given: Any) -> Any:
        def moved(*ys: Any) -> Any:
            left = iter(ys)
            return batch_of(jaxpr, mapped)(*(next(left) if m else x for x, m in zip(primals, moves, strict=True)))

        outs, made = jax.jvp(moved, [x for x, m in zip(primals, moves, strict=True) if m], given)
        return outs, [t for t, is_dense in zip(made, dense, strict=True) if is_dense]

    outs, made = with_kernels(rule)(list(primals), [t for t, m in zip(tangents, moves, strict=True) if m])
    left = iter(made)
    return outs, [
        next(left) if is_dense else ad.Zero(compat.tangent_type(y)) for y, is_dense in zip(outs, dense, strict=True)
    ]


def _adjoints(adjoints: Sequence[Any], *operands: Any, jaxpr: Any, mapped: Sequence[bool]) -> list[Any]:
    """Transposes the batch, with kernels of single equations."""
    types = [x.aval for x in operands if ad.is_undefined_primal(x)]
    return transposed(batch_of(jaxpr, mapped), types, adjoints, operands, with_kernels)


def _mapped(operands: Sequence[Any], axes: Sequence[Any], *, jaxpr: Any, mapped: Sequence[bool]) -> tuple[Any, Any]:
    """Makes lanes of the elements of another axis."""
    if any(mapped):
        return with_more_lanes(functools.partial(panels_p.bind, jaxpr=jaxpr), operands, axes, mapped)
    moved = [x if a is None else jnp.moveaxis(x, a, 0) for x, a in zip(operands, axes, strict=True)]
    outs = panels_p.bind(*moved, jaxpr=jaxpr, mapped=tuple(a is not None for a in axes))
    return outs, [0] * len(outs)


def _plain(*operands: Any, jaxpr: Any, mapped: Sequence[bool]) -> list[Any]:
    return batch_of(jaxpr, mapped)(*operands)


compat.define(panels_p, _types, _mapped, _plain, cpu=_lowered)
ad.primitive_jvps[panels_p] = _tangents
ad.primitive_transposes[panels_p] = _adjoints
