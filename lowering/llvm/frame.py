"""The state of emitting one function: values of variables, memory, cached computations.

This frame has one lane: a GPU thread, a serial task, a processor without vectors. `simd.frame` holds a value in several
registers and knows which lanes are active; code that uses `ops`, `operands` and `bind` works with both.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.llvm.crossings import Crossings
from lowering.llvm.descriptions import OddDivisor
from lowering.llvm.ops import Ops
from lowering.llvm.types import REGISTER, constant
from lowering.llvm.vectors import SCALAR, Value
from qdtrace.ir.program import Atom, Literal, Var

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any

    from lowering.llvm.descriptions import GlobalMemory, PrivateMemory
    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.target import Target
    from lowering.llvm.text import Text
    from qdtrace.ir.program import Eqn
    from qdtrace.ir.types import DType

    EmitEqns = Callable[[Any, Sequence[Eqn]], None]


class Frame:
    """The state that emission functions read and extend."""

    def __init__(self, text: Text, facts: TaskFacts, target: Target, fast_math: bool, emit: EmitEqns) -> None:
        self.text = text
        self.facts = facts
        self.target = target
        self.scalar = Ops(text, SCALAR, target, fast_math)
        self.env: dict[Var, Value] = {}
        self.globals: dict[Var, GlobalMemory] = {}
        self.sources: dict[Var, GlobalMemory] = {}
        """The memory that loads of references read that the task renews (`plan.renewal`)."""
        self.renewed: tuple[Var, ...] = ()
        """References that the task renews; their pointers are behind those of all references."""
        self.privates: dict[Var, PrivateMemory] = {}
        self.vectors = 1
        """Number of registers of a variable that is not uniform."""
        self.index = ""
        """The task index of the first lane, as i64."""
        self.odd: dict[tuple[str, ...], OddDivisor] = {}
        """Tests of divisors for oddness, by the registers of their reciprocals."""
        self.leave = "ret void"
        """Instruction that ends the function after a failed check."""
        self.stop = ""
        """Address of the word that asks the function to end (`polls`); empty if the function does not poll."""
        self.failure = ""
        """Pointer to the word that keeps a failed check; empty if the record after the call's references does."""
        self.parameters: dict[str, str] = {}
        """Parameters of the function that equations may use, with their types."""
        self.split = False
        """True if the function is so long that it is emitted in parts."""
        self.is_part: bool = False
        """True in a part, which has the values that its equations read, and no others."""
        self.crossings = Crossings(text)
        """Memory of values that cross from part to part."""
        self.emit_eqns = emit
        """Emits equations of a block into a frame."""
        self._cache: dict[object, str] = {}
        self._undo: list[object] = []

    @property
    def table_length(self) -> int:
        """The number of pointers in the table that the code takes; words of the launcher follow them."""
        return self.facts.ref_count + len(self.renewed)

    def source(self, ref: Var) -> GlobalMemory:
        """Returns the memory that loads of a reference read."""
        return self.sources.get(ref) or self.globals[ref]

    def emit(self, eqns: Sequence[Eqn]) -> None:
        """Emits equations of a block, in order."""
        self.emit_eqns(self, eqns)

    # Values

    def is_uniform(self, var: Var) -> bool:
        """Returns whether the variable is held as one scalar."""
        return True

    def ops(self, var: Var) -> Ops:
        """Returns the instructions for one register of a variable."""
        return self.scalar

    def rows(self, like: Var, atoms: Sequence[Atom]) -> list[list[str]]:
        """Returns, for each register of `like`, the registers of the operands that go with it."""
        return [[self.scalar_of(a) for a in atoms]]

    def operands(self, like: Var, atom: Atom) -> list[str]:
        """Returns the registers of an operand, held in the way that `like` is."""
        return [register for (register,) in self.rows(like, (atom,))]

    def registers(self, var: Var) -> int:
        """Returns the number of registers that hold a variable."""
        return 1

    def bind(self, var: Var, registers: list[str]) -> None:
        """Sets the registers of a variable."""
        self.env[var] = Value(var.dtype, scalar=registers[0])

    def value(self, atom: Atom) -> Value:
        """Returns the registers of an operand."""
        if isinstance(atom, Literal):
            return Value(atom.dtype, scalar=constant(atom.value, atom.dtype))
        return self.env[atom]

    def scalar_of(self, atom: Atom) -> str:
        """Returns a uniform operand as a scalar."""
        if isinstance(atom, Literal):
            return constant(atom.value, atom.dtype)
        register = self.env[atom].scalar
        assert register is not None, f"{atom!r} is not uniform"
        return register

    def mapped(self, value: Value, atoms: Sequence[Atom], make: Callable[[Ops, list[str]], str]) -> Value:
        """Returns `make` of each register of a value and of the registers of the operands that go with it."""
        assert value.scalar is not None
        return Value(value.dtype, scalar=make(self.scalar, [value.scalar, *map(self.scalar_of, atoms)]))

    def bind_index(self, var: Var, index: str) -> None:
        """Binds the task index, given as i64."""
        self.index = index
        kind = REGISTER[var.dtype]
        scalar = index if kind == "i64" else self.text.op(f"trunc i64 {index} to {kind}")
        self.env[var] = Value(var.dtype, scalar=scalar)

    def where_active(self, condition: str) -> str:
        """Returns a condition (i1) restricted to code that some lane executes."""
        return condition

    def odd_divisor(self, divisor: Atom, is_odd: Callable[[Ops, DType, str], str]) -> OddDivisor:
        """Tests the divisors of active lanes for oddness (`quotients`)."""
        return OddDivisor((), is_odd(self.scalar, divisor.dtype, self.scalar_of(divisor)))

    def alignment(self, memory: GlobalMemory, indices: Sequence[Atom]) -> int:
        """Returns the alignment of an element in bytes if it is known to exceed that of its dtype, else 0."""
        return 0

    # Parts of a function

    def held(self, var: Var) -> dict[str, str]:
        """Returns the registers of a variable, with their types."""
        return {self.scalar_of(var): self.scalar.type(var.dtype)}

    def place_bytes(self, var: Var) -> int:
        """Returns the bytes of a register of a variable that crosses parts through memory; 0 for other variables."""
        return 0

    def implicit(self, refs: Sequence[Var]) -> dict[str, str]:
        """Returns registers, with types, that accesses to these references may read besides their operands."""
        found = {**self.parameters, self.index: "i64"}
        memories = [found.get(ref) for ref in refs for found in (self.globals, self.sources, self.privates)]
        return found | {m.pointer: "ptr" for m in memories if m is not None}

    @contextmanager
    def apart(self, leave: str) -> Generator[None]:
        """Opens a part of the function that has its own caches and returns by `leave`."""
        before = self._cache, self._undo, self.odd, self.leave, self.split, self.is_part
        self._cache, self._undo, self.odd, self.leave, self.split, self.is_part = {}, [], {}, leave, False, True
        try:
            yield
        finally:
            self._cache, self._undo, self.odd, self.leave, self.split, self.is_part = before

    # Caches: a computation of a block may be reused wherever that block dominates

    def cached(self, key: object, make: Callable[[], str]) -> str:
        """Returns the register of an earlier equal computation, or makes one."""
        found = self._cache.get(key)
        if found is None:
            found = make()
            self.remember(key, found)
        return found

    def has_cached(self, key: object) -> bool:
        """Returns whether an equal computation has been made."""
        return key in self._cache

    def remember(self, key: object, register: str) -> None:
        """Caches a register as the result of a computation."""
        self._cache[key] = register
        self._undo.append(key)

    @contextmanager
    def region(self) -> Generator[None]:
        """Opens code that does not dominate what follows: computations cached in it are forgotten after it."""
        mark = len(self._undo)
        try:
            yield
        finally:
            while len(self._undo) > mark:
                del self._cache[self._undo.pop()]
