"""A function of tensors: what `qd.torch` gives."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from qdtrace import tracebacks
from qdtrace.api import Jitted, jit
from qdtrace.config import current
from qdtrace.errors import TraceTypeError
from qdtrace.tensors.derived import Derived
from qdtrace.tensors.function import Call, run
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
        self._has_static = bool(self._static)
        self._arguments = f, static_argnums, static_argnames
        self._derived: dict[Hashable, Derived] = {}
        self._last: tuple[Any, Derived | None] = (None, None)
        """Options of a call of tensors alone, and the function that it ran."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            from qdtrace.tensors import uncompiled  # only here: it loads torch's compiler, which takes seconds

            return uncompiled.run(self.run, args, kwargs)
        try:
            return self.run(args, kwargs)
        except Exception as error:
            tracebacks.shorten(error)
            raise  # bare: this frame is not added to the traceback

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the results of a call as tensors."""
        fixed: Hashable = None
        if self._has_static:
            fixed, args, kwargs = self._static.taken_out(args, kwargs)
        if not kwargs and _are_tensors(args):
            options, derived = self._last  # sooner found than in a dictionary
            if options is not current() or derived is None or fixed is not None:
                derived = self._derived_of(None, fixed)
                self._last = (current(), derived) if fixed is None else (None, None)
            results, tree = run(derived, args)
        else:
            leaves, tree = jax.tree.flatten((args, kwargs))
            places = tuple([k for k, x in enumerate(leaves) if isinstance(x, Tensor)])
            call = Call(self._derived_of(tree, fixed), _without_tensors(leaves), places)
            results = call.on(*[leaves[k] for k in places])
            tree = call.tree
        return results[0] if tree is None else tree.unflatten(results)

    def _derived_of(self, tree: Any, fixed: Hashable) -> Derived:
        """Returns the function of the leaves of such a call, which are its arguments if `tree` is None."""
        key = tree, fixed, current()
        made = self._derived.get(key)
        return made or self._derived.setdefault(key, Derived(self._of_leaves(tree, fixed)))

    def _of_leaves(self, tree: Any, fixed: Hashable) -> Callable[..., Any]:
        function = self._function

        def of_leaves(*leaves: Any) -> Any:
            args, kwargs = jax.tree.unflatten(tree, leaves) if tree is not None else (leaves, {})
            if fixed is not None:
                args, kwargs = put_back(fixed, args, kwargs)
            return function(*args, **kwargs)

        return of_leaves

    def __reduce__(self) -> Any:
        """Returns the name of a decorated function, and how to make the layer of another one."""
        named: Any = sys.modules.get(self.__module__)
        for name in getattr(self, "__qualname__", "").split("."):
            named = getattr(named, name, None)
        return super().__reduce__() if named is self else (Layer, self._arguments)

    def __deepcopy__(self, _: object) -> Layer:
        return self  # as Python's functions: a copy would compile again

    def __copy__(self) -> Layer:
        return self

    def __repr__(self) -> str:
        return f"<qd.torch {self._function!r}>"


def _are_tensors(args: tuple[Any, ...]) -> bool:
    for x in args:  # noqa: SIM110 (a generator takes longer than the rest of it)
        if not isinstance(x, Tensor):
            return False
    return True


def _without_tensors(leaves: Sequence[Any]) -> list[Any]:
    """Returns arguments with None in place of tensors, and with copies of arrays that may change before a gradient.

    Raises TraceTypeError for what is no tensor, array or number.
    """
    others: list[Any] = []
    for x in leaves:
        if not isinstance(x, (Tensor, *_NUMBERS)):
            raise TraceTypeError.here(
                f"qd.torch: an argument needs to be a tensor, an array, a number or a pytree of them, got "
                f"{type(x).__name__}",
                help="call the layer in a function that torch.fx.wrap names"
                if isinstance(x, torch.fx.Proxy)
                else "make it static: qd.torch(f, static_argnames=...)",
            )
        is_kept = isinstance(x, np.ndarray) and torch.is_grad_enabled()
        others.append(None if isinstance(x, Tensor) else x.copy() if is_kept else x)
    return others
