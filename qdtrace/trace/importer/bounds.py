"""Indices of buffers and cells, and of arrays that the user indexes: what keeps an access inside of its memory.

The option `bounds` says how. `raise`: an equation `bound` checks the index and hands it on, so the access depends on
its check and no pass can move it in front of that. `clip`: a load takes the nearest element, anything else is left out.
`unchecked`: nothing. What ranges prove here (`x[i]` in a loop over `x.shape[0]`) needs neither; `passes/prove_bounds`
proves more, where branches and loops are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.ir.program import ref_type
from qdtrace.ir.types import DType
from qdtrace.trace.importer.elements import per_element
from qdtrace.trace.importer.indexing import as_index, clamped, index_dtype, inside
from qdtrace.trace.importer.registry import rule
from qdtrace.trace.importer.scalars import FALSE, TRUE, integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.program import Atom, Var
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value
    from qdtrace.trace.indexing import Slices


def checked(imp: Importer, var: Var, slices: Slices, indices: Sequence[Value]) -> tuple[list[Atom], Atom]:
    """Returns safe indices for axes without a slice, and whether all were in range (`clip` only, else true)."""
    traced = iter(indices)
    out: list[Atom] = []
    valid: Atom = TRUE
    shape = ref_type(var).shape[: len(slices)]
    for axis, (entry, size) in enumerate(zip(slices, shape, strict=True)):
        if entry is not None:
            continue
        given = imp.element(next(traced), ())
        low, high = imp.ranges.of(given)
        index = as_index(imp, given, size) if imp.bounds != "raise" or high < size else given
        if (low >= 0 and high < size) or imp.bounds == "unchecked":
            out.append(index)
        elif imp.bounds == "clip" and size == 0:
            valid = FALSE
            out.append(integer(0, index.dtype))
        elif imp.bounds == "clip":
            valid = imp.op("and", valid, inside(imp, index, size - 1))
            out.append(clamped(imp, index, size - 1))
        else:
            key = ("bound", size, id(given))
            if (known := imp.shared(key)) is None:
                known = bound(imp, given, size, axis=axis, buffer=var.hint or "_", shape=shape)
                imp.share(key, known)
            out.append(known)
    return out, valid


def bound(imp: Importer, given: Atom, size: int, **names: Any) -> Atom:
    """Returns an index for an axis of this length, checked as the program has it: the message tells that number."""
    index = imp.convert(given, DType.i32) if given.dtype.bits < 32 else given
    (made,) = imp.emit("bound", index, size=size, **names)
    return made if index.dtype.is_signed else imp.convert(made, index_dtype(index.dtype, size))


@rule("qd_inside")
def of_array(
    imp: Importer, eqn: JaxprEqn, index: Value, *, size: int, axis: int, shape: tuple[int, ...], array: str
) -> Value:
    """Returns an index that the user writes on an array; if it is no error, JAX takes the nearest element."""
    if imp.bounds != "raise":
        return index
    aval = eqn.outvars[0].aval
    dtype = imp.dtype_of(aval)

    def one(k: Atom) -> Atom:
        low, high = imp.ranges.of(k)
        names = {"axis": axis, "buffer": array, "shape": shape}
        return imp.convert(k if low >= 0 and high < size else bound(imp, k, size, **names), dtype)

    return per_element(imp, one, aval, index)
