"""Batches of loops around tasks: one loop for all elements, which has a reverse as any such loop has.

A loop whose condition is uniform runs as it is, on values with one more axis. If elements have different trip counts,
the loop runs while one of them does, and carries a mask of those; the others keep their state. An element that has
ended may have left the range of indices for which the body is valid, so its lane recomputes the state of a running one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from qdtrace.compose.direct import leading
from qdtrace.compose.loop_derivative import (
    Loop,
    adjoints_along,
    adjoints_p,
    directional,
    directional_p,
    is_float,
    loop_p,
    run,
)
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax import Array

    from qdtrace.trace.compat import Primitive

    Values = Sequence[Array]
    Mask = Sequence[bool]
    Run = Callable[..., list[Array]]
    Batched = tuple[list[Array], Sequence[int | None]]
    """Results and their axes."""


T = TypeVar("T")


class Batch:
    """One loop for all elements of a batch."""

    def __init__(self, loop: Loop, size: int, values: Values, axes: Sequence[bool]) -> None:
        """`values` are the loop's operands; those in `axes` have the batch's axis in front."""
        self.loop, self.size, self.axes = loop, size, tuple(axes)
        """Mask of the values that have the axis while the loop runs."""
        shapes = [v.shape[m:] for v, m in zip(values, axes, strict=True)]
        before = None
        while before != self.axes:
            before = self.axes
            types = [
                ShapedArray((size, *shape) if m else shape, v.dtype)  # not narrowed outside of the x64 mode
                for v, shape, m in zip(values, shapes, before, strict=True)
            ]
            self.varies = self._differing(loop.test, types)[0]
            """True if the elements have different trip counts."""
            after = [m or self.varies for m in self._differing(loop.step, types)]
            state = [m or a for m, a in zip(before[len(loop.used) :], after, strict=True)]
            self.axes = (*before[: len(loop.used)], *state)

    def _differing(self, function: Callable[[Values, Values], object], types: Sequence[ShapedArray]) -> list[bool]:
        """Returns the mask of results of a function of used values and state that differ between elements."""
        found: list[bool] = []

        def traced(used: Values, state: Values) -> object:
            outs = function(used, state)
            found[:] = map(compat.is_batched, jax.tree.leaves(outs))
            return outs

        jax.eval_shape(lambda *values: self._mapped(traced, 0)(*self._split(values)), *types)
        return found

    def _split(self, values: Values) -> tuple[Values, Values]:
        return self.loop.split(values)[:2]

    def _mapped(self, function: Callable[[Values, Values], T], out: object) -> Callable[[Values, Values], T]:
        """Maps a function of one element over all elements."""
        axes = [0 if m else None for m in self.axes]
        mapped = jax.vmap(lambda *values: function(*self._split(values)), axes, out, axis_size=self.size)
        return lambda used, state: mapped(*used, *state)

    def test(self, used: Values, state: Values) -> Array:
        """Returns whether the loop goes on, for each element if that varies."""
        return self._mapped(self.loop.test, 0 if self.varies else None)(used, state)

    def step(self, used: Values, state: Values) -> list[Array]:
        """Runs one iteration of all elements."""
        out = [0 if m else None for m in self.axes[len(self.loop.used) :]]
        return self._mapped(self.loop.step, out)(used, state)

    def _where(self, on: Array, value: Array, other: Array) -> Array:
        return jnp.where(on.reshape((self.size,) + (1,) * (value.ndim - 1)), value, other)

    def step_of_some(self, used: Values, state: Values) -> list[Array]:
        """Runs one iteration of the elements that go on; the first part of the state is their mask."""
        on, *old = state
        running = jnp.argmax(on)
        values = [self._where(on, v, v[running]) if m else v for v, m in zip((*used, *old), self.axes, strict=True)]
        new = [self._where(on, n, o) for n, o in zip(self.step(*self._split(values)), old, strict=True)]
        return [jnp.logical_and(on, self.test(used, new)), *new]

    def run(self, primitive: Primitive, values: Values, others: Values, **params: object) -> list[Array]:
        """Applies the primitive to the loop of all elements."""
        used, state = self._split(values)
        test, step = self.test, self.step
        if self.varies:
            state = [self.test(used, state), *state]
            test, step = lambda _, state: jnp.any(state[0]), self.step_of_some
        uses, carries = (tuple(map(jax.typeof, part)) for part in (used, state))
        made = Loop(test, step, uses, carries, self.loop.stack_bytes)
        outs = primitive.bind(*used, *state, *others, loop=made, **params)
        return outs[1:] if self.varies and primitive is loop_p else outs


FUNCTIONS: dict[Primitive, Run] = {loop_p: run, directional_p: directional, adjoints_p: adjoints_along}
"""The function that each primitive runs."""


def batching_rule(primitive: Primitive) -> Callable[..., Batched]:
    """Returns JAX's batching rule of a loop, or of a derivative of it."""

    def batched(operands: Values, dims: Sequence[int | None], *, loop: Loop, **params: object) -> Batched:
        operands, given, size = leading(operands, dims)
        if any(given[: loop.count]):
            return _batched(primitive, operands, given, size, loop, params)
        outs = _at_one_point(primitive, given, size, loop, params)(*operands)
        return outs, [0] * len(outs)

    return batched


def _at_one_point(primitive: Primitive, given: Mask, size: int, loop: Loop, params: dict[str, object]) -> Run:
    """Returns the function of directions or adjoints at one point, for all of which the loop runs once.

    Its derivatives are those of a loop that runs for each.
    """
    axes = [0 if m else None for m in given]
    run = jax.custom_jvp(jax.vmap(lambda *xs: FUNCTIONS[primitive](*xs, loop=loop, **params), axes))

    def for_each(*operands: Array) -> list[Array]:
        spread = [x if m else jnp.broadcast_to(x, (size, *x.shape)) for x, m in zip(operands, given, strict=True)]
        return _batched(primitive, spread, [True] * len(spread), size, loop, params)[0]

    run.defjvp(lambda operands, tangents: jax.jvp(for_each, operands, tangents))
    return run


def _batched(
    primitive: Primitive, operands: Values, given: Mask, size: int, loop: Loop, params: dict[str, object]
) -> Batched:
    """Returns results of a loop that runs for all elements, and their axes."""
    count, axes = loop.count, list(given[: loop.count])
    values, others = operands[:count], operands[count:]
    floats = [k for k, v in enumerate(values) if is_float(v)]
    if primitive is directional_p:
        for k, m in zip(floats, given[count:], strict=True):
            axes[k] = axes[k] or m
    elif primitive is not loop_p:
        axes = [m or k in floats for k, m in enumerate(axes)]  # each element has adjoints of its own

    def spread(value: Array, has: bool, wanted: bool) -> Array:
        return jnp.broadcast_to(value, (size, *value.shape)) if wanted and not has else value

    values = [spread(*each) for each in zip(values, given, axes, strict=False)]
    batch = Batch(loop, size, values, axes)
    values = [spread(*each) for each in zip(values, axes, batch.axes, strict=True)]
    carried = [k for k in floats if k >= len(loop.used)]
    # the values are followed by a tangent of each float, or by adjoints and tangents of all, which have the axis
    wanted = [batch.axes[k] for k in floats] if primitive is directional_p else [True] * len(others)
    others = [spread(*each) for each in zip(others, given[count:], wanted, strict=True)]
    outs = batch.run(primitive, values, others, **params)
    found = floats if primitive is adjoints_p else carried
    if primitive is loop_p:
        found = range(len(loop.used), count)
    return outs, [0 if batch.axes[k] else None for k in found]
