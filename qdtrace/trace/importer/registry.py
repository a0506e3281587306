"""Rules by primitive name, and primitives taught by a jnp function.

A rule is `rule(importer, eqn, *values)` and gives one value, or a list for a primitive of several results.
A decomposition is a jnp function of the operands and parameters; it is traced once per shapes and inlined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from qdtrace.errors import TraceTypeError
from qdtrace.trace.compat import Primitive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

RULES: dict[str, Callable[..., Any]] = {}
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {}
TAUGHT: dict[str, Callable[..., Any]] = {}
_traced: dict[Any, Any] = {}


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers an import rule for primitives of these names."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[name] = fn
        return fn

    return register


def decomposition(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a jnp function that computes primitives of these names."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            DECOMPOSITIONS[name] = fn
        return fn

    return register


def def_import_rule(primitive: Primitive | str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Teaches the importer a JAX primitive (or its name) by a jnp function.

    `fn(*operands, **params)` gets what the primitive is bound with and gives its result, or a sequence of results
    when the primitive has several. It wins over a built-in rule. Returns `fn`, so it can be used in a decorator.
    """
    name: Any = primitive.name if isinstance(primitive, Primitive) else primitive
    if not isinstance(name, str) or not callable(fn):
        raise TraceTypeError(
            f"def_import_rule needs a primitive (or its name) and a function, got {type(primitive).__name__} and "
            f"{type(fn).__name__}",
            help="qd.def_import_rule(my_primitive_p, lambda x, **params: jnp.sin(x))",
        )
    TAUGHT[name] = fn
    return fn


def traced_rule(fn: Callable[..., Any], avals: Sequence[Any], params: dict[str, Any]) -> Any:
    """The closed jaxpr of a decomposition for these operands."""
    try:
        shapes = tuple((a.shape, a.dtype) for a in avals)
        key = (fn, shapes, tuple(params.items()), bool(jax.config.jax_enable_x64))  # type: ignore[attr-defined]
        found = _traced.get(key)
    except TypeError:
        key = found = None
    if found is None:
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        found = jax.make_jaxpr(lambda *operands: fn(*operands, **params))(*structs)
        if key is not None:
            _traced[key] = found
    return found


def scalar_struct(dtype: np.dtype, count: int) -> list[jax.ShapeDtypeStruct]:
    """Abstract scalars, the operands of an elementwise decomposition."""
    return [jax.ShapeDtypeStruct((), dtype)] * count
