"""Growing LLVM IR as text: instructions of a function, declarations and metadata of a module."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.llvm.maths.library import PLAIN, Form, MathFunction, closure, collect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


LARGE = 1 << 10
"""Bytes of a private array that goes to the heap, where one is used (`heap`)."""
INLINED = 4000
"""Instructions of the maths library in a module beyond which its functions are called: about 90 of `sin`.

Measured, 64 to 256 calls in a body against the same inlined: 0.95 to 1.25 of the time, a fifth of the time to compile.
"""


class Module:
    """What a module holds beside its functions: declarations, functions of the maths library, metadata."""

    def __init__(self, form: Form = PLAIN) -> None:
        self.form = form
        """Of the maths library."""
        self.declarations: dict[str, str] = {}
        self.library: dict[str, MathFunction] = {}
        self.sites: Counter[str] = Counter()
        """Calls of each function of the library."""
        self.metadata: list[str] = []
        self.flags: tuple[str, ...] = ()
        """What LLVM is told of the module."""
        self.parts: list[str] = []
        """Functions that are parts of others."""
        self.helpers: dict[str, str] = {}
        """Functions of this module by what they are for."""

    def declare(self, symbol: str, result: str, arguments: str) -> None:
        """Declares an external function or intrinsic once."""
        if symbol not in self.declarations:
            self.declarations[symbol] = f"declare {result} @{symbol}({arguments})"

    def node(self, content: str) -> str:
        """A metadata node; returns its name."""
        self.metadata.append(content)
        return f"!{len(self.metadata) - 1}"

    def shared_node(self, content: str) -> str:
        """The metadata node with that content, for all that ask."""
        known = self.metadata
        return f"!{known.index(content)}" if content in known else self.node(content)

    def unrolled(self, times: int) -> str:
        """Metadata of the branch of a loop that LLVM is to unroll so often; 1: not at all."""
        hint = f'!"llvm.loop.unroll.count", i32 {times}' if times > 1 else '!"llvm.loop.unroll.disable"'
        how = self.node(f"!{{{hint}}}")
        return f", !llvm.loop {self.node(f'distinct !{{!{len(self.metadata)}, {how}}}')}"

    def render(self, functions: list[str]) -> str:
        """The whole module."""
        flags = [self.node(flag) for flag in self.flags]
        nodes = [f"!{n} = {content}" for n, content in enumerate(self.metadata)]
        if flags:
            nodes.append(f"!llvm.module.flags = !{{{', '.join(flags)}}}")
        library = collect(self.library.values(), self._called(), self.form)
        return "\n".join(
            [*functions, *self.parts, *self.helpers.values(), library, *self.declarations.values(), *nodes, ""]
        )

    def _called(self) -> set[str]:
        """Functions that are not inlined because the code would be too long, those with the most of it."""
        sizes = {symbol: self.sites[symbol] * self._inlined(function) for symbol, function in self.library.items()}
        called: set[str] = set()
        total = 0
        for symbol in sorted(sizes, key=lambda symbol: (sizes[symbol], symbol)):
            total += sizes[symbol]
            if total > INLINED:
                called.add(symbol)
        return called

    def _inlined(self, function: MathFunction) -> int:
        """Instructions of a call of the function that is inlined."""
        return sum(f.size for f in closure([function])) if self.form.inline_cold else function.size


class Text:
    """The instructions of one function, block after block."""

    def __init__(self, module: Module, attributes: str = "nounwind", private_space: int = 0) -> None:
        self.module = module
        self.private_space = private_space
        """Where stack slots are: `Target.private_space`."""
        self.alignment = 64
        """Of stack slots, in bytes, where nothing else is asked for: that of a vector."""
        self.attributes = attributes
        """What LLVM is told of the function."""
        self.entry: list[str] = []
        """Instructions at the very beginning (stack slots)."""
        self.heap: dict[str, int] | None = None
        """Where large private arrays are no stack slots: their registers, which the function takes, with the bytes."""
        self.lines: list[str] = []
        self.label = "entry"
        """The block that is being filled."""
        self._count = 0

    def name(self) -> str:
        """A fresh register."""
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
        """A label not used yet."""
        self._count += 1
        return f"{hint}{self._count}"

    def begin(self, label: str) -> None:
        """Starts a block; the one before must be closed."""
        self.lines.append(f"{label}:")
        self.label = label

    def jump(self, label: str) -> None:
        """Closes the block."""
        self.do(f"br label %{label}")

    def branch(self, condition: str, then: str, other: str, metadata: str = "") -> None:
        """Closes the block with a choice."""
        self.do(f"br i1 {condition}, label %{then}, label %{other}{metadata}")

    def hole(self) -> int:
        """Room for an instruction that is known later (a phi of a loop)."""
        self.lines.append("")
        return len(self.lines) - 1

    def fill(self, hole: int, instruction: str) -> None:
        """Puts the instruction into its room."""
        self.lines[hole] = "  " + instruction

    @contextmanager
    def counted(self, start: str, stop: str, step: int, unroll: int | None = 1) -> Generator[str]:
        """A loop over `start, start + step, ...` below `stop`, all i64; gives the counter.

        LLVM unrolls it so often; None: as it likes.
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
        """A block that is run where a condition holds."""
        then, done = self.fresh_label("then"), self.fresh_label("done")
        self.branch(condition, then, done)
        self.begin(then)
        yield
        self.jump(done)
        self.begin(done)

    def slot(self, type_: str, align: int = 0) -> str:
        """Stack memory of the whole function; gives a plain pointer."""
        register, made = self.name(), f"alloca {type_}, align {align or self.alignment}"
        if not self.private_space:
            self.entry.append(f"  {register} = {made}")
            return register
        space, there = f"addrspace({self.private_space})", self.name()
        self.entry += [f"  {there} = {made}, {space}", f"  {register} = addrspacecast ptr {space} {there} to ptr"]
        return register

    def array(self, type_: str, nbytes: int) -> str:
        """Private memory of the whole function, on the stack or from the heap; gives a plain pointer."""
        if self.heap is None or nbytes < LARGE:
            return self.slot(type_)
        register = self.name()
        self.heap[register] = nbytes
        return register

    def memory(self, register: str, nbytes: int) -> None:
        """The same for a register that is in use already: memory whose size is known at the end."""
        if self.heap is None or nbytes < LARGE:
            self.entry.append(f"  {register} = alloca [{nbytes} x i8], align 64")
        else:
            self.heap[register] = nbytes

    @contextmanager
    def apart(self) -> Generator[Callable[[str], str]]:
        """Another function, between two instructions of this one; gives what renders it. Names go on."""
        before = self.entry, self.lines, self.label, self.heap
        self.entry, self.lines, self.label, self.heap = [], [], "entry", None
        try:
            yield self.render
        finally:
            self.entry, self.lines, self.label, self.heap = before

    def render(self, header: str) -> str:
        """The function."""
        return "\n".join([f"{header} {self.attributes} {{", "entry:", *self.entry, *self.lines, "}"])
