"""Arrays in private memory: loops over shapes, element access by constant or traced index, copies, spills.

An operation on an array is given by an element function from index atoms to an element. `build` runs it once per
element for small results (the indices are constants, and fold) and inside a loop nest for large ones.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from qdtrace.errors import TraceValueError, UnsupportedError
from qdtrace.ir.builder import emit_loop, nest
from qdtrace.ir.primitives import CELL, STORE
from qdtrace.ir.program import Atom, Eqn, Literal, Var
from qdtrace.ir.types import DType, RefType, Space
from qdtrace.trace import jax_settings
from qdtrace.trace.importer.scalars import ScalarOps, constant, integer
from qdtrace.trace.importer.values import (
    ArrayRef,
    Element,
    Formula,
    MemoryArray,
    PrivateArray,
    RefValue,
    Value,
    array_of,
    elements_of,
    parts_of,
    rank0,
)
from qdtrace.trace.physical import PLAIN, part_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax.typing import ArrayLike

    from qdtrace.ir.builder import BlockBuilder, Builder
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.uses import Uses
    from qdtrace.trace.importer.values import EnvValue
    from qdtrace.trace.jaxprs import Shaped

SCARCE = 48 * 1024
"""Bytes of private arrays of a thread from which on small arrays are scalars again."""
CHAIN = 16
"""Most candidates a dynamic index chooses among by selects."""
CHOSEN = 4
"""Most candidates that the number of a trip chooses among by selects, on CPUs; of more it loads one."""
_STEP = 1 << 62
"""Bound on the steps between elements, so that 64 bits hold them."""
AGAIN = 32
"""Most equations for an element that are computed again in a loop, in place of writing scalars to memory."""
UNROLL = 16
"""Most elements computed without a loop when an operand is in memory, where iterations do not compute on rows."""
MOST_SCALARS = 256
"""Most elements that are scalars where nothing else will do, unless a budget allows more."""


_Lines: TypeAlias = "tuple[Var, list[tuple[Literal, list[int]]]]"
"""A reference, and for each of its axes the index of a first element and the steps along the axes of an array."""


class MemoryOps(ScalarOps):
    """Element access and loops; see the module docstring."""

    def __init__(
        self,
        builder: Builder,
        hoist: Callable[[ArrayLike], Var] | None,
        index_dtype: DType,
        scalar_budget: int,
        in_place: bool,
    ) -> None:
        """`in_place` lets functions of elements write over operands that nobody reads any more."""
        super().__init__(builder)
        self.hoist = hoist
        self.index_dtype = index_dtype
        self.scalar_budget = scalar_budget
        self.most_scalars = max(scalar_budget, MOST_SCALARS)
        """Most elements of an array where nothing but scalars will do."""
        self.few = UNROLL if scalar_budget >= 2 * UNROLL else UNROLL // 2
        """Most elements computed without a loop when an operand is in memory, and candidates of a dynamic index that
        selects choose among. Fewer where an iteration computes on rows: a loop over ten is one vector there."""
        self.private_bytes = 0
        self.in_place = in_place
        self.makes_again = not jax_settings.default_machine().keeps_rows
        """True if elements that are cheap to make from shorter arrays are made again where they are read."""
        self.counters: set[Atom] = set()
        """Numbers of trips of loops over arrays: indices that are the same in all lanes."""
        self.importing: tuple[Uses, JaxprEqn] | None = None
        """The equation that is imported, with the reads around it, until a function of elements begins."""
        self._spilled: dict[int, tuple[np.ndarray, MemoryArray]] = {}
        self._again: dict[int, tuple[np.ndarray, Callable[[], MemoryArray], BlockBuilder, int]] = {}

    # ------------------------------------------------------------------ loops
    def index(self, value: int) -> Literal:
        """Returns a constant index."""
        return integer(value, self.index_dtype)

    def loop_nest(self, shape: Sequence[int], body: Callable[[list[Atom]], None]) -> None:
        """Runs `body` for every index of the shape, in nested loops."""

        def counted(index: list[Atom]) -> None:
            self.counters.update(index)
            body(index)

        nest(self, shape, counted, dtype=self.index_dtype)

    def carry_loop(
        self, length: int, carries: Sequence[Atom], body: Callable[[Atom, list[Atom]], Sequence[Atom]]
    ) -> list[Atom]:
        """Runs `body(k, carries) -> carries` for k in 0..length-1; returns the last carries."""
        bounds = (self.index(0), self.index(length), self.index(1))

        def counted(k: Atom, carried: Sequence[Atom]) -> Sequence[Atom]:
            self.counters.add(k)
            return body(k, [*carried])

        return list(emit_loop(self, bounds, carries, counted, index="k", carry="c"))

    def if_(self, condition: Atom, body: Callable[[], None]) -> None:
        """Runs `body` where the condition holds."""
        if type(condition) is Literal:
            if condition.value:
                body()
            return
        with self.block() as then:
            body()
        with self.block() as other:
            pass
        if then.eqns:
            self.emit("if", condition, blocks=(then.close(), other.close()))

    # ------------------------------------------------------------------ memory
    def dtype_of(self, aval: Shaped) -> DType:
        """Returns the graph dtype of an array; of the parts of a pair."""
        dtype = aval.dtype
        known = PLAIN.get(dtype)
        if known is not None:
            return known
        found = part_dtype(dtype, self.here)
        if found is None:
            raise UnsupportedError(
                f"needs one of {', '.join(d.value for d in DType)}, got {dtype}", loc=self.here(),
                help="convert it with .astype outside of the loop",
            )  # fmt: skip
        return found

    def private(self, shape: Sequence[int], dtype: DType, pair: bool = False, hint: str = "a") -> PrivateArray:
        """Returns new private memory, undefined until stored."""
        self.charge(shape, dtype, pair)
        self.locate()
        return PrivateArray(self.cell(dtype, (*shape, 2) if pair else tuple(shape), hint), pair)

    def charge(self, shape: Sequence[int], dtype: DType, pair: bool = False) -> None:
        """Counts private memory, as if all of it were in use at once."""
        self.private_bytes += prod(shape) * dtype.itemsize * (2 if pair else 1)

    def load_at(self, var: Var, index: Sequence[Atom], pair: bool = False) -> Any:
        """Loads one element of memory that may change."""
        if pair:
            return tuple(self.emit("load", var, *index, self.index(p))[0] for p in (0, 1))
        return self.emit("load", var, *index)[0]

    def store_at(self, var: Var, value: Element, index: Sequence[Atom]) -> None:
        """Writes one element."""
        if isinstance(value, tuple):
            for p in (0, 1):
                self.emit("store", var, value[p], *index, self.index(p))
        else:
            self.emit("store", var, value, *index)

    def element(self, value: Value, index: Sequence[Atom]) -> Any:
        """Returns one element of an array value (an atom, or a pair of atoms); the index is in range."""
        match value:
            case np.ndarray():
                return self._small_element(value, index)
            case ArrayRef():
                if value.pair:
                    return tuple(self.load_shared(value.var, [*index, self.index(p)]) for p in (0, 1))
                return self.load_shared(value.var, index)
            case PrivateArray():
                return self.load_at(value.var, index, value.pair)
            case Formula():
                # what computes places of an operand does so in one type, and traced indices may be wider
                return value.at([self.convert(k, self.index_dtype) for k in index])
            case _:
                raise self.unreadable(value)

    def unreadable(self, value: object) -> TraceValueError:
        """Returns the error for a handle where an array value is needed."""
        what = "a buffer" if isinstance(value, RefValue) else type(value).__name__
        return TraceValueError(
            f"needs an array value, got {what}", loc=self.here(), help="read it first: `b[...]` or `b[i]`"
        )

    def _small_element(self, value: np.ndarray, index: Sequence[Atom]) -> Element:
        if not index and not value.ndim:
            return value.item()
        dynamic = [d for d, k in enumerate(index) if type(k) is not Literal and value.shape[d] > 1]
        where = tuple(slice(None) if d in dynamic else _number(k) for d, k in enumerate(index))
        if not dynamic:
            return value[where]  # type: ignore[return-value]
        candidates, at = value[where], [index[d] for d in dynamic]
        is_far = candidates.size > self.few
        if is_far or (candidates.size > CHOSEN and not self.makes_again and self.counters.issuperset(at)):
            even = _even(candidates)
            if even is not None:
                return self._sum(even, at)
            lines = self._lines(candidates)
            if lines is not None:
                return self._read(lines, at)
            if is_far:
                return self.element(self.spill(value), index)
        for d in reversed(dynamic):
            candidates = self._chain(candidates, index[d])
        return candidates.item()

    def _chain(self, candidates: np.ndarray, index: Atom) -> np.ndarray:
        """Chooses along the last axis: by arithmetic where steps are equal, else by a chain of selects."""
        count = candidates.shape[-1]
        out = np.empty(candidates.shape[:-1], object)
        rows = {at: _even(candidates[at]) for at in np.ndindex(*out.shape)}
        if all(rows.values()):
            for at, even in rows.items():
                out[at] = self._sum(even, [index])  # type: ignore[arg-type]
            return out
        tests = [self.op("le", index, integer(k, index.dtype)) for k in range(count - 1)]
        for at in np.ndindex(*out.shape):
            row = candidates[at]
            chosen = row[count - 1]
            for k in range(count - 2, -1, -1):
                chosen = self.choose(tests[k], row[k], chosen)
            out[at] = chosen
        return out

    def _lines(self, value: np.ndarray) -> _Lines | None:
        """Returns where the elements were loaded from, if they lie evenly in memory that nothing writes."""
        places = [self.loaded.get(e, (None, ())) for e in elements_of(value)]  # type: ignore[arg-type]
        ref = places[0][0]
        if ref is None or any(other is not ref for other, _ in places):
            return None
        axes = [np.array(numbers, object).reshape(value.shape) for numbers in zip(*(n for _, n in places), strict=True)]
        first = (0,) * value.ndim
        lines = [(self.index(numbers[first]), steps) for numbers in axes if (steps := _steps(numbers)) is not None]
        return (ref, lines) if len(lines) == len(axes) else None

    def _read(self, found: _Lines, at: Sequence[Atom]) -> Atom:
        """Loads an element again."""
        ref, lines = found
        return self.load_shared(ref, [self._sum(line, at) for line in lines])

    def _sum(self, even: tuple[Literal, list[int]], index: Sequence[Atom]) -> Atom:
        """Returns the element at an index of an array whose first element and steps are given."""
        total, steps = even
        dtype = total.type.dtype
        for k, step in zip(index, steps, strict=True):
            times = self.op("mul", self.convert(k, dtype), constant(np.int64(step).astype(dtype.numpy)))
            total = self.op("add", times, total)
        return total

    # ------------------------------------------------------------------ between the forms
    def build(
        self, shape: Sequence[int], dtype: DType, at: Callable[[Sequence[Atom]], Element], pair: bool = False,
        *, unroll: bool = False,
    ) -> Value:  # fmt: skip
        """Returns an array by its element function: scalars if small (or asked for, within the budget), else a loop."""
        if not shape:
            return rank0(at([]))
        size = int(np.prod(shape, dtype=np.int64))
        if size <= self.few or (unroll and size <= self.scalar_budget):
            indices = np.ndindex(*shape)
            return array_of((at([self.index(i) for i in index]) for index in indices), shape)
        return self.materialise(shape, dtype, at, pair)

    def snapshot(
        self, shape: Sequence[int], dtype: DType, at: Callable[[Sequence[Atom]], Element], pair: bool = False
    ) -> Value:  # fmt: skip
        """Returns elements of memory that may change: scalars within the budget, read again by `rolled`, in a loop."""
        value = self.build(shape, dtype, at, pair, unroll=True)
        if type(value) is np.ndarray and value.size > self.few:
            eqns = self.current.eqns
            block, last = self.current, eqns[-1]

            def copied() -> PrivateArray:
                end = len(eqns)
                with self.continued(block):
                    out = self.materialise(shape, dtype, at, pair)
                place = next(k for k, e in enumerate(eqns) if e is last) + 1
                eqns[place:] = [*eqns[end:], *eqns[place:end]]
                out.holders = 1
                self._spilled[id(value)] = value, out
                return out

            self._again[id(value)] = value, copied, block, 0
        return value

    def note_formula(
        self, value: np.ndarray, operands: Sequence[Value], again: Callable[[], Formula], length: int
    ) -> None:
        """Remembers how an element of scalars can be had from those of the operands, in so many equations."""
        length += sum(self._again[id(v)][3] for v in operands if id(v) in self._again)
        if value.size > self.few and length <= AGAIN:
            self._again[id(value)] = value, again, self.current, length

    def rolled(self, value: Value) -> Value:
        """Returns the array in memory for a loop that follows; elements that are cheap to make are made again there."""
        if id(value) in self._again and id(value) not in self._spilled:
            _, again, block, length = self._again[id(value)]
            if not length or block is self.current:
                return again()
        return self.in_memory(value)

    def copied(self, value: np.ndarray) -> MemoryArray | None:
        """Returns what was read from memory (`snapshot`) as an array that a loop copies, or None for other scalars."""
        found = self._again.get(id(value))
        return found[1]() if found is not None and not found[3] and id(value) not in self._spilled else None

    def materialise(
        self, shape: Sequence[int], dtype: DType, at: Callable[[Sequence[Atom]], Element], pair: bool = False,
        into: PrivateArray | None = None,
    ) -> PrivateArray:  # fmt: skip
        """Computes every element by a loop nest and keeps them in private memory."""
        out = self.private(shape, dtype, pair) if into is None else into
        self.loop_nest(shape, lambda index: self.store_at(out.var, at(index), index))
        return out

    def scalars(self, value: EnvValue, what: str = "this operation", most: int | None = None) -> np.ndarray:
        """Returns the array as scalars; refused above `most`, which is usually the budget."""
        most = self.most_scalars if most is None else most
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, RefValue):
            raise self.unreadable(value)
        if value.size > most:
            raise UnsupportedError(
                f"{what} needs an array of at most {most} elements in a loop body, got {value.size}",
                loc=self.here(),
                help="compute it outside of the loop, or element by element",
            )
        indices = np.ndindex(*value.shape)
        return array_of((self.element(value, [self.index(i) for i in index]) for index in indices), value.shape)

    def free_memory(
        self, values: Sequence[Value], shape: Sequence[int], dtype: DType, pair: bool, holders: int = 0
    ) -> PrivateArray | None:
        """Returns memory of this type among values that only the present equation reads, element by element.

        What a formula reads of its operands it reads before the element is written.
        """
        for value in values if self.in_place else ():
            if isinstance(value, Formula):
                alone = value.holders == 1 and not value.moves
                found = self.free_memory(value.operands, shape, dtype, pair, 1) if alone else None
                if found is not None:
                    return found
                continue
            if not isinstance(value, PrivateArray) or value.holders != holders:
                continue
            if (value.shape, value.dtype, value.pair) == (tuple(shape), dtype, pair):
                return value
        return None

    def own(self, value: Value, dtype: DType, pair: bool = False) -> PrivateArray:
        """Returns the value in private memory that may be updated: itself when nothing else needs it, else a copy."""
        if isinstance(value, PrivateArray) and value.holders == 0:
            return value
        if isinstance(value, np.ndarray):
            return self.write_all(self.private(value.shape, dtype, pair), value)
        return self.materialise(value.shape, dtype, lambda index: self.element(value, index), pair)

    def write_all(self, target: PrivateArray, value: Value) -> PrivateArray:
        """Stores a whole array value."""
        if isinstance(value, np.ndarray):
            elements = elements_of(value)
            if value.size > self.few and all(e is elements[0] for e in elements):
                self.loop_nest(value.shape, lambda index: self.store_at(target.var, elements[0], index))
            else:
                for index in np.ndindex(*value.shape):
                    self.store_at(target.var, value.item(index), [self.index(i) for i in index])
        else:
            self.materialise(value.shape, value.dtype, lambda index: self.element(value, index), value.pair, target)
        return target

    def in_memory(self, value: EnvValue) -> Value:
        """Returns a form that traced indices read cheaply: large small-arrays are spilled once."""
        if isinstance(value, RefValue):
            raise self.unreadable(value)
        if isinstance(value, np.ndarray) and value.size > self.few and _even(value) is None:
            return self.spill(value)
        return value

    def spill(self, value: np.ndarray) -> MemoryArray:
        """Returns the elements in memory, stored once where they are known; constants go to a global reference."""
        known = self._spilled.get(id(value))
        if known is not None:
            return known[1]
        elements = elements_of(value)
        first = elements[0]
        if type(first) is Var and (lines := self._lines(value)) is not None:
            return Formula(value.shape, first.dtype, lambda index: self._read(lines, index))
        pair = isinstance(first, tuple)
        dtype = parts_of(first)[0].type.dtype
        constants = [e.value for e in elements if isinstance(e, Literal)]
        if self.hoist is not None and len(constants) == len(elements):
            content = np.array(constants, dtype.numpy).reshape(value.shape)
            out: MemoryArray = ArrayRef(self.hoist(content))
        else:
            out = self._store_outside(value, elements, dtype, pair)
        if isinstance(out, PrivateArray):
            out.holders = 1
        self._spilled[id(value)] = (value, out)
        return out

    def _store_outside(self, value: np.ndarray, elements: list[Element], dtype: DType, pair: bool) -> PrivateArray:
        """Stores at the end of the outermost open block that has all elements, before the loops inside."""
        self.charge(value.shape, dtype, pair)
        needed = {v for e in elements for v in parts_of(e) if type(v) is Var}
        stack = self.stack
        level = len(stack) - 1
        while level > 0 and not needed & _bound(stack[level]):
            level -= 1
        level = max(level, len(stack) - self._scopes)  # the outermost block that this importer may append to
        shape = (*value.shape, 2) if pair else value.shape
        cell = Var(RefType(dtype, shape, Space.LOCAL), "s")
        eqns = stack[level].eqns
        loc = self.loc
        eqns.append(Eqn(CELL, (), (cell,), {"dtype": dtype, "shape": shape}, (), loc))
        for index, element in zip(np.ndindex(*value.shape), elements, strict=True):
            for p, part in enumerate(parts_of(element)):
                at = [self.index(i) for i in ((*index, p) if pair else index)]
                eqns.append(Eqn(STORE, (cell, part, *at), (), {}, (), loc))
        return PrivateArray(cell, pair)


def _even(array: np.ndarray) -> tuple[Literal, list[int]] | None:
    """Returns the first element and the step along each axis, if these tell all: in three or more integer constants.

    An `iota` along any axis is such an array.
    """
    found = elements_of(array)
    if array.size < 3 or not all(type(e) is Literal and e.type.dtype.is_integer for e in found):
        return None
    elements = [e for e in found if isinstance(e, Literal)]
    numbers = np.array([int(e.value) for e in elements], object).reshape(array.shape)
    steps = _steps(numbers)
    return None if steps is None else (elements[0], steps)


def _steps(numbers: np.ndarray) -> list[int] | None:
    """Returns the step along each axis, if these and the first number tell all."""
    origin = (0,) * numbers.ndim
    first = numbers[origin]
    steps = [numbers[(*origin[:d], min(n - 1, 1), *origin[d + 1 :])] - first for d, n in enumerate(numbers.shape)]
    terms = (step * k for step, k in zip(steps, np.indices(numbers.shape, object), strict=True))
    is_even = all(abs(step) < _STEP for step in steps) and (numbers == sum(terms, first)).all()
    return steps if is_even else None


def _bound(block: BlockBuilder) -> set[Var]:
    return {*block.params, *(v for e in block.eqns for v in e.outvars)}


def _number(atom: Atom) -> int:
    return int(atom.value) if type(atom) is Literal else 0
