"""Values that a loop carries: as scalars, as private memory that the loop updates, or (handles) not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdtrace.errors import TraceValueError
from qdtrace.frozen import mutable
from qdtrace.ir.program import Atom, Var
from qdtrace.trace.importer.memory import UNROLL
from qdtrace.trace.importer.values import (
    MemoryArray,
    PrivateArray,
    RefValue,
    Value,
    array_from,
    atoms_of,
    storages_behind,
)
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from qdtrace.ir.types import DType
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import EnvValue
    from qdtrace.trace.jaxprs import Shaped


@mutable(eq=False)
class Carry:
    """Representation of one carried value: scalars, private memory, or (a handle) nothing at all."""

    aval: Shaped
    dtype: DType
    pair: bool
    initial: EnvValue
    storage: PrivateArray | None = None

    @property
    def is_handle(self) -> bool:
        """True for a buffer or cell, which a loop must leave alone."""
        return isinstance(self.initial, RefValue)

    @property
    def is_scalars(self) -> bool:
        """True if the loop carries the value as scalars."""
        return self.storage is None and not self.is_handle


class Carries:
    """The carried values of one loop."""

    def __init__(
        self, imp: Importer, avals: Sequence[Shaped], initial: Sequence[EnvValue], in_memory: Sequence[bool]
    ) -> None:
        self.imp = imp
        self.items: list[Carry] = []
        for aval, value, wants_memory in zip(avals, initial, in_memory, strict=True):
            pair = is_pair(aval)
            item = Carry(aval, imp.dtype_of(aval), pair, value)
            size = int(np.prod(aval.shape, dtype=np.int64))
            if not item.is_handle and (size > imp.scalar_budget or (wants_memory and size > UNROLL)):
                item.storage = imp.own(value, item.dtype, pair)  # type: ignore[arg-type]
            elif isinstance(value, MemoryArray):
                item.initial = imp.scalars(value, "a carried value")
            self.items.append(item)

    def start(self) -> list[Atom]:
        """Returns the scalars that the loop begins with."""
        arrays = [c.initial for c in self.items if c.is_scalars]
        return [a for array in arrays if isinstance(array, np.ndarray) for a in atoms_of(array)]

    def params(self) -> list[Var]:
        """Returns fresh block parameters for the scalars."""
        return [Var(a.type, "c") for a in self.start()]

    def values(self, atoms: Sequence[Atom]) -> list[Value]:
        """Returns the values seen inside (or after) the loop, given its scalars."""
        out: list[Any] = []
        rest = iter(atoms)
        for c in self.items:
            if c.is_handle:
                out.append(c.initial)
            elif c.storage is not None:
                out.append(PrivateArray(c.storage.var, c.pair))
            else:
                out.append(array_from(rest, c.aval))
        return out

    def finish(self, inside: Sequence[Value], results: Sequence[Value]) -> list[Atom]:
        """Assigns an iteration's results to the carries, all at once; returns the scalars to carry on.

        Memory is written when no other result still has to be read from it. Where results change places, each waiting
        for the other one, one of them is copied first.
        """
        imp = self.imp
        atoms: list[list[Atom]] = [[] for _ in self.items]
        pending = {
            k: result
            for k, (c, own, result) in enumerate(zip(self.items, inside, results, strict=True))
            if not self._stays(c, own, result)
        }
        while pending:
            needed = {k: storages_behind(result) for k, result in pending.items()}
            free = [k for k in pending if not any(self._var(k) in some for some in needed.values())]
            if not free:
                k = next(k for k, some in needed.items() if any(self._var(other) in some for other in pending))
                c, result = self.items[k], pending[k]
                pending[k] = imp.materialise(c.aval.shape, c.dtype, lambda i, r=result: imp.element(r, i), c.pair)
                continue
            k = free[0]
            result, storage = pending.pop(k), self.items[k].storage
            if storage is None:
                atoms[k] = atoms_of(imp.scalars(result, "a carried value"))
            else:
                imp.write_all(storage, result)
        return [a for some in atoms for a in some]

    def _stays(self, carry: Carry, own: Value, result: Value) -> bool:
        """Returns whether a result is where the loop carries it."""
        if carry.is_handle:
            self._check_handle(carry, result)
            return True
        return carry.storage is not None and (result is own or _is_same(result, carry.storage))

    def _var(self, k: int) -> Var | None:
        storage = self.items[k].storage
        return None if storage is None else storage.var

    def _check_handle(self, carry: Carry, result: EnvValue) -> None:
        before = carry.initial
        if not (isinstance(result, RefValue) and isinstance(before, RefValue) and result.var is before.var):
            raise TraceValueError(
                "a loop must carry a buffer on unchanged, got another buffer in its place",
                loc=self.imp.here(),
                help="copy elements between the buffers, or use a qd.local()",
            )


def _is_same(value: Value, storage: PrivateArray) -> bool:
    return isinstance(value, PrivateArray) and value.var is storage.var
