"""Arithmetic on memory handles: a buffer or a cell in an expression stands for its present content."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from qdtrace.errors import TraceTypeError
from qdtrace.trace.diagnosis.attributes import StrictAttributes
from qdtrace.trace.indexing import as_value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    import jax
    from jax import Array
else:
    Array = object  # to a type checker a buffer or cell is an array; JAX looks for `__jax_array__`

_BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
_UNARY = ("neg", "pos", "abs", "invert")
_METHODS = frozenset(
    {
        "T", "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "conj", "conjugate", "cumprod", "cumsum",
        "diagonal", "dot", "flatten", "imag", "mT", "max", "mean", "min", "nonzero", "prod", "ptp", "ravel", "real",
        "repeat", "reshape", "round", "sort", "squeeze", "std", "sum", "swapaxes", "take", "trace", "transpose", "var",
        "view",
    }
)  # fmt: skip
INPLACE = {f"__i{name}__": getattr(operator, f"__{name}__") for name in _BINARY}


class ArrayOperators(StrictAttributes, Array):
    """Operators, comparisons and array methods that act on `self.__jax_array__()`."""

    __slots__ = ()
    _methods = _METHODS
    __array_ufunc__ = None
    """Makes NumPy scalars and arrays leave `np_value + self` to this class."""

    def __jax_array__(self) -> jax.Array:
        raise AssertionError(type(self))

    def _delegated(self, name: str) -> object:
        return getattr(self.__jax_array__(), name)

    def __hash__(self) -> int:
        raise self._refused(
            "cannot be a key of a dict or an element of a set: its content is not known yet",
            "use a Python number or a name as the key; to store at a traced place, `b[i] = v` of a buffer",
        )

    def __delitem__(self, _: object) -> None:
        raise TraceTypeError.here(
            f"an element of a {self._noun} cannot be deleted: its shape is fixed",
            help="store a value in its place, or copy what stays into a smaller one",
        )

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TraceTypeError.here(
            "NumPy needs a concrete array, got one that is being traced",
            help="use the function of the same name in jax.numpy; index a constant table as `jnp.array(table)[i]`",
        )


def _binary(function: Callable[[object, object], object], swapped: bool) -> Callable[[ArrayOperators, object], object]:
    def method(self: ArrayOperators, other: object) -> object:
        a, b = self.__jax_array__(), as_value(other)
        return function(b, a) if swapped else function(a, b)

    return method


def of_content(function: Callable[[jax.Array], object]) -> Callable[[ArrayOperators], object]:
    """Returns the method that applies a function to the content of memory."""
    return lambda self: function(self.__jax_array__())


for _name in (*_BINARY, *_COMPARE):
    setattr(ArrayOperators, f"__{_name}__", _binary(getattr(operator, f"__{_name}__"), swapped=False))
for _name in _BINARY:
    setattr(ArrayOperators, f"__r{_name}__", _binary(getattr(operator, f"__{_name}__"), swapped=True))
for _name in _UNARY:
    setattr(ArrayOperators, f"__{_name}__", of_content(getattr(operator, f"__{_name}__")))
