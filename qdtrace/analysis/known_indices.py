"""Values of integers of a task in all its iterations at once, as far as constants and given arrays tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import CONVERT, DIV, LOAD
from qdtrace.ir.program import Literal, Var, ref_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from qdtrace.ir.program import Atom, Eqn

    Array = np.ndarray[Any, Any]

_OPS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "neg": np.negative,
    "sign": np.sign, "abs": np.abs, "rem": np.fmod, "floor": np.floor, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "shift_left": np.left_shift, "shift_right_arithmetic": np.right_shift, "not": np.invert,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "select": np.where, "bound": np.positive,
}  # fmt: skip


class KnownValues:
    """Values by iteration; None of what depends on something that is not known."""

    def __init__(
        self, start: Mapping[Var, Array], made: Mapping[Var, Eqn], arrays: Mapping[Var, Any], fixed: AbstractSet[Var]
    ) -> None:
        """`start` are indices of the task and of loops; `fixed` the references whose elements stay as they are."""
        self._known: dict[Atom, Array | None] = {**start}
        self._made = made
        self._arrays = arrays
        self._fixed = fixed
        self.missing: set[Var] = set()
        """Fixed references whose elements are asked for and not given."""

    def place(self, access: Eqn) -> Array | None:
        """Returns the element of an access, counted in order of rows."""
        out: Array | None = np.zeros((), np.int64)
        for index, extent in zip(indices_of(access), ref_type(access.invars[0]).shape, strict=True):
            value = self.of(index)
            out = None if out is None or value is None else out * extent + value
        return out

    def of(self, atom: Atom) -> Array | None:
        """Returns the value of a scalar."""
        if isinstance(atom, Literal):
            return np.asarray(atom.value, np.int64 if atom.dtype.is_integer else None)
        if atom not in self._known:
            eqn = self._made.get(atom)
            self._known[atom] = None if eqn is None or eqn.blocks else self._made_by(eqn)
        return self._known[atom]

    def _made_by(self, eqn: Eqn) -> Array | None:
        if eqn.primitive is LOAD:
            return self._loaded(eqn)
        values = [self.of(a) for a in eqn.invars]
        if any(v is None for v in values):
            return None
        if eqn.primitive is CONVERT:
            (value,) = values
            if eqn.outvar.dtype.is_float or eqn.outvar.dtype.bits < 32 or value is None:
                return None  # narrow integers wrap
            return np.nan_to_num(value).astype(np.int64)
        if eqn.primitive is DIV and eqn.outvar.dtype.is_integer:
            a, b = (np.asarray(v) for v in values)
            return np.sign(a) * np.sign(b) * (np.abs(a) // np.maximum(np.abs(b), 1))
        meaning = _OPS.get(eqn.primitive.name)
        return None if meaning is None else meaning(*values)

    def _loaded(self, eqn: Eqn) -> Array | None:
        ref = reference(eqn)
        at = [self.of(a) for a in indices_of(eqn)]
        if ref not in self._fixed or any(a is None for a in at):
            return None
        if ref not in self._arrays:
            self.missing.add(ref)
            return None
        array = np.asarray(self._arrays[ref])
        inside = [np.clip(np.asarray(a), 0, n - 1) for a, n in zip(at, array.shape, strict=True)]
        found = array[tuple(inside)]  # an index outside ends the call, so any element will do
        return found.astype(np.int64) if found.dtype.kind in "iu" else found
