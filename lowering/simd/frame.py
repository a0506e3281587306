"""The state of emitting one function in lanes: V vectors of W lanes side by side, and the mask of active ones.

With W = 1 everything is one scalar and there is no mask: the functions that combine, merge or are serial.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from lowering.llvm.descriptions import OddDivisor
from lowering.llvm.frame import Frame
from lowering.llvm.ops import Ops
from lowering.llvm.types import BYTES, REGISTER, constant
from lowering.llvm.vectors import Lanes, Value
from lowering.simd.accumulation.state import Accumulators
from lowering.simd.descriptions import ALL, Address, Mask
from lowering.simd.records import Step, StoreGroup
from qdtrace.ir.program import Atom, Literal, Var
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.frame import EmitEqns
    from lowering.llvm.target import Target
    from lowering.llvm.text import Text
    from lowering.simd.accumulation.plan import AccumulationPlan
    from lowering.simd.descriptions import Row
    from lowering.simd.inner.facts import InnerLoop
    from qdtrace.analysis.uniformity import Uniformity
    from qdtrace.ir.program import Eqn


class LaneFrame(Frame):
    """The state that emission functions read and extend, for several lanes."""

    def __init__(
        self,
        text: Text,
        facts: TaskFacts,
        target: Target,
        fast_math: bool,
        emit: EmitEqns,
        *,
        width: int,
        vectors: int,
        uniformity: Uniformity,
        row: Row | None,
        accumulation: AccumulationPlan,
    ) -> None:
        super().__init__(text, facts, target, fast_math, emit)
        self.width = width
        self.vectors = vectors
        self.lanes = Lanes(width)
        self.vector = Ops(text, self.lanes, target, fast_math)
        self.uniformity = uniformity
        self.row = row
        """The rows that steps do not cross, or None if they may cross any."""
        self.row_number = ""
        """Register of the row's number, as i64, if steps keep to rows."""
        self.mask: Mask = ALL
        loops = {e for e in facts.task.body.eqns if e.primitive.loops}
        self.alike = facts.ordered and uniformity.divergent <= loops
        """True if nearly always all lanes are active or none is."""
        self.accumulators = Accumulators(accumulation)
        self.inner: Mapping[Eqn, InnerLoop] = {}
        """Loops that run in vectors, if this frame has one lane."""
        self.pieces: Counter[object] = Counter()
        """Components that the current block reads of each piece of a long record."""
        self.step = Step()
        """Actions of the current equation on groups of stores."""
        self.waiting: dict[StoreGroup, dict[int, tuple[Address, list[str]]]] = {}
        """Stores of groups that are not complete yet, by component."""

    @property
    def is_scalar(self) -> bool:
        """Returns whether there is one lane, so that there are no masks and everything is uniform."""
        return self.width == 1

    @property
    def has_numbers(self) -> bool:
        """Returns whether loops carry live lanes as numbers of 32 bits, not as masks (`live_lanes`)."""
        return self.target.packs_masks and self.width * 32 == self.target.vector_bits

    # Values

    def is_uniform(self, var: Var) -> bool:
        """Returns whether the variable is held as one scalar."""
        return self.width == 1 or var not in self.uniformity.varying

    def ops(self, var: Var) -> Ops:
        """Returns the instructions for one register of a variable."""
        return self.scalar if self.is_uniform(var) else self.vector

    def registers(self, var: Var) -> int:
        """Returns the number of registers that hold a variable."""
        return 1 if self.is_uniform(var) else self.vectors

    def rows(self, like: Var, atoms: Sequence[Atom]) -> list[list[str]]:
        """Returns, for each register of `like`, the registers of the operands that go with it."""
        if self.is_uniform(like):
            return super().rows(like, atoms)
        return [[self.vector_of(a, v) for a in atoms] for v in range(self.vectors)]

    def bind(self, var: Var, registers: list[str]) -> None:
        """Sets the registers of a variable."""
        if self.is_uniform(var):
            super().bind(var, registers)
        else:
            self.env[var] = Value(var.dtype, vectors=registers)

    def vector_of(self, atom: Atom, v: int) -> str:
        """Returns an operand as vector number v; a uniform one is broadcast."""
        if isinstance(atom, Literal):
            return self.lanes.splat(REGISTER[atom.dtype], constant(atom.value, atom.dtype))
        return self.lanes_of(self.env[atom], v)

    def vectors_of(self, atom: Atom) -> list[str]:
        """Returns an operand as vectors."""
        return [self.vector_of(atom, v) for v in range(self.vectors)]

    def lanes_of(self, value: Value, v: int) -> str:
        """Returns vector number v of a value."""
        if value.vectors is not None:
            return value.vectors[v]
        assert value.scalar is not None
        return self.spread(REGISTER[value.dtype], value.scalar)

    def spread(self, scalar_type: str, scalar: str) -> str:
        """Broadcasts a scalar to all lanes."""
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
        """Returns a varying value, made vector by vector."""
        return Value(dtype, vectors=[make(v) for v in range(self.vectors)])

    def mapped(self, value: Value, atoms: Sequence[Atom], make: Callable[[Ops, list[str]], str]) -> Value:
        """Returns `make` of each register of a value and of the registers of the operands that go with it."""
        vectors = value.vectors
        if vectors is None:
            return super().mapped(value, atoms, make)
        return self.each(value.dtype, lambda v: make(self.vector, [vectors[v], *(self.vector_of(a, v) for a in atoms)]))

    def bind_index(self, var: Var, index: str) -> None:
        """Binds the task index, given for lane 0 as i64."""
        super().bind_index(var, index)
        if self.width == 1:
            return
        kind = REGISTER[var.dtype]
        first = self.spread(kind, self.scalar_of(var))
        self.env[var] = self.each(
            var.dtype, lambda v: self.vector.binary("add", self.lanes.of(kind), first, self.steps(kind, v))
        )

    def steps(self, kind: str, v: int) -> str:
        """Returns the constant vector of lane numbers of vector v."""
        return self.lanes.range(kind, v * self.width)

    # Parts of a function

    def held(self, var: Var) -> dict[str, str]:
        """Returns the registers of a variable, with their types."""
        vectors = self.env[var].vectors
        return super().held(var) if vectors is None else dict.fromkeys(vectors, self.vector.type(var.dtype))

    def place_bytes(self, var: Var) -> int:
        """Returns the bytes of a register of a variable that crosses parts through memory; 0 for other variables."""
        return 0 if self.is_uniform(var) or var.dtype is DType.bool else self.width * BYTES[REGISTER[var.dtype]]

    def implicit(self, refs: Sequence[Var]) -> dict[str, str]:
        """Returns registers, with types, that accesses to these references may read besides their operands."""
        found = {**super().implicit(refs), self.row_number: "i64", self.accumulators.alone: "i1"}
        found |= dict.fromkeys(self.mask.vectors or (), self.vector.bits)
        if self.mask.whole is not None:
            found[self.mask.whole] = "i1"
        pointers = [*self.accumulators.registers.values()]
        pointers += [copy.memory.pointer for copy in self.accumulators.copies.values()]
        return found | dict.fromkeys(pointers, "ptr")

    @contextmanager
    def apart(self, leave: str) -> Generator[None]:
        """Opens a part of the function that has its own caches and returns by `leave`."""
        with super().apart(leave):
            if self.row is not None:
                self.remember(("quotient", self.row.quotient), self.row_number)
            yield

    # Masks

    @contextmanager
    def region(self, mask: Mask | None = None) -> Generator[None]:
        """Opens code that does not dominate what follows, possibly with fewer lanes; caches forget it after it."""
        before = self.mask
        if mask is not None:
            self.mask = mask
        try:
            with super().region():
                yield
        finally:
            self.mask = before

    def narrowed(self, mask: Mask, conditions: Sequence[str], *, negate: bool = False) -> tuple[str, ...]:
        """Returns the mask of active lanes for which the condition holds (or does not)."""
        bits = self.vector.bits
        found: list[str] = []
        true = self.lanes.splat("i1", "true")
        for v, condition in enumerate(conditions):
            if negate:
                condition = self.text.op(f"xor {bits} {condition}, {true}")
            if mask.vectors is not None:
                # a select, not an `and`: the condition may be poison in an inactive lane
                condition = self.text.op(f"select {bits} {mask.vectors[v]}, {bits} {condition}, {bits} zeroinitializer")
            found.append(condition)
        return tuple(found)

    def any(self, vectors: Sequence[str]) -> str:
        """Returns whether some lane of some vector is active, as i1."""
        count = self._cache.get(("active", tuple(vectors)))
        if count is not None:
            return self.text.op(f"icmp ne i64 {count}, 0")
        bits, total = self.vector.bits, vectors[0]
        for other in vectors[1:]:
            total = self.text.op(f"or {bits} {total}, {other}")
        number = self.text.op(f"bitcast {bits} {total} to i{self.width}")
        return self.text.op(f"icmp ne i{self.width} {number}, 0")

    def most(self, dtype: DType, vectors: Sequence[str]) -> str:
        """Returns the largest number in all lanes of some vectors of integers, as a scalar."""
        of, kind = "smax" if dtype.is_signed else "umax", REGISTER[dtype]
        total = reduce(lambda a, b: self.vector.intrinsic(of, kind, a, b), vectors)
        symbol = f"llvm.vector.reduce.{of}.v{self.width}{kind}"
        self.text.module.declare(symbol, kind, self.vector.type(dtype))
        return self.text.op(f"call {kind} @{symbol}({self.vector.type(dtype)} {total})")

    def active(self, mask: str) -> str:
        """Returns the number of active lanes of a vector, as i64."""
        bits = f"i{self.width}"
        number = self.text.op(f"bitcast {self.vector.bits} {mask} to {bits}")
        return self.scalar.cast("zext", bits, self.scalar.intrinsic("ctpop", bits, number), "i64")

    def ranks(self, masks: Sequence[str]) -> list[str]:
        """Returns the number of active lanes before each lane, as vectors of i32 that are valid in active lanes."""
        text, i32 = self.text, self.lanes.of("i32")
        found: list[str] = []
        before = ""
        for rank, mask in zip(map(self._ranks(), masks), masks, strict=True):
            found.append(text.op(f"add {i32} {rank}, {self.spread('i32', before)}") if before else rank)
            count = text.op(f"trunc i64 {self.active(mask)} to i32")
            before = text.op(f"add i32 {before}, {count}") if before else count
        return found

    def _ranks(self) -> Callable[[str], str]:
        """Returns a function that emits the number of active lanes of a vector before each lane."""
        text, width, i32, bits = self.text, self.width, self.lanes.of("i32"), self.vector.bits
        if self.target.has_masks or width > 8:
            numbers, symbol = text.slot(i32), f"llvm.masked.expandload.v{width}i32"
            text.do(f"store {i32} {self.lanes.range('i32')}, ptr {numbers}")
            text.module.declare(symbol, i32, f"ptr, {bits}, {i32}")
            return lambda mask: text.op(f"call {i32} @{symbol}(ptr {numbers}, {bits} {mask}, {i32} zeroinitializer)")
        i8, whole, ones = self.lanes.of("i8"), f"i{8 * width}", sum(1 << 8 * k for k in range(1, width))

        def rank(mask: str) -> str:
            """A product adds to each byte those before it."""
            each = text.op(f"bitcast {i8} {text.op(f'zext {bits} {mask} to {i8}')} to {whole}")
            total = text.op(f"bitcast {whole} {text.op(f'mul {whole} {each}, {ones}')} to {i8}")
            return text.op(f"zext {i8} {total} to {i32}")

        return rank

    def all_hold(self, conditions: Sequence[str]) -> str:
        """Returns whether all of some scalar conditions hold."""
        return reduce(lambda a, b: self.text.op(f"and i1 {a}, {b}"), conditions) if conditions else "true"

    def where_active(self, condition: str) -> str:
        """Returns a condition (i1) that is false if no lane is active."""
        mask = self.mask
        if mask.vectors is None or mask.nonempty:
            return condition
        return self.text.op(f"and i1 {condition}, {self.any(mask.vectors)}")

    def odd_divisor(self, divisor: Atom, is_odd: Callable[[Ops, DType, str], str]) -> OddDivisor:
        """Tests the divisors of active lanes for oddness (`quotients`)."""
        if self.value(divisor).is_uniform:
            return super().odd_divisor(divisor, is_odd)
        odd = [is_odd(self.vector, divisor.dtype, x) for x in self.vectors_of(divisor)]
        lanes = self.narrowed(self.mask, odd)
        return OddDivisor(lanes, self.any(lanes))

    def mask_of(self, mask: Mask, v: int) -> str:
        """Returns the mask of vector v as an operand."""
        return self.lanes.splat("i1", "true") if mask.vectors is None else mask.vectors[v]

    def blend(self, mask: Mask, dtype: DType, new: str, old: str, v: int) -> str:
        """Returns `new` in active lanes and `old` in the others, for vector v."""
        if mask.vectors is None or new == old:
            return new
        return self.vector.select(mask.vectors[v], self.vector.type(dtype), new, old)

    def blended(self, mask: Mask, dtype: DType, new: Sequence[str], old: Sequence[str]) -> list[str]:
        """Returns `new` in active lanes and `old` in the others, for all vectors."""
        return [self.blend(mask, dtype, a, b, v) for v, (a, b) in enumerate(zip(new, old, strict=True))]
