"""Indices of buffers and cells: what keeps an access inside of its memory.

The option `bounds` says how. `raise`: an equation `bound` checks the index and hands it on, so the access depends on
its check and no pass can move it in front of that. `clip`: a load takes the nearest element, anything else is left out.
`unchecked`: nothing. What ranges prove here (`x[i]` in a loop over `x.shape[0]`) needs neither; `passes/prove_bounds`
proves more, where branches and loops are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.ir.program import ref_type
from qdtrace.trace.importer.indexing import as_index, clamped, inside
from qdtrace.trace.importer.scalars import FALSE, TRUE, integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.program import Atom, Var
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value


def checked(imp: Importer, var: Var, slices: Sequence[Any], indices: Sequence[Value]) -> tuple[list[Atom], Atom]:
    """Safe indices for the axes without a slice, and whether all were in range (`clip` only, else true).

    Where an axis has no element, nothing is in range (`FALSE`): then a load gives 0.
    """
    traced = iter(indices)
    out: list[Atom] = []
    valid: Atom = TRUE
    shape = ref_type(var).shape[: len(slices)]
    for axis, (entry, size) in enumerate(zip(slices, shape, strict=True)):
        if entry is not None:
            continue
        index = as_index(imp, imp.element(next(traced), ()), size)
        low, high = imp.ranges.of(index)
        if (low >= 0 and high < size) or imp.bounds == "unchecked":
            out.append(index)
        elif imp.bounds == "clip" and size == 0:
            valid = FALSE
            out.append(integer(0, index.dtype))
        elif imp.bounds == "clip":
            valid = imp.op("and", valid, inside(imp, index, size - 1))
            out.append(clamped(imp, index, size - 1))
        else:
            out.append(_bound(imp, index, size, axis, var.hint or "_", shape))
    return out, valid


def _bound(imp: Importer, index: Atom, size: int, axis: int, name: str, shape: tuple[int, ...]) -> Atom:
    key = ("bound", size, id(index))
    found = imp.shared(key)
    if found is not None:
        return found
    (made,) = imp.emit("bound", index, size=size, axis=axis, buffer=name, shape=shape)
    imp.share(key, made)
    return made


