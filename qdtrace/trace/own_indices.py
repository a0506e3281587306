"""Indices of arrays that the user writes in a loop of `qd.jit`: they are checked like those of buffers.

    `a[k]` as JAX records it    c = lt k 0; d = add k 5; e = select_n c k d; y = dynamic_slice a e
    and as it is checked        e = qd_inside[size=5] k; y = dynamic_slice a e

JAX wraps a negative index and clamps the rest. That stays the rule of its own functions and of libraries, of
`a.at[k]`, and of each lane of a `qd.vmap`. Who writes `a[k]` beside `x[k]`, one an array and one a buffer, has one rule
for both.
"""

from __future__ import annotations

import ast
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.interpreters import batching

from qdtrace.frozen import mutable
from qdtrace.trace import compat
from qdtrace.trace.compat import JaxprEqn, Literal, Primitive
from qdtrace.trace.markers import for_p
from qdtrace.trace.own_files import is_own_file
from qdtrace.trace.source import expression_at, frames_in, is_jax_file
from qdtrace.trace.structure import with_bodies
from qdtrace.trace.tree import hints_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType
    from typing import Any

    from qdtrace.trace.compat import Var
    from qdtrace.trace.jaxprs import AnyJaxpr, Atom


LANES = "lanes"
"""The hint of a loop whose body is a function of one element: there JAX's rules hold."""

inside_p = Primitive("qd_inside")
"""An index of an array, which must be between 0 and `size - 1`; `array` is how the user wrote the array."""
inside_p.def_impl(lambda index, **_: index)
inside_p.def_abstract_eval(lambda index, **_: ShapedArray(index.shape, index.dtype))
batching.defvectorized(inside_p)

_SUBSCRIPTS = ("__getitem__", "op")
"""JAX's functions for a subscript of a known array and of a tracer."""
_BODIES = ("jit", "closed_call", "remat2", "cond", "while", "scan")
"""Equations whose jaxprs may be the user's code. A function with a derivative rule of its own keeps JAX's rules."""
_PLACES = ("broadcast_in_dim", "reshape", "squeeze", "convert_element_type")
"""Primitives that JAX applies to an index before it gathers."""


def check_indices(items: Sequence[JaxprEqn], *, in_thread: bool = False) -> list[JaxprEqn]:
    """Checks the user's own indices of arrays in the loops of a function, and in the `lax` control flow inside them."""
    made: list[JaxprEqn] = []
    for item in items:
        inside = partial(check_indices, in_thread=in_thread or item.primitive is for_p)
        made.append(item if LANES in hints_of(item) else with_bodies(item, inside))
    return _checked(made) if in_thread else made


def _checked(items: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Returns the items with checks in place of JAX's wrapping, where a subscript of the user made it."""
    out: list[JaxprEqn] = []
    makers: dict[Atom, int] = {}
    for item in items:
        if item.primitive in (lax.dynamic_slice_p, lax.gather_p):
            array = _subscripted(item)
            item = item if array is None else _access(item, array, out, makers)
        elif item.primitive.name in _BODIES:
            item = compat.map_jaxprs(item, _body)
        makers.update((v, len(out)) for v in item.outvars)
        out.append(item)
    return out


_bodies: WeakKeyDictionary[AnyJaxpr, AnyJaxpr | None] = WeakKeyDictionary()
"""Jaxprs with their checked form, or None if nothing in them is checked."""


def _body(jaxpr: AnyJaxpr) -> AnyJaxpr:
    """Returns a jaxpr with its indices checked."""
    if jaxpr not in _bodies:
        eqns = compat.open_jaxpr(jaxpr).eqns
        made = _checked(eqns)
        same = len(made) == len(eqns) and all(a is b for a, b in zip(made, eqns, strict=True))
        _bodies[jaxpr] = None if same else compat.with_eqns(jaxpr, made)
    return _bodies[jaxpr] or jaxpr


# -- one access -------------------------------------------------------------------------------------------------------


def _access(eqn: JaxprEqn, array: str, out: list[JaxprEqn], makers: dict[Atom, int]) -> JaxprEqn:
    """Returns the access, after its indices were checked in `out`."""
    operands: list[Atom] = list(eqn.invars)
    access = _Access(eqn, array, out, makers)
    if eqn.primitive is lax.gather_p:
        operands[1] = access.index(operands[1], list(eqn.params["dimension_numbers"].start_index_map))
    else:
        operands[1:] = [access.index(start, [axis]) for axis, start in enumerate(operands[1:])]
    return eqn if all(a is b for a, b in zip(operands, eqn.invars, strict=True)) else eqn.replace(invars=operands)


@mutable
class _Access:
    """A subscript, with the equations in front of it and which of them made a variable."""

    eqn: JaxprEqn
    array: str
    out: list[JaxprEqn]
    makers: dict[Atom, int]

    def index(self, operand: Atom, axes: list[int]) -> Atom:
        """Returns the variable of the checked index, or of indices of several axes side by side."""
        maker = self.made_by(operand)
        if maker is not None and maker.primitive is lax.concatenate_p and len(axes) > 1:
            rest, parts = list(axes), list["Atom"]()
            for part in maker.invars:
                parts.append(self.index(part, rest[: part.aval.shape[-1]]))
                rest = rest[part.aval.shape[-1] :]
            same = all(a is b for a, b in zip(parts, maker.invars, strict=True))
            return operand if same else self.append(maker.replace(invars=parts), operand)
        if len(axes) != 1 or isinstance(operand, Literal) or self.eqn.params["slice_sizes"][axes[0]] != 1:
            return operand
        source: Any = operand
        while maker is not None and maker.primitive.name in _PLACES and not _is_unsigned(source):
            source = maker.invars[0]
            maker = self.made_by(source)
        if maker is not None and maker.primitive is lax.select_n_p:
            which, index, _ = maker.invars
            test = self.made_by(which)
            if test is not None and test.primitive is lax.lt_p and test.invars[0] is index:
                if not isinstance(index, Literal):  # in its place, so that derivatives of the access use it too
                    self.out[self.makers[source]] = self.check(index, axes[0]).replace(outvars=[source])
                return operand
        return self.append(self.check(operand, axes[0]), operand) if _is_unsigned(source) else operand

    def made_by(self, atom: Atom) -> JaxprEqn | None:
        position = None if isinstance(atom, Literal) else self.makers.get(atom)
        return None if position is None else self.out[position]

    def check(self, index: Atom, axis: int) -> JaxprEqn:
        shape: tuple[int, ...] = self.eqn.invars[0].aval.shape
        told = {"size": shape[axis], "axis": axis, "shape": tuple(shape), "array": self.array}
        return self.eqn.replace(primitive=inside_p, invars=[index], params=told, effects=frozenset())

    def append(self, eqn: JaxprEqn, like: Atom) -> Var:
        var = compat.new_var(like)
        self.makers[var] = len(self.out)
        self.out.append(eqn.replace(outvars=[var]))
        return var


def _is_unsigned(atom: Atom) -> bool:
    """Returns whether an index is unsigned, so that JAX does not wrap it."""
    return jnp.issubdtype(atom.aval.dtype, jnp.unsignedinteger)


# -- who wrote it -----------------------------------------------------------------------------------------------------


def _subscripted(eqn: JaxprEqn) -> str | None:
    """Returns the array as the user wrote it, if the equation is a subscript of the user's own; None for others.

    The innermost frame that is not JAX's has to be the user's, and what it called a subscript. `jax.vmap` makes other
    indices of it, which keep JAX's rules.
    """
    called = ""
    for code, at in frames_in(eqn.source_info.traceback):
        file = code.co_filename
        if not is_jax_file(file):
            return _array_at(code, at) if called in _SUBSCRIPTS and is_own_file(file) else None
        if file.endswith("batching.py"):
            return None
        called = code.co_name
    return None


def _array_at(code: CodeType, at: int) -> str:
    """Returns the text in front of the brackets, where the source is known and the text short."""
    tree = expression_at(code, at)
    found = ast.unparse(tree.value) if isinstance(tree, ast.Subscript) else ""
    return found if 0 < len(found) <= 40 else "array"
