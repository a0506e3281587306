"""Values of integers of a task in all its iterations at once, as far as constants and given arrays tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.ir.dataflow import makers
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import CONVERT, DIV, LOAD, REM
from qdtrace.ir.program import Literal, Var, ref_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from qdtrace.ir.program import Atom, Eqn
    from qdtrace.ir.types import DType

    Array = np.ndarray[Any, Any]

_OPS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "neg": np.negative,
    "sign": np.sign, "abs": np.abs, "floor": np.floor, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "shift_left": np.left_shift, "shift_right_arithmetic": np.right_shift, "not": np.invert,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "select": np.where, "bound": np.positive,
}  # fmt: skip


class KnownValues:
    """Values by iteration; None of what depends on something that is not known, or wraps around."""

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
        for eqn in makers(atom, self._made, self._known):
            value = None if eqn.blocks else self._made_by(eqn)
            self._known.update(dict.fromkeys(eqn.outvars, value))
        return self._of_known(atom)

    def _of_known(self, atom: Atom) -> Array | None:
        if isinstance(atom, Literal):
            return _exact(np.asarray(atom.value), atom.dtype)
        return self._known.get(atom)

    def _made_by(self, eqn: Eqn) -> Array | None:
        if eqn.primitive is LOAD:
            return self._loaded(eqn)
        values = [v for a in eqn.invars if (v := self._of_known(a)) is not None]
        if len(values) < len(eqn.invars):
            return None
        with np.errstate(all="ignore"):
            return _computed(eqn, values)

    def _loaded(self, eqn: Eqn) -> Array | None:
        ref = reference(eqn)
        at = [self._of_known(a) for a in indices_of(eqn)]
        if ref not in self._fixed or any(a is None for a in at):
            return None
        if ref not in self._arrays:
            self.missing.add(ref)
            return None
        array = np.asarray(self._arrays[ref])
        if not array.size:
            return None
        inside = [np.clip(np.asarray(a), 0, n - 1) for a, n in zip(at, array.shape, strict=True)]
        found = array[tuple(inside)]  # an index outside ends the call, so any element will do
        return _exact(found, ref_type(ref).dtype)


def _computed(eqn: Eqn, values: Sequence[Array]) -> Array | None:
    """Returns the result of an operation on what is known."""
    dtype = eqn.outvar.dtype
    if eqn.primitive is CONVERT:
        (value,) = values
        is_near = not eqn.invars[0].dtype.is_float or np.all(np.abs(value) < 1 << 62)  # NaN is not
        return _exact(np.trunc(value), dtype) if is_near and dtype.is_integer else None
    if eqn.primitive in (DIV, REM) and dtype.is_integer:
        a, b = values
        is_zero, divisor = b == 0, np.where(b == 0, 1, b)
        rest = np.fmod(a, divisor)
        at_zero, found = (-1, (a - rest) // divisor) if eqn.primitive is DIV else (a, rest)
        return _exact(np.where(is_zero, at_zero, found), dtype)
    meaning = _OPS.get(eqn.primitive.name)
    return None if meaning is None else _exact(meaning(*values), dtype)


def _exact(value: Array, dtype: DType) -> Array | None:
    """Returns a value, integers with 64 bits, or None if the dtype does not hold it: there it would wrap around."""
    if not dtype.is_integer:
        return value
    limits = np.iinfo(dtype.numpy)
    top = min(int(limits.max), np.iinfo(np.int64).max)
    return value.astype(np.int64) if value.min() >= limits.min and value.max() <= top else None
