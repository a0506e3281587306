"""Products of the matrices of all lanes, row by row: a kernel of this package, faster on a CPU than XLA's.

XLA multiplies small matrices of a batch one call of a library after the other. Here lanes of a vector are neighbouring
columns of one product, a loop body has several of its rows, and nothing is gathered (docs/design/0046). The products
are a primitive with the parameters of `dot_general`, so JAX transposes and maps them as it does those.
"""

from __future__ import annotations

import functools
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from qdtrace.api import jit
from qdtrace.backend import has_masks
from qdtrace.frozen import frozen
from qdtrace.lanes.short_products import are_short, is_short, sum_of_products
from qdtrace.trace import compat
from qdtrace.trace.allocation import empty
from qdtrace.trace.loops import ndrange

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

product_p = compat.Primitive("qd_product")
"""A `dot_general` with at least one batch axis, that contracts one axis: short, or with one other of each operand."""
LEAST_BYTES = 32
"""Bytes of a row of the result from which on lanes are columns: fewer leave most of a vector idle."""
MOST_DEPTH = 128
"""The longest sums: for longer ones, a library that keeps blocks in caches is as fast."""
TILE, HIGH_TILE, LEAST_TILE = 6, 8, 4
"""Rows of the result in one loop body: with two vectors of columns their sums and operands fit 16 registers. More,
which keep the processor's units busy, fit with one vector of columns, and 32 registers (of processors with masks).
Fewer wait for their own sums, and have the whole task run more vectors than registers hold."""


def with_products(f: Callable[..., Any], others: Callable[[Any], list[Any]] | None = None) -> Callable[..., Any]:
    """Returns a function of arrays whose batched products, those inside of its loops too, run by our kernels.

    Args:
        f: the function.
        others: the equations that any other one becomes.
    """

    def change(eqns: Sequence[Any]) -> list[Any]:
        ours = _ours(eqns)
        return ours if others is None else [one for eqn in ours for one in others(eqn)]

    return rewritten(f, change)


def rewritten(f: Callable[..., Any], change: Callable[[Sequence[Any]], Sequence[Any]]) -> Callable[..., Any]:
    """Returns a function of arrays with its equations changed, and those of its loops, branches and calls."""

    def run(*xs: Any) -> Any:
        closed, shape = jax.make_jaxpr(f, return_shape=True)(*xs)
        results = compat.function_of(compat.map_eqns(closed, change))(*jax.tree.leaves(xs))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run


def is_ours(eqn: Any) -> bool:
    """Returns whether an equation is a product that a kernel of ours is faster at, on a CPU."""
    if eqn.primitive is not lax.dot_general_p or len({v.aval.dtype for v in (*eqn.invars, *eqn.outvars)}) != 1:
        return False
    (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
    x, y = (v.aval for v in eqn.invars)
    out = eqn.outvars[0].aval
    plain = len(contracted) == 1 and len(batch) > 0 and x.ndim == y.ndim == len(batch) + 2
    return (
        plain
        and out.dtype in (jnp.float32, jnp.float64)
        and out.shape[-1] * out.dtype.itemsize >= LEAST_BYTES
        and out.size > 0
        and 0 < x.shape[contracted[0]] <= MOST_DEPTH
    )


def _ours(eqns: Sequence[Any]) -> list[Any]:
    """Returns equations with our products, which read operands that were transposed for them where they lie."""
    eqns = [one for eqn in eqns for one in (_of_shared(eqn) if _is_shared(eqn) else [eqn])]
    turned = {eqn.outvars[0]: eqn for eqn in eqns if eqn.primitive is lax.transpose_p}
    return [_untransposed(eqn, turned) if is_ours(eqn) or is_short(eqn) else eqn for eqn in eqns]


def _is_shared(eqn: Any) -> bool:
    """Returns whether a matrix that lanes share is multiplied by a matrix of each from the right, down its columns.

    XLA makes one large product of that, for which it transposes all lanes' matrices, and then the result.
    """
    if eqn.primitive is not lax.dot_general_p:
        return False
    (contracted, other), (batch, _) = eqn.params["dimension_numbers"]
    x, y = (v.aval for v in eqn.invars)
    return (len(contracted), len(batch), x.ndim, y.ndim, tuple(other)) == (1, 0, 2, 3, (1,)) and y.shape[0] > 1


def _of_shared(eqn: Any) -> list[Any]:
    """Returns the equations of a product of ours in the place of one of `_is_shared`, where there is one."""

    def multiply(x: Any, y: Any) -> Any:
        (contracted, _), _ = eqn.params["dimension_numbers"]
        numbers: Any = (((contracted[0] + 1,), (1,)), ((0,), (0,)))
        params: dict[str, Any] = {**eqn.params, "dimension_numbers": numbers}
        made = lax.dot_general(jnp.broadcast_to(x, (y.shape[0], *x.shape)), y, **params)
        return lax.transpose(made, (1, 0, 2))

    made = compat.inlined(multiply, eqn)
    return made if any(map(is_ours, made)) else [eqn]


def _untransposed(eqn: Any, turned: Mapping[Any, Any]) -> Any:
    sources, numbers = list(eqn.invars), [list(map(list, pair)) for pair in eqn.params["dimension_numbers"]]
    for k, v in enumerate(eqn.invars):
        if isinstance(v, compat.Var) and v in turned:
            order = turned[v].params["permutation"]
            sources[k] = turned[v].invars[0]
            for pair in numbers:
                pair[k] = [order[axis] for axis in pair[k]]
    contracted, batch = (tuple(map(tuple, pair)) for pair in numbers)
    params = {**eqn.params, "dimension_numbers": (contracted, batch)}
    return eqn.replace(primitive=product_p, invars=sources, params=params)


@frozen
class Axes:
    """The axes of an operand of a product."""

    contracted: int
    free: int
    batch: tuple[int, ...]

    @property
    def is_free_first(self) -> bool:
        return self.free < self.contracted


def _axes(dimension_numbers: Any) -> list[Axes]:
    """Returns the axes of both operands."""
    pairs = zip(*dimension_numbers, strict=True)
    return [
        Axes(c, next(k for k in range(len(batch) + 2) if k != c and k not in batch), tuple(batch))
        for (c,), batch in pairs
    ]


def _product(x: Any, y: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    """Multiplies by the kernel, once batch axes stand in front."""
    if are_short(x, y, dimension_numbers):
        return sum_of_products(x, y, dimension_numbers)
    sides = _axes(dimension_numbers)
    shape = [x.shape[k] for k in sides[0].batch]
    orders = ((*side.batch, *sorted((side.free, side.contracted))) for side in sides)
    operands = (lax.transpose(z, order) for z, order in zip((x, y), orders, strict=True))
    a, b = (z.reshape(prod(shape), *z.shape[-2:]) for z in operands)
    made = _kernel(a, b, down=not sides[0].is_free_first, across=sides[1].is_free_first)
    return made.reshape(*shape, *made.shape[1:])


def _multiply(a: Any, b: Any, *, down: bool, across: bool) -> Any:
    """Returns a[l] @ b[l] for each l as a task over l and the columns; `down`: a[l].T for a[l], `across`: b[l].T."""
    if across:
        b = _turned(b)
    lanes, depth, columns = b.shape
    rows = a.shape[2 if down else 1]
    out = empty((lanes, rows, columns), b.dtype)

    def tile(lane: Any, column: Any, first: Any, count: int) -> None:
        def step(k: Any, sums: Any) -> Any:
            y = b[lane, k, column]
            at = [(lane, k, first + r) if down else (lane, first + r, k) for r in range(count)]
            return tuple(total + a[index] * y for total, index in zip(sums, at, strict=True))

        sums = lax.fori_loop(0, depth, step, (jnp.zeros((), b.dtype),) * count)
        for r, total in enumerate(sums):
            out[lane, first + r, column] = total

    most = HIGH_TILE if has_masks() or columns * b.dtype.itemsize <= LEAST_BYTES else TILE
    count = -(-rows // most)
    high = -(-rows // count)
    whole, rest = divmod(rows, high)
    parts = [(whole, high), (1, rest)]
    if 0 < rest < LEAST_TILE:
        low, more = divmod(rows, count)
        parts = [(more, low + 1), (count - more, low)]

    def tiles(lane: Any, column: Any) -> None:
        first = 0
        for number, height in parts:
            if number > 1:
                lax.fori_loop(0, number, lambda n, _, s=first, h=height: tile(lane, column, s + n * h, h), None)
            elif height:
                tile(lane, column, first, height)
            first += number * height

    for lane, column in ndrange(lanes, columns).over(tiles):
        tiles(lane, column)
    return out


def _turned(b: Any) -> Any:
    """Returns b[l].T for each l."""
    lanes, columns, depth = b.shape
    out = empty((lanes, depth, columns), b.dtype)

    def turn(lane: Any, column: Any) -> None:
        def step(k: Any, _: None) -> None:
            out[lane, k, column] = b[lane, column, k]

        lax.fori_loop(0, depth, step, None)

    for lane, column in ndrange(lanes, columns).over(turn):
        turn(lane, column)
    return out


_kernel: Any = jit(_multiply, static_argnames=("down", "across"))


def _adjoint(side: int) -> Callable[..., Any]:
    """Returns JAX's rule for the adjoint of an operand: a product in the order that gives it in its own layout."""

    def rule(adjoint: Any, x: Any, y: Any, *, dimension_numbers: Any, **params: Any) -> Any:
        value, wanted = (y, x)[side], (x, y)[side].aval
        left, right = (wanted, y) if side == 0 else (x, wanted)
        if are_short(left, right, dimension_numbers):
            multiply = functools.partial(lax.dot_general, dimension_numbers=dimension_numbers, **params)
            of_operand = (lambda z: multiply(z, y)) if side == 0 else functools.partial(multiply, x)
            return with_products(jax.linear_transpose(of_operand, wanted))(adjoint)[0]
        sides = _axes(dimension_numbers)
        own, other = sides[side], sides[1 - side]
        lead = tuple(range(len(own.batch)))
        summed = len(lead) + 1 - side
        if own.is_free_first:
            operands, numbers = (adjoint, value), (((summed,), (other.free,)), (lead, other.batch))
        else:
            operands, numbers = (value, adjoint), (((other.free,), (summed,)), (other.batch, lead))
        made = with_products(functools.partial(lax.dot_general, dimension_numbers=numbers, **params))(*operands)
        order = (*own.batch, *sorted((own.free, own.contracted)))
        return lax.transpose(made, sorted(range(len(order)), key=order.__getitem__))

    return rule


def _batched(operands: Sequence[Any], axes: Sequence[int | None], **params: Any) -> tuple[Any, int]:
    return with_products(jax.vmap(functools.partial(lax.dot_general, **params), axes))(*operands), 0


def _type(x: Any, y: Any, **params: Any) -> Any:
    made = jax.eval_shape(functools.partial(lax.dot_general, **params), x, y)
    return compat.array_type(made.shape, made.dtype, (x, y))


compat.define(product_p, _type, _batched, lax.dot_general, cpu=_product)
ad.defbilinear(product_p, _adjoint(0), _adjoint(1))
