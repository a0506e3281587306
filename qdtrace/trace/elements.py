"""Result of `b[i]`: a JAX tracer whose class also knows `+=` and `-=`.

Python runs `b[i] += v` as a load, an in-place addition and a store. The tracer of the load gets a subclass of its own
class that adds `__iadd__` and `__isub__`; these compute the sum as always and note what was added to what, by
which statement. A store of exactly that sum then records an *update*, which `regions` turns into an accumulation. See
docs/design/0002-accumulation-syntax.md.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING

import jax.numpy as jnp

from qdtrace.trace.arithmetic import as_scalar, subclassed
from qdtrace.trace.compat import Tracer
from qdtrace.trace.context import PendingSum, get_current
from qdtrace.trace.inplace import running_statement

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import jax

_classes: dict[type, type] = {}


def _accumulating(
    function: Callable[[Any, object], jax.Array], *, negate: bool
) -> Callable[[jax.Array, object], jax.Array]:
    def method(self: jax.Array, value: object) -> jax.Array:
        result = function(self, value)
        context = get_current()
        if context is not None and isinstance(result, Tracer):
            statement = running_statement(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            context.note_sum(result, PendingSum(self, value, negate, statement))
        return result

    return method


_MEMBERS: dict[str, object] = {
    "__iadd__": _accumulating(operator.add, negate=False),
    "__isub__": _accumulating(operator.sub, negate=True),
}


def as_element(loaded: jax.Array) -> jax.Array:
    """Returns the same tracer, able to accumulate. Values without an addition (random keys) stay as they are."""
    if not isinstance(loaded, Tracer) or not (loaded.dtype == jnp.bool_ or jnp.issubdtype(loaded.dtype, jnp.number)):
        return loaded
    is_element = type(loaded) in _classes and type(loaded) is _classes[type(loaded)]
    return subclassed(loaded if is_element else as_scalar(loaded), _classes, lambda _: _MEMBERS)
