"""The state of emitting one function: values of variables, the active mask, what is cached where."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.llvm.interleave import PendingStores
from lowering.llvm.ops import Ops
from lowering.llvm.types import REGISTER, constant
from lowering.llvm.updates import WaitingUpdates
from lowering.llvm.vectors import ALL, SCALAR, Lanes, Mask, Value
from qdtrace.ir.program import Atom, Literal, Var

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lowering.llvm.addresses import Global
    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.partials import Part
    from lowering.llvm.private import Private
    from lowering.llvm.quotients import Odd
    from lowering.llvm.reductions import Copy
    from lowering.llvm.spread import Counts
    from lowering.llvm.target import Target
    from lowering.llvm.text import Text
    from qdtrace.ir.types import DType


class Frame:
    """Everything an emission function needs."""

    def __init__(self, text: Text, facts: TaskFacts, target: Target, width: int, vectors: int, fast_math: bool) -> None:
        self.text = text
        self.facts = facts
        self.target = target
        self.width = width
        self.vectors = vectors
        self.lanes = Lanes(width)
        self.scalar = Ops(text, SCALAR, target, fast_math)
        self.vector = Ops(text, self.lanes, target, fast_math)
        self.env: dict[Var, Value] = {}
        self.globals: dict[Var, Global] = {}
        self.privates: dict[Var, Private] = {}
        self.mask: Mask = ALL
        self.index = ""
        """The task index of lane 0 of vector 0, as i64."""
        self.neighbours = True
        """Lanes hold consecutive iterations of the task."""
        self.row_number = ""
        """The number of the row, as i64, where steps keep to rows."""
        self.partials: tuple[Part, ...] = ()
        """What the chunk reduces."""
        self.accumulators: dict[object, str] = {}
        self.copies: dict[Var, Copy] = {}
        self.odd: dict[tuple[str, ...], Odd] = {}
        """What is known of divisors, by the registers of their reciprocals."""
        self.counts: Counts | None = None
        """What the function counts of a loop, if anything."""
        self.pending = PendingStores()
        self.updates = WaitingUpdates()
        self.leave = "ret void"
        """What a failed check ends the function with."""
        self.alone = ""
        """True (i1) when nobody else sees the arrays of `TaskFacts.shared`."""
        self._cache: dict[object, str] = {}
        self._undo: list[object] = []

    @property
    def is_scalar(self) -> bool:
        """One lane: no masks, everything uniform."""
        return self.width == 1

    def is_uniform(self, var: Var) -> bool:
        """True when the variable is held as one scalar."""
        return self.width == 1 or var not in self.facts.uniformity.varying

    # Values

    def value(self, atom: Atom) -> Value:
        """Where an operand is."""
        if isinstance(atom, Literal):
            return Value(atom.dtype, scalar=constant(atom.value, atom.dtype))
        return self.env[atom]

    def scalar_of(self, atom: Atom) -> str:
        """A uniform operand as a scalar."""
        if isinstance(atom, Literal):
            return constant(atom.value, atom.dtype)
        register = self.env[atom].scalar
        assert register is not None, f"{atom!r} is not uniform"
        return register

    def vector_of(self, atom: Atom, v: int) -> str:
        """An operand as vector number v; a uniform one is spread over the lanes."""
        if isinstance(atom, Literal):
            return self.lanes.splat(REGISTER[atom.dtype], constant(atom.value, atom.dtype))
        return self.lanes_of(self.env[atom], v)

    def lanes_of(self, value: Value, v: int) -> str:
        """Vector number v of a value."""
        if value.vectors is not None:
            return value.vectors[v]
        assert value.scalar is not None
        return self.spread(REGISTER[value.dtype], value.scalar)

    def spread(self, scalar_type: str, scalar: str) -> str:
        """A scalar in all lanes."""
        if self.width == 1:
            return scalar
        if not scalar.startswith("%"):
            return self.lanes.splat(scalar_type, scalar)

        def make() -> str:
            kind = self.lanes.of(scalar_type)
            single = self.text.op(f"insertelement {kind} poison, {scalar_type} {scalar}, i64 0")
            zeros = self.lanes.of("i32")
            return self.text.op(f"shufflevector {kind} {single}, {kind} poison, {zeros} zeroinitializer")

        return self.cached(("spread", scalar), make)

    def each(self, dtype: DType, make: Callable[[int], str]) -> Value:
        """A varying value made vector by vector."""
        return Value(dtype, vectors=[make(v) for v in range(self.vectors)])

    def bind_index(self, var: Var, index: str) -> None:
        """Binds the task index, given for lane 0 as i64."""
        self.index = index
        kind = REGISTER[var.dtype]
        scalar = index if kind == "i64" else self.text.op(f"trunc i64 {index} to {kind}")
        if self.width == 1:
            self.env[var] = Value(var.dtype, scalar=scalar)
            return
        first = self.spread(kind, scalar)
        self.env[var] = self.each(
            var.dtype, lambda v: self.vector.binary("add", self.lanes.of(kind), first, self.steps(kind, v))
        )

    def steps(self, kind: str, v: int) -> str:
        """The constant vector of lane numbers of vector v."""
        return self.lanes.range(kind, v * self.width)

    # Caches: what is computed in a block may be used again where that block dominates

    def cached(self, key: object, make: Callable[[], str]) -> str:
        """The register of an earlier equal computation, or a new one."""
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = make()
            self._undo.append(key)
        return found

    @contextmanager
    def region(self, mask: Mask | None = None) -> Generator[None]:
        """Code that runs only sometimes, possibly with fewer lanes: what is cached in it is forgotten after it."""
        mark, before = len(self._undo), self.mask
        if mask is not None:
            self.mask = mask
        try:
            yield
        finally:
            self.mask = before
            while len(self._undo) > mark:
                del self._cache[self._undo.pop()]

    # Masks

    def narrowed(self, mask: Mask, conditions: list[str], *, negate: bool = False) -> Mask:
        """The active lanes for which the condition holds (or does not)."""
        bits = self.vector.bits
        found: list[str] = []
        true = self.lanes.splat("i1", "true")
        for v, condition in enumerate(conditions):
            if negate:
                condition = self.text.op(f"xor {bits} {condition}, {true}")
            if mask.vectors is not None:
                # a select, not an `and`: what an inactive lane computed must not matter
                condition = self.text.op(f"select {bits} {mask.vectors[v]}, {bits} {condition}, {bits} zeroinitializer")
            found.append(condition)
        return Mask(tuple(found), nonempty=False)

    def any(self, vectors: tuple[str, ...]) -> str:
        """True (i1) when some lane of some vector is active."""
        bits, total = self.vector.bits, vectors[0]
        for other in vectors[1:]:
            total = self.text.op(f"or {bits} {total}, {other}")
        number = self.text.op(f"bitcast {bits} {total} to i{self.width}")
        return self.text.op(f"icmp ne i{self.width} {number}, 0")

    def mask_of(self, mask: Mask, v: int) -> str:
        """The mask of vector v as an operand."""
        return self.lanes.splat("i1", "true") if mask.vectors is None else mask.vectors[v]

    def blend(self, mask: Mask, dtype: DType, new: str, old: str, v: int) -> str:
        """`new` in active lanes, `old` in the others."""
        if mask.vectors is None or new == old:
            return new
        return self.vector.select(mask.vectors[v], self.vector.type(dtype), new, old)
