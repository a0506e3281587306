"""A description of traced equations, by which a program's tangents are found in this process and on disk.

Tangents are made by JAX's rules from the traced equations, so the key of a graph does not determine them: two functions
with the same graph may have other derivatives. The description has each equation with its primitive, parameters,
operands and lines, and each known value by its bits. What has no faithful description (a derivative rule of the user, a
primitive that is not JAX's, a large array) is told by its identity, and is the reason why nothing is kept on disk.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.interpreters import ad

from qdtrace.compose.pass_cache import GraphKey
from qdtrace.errors import Loc
from qdtrace.trace import compat, markers
from qdtrace.trace.importer.registry import TAUGHT
from qdtrace.trace.own_indices import inside_p
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from jax.core import ShapedArray

    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import JaxprEqn, Primitive

LARGE = 1 << 20
"""Most bytes of a known array that is looked at."""
_SMALL = 64
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NUMBERS = (int, float, complex)
_SHOWN = {"AbstractMesh", "FTTuple", "Mesh", "UnspecifiedValue"}
"""Types of JAX whose `repr` is faithful: what `jit` and `scan` have as parameters."""


class Description:
    """Describes equations; variables and lines are numbered as they come."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason or ("import rule of the user" if TAUGHT else "")
        """The reason why the description is not faithful in another process."""
        self._locs: dict[Loc, int] = {}
        self._uids: dict[object, int] = {}
        self._numbers: dict[jaxprs.Atom, int] = {}
        self._jaxprs: dict[int, tuple[object, object]] = {}
        self._types: dict[object, object] = {}
        self._contexts: dict[int, tuple[object, str]] = {}
        self._checked: dict[Primitive, object] = {}

    def eqn(self, eqn: JaxprEqn) -> object:
        """Returns the description of an equation."""
        if (primitive := self._checked.get(eqn.primitive)) is None:
            primitive = self._checked[eqn.primitive] = self._primitive(eqn.primitive)
        operands = [self.atom(v) for v in eqn.invars]
        params = [(k, self._uid(v) if k == "uid" else self.value(v)) for k, v in eqn.params.items()]
        place = self.value(eqn_loc(eqn))
        return (primitive, operands, params, place, self._settings(eqn), list(map(self.var, eqn.outvars)))

    def key(self, text: object) -> GraphKey:
        """Returns the key of what was described, given its text."""
        return GraphKey(hashlib.sha256(repr(text).encode()).hexdigest(), tuple(self._locs), self.reason)

    def _settings(self, eqn: JaxprEqn) -> str:
        known = self._contexts.get(id(eqn.ctx))
        if known is None:
            known = self._contexts[id(eqn.ctx)] = (eqn.ctx, repr(eqn.ctx))
        return known[1]

    def _primitive(self, primitive: Primitive) -> object:
        """Returns the name of a primitive that is JAX's or a marker, with a rule of forward mode of JAX or ours."""
        if primitive not in _primitives() or not is_own_rule(ad.primitive_jvps.get(primitive)):
            return self._unknown(primitive, f"primitive {primitive.name}")
        return primitive.name

    def var(self, var: jaxprs.Atom) -> object:
        """Returns the description of a variable where it is bound."""
        self._numbers[var] = len(self._numbers)
        return self.type(var.aval)

    def type(self, aval: ShapedArray) -> object:
        """Returns the description of an abstract value."""
        known = self._types.get(aval)
        if known is None:
            known = self._types[aval] = (type(aval).__name__, str(aval), getattr(aval, "weak_type", False))
        return known

    def atom(self, atom: jaxprs.Atom) -> object:
        """Returns the description of an operand."""
        if isinstance(atom, compat.Literal):
            return (self.value(atom.val), self.type(atom.aval))
        if atom not in self._numbers:  # of a region around, or a `_`
            self._numbers[atom] = len(self._numbers)
            return (self._numbers[atom], self.type(atom.aval))
        return self._numbers[atom]

    def value(self, value: object) -> object:
        """Returns the description of a parameter or known value."""
        kind = type(value)
        if kind in _PLAIN:
            return (kind.__name__, value) if kind is not str else value
        if isinstance(value, tuple | list):
            return (kind.__name__, *map(self.value, value))
        if isinstance(value, dict):
            return (kind.__name__, *((self.value(k), self.value(v)) for k, v in value.items()))
        if isinstance(value, Loc):
            return ("line", self._locs.setdefault(value, len(self._locs)))
        if isinstance(value, np.dtype | enum.Enum):
            return (kind.__name__, str(value))
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(value)
        if isinstance(value, _NUMBERS):  # JAX's, with a dtype
            bare: Any = next(number for number in _NUMBERS if issubclass(kind, number))
            return (kind.__name__, str(getattr(value, "dtype", "")), bare(value))
        if isinstance(value, type) and issubclass(value, np.generic):
            return ("type", value.__name__)
        if compat.is_jaxpr(value):
            return self._jaxpr(value)
        if not is_own_module(kind.__module__):
            return self._unknown(value, f"{kind.__name__} in an equation")
        if is_dataclass(value):
            return (kind.__name__, *(self.value(getattr(value, f.name)) for f in fields(value)))
        if kind.__name__ not in _SHOWN:
            return self._unknown(value, f"{kind.__name__} in an equation")
        return (kind.__name__, repr(value))

    def _array(self, value: Any) -> object:
        if isinstance(value, compat.Tracer):
            return self._unknown(value, "traced value")
        if not isinstance(value.dtype, np.dtype) or value.nbytes > LARGE:
            what = "large array" if isinstance(value.dtype, np.dtype) else f"array of {value.dtype}"
            return self._unknown(value, what)
        array = np.asarray(value)
        content = array.tobytes() if array.nbytes < _SMALL else hashlib.sha256(array.tobytes()).hexdigest()
        return (type(value).__name__, array.dtype.type.__name__, array.dtype.str, array.shape, content)

    def _unknown(self, value: object, what: str) -> object:
        self.reason = self.reason or what
        return "object", id(value)

    def _uid(self, uid: object) -> int:
        return self._uids.setdefault(uid, len(self._uids))

    def _jaxpr(self, value: jaxprs.AnyJaxpr) -> object:
        known = self._jaxprs.get(id(value))  # functions of jnp are traced once
        if known is None:
            outside, self._numbers = self._numbers, {}
            jaxpr, constants = compat.open_jaxpr(value), compat.constants_of(value)
            bound = [self.var(v) for v in (*jaxpr.constvars, *jaxpr.invars)]
            eqns = [self.eqn(e) for e in jaxpr.eqns]
            text = (bound, list(map(self.value, constants)), eqns, [self.atom(v) for v in jaxpr.outvars])
            self._numbers = outside
            known = self._jaxprs[id(value)] = (value, text)
        return known[1]


def is_own_rule(rule: object) -> bool:
    """Returns whether a rule, with all functions that it is made of, is JAX's or this package's."""
    if isinstance(rule, functools.partial):
        return all(map(is_own_rule, (rule.func, *rule.args, *rule.keywords.values())))
    if isinstance(rule, tuple | list):
        return all(map(is_own_rule, rule))
    return not callable(rule) or is_own_module(getattr(rule, "__module__", None) or "")


def is_own_module(name: str) -> bool:
    """Returns whether a module is JAX's or this package's."""
    return name.partition(".")[0] in ("jax", "jaxlib", "qdtrace")


@functools.cache
def _primitives() -> frozenset[object]:
    named = (*vars(jax.lax).items(), *vars(markers).items())
    return frozenset([*(p for name, p in named if name.endswith("_p")), compat.jit_p, inside_p])
