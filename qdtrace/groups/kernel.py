"""Kernels of a GPU in which a program works on one lane: a jaxpr of one lane as a call of Pallas, by Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

from qdtrace.groups import control, linalg, rules
from qdtrace.groups.registry import evaluate
from qdtrace.groups.tiles import Memory, RefusedError
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Sequence

_DTYPES = tuple(map(jnp.dtype, ("float32", "float16", "bfloat16", "int32", "bool")))
RULES = (control, linalg, rules)
"""The modules that register rules as they are imported."""
_MOST_ELEMENTS = (1 << 31) - 1
"""Positions in memory are 32-bit integers."""


def run_groups(jaxpr: Any, mapped: Sequence[bool], operands: Sequence[Any], *, interpret: bool = False) -> list[Any]:
    """Runs the jaxpr of one lane on the lanes of the operands, along their first axis; the others are equal in all.

    Raises RefusedError if a kernel cannot be made of it.
    """
    opened = compat.open_jaxpr(jaxpr)
    lanes = next(x.shape[0] for x, is_mapped in zip(operands, mapped, strict=True) if is_mapped)
    results = [v.aval for v in opened.outvars]
    sizes = [x.size for x in operands] + [lanes * a.size for a in results]
    if lanes == 0 or max(sizes) > _MOST_ELEMENTS:
        raise RefusedError(f"{lanes} lanes of {results[0].shape}")
    for value in (*operands, *results):
        if value.dtype not in _DTYPES:
            raise RefusedError(f"{value.dtype}")

    def kernel(*refs: Any) -> None:
        lane = pallas.program_id(0)
        given = [
            Memory(ref, lane * (v.aval.size if is_mapped else 0), v.aval.shape)
            for ref, v, is_mapped in zip(refs, opened.invars, mapped, strict=False)
        ]
        made = [Memory(r, lane * a.size, a.shape) for r, a in zip(refs[len(given) :], results, strict=True)]
        evaluate(opened, compat.constants_of(jaxpr), given, made)

    shapes = [jax.ShapeDtypeStruct((lanes * a.size,), a.dtype) for a in results]
    call = pallas.pallas_call(
        kernel,
        out_shape=shapes,
        grid=(lanes,),
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        name="qd_group",
    )
    made = call(*(x.reshape(-1) for x in operands))
    return [y.reshape(lanes, *a.shape) for y, a in zip(made, results, strict=True)]


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
