"""The order of boxes in the last level of a tree: nodes are cut across their longest axis."""

import jax.numpy as jnp
import numpy as np
import pytest

from qdtrace.algorithms.box_order import CELL_BITS, PARTS, order_of
from qdtrace.algorithms.levels import WIDE, slots_of


@pytest.mark.parametrize(
    ("axes", "count", "dtype"), [(3, 300, "float32"), (1, 65, "float32"), (2, 129, "float16"), (3, 8, "float32")]
)
def test_quarters_of_a_node_follow_each_other(axes, count, dtype):
    centre = np.random.default_rng(count).uniform(-1, 1, (count, axes)).astype(dtype)
    order = np.asarray(order_of(centre, centre))
    assert sorted(order) == list(range(count))
    places, size = centre[order].astype(np.float64), slots_of(count)
    while size > WIDE:
        for first in range(0, count, size):
            node = places[first : first + size]
            extent = node.max(0) - node.min(0)
            axis, part = extent.argmax(), size // PARTS
            cell = extent[axis] * 2.0**-CELL_BITS * 2  # places of one cell have no order
            for at in range(part, len(node), part):
                assert node[:at, axis].max() <= node[at:, axis].min() + cell
        size //= PARTS


def test_boxes_without_a_place_are_last():
    low = np.linspace(0, 1, 40, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    high = low.copy()
    low[3], high[3] = -np.inf, np.inf
    low[10, 1] = np.nan
    low[20, 2] = 2
    order = np.asarray(order_of(low, high))
    assert sorted(order[-3:]) == [3, 10, 20]


@pytest.mark.parametrize("scale", [0.0, 1e38, 1e-35])
def test_equal_far_and_tiny_boxes_have_an_order(scale):
    x = np.linspace(-3, 3, 20, dtype=np.float32)[::-1, None] * np.float32(scale)
    order = np.asarray(order_of(jnp.asarray(x), jnp.asarray(x)))
    np.testing.assert_array_equal(order, np.arange(20) if scale == 0 else np.arange(20)[::-1])
