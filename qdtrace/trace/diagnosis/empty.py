"""Types whose values hold nothing that Python code may change, with reasons, and functions that read hidden state.

A type that is in no table is looked into, and one that cannot be is taken for one that may change at any time.
"""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING

import jax
import numpy as np

from qdtrace.trace.compat import Tracer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_VALUE = "a value: none of its parts can be set"
_DESCRIBES = "describes code or a class, and cannot be set"
_COMPUTES = "computes from its operands"

TYPES: Mapping[Any, str] = {
    **dict.fromkeys(
        (type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented)), _VALUE
    ),
    object: "has no attributes",
    **dict.fromkeys(
        (
            *(types.CodeType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType),
            *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
            *(types.GenericAlias, types.UnionType),
        ),
        _DESCRIBES,
    ),
    types.FrameType: "its variables are looked at where the code runs",
    types.TracebackType: "a record of frames",
}
"""Types whose values hold nothing."""

BASES: Mapping[type, str] = {
    np.generic: _VALUE,
    np.dtype: _VALUE,
    np.ufunc: _COMPUTES,
    type(np.sum): "a function of NumPy, which computes from its operands",
    jax.Array: "an array, whose content cannot be set",
    Tracer: "a value of the trace: an equation says what it is",
}
"""Base types: values of types derived from them hold nothing either."""

LIBRARIES: Mapping[str, str] = {
    "jax": "arrays, their types and devices, and transformed functions, which are unwrapped before this is asked",
    "jaxlib": "the same in C++",
    "qdtrace": "handles of memory, whose content is in equations, and descriptions of loops",
    "ml_dtypes": _VALUE,
    "optree": "descriptions of trees, which cannot be set",
}
"""Packages whose types all have values that hold nothing."""

MODULES: Mapping[str, str] = {
    "typing": "annotations",
    "abc": "descriptions of classes",
    "_abc": "a cache of which classes are derived from which",
    "re": "patterns and matches, which cannot be set",
    "numbers": "descriptions of classes",
    "enum": "descriptions of classes; a member is a value of the user's own class",
    "fractions": _VALUE,
    "datetime": _VALUE,
    "_datetime": _VALUE,
    "pathlib": "a value: what it remembers of itself follows from its path",
    "operator": _COMPUTES,
    "_operator": _COMPUTES,
    "inspect": "descriptions of functions",
}
"""Modules whose types all have values that hold nothing."""

NAMED: Mapping[tuple[str, str], str] = {
    ("decimal", "Decimal"): _VALUE,
    ("uuid", "UUID"): _VALUE,
    ("uuid", "SafeUUID"): _VALUE,
    ("threading", "Barrier"): "threads wait in it for each other: in a second trip one would wait alone",
    ("dataclasses", "Field"): "describes a class",
    ("dataclasses", "_DataclassParams"): "describes a class",
    ("numpy", "finfo"): "limits of a dtype",
    ("numpy", "iinfo"): "limits of a dtype",
}
"""Single types whose values hold nothing, of modules that have other types too."""

FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("math", "cmath", "_operator", "operator", "_statistics", "_struct"), _COMPUTES),
    **dict.fromkeys(("_functools", "itertools"), "what they make is looked at by its own type"),
    **dict.fromkeys(("_bisect", "_heapq", "_collections"), "what they change is given to them, and looked at there"),
    **dict.fromkeys(("numpy", "numpy._core._multiarray_umath", "jaxlib", "jax"), _COMPUTES),
    "builtins": "they compute from what they are given, but for `SEEING`",
    "_abc": "they fill the cache of which classes are derived from which",
}
"""Modules written in C whose functions keep nothing and read nothing else."""

_REACHING = "eval exec locals globals vars setattr delattr input open id __import__"
SEEING: Mapping[str, object] = {name: getattr(builtins, name) for name in _REACHING.split()}
"""Built-in functions that reach variables or files by names which the code does not show, or set attributes by such."""

DRAWING: Mapping[str, str] = {
    **dict.fromkeys(("datetime", "_datetime", "time"), "the clock"),
    **dict.fromkeys(("random", "secrets"), "random numbers"),
    "uuid": "random numbers, the clock",
    "tempfile": "new names of files",
}
"""Modules whose functions and classes may return something else at each call."""


def is_empty(kind: type) -> bool:
    """Returns whether values of a type hold nothing, for one of the reasons here."""
    module = kind.__module__
    return (
        kind in TYPES
        or issubclass(kind, tuple(BASES))
        or module.partition(".")[0] in LIBRARIES
        or module in MODULES
        or (module.partition(".")[0], kind.__name__) in NAMED
    )


def sees_more(function: object) -> bool:
    """Returns True for a C function, or a class or function of a library, whose result may differ from call to call.

    A method is asked for what it belongs to, not here.
    """
    if isinstance(function, types.BuiltinFunctionType):
        owner = function.__self__
        name = getattr(owner, "__name__", None) or function.__module__ or ""
        known = name in FUNCTIONS or name.partition(".")[0] in ("numpy", "jaxlib", "jax")
        return not known or function in SEEING.values()
    return function.__module__ in DRAWING
