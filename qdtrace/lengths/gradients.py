"""Calls that reverse mode differentiates: traces of a function and of its tangents, whose transpose runs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from qdtrace.compose.derivative import adjoint_of, has_backward
from qdtrace.compose.derivative_spec import Derivative
from qdtrace.compose.explain import failure_in
from qdtrace.compose.linearised import Linearised
from qdtrace.compose.staged_program import chosen
from qdtrace.errors import BoundsError, CheckError, QdError
from qdtrace.lengths.opened import PinnedError
from qdtrace.lengths.skeleton import skeleton_of
from qdtrace.lengths.traced import Known, Made, Trace, known_params
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.lengths.memory import Form
    from qdtrace.lengths.traced import Source

    Otherwise = Callable[[Sequence[Any]], Sequence[Any]]


def is_real(dtype: Any) -> bool:
    """Returns whether values of a dtype have tangents of that dtype."""
    return jax.numpy.issubdtype(dtype, jax.numpy.floating)


def with_tangents(leaves: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]] | None:
    """Returns the values of arguments, and the numbers of those that reverse mode asks for; None unless one `jax.vjp`
    of real arrays is all that is around."""
    trace = compat.trace_ctx.trace
    is_all = compat.eval_trace is not None and getattr(trace, "parent_trace", None) is compat.eval_trace
    if not is_all or not getattr(trace, "is_vjp", False) or not hasattr(trace, "to_primal_tangent_pair"):
        return None
    pairs = list(map(trace.to_primal_tangent_pair, leaves))
    values = [value for value, _ in pairs]
    moved = tuple([k for k, (_, tangent) in enumerate(pairs) if type(tangent) is not ad.Zero])
    is_known = all(isinstance(values[k], jax.Array) and is_real(values[k].dtype) for k in moved)
    return (values, moved) if is_known else None


def differentiated(
    forms: Sequence[Form],
    results: Any,
    leaves: Sequence[Any],
    values: Sequence[Any],
    moved: Sequence[int],
    otherwise: Otherwise,
) -> Any:
    """Returns the results of a call on `leaves` that have these values, as JAX differentiates them in reverse mode.

    `otherwise` gives leaves of the result from leaves of arguments and is compiled for their lengths: its adjoints run
    where one is asked for while JAX traces.
    """
    forward, backward = forms
    found = jax.tree.leaves(results)
    values = [x.copy() if isinstance(x, np.ndarray) else x for x in values]  # may change before adjoints are asked for
    places = {s.number: k for k, s in enumerate(forward.results) if isinstance(s, Made)}

    def of_moved(*arrays: Any) -> Any:
        given = dict(zip(moved, arrays, strict=True))
        results = otherwise([given.get(k, x) for k, x in enumerate(values)])
        return [results[k] for k in places.values()]

    def adjoints(_: None, given: list[Any]) -> tuple[Any, ...]:
        cotangents = list(map(_dense, given))
        if compat.trace_ctx.is_top_level() and not any(isinstance(c, compat.Tracer) for c in cotangents):
            try:
                return tuple(backward.run([*values, *cotangents]))
            except Exception as error:
                if not isinstance(failure_in(error), BoundsError | CheckError):
                    raise
        return jax.vjp(of_moved, *[values[k] for k in moved])[1](cotangents)

    call = jax.custom_vjp(of_moved)
    call.defvjp(lambda *_: ([found[k] for k in places.values()], None), adjoints, symbolic_zeros=True)
    made = dict(zip(places, call(*[leaves[k] for k in moved]), strict=True))

    def result(source: Source, value: Any) -> Any:
        if isinstance(source, Made):
            return made[source.number]
        return leaves[source] if isinstance(source, int) and source in moved else value

    return jax.tree.unflatten(forward.tree, list(map(result, forward.results, found)))


def _dense(cotangent: Any) -> Any:
    """Returns a cotangent as an array: XLA would compile JAX's zeros of a result that nobody uses for each length."""
    if not isinstance(cotangent, SymbolicZero):
        return cotangent
    kind: Any = cotangent.aval
    return np.zeros(kind.shape, kind.dtype)


def trace_adjoint(call: Trace, leaves: Sequence[Any], moved: Sequence[int]) -> Trace:
    """Returns the trace of a call's adjoints of the arguments in `moved`, for adjoints of its real results.

    These follow the leaves of arguments. Raises PinnedError if it has none of its own.
    """
    base = call.staged
    mask = tuple([source in moved for source in call.operands])
    places = {s: k for k, s in enumerate(chosen(call.operands, mask))}
    if len(places) < sum(mask):
        raise PinnedError("an argument is two operands")
    if base.source is None or has_backward(base):
        raise PinnedError("a function in its loops has a derivative rule for reverse mode")
    made = list(dict.fromkeys(s.number for s in call.results if isinstance(s, Made)))
    if any(isinstance(s, Made) and s.is_weak for s in call.results):
        raise PinnedError("other operands decide the type of a result")
    if len(set(base.program.results)) < len(base.program.results):
        raise PinnedError("two results are one array")
    try:
        reached = base.source.traced.along(mask).results if any(mask) else [None] * len(base.program.results)
        pairs = enumerate(zip(reached, base.program.results, strict=True))
        out = tuple([v is not None and k in made and is_real(ref.dtype.numpy) for k, (v, ref) in pairs])
        if not any(out):
            raise PinnedError("its results do not depend on what it is differentiated by")
        found = Linearised(base, (mask,), out, False, ())
        tangents = found.staged.on("cpu")
    except QdError as error:
        raise PinnedError(str(error)) from error
    if tangents.program is not tangents.with_rules:
        raise PinnedError("a function in its loops has a derivative rule of its own")
    numbers = {number: len(leaves) + k for k, number in enumerate(made)}
    adjoints = [numbers[k] for k, wanted in enumerate(out) if wanted]
    operands = (*call.operands, *adjoints, *map(Known, tangents.constants))
    known = known_params(tangents.program, operands[: len(tangents.program.params)], call.recording)
    spec = Derivative(base, (), out, mask)
    return Trace(
        skeleton_of(tangents.program, known),
        tangents,
        operands,
        tuple([Made(places[k]) if k in places else Known(np.zeros(leaves[k].shape, leaves[k].dtype)) for k in moved]),
        jax.tree.structure([0] * len(moved)),
        call.recording,
        spec,
        functools.partial(adjoint_of, spec),
    )
