"""Calls at lengths that a function was not compiled for: see docs/design/0065-any-length.md.

A function is compiled for the first lengths that it is called with. From then on it is only traced at a new length: if
that gives the graph of the first ones but for numbers, one program runs it, and otherwise it is compiled as before.
"""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import SingleDeviceSharding

from qdtrace.compose.explain import failure_in
from qdtrace.errors import BoundsError, CheckError
from qdtrace.lengths.kinds import Kind
from qdtrace.lengths.mapped import mapped_staging, with_axes
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from qdtrace.compose.staged import Programs
    from qdtrace.config import Options
    from qdtrace.lengths.memory import Form

KEPT = 256
"""The most calls that are remembered by the types of their arguments: another one is traced again."""
LOOKING = (
    "jax_debug_nans", "jax_debug_infs", "jax_disable_jit", "jax_default_device", "jax_transfer_guard",
    "jax_transfer_guard_host_to_device", "jax_transfer_guard_device_to_host",
)  # fmt: skip
"""Settings of JAX by which it looks at each call and its arrays, or places them."""
UNSET = frozenset((False, None, "allow"))
_looking = operator.attrgetter(*LOOKING)


class Calls:
    """The calls of one function with its options."""

    def __init__(self, name: str, staging: Callable[[Programs], Callable[..., Any]], options: Options) -> None:
        self.name, self.staging, self.options = name, staging, options
        self._kinds: dict[Hashable, Kind] = {}
        self._met: OrderedDict[Hashable, Form | None] = OrderedDict()
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
        if not UNSET.issuperset(_looking(jax.config)):
            return None
        leaves, structure = jax.tree.flatten((args, kwargs))
        if compat.trace_ctx.is_top_level():
            return self._run(leaves, structure)
        return self._run_mapped(leaves, structure)

    def _run_mapped(self, leaves: Sequence[Any], structure: Any) -> tuple[Any] | None:
        """Returns the result of a call in a `jax.vmap` that is called directly, or None."""
        found = with_axes(leaves)
        if found is None:
            return None
        values, axes = zip(*found, strict=True)
        if not {0}.issubset(axes) or not {0, None}.issuperset(axes):
            return None
        with self._lock:
            calls = self._mapped.get((structure, axes))
            if calls is None:
                staging = mapped_staging(self.staging, structure, axes)
                calls = self._mapped[structure, axes] = Calls(self.name, staging, self.options)
        with compat.set_current_trace(compat.eval_trace):
            made = calls._run(values, jax.tree.structure((values, {})))
        return made and (made[0].as_mapped(leaves),)

    def _run(self, leaves: Sequence[Any], structure: Any) -> tuple[Any] | None:
        with self._lock:
            form = self._form((structure, compat.settings(), *map(_type_of, leaves)), leaves)
        if form is None:
            return None
        try:
            return (form.run(leaves),)
        except Exception as error:
            if isinstance(failure_in(error), BoundsError | CheckError):
                return None  # the program of these lengths fails, too, and its error tells them
            raise

    def _form(self, types: tuple[Hashable, ...], leaves: Sequence[Any]) -> Form | None:
        """Returns what a call of arguments of these types needs, or None if it is to be compiled for them."""
        if types in self._met:
            self._met.move_to_end(types)
            return self._met[types]
        kinds = [_kind_of(x) for x in leaves]
        if None in kinds:
            return None
        structure, settings, *_ = types
        kind = self._kinds.setdefault((structure, settings, *kinds), Kind(self.name, self.staging, structure))
        self._met[types] = form = kind.form(tuple([np.shape(x)[0] for x in leaves if np.ndim(x)]), leaves)
        if len(self._met) > KEPT:
            self._met.popitem(last=False)
        return form


def _type_of(x: Any) -> Hashable:
    """Returns all of an argument but its elements."""
    if isinstance(x, jax.Array):
        return Tracer if isinstance(x, Tracer) else (x.aval, x.sharding)
    return (type(x), x.dtype, x.shape) if isinstance(x, np.ndarray | np.generic) else type(x)


def _kind_of(x: object) -> Hashable:
    """Returns all of an argument but the length of its first axis; None if it is none that a processor has."""
    if isinstance(x, jax.Array):
        if isinstance(x, Tracer) or jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return None
        is_here = isinstance(x.sharding, SingleDeviceSharding) and x.devices() == {jax.local_devices(backend="cpu")[0]}
        return (x.dtype, x.weak_type, x.ndim, x.shape[1:]) if is_here else None
    if isinstance(x, np.ndarray | np.generic):
        return (type(x), x.dtype, x.ndim, x.shape[1:]) if x.dtype.isnative else None
    return type(x) if type(x) in (bool, int, float) else None
