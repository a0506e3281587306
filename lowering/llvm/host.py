"""Functions of the host, such as the launcher, written as Python functions that emit their instructions.

A body takes a `Code` and the values of its parameters, whose LLVM types are its annotations. Calling the function in
another body emits a call, so a module has what its exports reach, and nothing else:

    @function("alwaysinline")
    def usable_threads(c: Code, frame: Ptr, most: I64) -> I64:
        pool = pool_threads(c, frame)
        return c.select(most > 0, c.smaller(pool, most), pool)
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.llvm.text import Module
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from lowering.tables import Record

_TYPES = {"Ptr": "ptr", "NoAlias": "ptr noalias", "I64": "i64", "I32": "i32", "I1": "i1", "None": "void"}


def _operator(instruction: str, result: str = "") -> Callable[[Value, Operand], Value]:
    """Returns a method that emits an instruction of two values; the result is of their type, or of `result`."""

    def emit(self: Value, other: Operand) -> Value:
        return self.code.op(result or self.type, f"{instruction} {self}, {self.code.value(other, self.type).name}")

    return emit


@frozen
class Value:
    """A register or constant of a function that is being emitted; division and shifts are those of unsigned numbers."""

    code: Code
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    def __bool__(self) -> bool:
        raise TypeError("a value is known when the code runs: use `when` or `select`")

    __add__ = _operator("add")
    __sub__ = _operator("sub")
    __mul__ = _operator("mul")
    __floordiv__ = _operator("udiv")
    __mod__ = _operator("urem")
    __and__ = _operator("and")
    __or__ = _operator("or")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("lshr")
    __lt__ = _operator("icmp slt", "i1")
    __gt__ = _operator("icmp sgt", "i1")
    __le__ = _operator("icmp sle", "i1")
    __ge__ = _operator("icmp sge", "i1")
    below = _operator("icmp ult", "i1")
    """Returns whether this is less, as unsigned numbers."""
    equals = _operator("icmp eq", "i1")
    """Returns whether two values are equal."""
    differs = _operator("icmp ne", "i1")
    """Returns whether two values differ."""

    def to(self, type_: str, how: str = "zext") -> Value:
        """Returns the value in another type."""
        return self.code.op(type_, f"{how} {self} to {type_}")

    def at(self, offset: Operand) -> Value:
        """Returns this address plus a number of bytes."""
        return self.code.op("ptr", f"getelementptr i8, {self}, {self.code.value(offset, 'i64')}")

    def item(self, type_: str, k: Operand) -> Value:
        """Returns the address of item `k` of those of a type that begin at this address."""
        index = k if isinstance(k, Value) else self.code.value(k, "i64")
        return self.code.op("ptr", f"getelementptr {type_}, {self}, {index}")

    def word(self, k: Operand) -> Value:
        """Returns the address of word `k` of those that begin at this address."""
        return self.item("i64", k)

    def load(self, type_: str, offset: Operand = 0, how: str = "") -> Value:
        """Returns what is at this address plus some bytes; `how` may be volatile."""
        return self.code.op(type_, f"load {how}{type_}, {self.at(offset)}")

    def store(self, value: Operand, type_: str = "i64", offset: Operand = 0, how: str = "") -> None:
        """Stores a value at this address plus some bytes."""
        self.code.do(f"store {how}{self.code.value(value, type_)}, {self.at(offset)}")


class Symbol:
    """Something of a module that has a name; it is there once it is used."""

    def __init__(self, name: str, definition: str) -> None:
        self.name = name
        self.definition = definition
        """The text behind the equals sign."""

    def define(self, module: Module) -> None:
        """Puts the symbol into a module."""
        module.helpers.setdefault(self.name, f"@{self.name} = {self.definition}")


class _Callee(Symbol):
    """A function; a call in a body emits a call."""

    def __init__(self, name: str, result: str, parameters: list[str]) -> None:
        super().__init__(name, "")
        self.result, self.parameters = result, parameters

    def __call__(self, c: Code, *arguments: Operand) -> Value:
        """Emits a call and returns its result."""
        self.define(c.module)
        return c.call(f"@{self.name}", self.result, self.parameters, arguments)


class External(_Callee):
    """A function of the process or of LLVM, given as C does: `i32 snprintf(ptr, i64, ptr, ...)`."""

    def __init__(self, declaration: str) -> None:
        head, _, rest = declaration.rstrip(")").partition("(")
        result, name = head.split()
        super().__init__(name, result, rest.split(", ") if rest else [])

    def define(self, module: Module) -> None:
        """Declares the function."""
        module.declare(self.name, self.result, ", ".join(self.parameters))


class Function(_Callee):
    """A function with a body; those whose names begin with `qd_` are exported."""

    def __init__(self, body: Callable[..., Value | None], attributes: str) -> None:
        types = {name: _TYPES[str(p)] for name, p in inspect.get_annotations(body).items() if name != "c"}
        super().__init__(body.__name__, types.pop("return"), list(types.values()))
        self.body, self.attributes, self.names = body, attributes, list(types)

    def define(self, module: Module) -> None:
        """Emits the function and what it calls."""
        if self.name in module.helpers:
            return
        module.helpers[self.name] = ""  # until its body is known, which may call it
        c = Code(module, self.attributes, self.result)
        given = [(type_, f"%{name}") for type_, name in zip(self.parameters, self.names, strict=True)]
        c.leave(self.body(c, *(Value(c, type_.split()[0], name) for type_, name in given)))
        linkage = "" if self.name.startswith("qd_") else "internal "
        head = f"define {linkage}{self.result} @{self.name}({', '.join(map(' '.join, given))})"
        module.helpers[self.name] = c.text.render(head)


def function(attributes: str = "") -> Callable[[Callable[..., Value | None]], Function]:
    """Returns a decorator that makes a function of a body; `attributes` are LLVM's."""
    return lambda body: Function(body, attributes)


class Fields:
    """A record in memory: an attribute is the value of a field, which is loaded where it is asked for."""

    def __init__(self, record: Record, pointer: Value) -> None:
        self.record, self.pointer = record, pointer

    def __getattr__(self, field: str) -> Value:
        return self.pointer.load(self.record.types[field], self.record.offsets[field])

    def place(self, field: str) -> Value:
        """Returns the address of a field."""
        return self.pointer.at(self.record.offsets[field])

    def put(self, **values: Operand) -> None:
        """Stores fields."""
        for field, value in values.items():
            self.pointer.store(value, self.record.types[field], self.record.offsets[field])

    def row(self, k: Operand) -> Fields:
        """Returns record `k` of those that begin here."""
        return Fields(self.record, self.pointer.at(self.pointer.code.value(k, "i64") * self.record.size))


class Cell:
    """A value that changes, in memory that LLVM turns into registers."""

    def __init__(self, first: Value) -> None:
        self.type, self.memory = first.type, first.code.memory(first.type)
        self.value = first

    @property
    def value(self) -> Value:
        """The value at this point of the code."""
        return self.memory.load(self.type)

    @value.setter
    def value(self, value: Operand) -> None:
        self.memory.store(value, self.type)


class Code:
    """The instructions of one function."""

    def __init__(self, module: Module, attributes: str, result: str) -> None:
        self.module = module
        self.text = module.function(attributes)
        self.result = result
        """Type of the function's result."""

    def value(self, value: Operand, type_: str) -> Value:
        """Returns an operand of that type: numbers, None and symbols are constants."""
        if isinstance(value, Symbol):
            value.define(self.module)
            return Value(self, "ptr", f"@{value.name}")
        found = value.pointer if isinstance(value, Fields) else value
        made = found if isinstance(found, Value) else Value(self, type_, "null" if found is None else str(found))
        if made.type != type_:
            raise TypeError(f"needs {type_}, got {made.type}")
        return made

    def string(self, text: str) -> Value:
        """Returns the address of a zero-terminated constant."""
        constant = Symbol(f"text_{len(self.module.helpers)}", f"private constant {c_string(text)}")
        return self.value(constant, "ptr")

    def op(self, type_: str, instruction: str) -> Value:
        """Emits an instruction with a result."""
        return Value(self, type_, self.text.op(instruction))

    def do(self, instruction: str) -> None:
        """Emits an instruction without a result."""
        self.text.do(instruction)

    def call(self, callee: Value | str, result: str, parameters: Sequence[str], arguments: Sequence[Operand]) -> Value:
        """Emits a call; `...` ends the parameters of a function that takes more."""
        fixed = [p for p in parameters if p != "..."]
        more = arguments[len(fixed) :]
        if len(arguments) < len(fixed) or (more and len(fixed) == len(parameters)):
            raise TypeError(f"needs {len(fixed)} arguments, got {len(arguments)}")
        given = [f"{p} {self.value(a, p.split()[0]).name}" for p, a in zip(fixed, arguments, strict=False)]
        given += [str(a) if isinstance(a, Value) else f"i64 {a}" for a in more]
        name = callee.name if isinstance(callee, Value) else callee
        if len(fixed) < len(parameters):
            name = f"({', '.join(parameters)}) {name}"
        instruction = f"call {result} {name}({', '.join(given)})"
        if result != "void":
            return self.op(result, instruction)
        self.do(instruction)
        return Value(self, "void", "")

    def select(self, condition: Value, then: Operand, other: Operand, type_: str = "i64") -> Value:
        """Returns one of two values."""
        return self.op(type_, f"select {condition}, {self.value(then, type_)}, {self.value(other, type_)}")

    def smaller(self, a: Operand, b: Operand) -> Value:
        """Returns the smaller of two signed numbers."""
        return _SMALLER(self, a, b)

    def larger(self, a: Operand, b: Operand) -> Value:
        """Returns the larger of two signed numbers."""
        return _LARGER(self, a, b)

    def memory(self, type_: str, align: int = 8) -> Value:
        """Returns memory for the whole function."""
        return Value(self, "ptr", self.text.slot(type_, align))

    def array(self, type_: str, count: Value, align: int = 8) -> Value:
        """Returns memory from here to the end of the function."""
        return self.op("ptr", f"alloca {type_}, {count}, align {align}")

    def record(self, record: Record) -> Fields:
        """Returns memory of a record for the whole function."""
        return Fields(record, self.memory(f"[{record.size} x i8]"))

    def leave(self, value: Operand) -> None:
        """Returns from the function, as the last instruction of a block."""
        self.do("ret void" if self.result == "void" else f"ret {self.value(value, self.result)}")

    def give(self, value: Operand = None) -> None:
        """Returns from the function; what follows runs if a block around this one does not."""
        self.leave(value)
        self.text.begin(self.text.fresh_label("after"))

    def give_if(self, condition: Value, value: Operand = None) -> None:
        """Returns from the function if a condition holds."""
        with self.when(condition):
            self.give(value)

    @contextmanager
    def when(self, condition: Value) -> Generator[None]:
        """Opens a block that runs if a condition holds."""
        with self.text.when(condition.name):
            yield

    @contextmanager
    def each(self, start: Operand, stop: Operand, unroll: int | None = 1) -> Generator[Value]:
        """Opens a loop over the numbers from `start` up to `stop`; yields the number. None lets LLVM unroll it."""
        first, last = (self.value(bound, "i64").name for bound in (start, stop))
        with self.text.counted(first, last, 1, unroll) as k:
            yield Value(self, "i64", k)

    @contextmanager
    def loop(self) -> Generator[Callable[[Value], None]]:
        """Opens a loop that goes on for ever; yields a function that ends it if a condition holds."""
        head, done = self.text.fresh_label("head"), self.text.fresh_label("left")

        def leave(condition: Value) -> None:
            further = self.text.fresh_label("further")
            self.text.branch(condition.name, done, further)
            self.text.begin(further)

        self.text.jump(head)
        self.text.begin(head)
        yield leave
        self.text.jump(head)
        self.text.begin(done)


if TYPE_CHECKING:
    Ptr = NoAlias = I64 = I32 = I1 = Value
    Operand = Value | Symbol | Fields | int | None

MEMSET = External("void llvm.memset.p0.i64(ptr, i8, i64, i1)")
MEMCPY = External("void llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
_SMALLER = External("i64 llvm.smin.i64(i64, i64)")
_LARGER = External("i64 llvm.smax.i64(i64, i64)")


def c_string(text: str) -> str:
    """Returns a zero-terminated constant of LLVM IR with its type: `[3 x i8] c"ab\\00"`."""
    data = text.encode() + b"\0"
    plain = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
    return f'[{len(data)} x i8] c"{plain}"'


def module_text(symbols: Iterable[Symbol], triple: str) -> str:
    """Returns the text of a module with these symbols and what they need."""
    module = Module(triple=triple)
    for symbol in symbols:
        symbol.define(module)
    return module.render([])
