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
    from collections.abc import Sequence

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
    """Structure of the results, once they are there."""

    def __init__(
        self, derived: Derived, leaves: Sequence[Any], places: tuple[int, ...], forward: Call | None = None
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

    def run(self, tensors: Sequence[Any], cotangents: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """Returns the results of the call on plain tensors, or their gradients by the rule; they are there.

        Raises QdError of what the function refuses, and of its checks.
        """
        if self.forward is not None:
            count = len(self.forward.places)
            return self.forward.run(tensors[:count], tensors[count:])
        try:
            if cotangents is not None:
                assert self.rule is not None
                read = self._operands(again := self.rule.again, tensors, cotangents)
                found = self.rule.gradients(*read[: len(again)], *self.kept, *read[len(again) :])
                tensors = [*tensors, *cotangents]
            else:
                leaves = self._operands(range(len(self.leaves)), tensors)
                if self.wanted:
                    results, self.kept, self.rule = self.derived.values_and_rule(self.wanted)(*leaves)
                else:
                    results = self.derived.values(*leaves)
                found, self.tree = jax.tree.flatten(results)
            is_on_host = tensors[0].is_cpu if tensors else all(map(compat.is_on_host, found))
            for array in found:
                array.block_until_ready()
            if failures.glance() != failures.fine:
                failures.raise_failures()
            return tensors_of(found, is_on_host, [t.data_ptr() for t in tensors])
        except Exception as error:
            failure = failure_in(error)
            if failure is None:
                raise
            raise failure.with_traceback(None) from None

    def _operands(self, chosen: Sequence[int], tensors: Sequence[Any], more: Sequence[Any] = ()) -> Sequence[Any]:
        """Returns the chosen arguments of a compiled function, then arrays of `more` tensors."""
        if len(chosen) == len(tensors) == len(self.leaves):
            return arrays_of([*tensors, *more])
        placed = dict(zip(self.places, tensors, strict=True))
        arrays = iter(arrays_of([*[placed[p] for p in chosen if p in placed], *more]))
        return [*[next(arrays) if p in placed else self.leaves[p] for p in chosen], *arrays]


class Function(torch.autograd.Function):
    """A `Call` as torch sees it. Arguments are the call and its tensors, results are tensors."""

    @staticmethod
    def forward(call: Call, *tensors: Any) -> tuple[Any, ...]:
        """Returns the values."""
        return call.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keeps the tensors, also to be told if one has changed since: residuals may be on their memory."""
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        if _transforms_active() or forward_ad._current_level >= 0:
            ctx.save_for_forward(*tensors)
        ctx.is_float = [y.is_floating_point() or y.is_complex() for y in output]
        if not all(ctx.is_float):
            ctx.mark_non_differentiable(*[y for y, is_float in zip(output, ctx.is_float, strict=True) if not is_float])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Returns the gradients of what needs one, as the results of a call."""
        call: Call = ctx.call
        tensors = [_alive(t) for t in ctx.saved_tensors]
        is_needed = ctx.needs_input_grad[1:]
        needed = tuple([p for p, need in zip(call.places, is_needed, strict=True) if need])
        cotangents = [g for g, is_float in zip(grads, ctx.is_float, strict=True) if is_float]
        has_rule = call.rule is not None and set(needed) <= set(call.wanted)
        places = call.wanted if has_rule else needed
        if has_rule and not torch.is_grad_enabled() and not _transforms_active() and forward_ad._current_level < 0:
            results = call.run(tensors, cotangents)
        else:
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


_apply = super(torch.autograd.Function, Function).apply
"""`Function.apply` without what it does for `torch.func`, which takes as long as the rest of a small call."""
