"""Rules by primitive name, the parameters that each accounts for, and primitives taught by a jnp function.

A rule is `rule(importer, eqn, *values, **parameters)` and gives one value, or a list for a primitive of several
results. A decomposition is a jnp function of the operands and parameters; it is traced once per shapes and inlined.

The signature of a rule is the list of parameters that it reads: its keyword arguments. `ignores` names the others, each
with the reason why no value depends on it, `assumes` those that the rule is right for one value of. A parameter that
is none of these, as a new release of JAX may add, is refused by its name.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

import jax

from qdtrace.errors import TraceTypeError, UnsupportedError
from qdtrace.frozen import frozen
from qdtrace.trace import compat
from qdtrace.trace.compat import Primitive
from qdtrace.trace.dtypes import mode_for

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from typing import Any

    import numpy as np

    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.scalars import ScalarOps
    from qdtrace.trace.jaxprs import AnyJaxpr, Params, Shaped

F = TypeVar("F", bound="Callable[..., Any]")

PLACED = "it says where an array is kept"
"""Reason to ignore `sharding`."""
RESULT_TYPE = "it is the dtype or shape of the result, which the rule takes from there"
"""Reason to ignore `new_dtype`."""
PRECISION = "it is a least precision, and products are exact to a rounding of the result's dtype"
"""Reason to ignore `precision`."""
PROMISE = "it is a promise that saves work where it holds"
"""Reason to ignore `unique_indices`."""


@frozen(eq=False, slots=True)
class Rule:
    """A function that imports equations of a primitive, with the parameters that it accounts for."""

    run: Callable[..., Any]
    needed: frozenset[str]
    """Keyword arguments without a default."""
    reads: frozenset[str]
    """All keyword arguments."""
    ignores: Mapping[str, str] = field(default_factory=dict[str, str])
    """Parameter -> why no value depends on it."""
    assumes: Mapping[str, object] = field(default_factory=dict[str, object])
    """Parameter -> the value that the rule is right for."""
    takes_all: str = ""
    """Why the rule is right whatever the parameters are."""
    zeros_vanish: bool = False
    """Contractions of a decomposition drop a product with a constant zero, whatever the other factor is."""

    of_elements: bool = False
    """True for a function of elements: its value at one element says all."""

    def keywords(self, imp: ScalarOps, eqn: JaxprEqn) -> dict[str, Any]:
        """Returns the parameters of an equation that the rule reads; refuses what it does not account for."""
        params = eqn.params
        if self.takes_all:
            return params
        reads, ignores = self.reads, self.ignores
        out = {}
        for name in params:
            if name in reads:
                out[name] = params[name]
            elif name not in ignores and name not in self.assumes:
                raise _refused(imp, eqn, f"with the parameter `{name}` (here {params[name]!r:.60})")
        for name, value in self.assumes.items():
            if name in params and params[name] is not value and params[name] != value:
                raise _refused(imp, eqn, f"with {name}={params[name]!r:.60}, only with {name}={value!r}")
        for name in self.needed:
            if name not in out:
                raise _refused(imp, eqn, f"without its parameter `{name}`")
        return out


def _refused(imp: ScalarOps, eqn: JaxprEqn, what: str) -> UnsupportedError:
    name = eqn.primitive.name
    return UnsupportedError(
        f"the import rule of `{name}` does not work {what}",
        loc=imp.here(),
        notes=(f"jax {jax.__version__}",),
        help=f"compute it outside of the loop, or teach it: qd.def_import_rule({name!r}, jnp_function)",
    )


RULES: dict[str, Rule] = {}
ITEMS: dict[str | Primitive, Callable[..., bool | None]] = {}
"""Importers of regions and jumps, of which one returns true if it has imported the rest of its block; and of bodies."""
DECOMPOSITIONS: dict[str, Rule] = {}
TAUGHT: dict[str, Callable[..., object]] = {}
DERIVATIVES: dict[str, Callable[..., Any]] = {}
"""Functions by name; "transposed" ties results of an equation that has a transpose of its own to that."""
COMMON = (
    "backward_rules", "calls", "complexes", "contraction", "control", "elementwise", "indexing", "markers", "platforms",
    "precision", "prng", "reductions", "scattering", "sorting", "structural", "tells", "transposed_rules",
)  # fmt: skip
"""Modules whose rules are loaded with the first importer."""
_traced: dict[Hashable, AnyJaxpr] = {}


def _register(
    table: dict[str, Rule],
    /,
    *names: str,
    ignores: Mapping[str, str] | None = None,
    assumes: Mapping[str, object] | None = None,
    takes_all: str = "",
    zeros_vanish: bool = True,
    of_elements: bool = False,
) -> Callable[[F], F]:
    """Registers a function for primitives of these names.

    `ignores` gives parameters that cannot change a value, each with the reason; `assumes` parameters with the one value
    that is imported. `takes_all` is for a rule with `**parameters`: why it is right for any. Of a decomposition,
    `zeros_vanish=False` is where constant zeros in a contraction are the user's, and not of what a step leaves alone;
    `of_elements` is for a function of elements, which is traced for one.
    """

    def register(fn: F) -> F:
        parameters = inspect.signature(fn).parameters.values()
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        if any(p.kind is p.VAR_KEYWORD for p in parameters) != bool(takes_all):
            raise TraceTypeError(
                f"the import rule of `{names[0]}` takes any parameter, and so would leave out what it does not know",
                help="name the parameters that it reads as keyword arguments, and the others in `ignores` or `assumes`",
            )
        needed = frozenset(p.name for p in keywords if p.default is p.empty)
        reads = frozenset(p.name for p in keywords)
        made = Rule(fn, needed, reads, ignores or {}, assumes or {}, takes_all, zeros_vanish, of_elements)
        table.update(dict.fromkeys(names, made))
        return fn

    return register


rule = functools.partial(_register, RULES)
"""Registers an import rule: `fn(importer, equation, *values, **parameters)`."""
decomposition = functools.partial(_register, DECOMPOSITIONS)
"""Registers a jnp function that computes primitives: `fn(*operands, **parameters)`."""


def item_rule(*kinds: str | Primitive) -> Callable[[F], F]:
    """Registers what imports regions or jumps of these kinds: `fn(importer, item, rest of its block, env)`."""

    def register(fn: F) -> F:
        ITEMS.update(dict.fromkeys(kinds, fn))
        return fn

    return register


def def_import_rule(primitive: Primitive | str, fn: F) -> F:
    """Teaches the importer a JAX primitive (or its name) by a jnp function.

    `fn(*operands, **params)` gets what the primitive is bound with and gives its result, or a sequence of results
    when the primitive has several. It wins over a built-in rule. Returns `fn`, so it can be used in a decorator.

    >>> from jax.extend.core import Primitive
    >>> cube_p = Primitive("cube")
    >>> _ = cube_p.def_abstract_eval(lambda x: x)
    >>> _ = qd.def_import_rule(cube_p, lambda x: x * x * x)
    >>> qd.vmap(lambda x: cube_p.bind(x))(jnp.array([1.0, 2.0]))
    Array([1., 8.], dtype=float32)

    Args:
        primitive: the primitive, or its name.
        fn: the function that computes it, written with `jnp`.

    Raises:
        TraceTypeError: for anything else.
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


def decomposition_of(name: str) -> Rule | None:
    """Returns the built-in jnp function that computes a primitive; None without one."""
    if name not in DECOMPOSITIONS:
        load_decompositions()
    return DECOMPOSITIONS.get(name)


@functools.cache
def load_rules() -> None:
    """Registers the rules of the modules in `COMMON`."""
    for module in COMMON:
        importlib.import_module(f"{__package__}.{module}")


def load_decompositions() -> None:
    """Registers the functions of `qdtrace.decompositions`, which this package knows by name alone."""
    importlib.import_module("qdtrace.decompositions")


def batched(core: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Maps a function of matrices (or of operands of rank `core`) over leading axes."""

    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run(*operands: jax.Array, **params: object) -> object:
            mapped = functools.partial(fn, **params)
            for _ in range(operands[0].ndim - core):
                mapped = jax.vmap(mapped)
            return mapped(*operands)

        return run

    return wrap


def formula(name: str) -> Callable[..., Any]:
    """Returns the function of arrays that JAX itself computes a primitive by.

    Raises UnsupportedError where this version has none.
    """
    found = compat.formula_of(name)
    if found is None:
        raise UnsupportedError(
            f"`{name}` in a loop body needs a formula that this version of JAX does not have",
            help="compute it outside of the loop",
        )
    return found


def traced_rule(fn: Callable[..., object], avals: Sequence[Shaped], params: Params) -> AnyJaxpr:
    """Returns the closed jaxpr of a decomposition for these operands."""
    with mode_for(a.dtype for a in avals):
        return _traced_rule(fn, avals, params)


def _traced_rule(fn: Callable[..., object], avals: Sequence[Shaped], params: Params) -> AnyJaxpr:
    try:
        shapes = tuple((a.shape, a.dtype) for a in avals)
        key = (fn, shapes, tuple(params.items()), _settings())
        found = _traced.get(key)
    except TypeError:
        key = found = None
    if found is None:
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        found = jax.make_jaxpr(lambda *operands: fn(*operands, **params))(*structs)
        if key is not None:
            _traced[key] = found
    return found


def _settings() -> tuple[bool, ...]:
    """Returns the settings of JAX that a traced function depends on besides its arguments."""
    config: Any = jax.config
    return bool(config.jax_enable_x64), compat.splits_by_position()


def scalar_struct(dtype: np.dtype, count: int) -> list[jax.ShapeDtypeStruct]:
    """Returns abstract scalars, the operands of an elementwise decomposition."""
    return [jax.ShapeDtypeStruct((), dtype)] * count
