"""The `torch.autograd.Function` that runs a `Derived` on tensors.

Torch asks it for values, for gradients by cotangents, for tangents and for batches. Each answer but the first is a
call of it again, with another `Derived`: so it is right under any of torch's transformations, to any order. Where the
call that is differentiated has kept JAX's residuals, gradients are computed from these, not from the arguments anew.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax

from qdtrace import failures
from qdtrace.compose.explain import failure_in
from qdtrace.tensors.memory import arrays_of, tensors_of
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.tensors.derived import Derived, Rule

torch: Any = import_module("torch")
forward_ad: Any = torch.autograd.forward_ad
_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
"""Returns whether a transformation of `torch.func` is around; where none is, the quicker way into autograd is right."""
_alive = getattr(getattr(torch._C, "_functorch", None), "unwrap_if_dead", lambda t: t)
"""Returns the tensor inside of one that a transformation wrapped which has ended, as that of `torch.func.vjp` has."""


class Call:
    """A function, and the arguments of one call of it that are no tensors."""

    wanted: tuple[int, ...] = ()
    """Positions of the arguments that `rule` gives gradients of."""
    rule: Rule | None = None
    """Computes gradients, once the values of a call that wants any are there."""
    kept: Sequence[Any] = ()
    """Arrays that the rule takes."""
    tree: Any = None
    """Structure of the results, once they are there; None of a result that is one array."""

    def __init__(
        self, derived: Derived, leaves: Sequence[Any], places: Sequence[int], forward: Call | None = None
    ) -> None:
        self.derived = derived
        self.leaves = leaves
        """Holds all arguments, with None in the places of tensors."""
        self.places = places
        """Positions of the tensors among the arguments."""
        self.forward = forward
        """The call whose pullback this is, if it has a rule for that: the last tensors are the cotangents."""

    def on(self, *tensors: Any) -> tuple[Any, ...]:
        """Returns the results of the call as tensors."""
        is_recorded = torch.is_grad_enabled()
        if is_recorded and self.forward is None:
            self.wanted = tuple([p for p, t in zip(self.places, tensors, strict=True) if t.requires_grad])
            is_recorded = bool(self.wanted)
        if _transforms_active():
            return Function.apply(self, *tensors)
        is_plain = not is_recorded and forward_ad._current_level < 0
        return self.run(tensors) if is_plain else _apply(self, *tensors)

    def run(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the results of the call on plain tensors, which are there.

        Raises QdError of what the function refuses, and of its checks.
        """
        if self.forward is not None:
            count = len(self.forward.places)
            return self.forward.gradients(tensors[:count], tensors[count:])
        leaves = self._operands(None, tensors)
        if not self.wanted:
            results, self.tree, _ = _called(self.derived.values, leaves, tensors)
            return results
        compiled = self.derived.values_and_rule(self.wanted)
        results, self.tree, (self.kept, self.rule) = _called(compiled, leaves, tensors, has_more=True)
        return results

    def gradients(self, tensors: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the gradients by the arguments in `wanted`, by the rule. Raises as `run`."""
        assert self.rule is not None
        read = self._operands(again := self.rule.again, tensors, cotangents)
        operands = (*read[: len(again)], *self.kept, *read[len(again) :])
        return _called(self.rule.gradients, operands, [*tensors, *cotangents])[0]

    def _operands(
        self, chosen: Sequence[int] | None, tensors: Sequence[Any], more: Sequence[Any] = ()
    ) -> Sequence[Any]:
        """Returns the chosen arguments of a compiled function, all if None, then arrays of `more` tensors."""
        if len(tensors) == len(self.leaves):
            return arrays_of(tensors if chosen is None else [*[tensors[p] for p in chosen], *more])
        placed = dict(zip(self.places, tensors, strict=True))
        chosen = range(len(self.leaves)) if chosen is None else chosen
        arrays = iter(arrays_of([*[placed[p] for p in chosen if p in placed], *more]))
        return [*[next(arrays) if p in placed else self.leaves[p] for p in chosen], *arrays]


def run(derived: Derived, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """Returns the results of a call on tensors alone, and their structure, which is None of one array.

    Raises QdError of what the function refuses, and of its checks.
    """
    is_recorded = _transforms_active() or forward_ad._current_level >= 0
    if not is_recorded and torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                is_recorded = True
                break
    if is_recorded:
        call = Call(derived, (None,) * len(tensors), range(len(tensors)))  # torch says how long a tensor lives
        return call.on(*tensors), call.tree
    results, tree, _ = _called(derived.values, arrays_of(tensors), tensors)
    return results, tree


def _called(
    function: Callable[..., Any], operands: Sequence[Any], tensors: Sequence[Any], *, has_more: bool = False
) -> tuple[tuple[Any, ...], Any, Sequence[Any]]:
    """Returns the results of a compiled function as tensors, their structure, and what it returns beside results.

    `tensors` are those that the operands were made of. Raises QdError of what the function refuses, and of its checks.
    """
    try:
        results = function(*operands)
        more: Sequence[Any] = ()
        if has_more:
            results, *more = results
        arrays, tree = ((results,), None) if isinstance(results, jax.Array) else jax.tree.flatten(results)
        return _awaited(arrays, tensors), tree, more
    except Exception as error:
        if (failure := failure_in(error)) is None:
            raise
        raise failure.with_traceback(None) from None


def _awaited(arrays: Sequence[jax.Array], tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the arrays that a call on `tensors` gave as tensors, once they are there. Raises QdError of checks."""
    is_on_host = tensors[0].is_cpu if tensors else all(map(compat.is_on_host, arrays))
    for array in arrays:
        array.block_until_ready()
    if failures.glance() != failures.fine:
        failures.raise_failures()
    return tensors_of(arrays, is_on_host, [t.data_ptr() for t in tensors])


class _Differentiated(torch.autograd.Function):
    """A `Call` as torch sees it. Arguments are the call and its tensors, results are tensors."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Returns the gradients of what needs one, as the results of a call."""
        call: Call = ctx.call
        is_needed = ctx.needs_input_grad[1:]
        needed = tuple([p for p, need in zip(call.places, is_needed, strict=True) if need])
        cotangents = grads
        if not all(ctx.is_float):
            cotangents = [g for g, is_float in zip(grads, ctx.is_float, strict=True) if is_float]
        has_rule = call.rule is not None and (needed == call.wanted or set(needed) <= set(call.wanted))
        places = call.wanted if has_rule else needed
        if has_rule and not torch.is_grad_enabled() and not _transforms_active() and forward_ad._current_level < 0:
            results = call.gradients(ctx.saved_tensors, cotangents)
            if len(places) == len(is_needed) == len(needed):
                return None, *results
        else:
            tensors = [_alive(t) for t in ctx.saved_tensors]
            count = len(call.leaves)
            pulled = Call(
                call.derived.pullback(places, count),
                [*call.leaves, *[None] * len(cotangents)],
                (*call.places, *range(count, count + len(cotangents))),
                call if has_rule else None,
            )
            results = pulled.on(*tensors, *cotangents)
        found = dict(zip(places, results, strict=True))
        return None, *[found[p] if need else None for p, need in zip(call.places, is_needed, strict=True)]

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> tuple[Any, ...]:
        """Returns the tangents of results that are floats, None for the others."""
        call: Call = ctx.call
        given = [t for t in tangents if t is not None]
        places = tuple(p for p, t in zip(call.places, tangents, strict=True) if t is not None)
        count = len(call.leaves)
        pushed = Call(
            call.derived.pushforward(places),
            [*call.leaves, *[None] * len(given)],
            (*call.places, *range(count, count + len(given))),
        )
        found = iter(pushed.on(*map(_alive, ctx.saved_tensors), *given))
        return tuple(next(found) if is_float else None for is_float in ctx.is_float)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *tensors: Any) -> tuple[Any, Any]:
        """Returns the results of a batch, and their axes."""
        axes: list[int | None] = [None] * len(call.leaves)
        for place, axis in zip(call.places, in_dims[1:], strict=True):
            axes[place] = axis
        mapped = Call(call.derived.batched(tuple(axes), info.batch_size), call.leaves, call.places)
        results = mapped.on(*tensors)
        call.tree = mapped.tree
        return results, (0,) * len(results)


class Function(_Differentiated):
    """The function as `torch.func` asks for it, with a `setup_context`."""

    @staticmethod
    def forward(call: Call, *tensors: Any) -> tuple[Any, ...]:
        """Returns the values."""
        return call.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keeps what derivatives need."""
        call, *tensors = inputs
        _keep(ctx, call, tensors, output)


class _Direct(_Differentiated):
    """The function where no transformation is around: torch binds arguments to signatures of those that have a
    `setup_context`, by `inspect`, which takes longer than the rest of a small call."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Any) -> tuple[Any, ...]:
        """Returns the values, and keeps what derivatives need."""
        results = call.run(tensors)
        _keep(ctx, call, tensors, results)
        return results


_apply = super(torch.autograd.Function, _Direct).apply
"""`_Direct.apply` without its looks for transformations."""


def _keep(ctx: Any, call: Call, tensors: Sequence[Any], results: Sequence[Any]) -> None:
    """Keeps the tensors, also to be told if one has changed since: residuals may be on their memory."""
    ctx.call = call
    ctx.save_for_backward(*tensors)
    if forward_ad._current_level >= 0 or _transforms_active():
        ctx.save_for_forward(*tensors)
    ctx.is_float = [y.is_floating_point() or y.is_complex() for y in results]
    if not all(ctx.is_float):
        ctx.mark_non_differentiable(*[y for y, is_float in zip(results, ctx.is_float, strict=True) if not is_float])
