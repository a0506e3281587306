"""Factorisations and triangular solves of the matrices of all lanes, in panels: on a CPU in place of XLA's.

XLA calls a library for one matrix of the batch after the other, or inverts blocks. Here 16 matrices lie side by side,
element by element, so that their loops are vectors, and nothing is gathered (docs/design/0046). The primitive has the
rules of the one that it stands for, whose products, solves and factors are ours again.
"""

from __future__ import annotations

import functools
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from qdtrace.api import jit
from qdtrace.trace import compat
from qdtrace.trace.allocation import empty
from qdtrace.trace.loops import ndrange
from qdtrace.vmap_plan import Part
from qdtrace.vmap_products import with_products

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

factor_p = compat.Primitive("qd_factor")
"""A primitive of linear algebra, `of`, of matrices with at least one axis in front of their two."""
factor_p.multiple_results = True
PRIMITIVES = frozenset({"cholesky", "lu", "triangular_solve"})
SIDES = range(2, 65)
"""Sides of matrices: 16 of the largest are what the second cache of a core holds."""
PANEL = 16
"""Matrices that lie side by side: the lanes of a vector, or some vectors."""


def with_kernels(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of arrays whose products, factorisations and solves of many matrices run by our kernels."""
    return with_products(f, _ours)


def is_ours(eqn: Any) -> bool:
    """Returns whether panels are faster at an equation, on a CPU: there are enough matrices, none of them large."""
    if eqn.primitive.name not in PRIMITIVES:
        return False
    avals = [v.aval for v in eqn.invars]
    sides = {n for a in avals for n in a.shape[-2:]}
    if any(a.dtype not in (jnp.float32, jnp.float64) or a.ndim < 3 for a in avals):
        return False
    return _lanes(avals[0]) >= PANEL and avals[0].shape[-1] in SIDES and min(sides) > 0 and max(sides) in SIDES


def _lanes(aval: Any) -> int:
    return prod(aval.shape[:-2])


def _ours(eqn: Any) -> Any:
    if not is_ours(eqn):
        return eqn
    return eqn.replace(primitive=factor_p, params={"of": eqn.primitive, "params": tuple(eqn.params.items())})


def _bind(of: Any, params: Any, *operands: Any) -> list[Any]:
    """Runs the primitive that an equation of ours stands for."""
    found = of.bind(*operands, **dict(params))
    return list(found) if of.multiple_results else [found]


def _factor(*operands: Any, of: Any, params: Any) -> list[Any]:
    """Runs the kernel on panels, and puts matrices behind each other again."""
    lead = operands[0].shape[:-2]
    count = prod(lead)
    panels = -(-count // PANEL)

    def panelled(x: Any) -> Any:
        x = x.reshape(count, *x.shape[-2:])
        x = jnp.pad(x, ((0, panels * PANEL - count), (0, 0), (0, 0)))
        return jnp.moveaxis(x.reshape(panels, PANEL, *x.shape[1:]), 1, -1)

    def matrices(y: Any) -> Any:
        y = jnp.moveaxis(y, -1, 1)
        return y.reshape(panels * PANEL, *y.shape[2:])[:count].reshape(*lead, *y.shape[2:])

    return [matrices(y) for y in _kernel(*map(panelled, operands), of=of, params=params)]


def _run_panels(*operands: Any, of: Any, params: Any) -> list[Any]:
    """Runs a primitive of each matrix as one task over panels and their lanes, the last axis."""
    run = functools.partial(_bind, of, params)
    shapes = jax.eval_shape(run, *(jax.ShapeDtypeStruct(x.shape[1:-1], x.dtype) for x in operands))
    panels = operands[0].shape[0]
    outs = [empty((panels, *y.shape, PANEL), y.dtype) for y in shapes]
    parts = [Part(x) for x in operands]
    for panel, lane in ndrange(panels, PANEL).over(run):
        values = run(*(x.select(0, panel).select(-1, lane).value(lazy=False) for x in parts))
        for out, y in zip(outs, values, strict=True):
            out[(panel, *[slice(None)] * y.ndim, lane)] = y
    return outs


_kernel: Any = jit(_run_panels, static_argnames=("of", "params"))


def _types(*operands: Any, of: Any, params: Any) -> list[Any]:
    made = jax.eval_shape(functools.partial(_bind, of, params), *operands)
    return [compat.array_type(y.shape, y.dtype, operands) for y in made]


def _tangents(primals: Sequence[Any], tangents: Sequence[Any], *, of: Any, params: Any) -> tuple[Any, Any]:
    """Runs JAX's rule with our kernels."""
    zero = [type(t) is ad.Zero for t in tangents]
    none: list[bool] = []

    def rule(primals: Any, dense: Any) -> Any:
        left = iter(dense)
        given = [t if is_zero else next(left) for t, is_zero in zip(tangents, zero, strict=True)]
        outs, made = ad.primitive_jvps[of](primals, given, **dict(params))
        outs, made = (outs, made) if of.multiple_results else ([outs], [made])
        none[:] = [type(t) is ad.Zero for t in made]
        return list(outs), [t for t in made if type(t) is not ad.Zero]

    dense = [t for t, is_zero in zip(tangents, zero, strict=True) if not is_zero]
    outs, made = with_kernels(rule)(list(primals), dense)
    left = iter(made)
    return outs, [
        ad.Zero(compat.tangent_type(y)) if is_zero else next(left) for y, is_zero in zip(outs, none, strict=True)
    ]


def _adjoints(adjoints: Sequence[Any], *operands: Any, of: Any, params: Any) -> list[Any]:
    """Transposes a solve, which is linear in its right side."""
    (adjoint,), (a, b) = adjoints, operands
    if type(adjoint) is ad.Zero:
        return [None, ad.Zero(b.aval)]

    def solve(b: Any, a: Any) -> Any:
        return of.bind(a, b, **dict(params))

    def rule(ct: Any, a: Any) -> Any:
        like = jax.ShapeDtypeStruct(b.aval.shape, b.aval.dtype)
        return jax.linear_transpose(lambda b: solve(b, a), like)(ct)[0]

    return [None, with_kernels(rule)(adjoint, a)]


def _mapped(operands: Sequence[Any], axes: Sequence[int | None], *, of: Any, params: Any) -> tuple[Any, Any]:
    outs = with_kernels(jax.vmap(functools.partial(_bind, of, params), tuple(axes)))(*operands)
    return outs, [0] * len(outs)


def _plain(*operands: Any, of: Any, params: Any) -> list[Any]:
    return _bind(of, params, *operands)


factor_p.def_impl(lambda *operands, **params: jax.jit(functools.partial(factor_p.bind, **params))(*operands))
factor_p.def_abstract_eval(_types)
ad.primitive_jvps[factor_p] = _tangents
ad.primitive_transposes[factor_p] = _adjoints
batching.primitive_batchers[factor_p] = _mapped
mlir.register_lowering(factor_p, mlir.lower_fun(_plain, multiple_results=True))
mlir.register_lowering(factor_p, mlir.lower_fun(_factor, multiple_results=True), platform="cpu")
