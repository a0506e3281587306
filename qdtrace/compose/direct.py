"""Calls of primitives on arrays: at once, with the axis of a batch, with tangents that are zero."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NoReturn

import jax
from jax.interpreters import ad, mlir

from qdtrace.errors import BackendError
from qdtrace.ir.platforms import PLATFORMS
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from jax import Array

    from qdtrace.trace.compat import Primitive


def runs_by(
    primitive: Primitive, key: str, lowering: Callable[[str], Callable[..., Any]], **others: object
) -> Callable[[object], Callable[..., list[Array]]]:
    """Has JAX run a primitive: at once on arrays, by `jax.jit`, and where a platform is known by a `lowering` for it.

    The parameter `key` holds its program; for a call on arrays `others` are the other ones. Returns the function that
    keeps what `jax.jit` gives of each program.
    """

    @functools.cache
    def compiled(held: object) -> Callable[..., list[Array]]:
        return jax.jit(functools.partial(primitive.bind, **{key: held}, **others))

    def run(*operands: Array, **params: Any) -> list[Array]:
        return run_now(compiled(params[key]), operands, params[key].program.name)

    def refuse(ctx: mlir.LoweringRuleContext, *_: object, **params: Any) -> NoReturn:
        needs, got = " or ".join(PLATFORMS), ", ".join(ctx.module_context.platforms)
        text = f"{params[key].program.name}: needs the platform {needs}, got {got}"
        raise BackendError(text, help="run under JAX_PLATFORMS=cpu")

    primitive.def_impl(run)
    mlir.register_lowering(primitive, refuse)
    for platform in PLATFORMS:
        # Where a call stands decides how it is lowered (`needed_operands`): JAX must not reuse what it made elsewhere.
        mlir.register_lowering(primitive, lowering(platform), platform=platform, cacheable=False)
    return compiled


def run_now(compiled: Callable[..., list[Array]], operands: Sequence[Array], name: str) -> list[Array]:
    """Runs a compiled program at once. Where JAX looks for NaN it runs one again piece by piece; ours is one piece."""
    looks = [w for w in ("nan", "inf") if getattr(jax.config, f"jax_debug_{w}s")]
    if not looks:
        with jax.disable_jit(False):
            return compiled(*operands)
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        outs = compiled(*operands)
    for wanted in looks:
        test = getattr(jax.numpy, f"is{wanted}")
        if any(jax.numpy.issubdtype(x.dtype, jax.numpy.inexact) and test(x).any() for x in outs):
            raise FloatingPointError(f"invalid value ({wanted}) encountered in {name}")
    return outs


def leading(operands: Sequence[Array], dims: Sequence[int | None]) -> tuple[list[Array], tuple[bool, ...], int]:
    """Operands with the axis of a batch in front, which of them have it, and its extent."""
    moved = [x if d is None else jax.numpy.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]
    size = next(x.shape[0] for x, d in zip(moved, dims, strict=True) if d is not None)
    return moved, tuple(d is not None for d in dims), size


def zero_tangent(value: object) -> ad.Zero:
    """Returns the symbolic zero of tangents of a value."""
    return ad.Zero(compat.tangent_type(value))
