"""Misspelt attributes of loops, buffers and cells: an error that names the nearest one, at the user's line."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING

from qdtrace.errors import TraceAttributeError, TraceTypeError
from qdtrace.tracebacks import is_hidden


class StrictAttributes:
    """Has the attributes of its class, and no others."""

    __slots__ = ()
    _noun = ""
    """User-visible name of the class."""
    _methods = frozenset[str]()
    """Names of attributes besides those of the class, which `_delegated` gives."""
    _how_to_set = ""
    """Help text of the error for an attribute that exists and cannot be set."""

    def _refused(self, what: str, help_: str) -> TraceTypeError:
        """Returns the error for a use that the class has no meaning for."""
        return TraceTypeError.here(f"a {self._noun} {what}", help=help_)

    def _missing(self, name: str) -> object:
        if name in self._methods:
            return self._delegated(name)
        # JAX and NumPy ask for many names that may be missing; only a user gets the long answer.
        asker = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        if name.startswith("__") or is_hidden(asker.f_code.co_filename):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        raise TraceAttributeError.here(
            f"a {self._noun} has no attribute `{name}`", help=_nearest(self, name)
        )

    def _assigned(self, name: str, value: object) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            has_it = hasattr(type(self), name)
            raise TraceAttributeError.here(
                f"`{name}` of a {self._noun} cannot be set" if has_it else f"a {self._noun} has no attribute `{name}`",
                help=self._how_to_set if has_it else _nearest(self, name),
            ) from None

    if not TYPE_CHECKING:  # a type checker shall find misspelt attributes itself
        __getattr__, __setattr__ = _missing, _assigned

    def _delegated(self, name: str) -> object:
        """Returns the value of one of `_methods`."""
        raise AssertionError(name)


_ELSEWHERE = {
    **dict.fromkeys(
        ("append", "extend"), "its length is fixed: make it as long as it gets, `qd.zeros(n)`, and store into `b[k]`"
    ),
    "apply": "write `b[i] = f(b[i])`, where each iteration has its own element; of a mask, under `qd.when(mask[i])`",
    "detach": "use jax.lax.stop_gradient on what is loaded from it",
    "divide": "write `b[i] = b[i] / v`, where each iteration has its own element, of a mask under `qd.when(mask[i])`; "
    "`b.at[i].mul(1 / v)` accumulates",
    "byteswap": "do it in NumPy, before the call",
    "fill": "write `b[...] = value`",
    "from_numpy": "give the array as an argument of the function",
    "grad": "take jax.grad of the function",
    **dict.fromkeys(("itemset", "put", "setfield"), "write `b[k] = v`"),
    "item": "leave it out: `b[k]` is the value",
    **dict.fromkeys(
        ("numpy", "to_numpy", "tolist"), "return it from the function: what comes back is a JAX array"
    ),
    "partition": "keep a new array: `b[...] = jnp.partition(b[...], k)`",
    "resize": "its length is fixed: make another one, `qd.zeros(n)`",
    "power": "write `b[i] = b[i] ** v`, where each iteration has its own element; of a mask, under `qd.when(mask[i])`",
    "size": "write math.prod(b.shape)",
}
"""Attributes of arrays in other packages -> what to write here instead."""


def _nearest(thing: StrictAttributes, name: str) -> str:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    names = {n for n in dir(type(thing)) if not n.startswith("_")} | thing._methods  # pyright: ignore[reportPrivateUsage]
    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.5)
    return f"did you mean `{close[0]}`?" if close else ""
