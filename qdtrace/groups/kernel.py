"""Kernels of a GPU in which a program works on one lane: a jaxpr of one lane as a call of Pallas, by Triton."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

from qdtrace.groups import control, linalg, pieces, rules
from qdtrace.groups.forms import forms_of
from qdtrace.groups.registry import evaluate
from qdtrace.groups.tiles import Memory, RefusedError, padded
from qdtrace.groups.work import FEW_TERMS, LEAST, lanes_of, tiles_to, work_of
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.groups.forms import Form
    from qdtrace.groups.pieces import Way

_DTYPES = tuple(map(jnp.dtype, ("float32", "float16", "bfloat16", "int32", "bool")))
_LOADED = 4
"""Elements of f32 that a thread loads at once, from rows that are aligned to them."""
WARP = 32
MOST_WORK = 6144
"""Multiplications of a thread in all products by Triton, which are written out. With 10,000 a kernel compiles for 4 s,
with 40,000 for 31 s, and both run slower than XLA's products (H200, 32 x 32)."""
_LESS = 2
"""Products of pieces take at most half of the instructions."""
RULES = (control, linalg, rules)
"""The modules that register rules as they are imported."""
_MOST_ELEMENTS = (1 << 31) - 1
"""Positions in memory are 32-bit integers."""


def run_groups(jaxpr: Any, mapped: Sequence[bool], operands: Sequence[Any], *, interpret: bool = False) -> list[Any]:
    """Runs the jaxpr of one lane on the lanes of the operands, along their first axis; the others are equal in all.

    Raises RefusedError if a kernel cannot be made of it.
    """
    *first, last = forms_of(jaxpr)
    for form in first:
        with suppress(RefusedError), tiles_to(form.side):
            return _run(jaxpr, mapped, operands, form, interpret)
    with tiles_to(last.side):
        return _run(jaxpr, mapped, operands, last, interpret)


def _run(jaxpr: Any, mapped: Sequence[bool], operands: Sequence[Any], form: Form, interpret: bool) -> list[Any]:
    opened = compat.open_jaxpr(jaxpr)
    lanes = lanes_of(operands, mapped)
    results = [v.aval for v in opened.outvars]
    sizes = [x.size for x in operands] + [lanes * a.size for a in results]
    if lanes == 0 or max(sizes) > _MOST_ELEMENTS:
        raise RefusedError(f"{lanes} lanes of {results[0].shape}")
    for value in (*operands, *results):
        if value.dtype not in _DTYPES:
            raise RefusedError(f"{value.dtype}")
    count = _multiplications(opened) // (_LESS * form.warps if form.by_pieces else 1)
    if count > MOST_WORK:
        raise RefusedError(f"products of {count} multiplications a thread")

    is_spread = _picks_lines(opened)

    def kernel(*refs: Any) -> None:
        lane = pallas.program_id(0)
        # hides from Triton that rows are aligned, so that it gives a thread one element of each row
        first = jnp.minimum(lane, 0) if is_spread else 0

        def memory(ref: Any, aval: Any, is_mapped: bool) -> Memory:
            is_packed = not is_spread and aval.ndim > 0 and aval.shape[-1] % _LOADED == 0
            return Memory(ref, first + lane * (aval.size if is_mapped else 0), aval.shape, is_packed)

        def run(way: Way) -> list[Any]:
            given = [memory(*one) for one in zip(refs, (v.aval for v in opened.invars), mapped, strict=False)]
            made = [memory(ref, aval, True) for ref, aval in zip(refs[len(given) :], results, strict=True)]
            with pieces.made_by(way) as conditions:
                evaluate(opened, compat.constants_of(jaxpr), given, made)
            return conditions

        conditions = run("pieces" if form.by_pieces else "triton")
        if form.by_pieces:

            @pallas.when(~pieces.all_of(conditions))
            def _again() -> None:
                run("lines")

    shapes = [jax.ShapeDtypeStruct((lanes * a.size,), a.dtype) for a in results]
    call = pallas.pallas_call(
        kernel,
        out_shape=shapes,
        grid=(lanes,),
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=form.warps, num_stages=1),
        name="qd_group",
    )
    made = call(*(x.reshape(-1) for x in operands))
    return [y.reshape(lanes, *a.shape) for y, a in zip(made, results, strict=True)]


def _multiplications(jaxpr: Any) -> int:
    """Returns the multiplications of a thread in the products of a jaxpr, those of a loop's body once."""
    count = 0
    for eqn in work_of(jaxpr).products:
        (axes, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        inner = [shape[axis] for axis in axes]
        count += prod(padded(eqn.outvars[0].aval.shape)) * prod(padded(inner)) // WARP
    return count


def _picks_lines(jaxpr: Any) -> bool:
    """Returns whether most work is to pick lines of matrices, which one element of each row in a thread makes cheapest.

    Solves from the right pick columns of their right sides, too.
    """
    factors = work_of(jaxpr).factors
    longest = max((e.invars[0].aval.shape[-1] for e in factors), default=0)
    return longest > LEAST and all(e.params.get("left_side", True) for e in factors)


def is_left_to_xla(jaxpr: Any) -> bool:
    """Returns whether XLA is faster: at one product alone, of few terms, or from 17 on of one that is transposed."""
    work = work_of(jaxpr)
    if len(work.products) != 1 or work.factors or work.has("scan"):
        return False
    (product,) = work.products
    (axes, _), _ = product.params["dimension_numbers"]
    sides = product.invars[0].aval.shape
    if prod(sides[axis] for axis in axes) <= FEW_TERMS:
        return True
    if max(n for v in product.invars for n in v.aval.shape) <= LEAST:
        return False
    return product.params["dimension_numbers"][0] != ((1,), (0,)) or work.has("transpose")


def refusal(jaxpr: Any, mapped: Sequence[bool]) -> str | None:
    """Returns why no kernel can be made of the jaxpr of one lane; None if one can."""
    opened = compat.open_jaxpr(jaxpr)
    operands = [
        jax.ShapeDtypeStruct((1, *v.aval.shape) if is_mapped else v.aval.shape, v.aval.dtype)
        for v, is_mapped in zip(opened.invars, mapped, strict=True)
    ]
    try:
        jax.eval_shape(lambda *xs: run_groups(jaxpr, mapped, xs), *operands)
    except RefusedError as error:
        return str(error)
    return None
