"""Calls at lengths that a function was not compiled for: see docs/design/0065-any-length.md.

A function is compiled for the first lengths that it is called with. From then on it is only traced at a new length: if
that gives the graph of the first ones but for numbers, one program runs it, and otherwise it is compiled as before.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import SingleDeviceSharding

from qdtrace.compose.explain import failure_in
from qdtrace.compose.garbage import paused_garbage_collection
from qdtrace.compose.staged import Programs
from qdtrace.errors import BoundsError, CheckError
from qdtrace.lengths.kinds import Kind
from qdtrace.lengths.mapped import mapped_staging, with_axes
from qdtrace.lengths.opened import PinnedError
from qdtrace.lengths.traced import trace_call
from qdtrace.trace import compat, jax_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from types import ModuleType

    from qdtrace.config import Options
    from qdtrace.lengths.memory import Form
    from qdtrace.lengths.traced import Trace
    from qdtrace.trace.lengths import Recording

KEPT = 256
"""The most calls that are remembered by the types of their arguments: another one is traced again."""
LOOKING = (
    "jax_debug_nans", "jax_debug_infs", "jax_disable_jit", "jax_default_device", "jax_transfer_guard",
    "jax_transfer_guard_host_to_device", "jax_transfer_guard_device_to_host",
)  # fmt: skip
"""Settings of JAX by which it looks at each call and its arrays, or places them."""
UNSET = frozenset((False, None, "allow"))
_looking = jax_settings.reader(*LOOKING)


class Calls:
    """The calls of one function with its options."""

    def __init__(
        self, name: str, staging: Callable[[Programs], Callable[..., Any]], options: Options, *, is_mapped: bool = False
    ) -> None:
        self.is_mapped = is_mapped
        self.name, self.staging, self.options = name, staging, options
        self._kinds: dict[Hashable, Kind] = {}
        self._met: OrderedDict[Hashable, Sequence[Form] | None] = OrderedDict()
        """Calls by the types of their arguments; None for those to be compiled."""
        self._mapped: dict[Hashable, Calls] = {}
        """Calls in `jax.vmap`, by structure of arguments and the axes that are mapped."""
        self._lock = threading.RLock()  # a function that is traced may call another one, or itself

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Returns the result of a call, or None where it is to be compiled for its lengths."""
        if compat.settings is None:
            return None
        if self.options.debug or self.options.deterministic:
            return None
        if not UNSET.issuperset(_looking()):
            return None
        leaves, structure = jax.tree.flatten((args, kwargs))
        if compat.trace_ctx.is_top_level():
            return self._run(leaves, structure)
        if (mapped := with_axes(leaves)) is not None:
            return self._run_mapped(leaves, structure, mapped)
        return self._run_differentiated(leaves, structure)

    def _run_mapped(self, leaves: Sequence[Any], structure: Any, found: Sequence[tuple[Any, int | None]]) -> Any:
        """Returns the result of a call in a `jax.vmap` that is called directly, or None."""
        values, axes = zip(*found, strict=True)
        if not {0}.issubset(axes) or not {0, None}.issuperset(axes):
            return None
        with self._lock:
            calls = self._mapped.get((structure, axes))
            if calls is None:
                staging = mapped_staging(self.staging, structure, axes)
                calls = self._mapped[structure, axes] = Calls(self.name, staging, self.options, is_mapped=True)
        with compat.set_current_trace(compat.eval_trace):
            made = calls._run(values, jax.tree.structure((values, {})))
        return made and (made[0].as_mapped(leaves),)

    def _run_differentiated(self, leaves: Sequence[Any], structure: Any) -> tuple[Any] | None:
        """Returns the result of a call in a `jax.vjp` that is called directly, or None."""
        found = _gradients().with_tangents(leaves)
        if found is None:
            return None
        values, moved = found

        def otherwise(values: Sequence[Any]) -> list[Any]:
            args, kwargs = jax.tree.unflatten(structure, values)
            return jax.tree.leaves(self._compiled(*args, **kwargs))

        with compat.set_current_trace(compat.eval_trace):
            if not moved:
                return self._run(values, structure)
            forms = self._forms(values, structure, moved)
            made = None if forms is None else _run_form(forms[0], values)
        if forms is None or made is None:
            return None
        return (_gradients().differentiated(forms, made[0], leaves, values, moved, otherwise),)

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        return jax.jit(self.staging(Programs()))

    def _run(self, leaves: Sequence[Any], structure: Any) -> tuple[Any] | None:
        forms = self._forms(leaves, structure)
        return None if forms is None else _run_form(forms[0], leaves)

    def _forms(self, leaves: Sequence[Any], structure: Any, moved: tuple[int, ...] = ()) -> Sequence[Form] | None:
        """Returns what a call on such arguments needs, and its adjoint of those in `moved`; None to compile it."""
        with self._lock:
            types = (structure, compat.settings(), moved, *map(_type_of, leaves))
            try:
                found = self._met[types]  # one look, as each asks all arguments for their hash
            except KeyError:
                pass
            else:
                if len(self._met) > KEPT // 2:  # before, none is forgotten soon, and the order costs a look
                    self._met.move_to_end(types)
                return found
            kinds = [_kind_of(x) for x in leaves]
            if None in kinds:
                return None
            kind = self._kinds.setdefault((*types[:3], *kinds), Kind(self.name, self._tracing(structure, moved)))
            with paused_garbage_collection():  # until the traces are gone
                self._met[types] = forms = kind.forms(tuple([np.shape(x)[0] for x in leaves if np.ndim(x)]), leaves)
            if len(self._met) > KEPT:
                self._met.popitem(last=False)
            return forms

    def _tracing(
        self, structure: Any, moved: tuple[int, ...]
    ) -> Callable[[Sequence[Any], Recording | None], list[Trace]]:
        """Returns the function that traces a call of such arguments."""

        def traces(leaves: Sequence[Any], recording: Recording | None) -> list[Trace]:
            if recording is not None and self.is_mapped:
                raise PinnedError("its lengths are not those of the function that is traced")
            call = trace_call(self.staging, leaves, structure, recording)
            if not moved:
                return [call]
            return [call, _gradients().trace_adjoint(call, leaves, moved)]

        return traces


def _gradients() -> ModuleType:
    """Returns the module `qdtrace.lengths.gradients`."""
    # Loaded here: it loads derivatives, which most calls do without.
    from qdtrace.lengths import gradients as module

    return module


def _run_form(form: Form, leaves: Sequence[Any]) -> tuple[Any] | None:
    try:
        return (form.run(leaves),)
    except Exception as error:
        if isinstance(failure_in(error), BoundsError | CheckError):
            return None  # the program of these lengths fails, too, and its error tells them
        raise


def _type_of(x: Any) -> Hashable:
    """Returns all of an argument but its elements."""
    if isinstance(x, jax.Array):
        if isinstance(x, Tracer):
            return Tracer
        sharding = x.sharding  # one an array: to compare two takes longer than to compare all else
        return x.aval, getattr(sharding, "_device", sharding)
    return (type(x), x.dtype, x.shape) if isinstance(x, np.ndarray | np.generic) else type(x)


def _kind_of(x: object) -> Hashable:
    """Returns all of an argument but the length of its first axis; None if it is none that a processor has."""
    if isinstance(x, jax.Array):
        if isinstance(x, Tracer) or jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return None
        is_here = isinstance(x.sharding, SingleDeviceSharding) and x.devices() == {jax.local_devices(backend="cpu")[0]}
        return (x.dtype, x.weak_type, x.ndim, x.shape[1:]) if is_here else None
    if type(x) is np.ndarray or isinstance(x, np.generic):  # of a subclass, as of masked arrays, JAX knows what it is
        return (type(x), x.dtype, x.ndim, x.shape[1:]) if x.dtype.isnative else None
    return type(x) if type(x) in (bool, int, float) else None
