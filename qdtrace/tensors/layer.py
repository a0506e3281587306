"""A function of tensors: what `qd.torch` gives."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdtrace import tracebacks
from qdtrace.api import Jitted, jit
from qdtrace.config import current
from qdtrace.errors import BackendError, TraceTypeError
from qdtrace.tensors.derived import Derived
from qdtrace.tensors.function import Call
from qdtrace.tensors.static import Static, put_back
from qdtrace.wrapped import Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

torch: Any = import_module("torch")
Tensor = torch.Tensor
_NUMBERS = (int, float, complex, np.ndarray, np.generic, jax.Array)


class Layer(Wrapped[..., Any]):
    """A function of tensors; see `qd.torch`."""

    def __init__(
        self, f: Callable[..., Any], static_argnums: int | Sequence[int], static_argnames: str | Iterable[str]
    ) -> None:
        super().__init__(f)
        if isinstance(f, Jitted) and static_argnums == static_argnames == ():
            static_argnums, static_argnames = f.static_arguments
        is_compiled = isinstance(f, Wrapped) or hasattr(f, "lower")
        self._function = f if is_compiled else jit(f, static_argnums=static_argnums, static_argnames=static_argnames)
        self._static = Static(f, static_argnums, static_argnames)
        self._derived: dict[Hashable, Derived] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            from qdtrace.tensors import uncompiled  # only here: it loads torch's compiler, which takes seconds

            return uncompiled.run(self.run, args, kwargs)
        try:
            return self.run(*args, **kwargs)
        except Exception as error:
            tracebacks.shorten(error)
            raise  # bare: this frame is not added to the traceback

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the results of a call as tensors."""
        fixed: Hashable = None
        if self._static:
            fixed, args, kwargs = self._static.taken_out(args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        key = tree, fixed, current()
        derived = self._derived.get(key)
        if derived is None:
            derived = self._derived.setdefault(key, Derived(self._of_leaves(tree, fixed)))
        places = tuple([k for k, x in enumerate(leaves) if isinstance(x, Tensor)])
        tensors = [leaves[k] for k in places]
        if len(tensors) < len(leaves):
            _refuse_others(leaves)
        if len(tensors) > 1 and len({t.device for t in tensors}) > 1:
            found = ", ".join(sorted({str(t.device) for t in tensors}))
            raise BackendError.here(
                f"qd.torch needs all tensors on one device, got {found}", help="move them with t.to(device)"
            )
        for k in places:
            leaves[k] = None  # torch says how long a tensor lives
        call = Call(derived, leaves, places)
        results = call.on(*tensors)
        return jax.tree.unflatten(call.tree, results)

    def _of_leaves(self, tree: Any, fixed: Hashable) -> Callable[..., Any]:
        function = self._function

        def of_leaves(*leaves: Any) -> Any:
            args, kwargs = jax.tree.unflatten(tree, leaves)
            if fixed is not None:
                args, kwargs = put_back(fixed, args, kwargs)
            return function(*args, **kwargs)

        return of_leaves

    def __repr__(self) -> str:
        return f"<qd.torch {self._function!r}>"


def _refuse_others(leaves: Sequence[Any]) -> None:
    """Raises TraceTypeError for a leaf that is no tensor, array or number."""
    for x in leaves:
        if not isinstance(x, (Tensor, *_NUMBERS)):
            raise TraceTypeError.here(
                f"qd.torch: an argument needs to be a tensor, an array, a number or a pytree of them, got "
                f"{type(x).__name__}",
                help="make it static: qd.torch(f, static_argnames=...)",
            )
