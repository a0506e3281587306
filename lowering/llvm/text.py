"""LLVM IR text that grows: instructions of a function, declarations and metadata of a module."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.llvm.maths.definitions import PLAIN, Form, MathFunction, closure, collect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


LARGE = 1 << 10
"""The fewest bytes of a private array that goes to the heap, if one is used (`heap`)."""
INLINED = 4000
"""The most inlined instructions of the maths library in a module; beyond them functions are called. `sin` has 90.

Measured, 64 to 256 calls in a body against the same inlined: 0.95 to 1.25 of the time, a fifth of the time to compile.
"""


class Module:
    """A module's declarations, functions of the maths library, and metadata."""

    def __init__(self, form: Form = PLAIN, triple: str = "") -> None:
        self.form = form
        """Form in which the maths library is written."""
        self.triple = triple
        """LLVM's name of the machine, for code that differs between systems."""
        self.types: dict[str, str] = {}
        """Definitions of types, by name; LLVM reads them before what has such values."""
        self.declarations: dict[str, str] = {}
        self.library: dict[str, MathFunction] = {}
        self.sites: Counter[str] = Counter()
        """Number of calls of each function of the library."""
        self.metadata: list[str] = []
        self.flags: tuple[str, ...] = ()
        """Module flags, as metadata."""
        self.parts: list[str] = []
        """Functions that are parts of others."""
        self.helpers: dict[str, str] = {}
        """Definitions of helper functions and globals, by name."""

    def function(self, attributes: str) -> Text:
        """Returns the instructions of a new function."""
        return Text(self, attributes)

    def declare(self, symbol: str, result: str, arguments: str) -> None:
        """Declares an external function or intrinsic once."""
        if symbol not in self.declarations:
            self.declarations[symbol] = f"declare {result} @{symbol}({arguments})"

    def node(self, content: str) -> str:
        """Adds a metadata node and returns its name."""
        self.metadata.append(content)
        return f"!{len(self.metadata) - 1}"

    def shared_node(self, content: str) -> str:
        """Returns the name of the one metadata node with that content."""
        known = self.metadata
        return f"!{known.index(content)}" if content in known else self.node(content)

    def unrolled(self, times: int) -> str:
        """Returns metadata for a loop's branch that makes LLVM unroll it so often; 1: not at all."""
        hint = f'!"llvm.loop.unroll.count", i32 {times}' if times > 1 else '!"llvm.loop.unroll.disable"'
        how = self.node(f"!{{{hint}}}")
        return f", !llvm.loop {self.node(f'distinct !{{!{len(self.metadata)}, {how}}}')}"

    def render(self, functions: list[str]) -> str:
        """Returns the text of the module."""
        flags = [self.node(flag) for flag in self.flags]
        nodes = [f"!{n} = {content}" for n, content in enumerate(self.metadata)]
        if flags:
            nodes.append(f"!llvm.module.flags = !{{{', '.join(flags)}}}")
        library = collect(self.library.values(), self._called(), self.form)
        return "\n".join(
            [*self.types.values(), *functions, *self.parts, *self.helpers.values(), library,
             *self.declarations.values(), *nodes, ""]
        )  # fmt: skip

    def _called(self) -> set[str]:
        """Returns the library functions, largest in all, that are called because inlining would exceed `INLINED`."""
        sizes = {symbol: self.sites[symbol] * self._inlined(function) for symbol, function in self.library.items()}
        called: set[str] = set()
        total = 0
        for symbol in sorted(sizes, key=lambda symbol: (sizes[symbol], symbol)):
            total += sizes[symbol]
            if total > INLINED:
                called.add(symbol)
        return called

    def _inlined(self, function: MathFunction) -> int:
        """Returns the instructions of one inlined call of the function."""
        return sum(f.size for f in closure([function])) if self.form.inline_cold else function.size


class Text:
    """The instructions of one function, block after block."""

    def __init__(self, module: Module, attributes: str = "nounwind", private_space: int = 0) -> None:
        self.module = module
        self.private_space = private_space
        """Address space of stack slots: `Target.private_space`."""
        self.alignment = 64
        """Default alignment of stack slots in bytes: that of a vector."""
        self.attributes = attributes
        """LLVM attributes of the function."""
        self.entry: list[str] = []
        """Instructions at the beginning of the entry block: stack slots."""
        self.heap: dict[str, int] | None = None
        """Bytes of large private arrays by register, which become parameters; None if they are stack slots."""
        self.lines: list[str] = []
        self.label = "entry"
        """The block that is being filled."""
        self.pairs: dict[str, tuple[str, str]] = {}
        """The last block that calls a function of several results with these operands, and their register."""
        self._spare: dict[bool, str] = {}
        self._count = 0

    def name(self) -> str:
        """Returns a fresh register."""
        self._count += 1
        return f"%v{self._count}"

    def op(self, instruction: str) -> str:
        """Appends an instruction with a result; returns the register."""
        self._count += 1
        register = f"%v{self._count}"
        self.lines.append(f"  {register} = {instruction}")
        return register

    def do(self, instruction: str) -> None:
        """Appends an instruction without a result."""
        self.lines.append("  " + instruction)

    def fresh_label(self, hint: str) -> str:
        """Returns a fresh label."""
        self._count += 1
        return f"{hint}{self._count}"

    def begin(self, label: str) -> None:
        """Starts a block; the previous one must be closed."""
        self.lines.append(f"{label}:")
        self.label = label

    def jump(self, label: str) -> None:
        """Closes the block with a jump."""
        self.do(f"br label %{label}")

    def branch(self, condition: str, then: str, other: str, metadata: str = "") -> None:
        """Closes the block with a conditional branch."""
        self.do(f"br i1 {condition}, label %{then}, label %{other}{metadata}")

    def hole(self) -> int:
        """Reserves the place of an instruction that is known later (a phi of a loop) and returns its number."""
        self.lines.append("")
        return len(self.lines) - 1

    def fill(self, hole: int, instruction: str) -> None:
        """Puts an instruction into its reserved place."""
        self.lines[hole] = "  " + instruction

    @contextmanager
    def counted(self, start: str, stop: str, step: int, unroll: int | None = 1) -> Generator[str]:
        """Opens a loop over `start, start + step, ...` below `stop`, all i64; yields the counter.

        LLVM unrolls it `unroll` times; None lets LLVM decide.
        """
        loop, done, before = self.fresh_label("loop"), self.fresh_label("looped"), self.label
        self.branch(self.op(f"icmp slt i64 {start}, {stop}"), loop, done)
        self.begin(loop)
        counter, hole = self.name(), self.hole()
        yield counter
        following = self.op(f"add nsw i64 {counter}, {step}")
        again = self.op(f"icmp slt i64 {following}, {stop}")
        self.fill(hole, f"{counter} = phi i64 [ {start}, %{before} ], [ {following}, %{self.label} ]")
        metadata = "" if unroll is None else self.module.unrolled(unroll)
        self.branch(again, loop, done, metadata)
        self.begin(done)

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """Opens a block that runs if a condition holds."""
        then, done = self.fresh_label("then"), self.fresh_label("done")
        self.branch(condition, then, done)
        self.begin(then)
        yield
        self.jump(done)
        self.begin(done)

    def slot(self, type_: str, align: int = 0) -> str:
        """Allocates stack memory for the whole function; returns a plain pointer."""
        register, made = self.name(), f"alloca {type_}, align {align or self.alignment}"
        if not self.private_space:
            self.entry.append(f"  {register} = {made}")
            return register
        space, there = f"addrspace({self.private_space})", self.name()
        self.entry += [f"  {there} = {made}, {space}", f"  {register} = addrspacecast ptr {space} {there} to ptr"]
        return register

    def spare(self, *, cleared: bool) -> str:
        """Returns a slot of 8 bytes that inactive lanes access; the one for loads is `cleared`, and never stored to."""
        if cleared not in self._spare:
            self._spare[cleared] = self.slot("i64")
            if cleared:
                self.entry.append(f"  store i64 0, ptr {self._spare[cleared]}")
        return self._spare[cleared]

    def array(self, type_: str, nbytes: int) -> str:
        """Allocates private memory for the whole function, on the stack or the heap; returns a plain pointer."""
        if self.heap is None or nbytes < LARGE:
            return self.slot(type_)
        register = self.name()
        self.heap[register] = nbytes
        return register

    def memory(self, register: str, nbytes: int) -> None:
        """Allocates private memory for a register that is in use already, once its size is known."""
        if self.heap is None or nbytes < LARGE:
            self.entry.append(f"  {register} = alloca [{nbytes} x i8], align 64")
        else:
            self.heap[register] = nbytes

    @contextmanager
    def apart(self) -> Generator[Callable[[str], str]]:
        """Begins another function between two instructions of this one; yields its `render`. Names stay unique."""
        before = self.entry, self.lines, self.label, self.heap, self._spare
        self.entry, self.lines, self.label, self.heap, self._spare = [], [], "entry", None, {}
        try:
            yield self.render
        finally:
            self.entry, self.lines, self.label, self.heap, self._spare = before

    def render(self, header: str) -> str:
        """Returns the text of the function."""
        return "\n".join([f"{header} {self.attributes} {{", "entry:", *self.entry, *self.lines, "}"])
