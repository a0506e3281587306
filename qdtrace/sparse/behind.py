"""The equations behind the loops, which have to be linear in what these have written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.errors import QdError
from qdtrace.sparse.reading import refusal, type_of
from qdtrace.trace import compat
from qdtrace.trace.buffers import new_buffer
from qdtrace.trace.compat import Literal
from qdtrace.trace.tree import loc_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.sparse.reading import Reading


def adjoints_of(reading: Reading, env: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns what the result changes by as elements of the outputs change: values of scalars, handles of arrays.

    Raises:
        GradientError: the result is not linear in the outputs, so that entries of different terms meet.
    """
    outputs = reading.outputs

    def behind(*contents: Any) -> Any:
        inner, written = dict(env), dict(zip(outputs, contents, strict=True))
        for eqn in reading.behind:
            source = eqn.invars[0]
            values = [a.val if isinstance(a, Literal) else inner.get(a) for a in eqn.invars]
            if not isinstance(source, Literal) and source in written:
                rest = iter(values[1:])
                index = tuple(next(rest) if s is None else slice(*s) for s in eqn.params.get("slices", ()))
                inner[eqn.outvars[0]] = written[source][index]
            else:
                inner.update(zip(eqn.outvars, compat.bind_eqn(eqn, values), strict=True))
        return inner[reading.root.results[0]]

    shapes = [type_of(v) for v in outputs]
    result = jax.eval_shape(behind, *shapes)
    try:
        found = jax.linear_transpose(behind, *shapes)(jnp.ones(result.shape, result.dtype))
    except QdError:
        raise
    except Exception as error:  # JAX raises several kinds for what has no transpose
        loc = next((place for e in reversed(reading.behind) if (place := loc_of(e)) is not None), None)
        raise refusal(
            "a result that is not linear in what the loops have summed", loc,
            "give the sum alone to this function, and apply the rest of the chain rule to its derivatives",
        ) from error  # fmt: skip
    return {v: new_buffer(a).handle if a.ndim else a for v, a in zip(outputs, found, strict=True)}


def check_plain(reading: Reading) -> None:
    """Refuses, for first derivatives, results that are more than what the loops have written."""
    behind = reading.behind
    if len(reading.outputs) != 1 or len(behind) != 1 or behind[0].invars[0] is not reading.outputs[0]:
        raise refusal(
            "an array that is more than what its loops have written", loc_of(behind[-1]) if behind else None,
            "return one buffer as the loops have left it",
        )  # fmt: skip
