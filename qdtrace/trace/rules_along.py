"""Backward functions of `jax.custom_vjp` along a direction: what second derivatives take of a rule for reverse mode.

A backward function need not be linear in the cotangents (clipping of gradients, say). The tangent of what it returns
is its derivative by residuals and cotangents, so it has to know both the cotangents and their tangents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from qdtrace.frozen import frozen
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.trace.jaxprs import Params


@frozen(eq=False)
class RuleAlong:
    """The backward function of the results of a `custom_lin` equation and their tangents.

    It takes the residuals, tangents of those that are `changing`, and cotangents of the results, then of their
    tangents. The transpose of a tangent is the tangent of a transpose: cotangents of the *tangents* are the cotangents
    that the rule is asked for, those of the results are their tangents. It returns tangents of what the rule
    returns, then the values of those that are `moving`.
    """

    params: Params
    changing: Sequence[int]
    moving: Sequence[int]

    @property
    def f(self) -> Callable[..., object]:
        """The function of the user."""
        return self.params["bwd"].f

    @property
    def debug_info(self) -> object:
        """Debug info of the backward function."""
        return self.params["bwd"].debug_info

    def place(self, k: int) -> int:
        """Returns the number here of an operand of the equation that this is the derivative of."""
        count = self.params["num_res"]
        return k if k < count else k + len(self.changing)

    def tangent(self, k: int) -> list[int]:
        """Returns the number of the tangent of an operand of that equation, or nothing if it has none."""
        count, wanted = self.params["num_res"], self.params["in_zeros"].count(False)
        if k < count:
            return [count + self.changing.index(k)] if k in self.changing else []
        k -= count
        return [count + len(self.changing) + wanted + self.moving.index(k)] if k in self.moving else []

    def call_wrapped(self, *operands: jax.Array) -> list[jax.Array]:
        """Returns the cotangents that are wanted."""
        outs, ends = self.params["out_avals"], self.params["num_res"] + len(self.changing)
        residuals, changes = operands[: self.params["num_res"]], operands[self.params["num_res"] : ends]
        turned, cotangents = operands[ends : ends + len(outs)], operands[ends + len(outs) :]
        real = [k for k, aval in enumerate(outs) if jnp.issubdtype(aval.dtype, jnp.inexact)]

        def backward(changing: Sequence[jax.Array], cotangent: Sequence[jax.Array]) -> list[jax.Array]:
            known, asked = dict(zip(self.changing, changing, strict=True)), dict(zip(real, cotangent, strict=True))
            given = [known.get(k, x) for k, x in enumerate(residuals)]
            found = compat.transposed(self.params, given, [asked.get(k, x) for k, x in enumerate(cotangents)])
            return [x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float) for x in found]

        at = [residuals[k] for k in self.changing], [cotangents[k] for k in real]
        values, tangents = jax.jvp(backward, at, (list(changes), [turned[k] for k in real]))
        return [*tangents, *(values[k] for k in self.moving)]


def rule_along(params: Params, changing: Sequence[int], moving: Sequence[int]) -> dict[str, object]:
    """Returns parameters of the `custom_lin` equation of another one's results and their tangents.

    Its operands are residuals, tangents of those that are `changing`, linear ones, and tangents of those that are
    `moving`.
    """
    outs, wanted = params["out_avals"], params["in_zeros"].count(False)
    return {
        **params,
        "num_res": params["num_res"] + len(changing),
        "bwd": RuleAlong(params, changing, moving),
        "out_avals": [*outs, *outs],
        "in_zeros": [False] * (wanted + len(moving)),
    }
