"""Convolutions: one contraction over channels for each place of the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.decompositions.windows import counts_of, over_places, padded_by, slice_at
from qdtrace.trace.dtypes import accumulated
from qdtrace.trace.importer.registry import PLACED, PRECISION, decomposition

if TYPE_CHECKING:
    from collections.abc import Sequence


@decomposition("conv_general_dilated", ignores={"precision": PRECISION, "out_sharding": PLACED}, zeros_vanish=False)
def conv_general_dilated(
    lhs: Any, rhs: Any, *, window_strides: Sequence[int], padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int], rhs_dilation: Sequence[int], dimension_numbers: Any, feature_group_count: int,
    batch_group_count: int, preferred_element_type: Any,
) -> Any:  # fmt: skip
    """Computes `lax.conv_general_dilated` with sums in the dtype of the result, or f32 if that is narrower."""
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    result = jax.ShapeDtypeStruct((), preferred_element_type or jnp.result_type(lhs, rhs))
    dtype = accumulated(result).dtype
    lhs, rhs = lhs.astype(dtype).transpose(lhs_spec), rhs.astype(dtype).transpose(rhs_spec)
    batch, channels = lhs.shape[:2]
    out_channels, depth, *kernel = rhs.shape
    groups = max(feature_group_count, batch_group_count)
    pads = [(0, 0), (0, 0), *padding]
    lhs = padded_by(lhs, np.zeros((), dtype), pads, [1, 1, *lhs_dilation])
    space = counts_of(lhs.shape[2:], kernel, window_strides, rhs_dilation)
    # groups lead: of channels, or of the batch, each with its own part of the kernel's results
    if batch_group_count > 1:
        lhs = lhs.reshape(groups, batch // groups, channels, *lhs.shape[2:])
    else:
        lhs = lhs.reshape(batch, groups, channels // groups, *lhs.shape[2:]).swapaxes(0, 1)
    rhs = rhs.reshape(groups, out_channels // groups, depth, *kernel)
    counts = [*lhs.shape[:3], *space]

    def add(place: Sequence[Any], number: Any, total: Any) -> Any:
        start = [0, 0, 0, *(k * d for k, d in zip(place, rhs_dilation, strict=True))]
        part = slice_at(lhs, start, [1, 1, 1, *window_strides], counts)
        weights = slice_at(rhs, [0, 0, 0, *place], [1] * rhs.ndim, [*rhs.shape[:3], *([1] * len(kernel))])
        product = lax.dot_general(
            part, weights.reshape(rhs.shape[:3]), (((2,), (2,)), ((0,), (0,))), preferred_element_type=dtype
        )
        return product if isinstance(number, int) and number == 0 else total + product

    shape = (groups, counts[1], *space, out_channels // groups)
    total = over_places(kernel, add, jnp.zeros(shape, dtype))
    # from (groups, batch, space, channels of a group)
    total = jnp.moveaxis(jnp.moveaxis(total, 0, -2), (-2, -1), (1, 2)).reshape(counts[1], out_channels, *space)
    return total.astype(result.dtype).transpose(np.argsort(out_spec))
