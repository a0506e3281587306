"""Growing LLVM IR as text: instructions of a function, declarations and metadata of a module."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lowering.llvm.maths.library import MathFunction, collect
from lowering.llvm.parts import PART, WHOLE, Stretch, split

if TYPE_CHECKING:
    from collections.abc import Generator


INLINED = 4000
"""Instructions of the maths library in a module beyond which its functions are called: about 90 of `sin`.

Measured, 64 to 256 calls in a body against the same inlined: 0.95 to 1.25 of the time, a fifth of the time to compile.
"""


class Module:
    """What a module holds beside its functions: declarations, functions of the maths library, metadata."""

    def __init__(self) -> None:
        self.declarations: dict[str, str] = {}
        self.library: dict[str, MathFunction] = {}
        self.sites: Counter[str] = Counter()
        """Calls of each function of the library."""
        self.metadata: list[str] = []
        self.parts = 0
        """Functions that were split."""
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

    def render(self, functions: list[str]) -> str:
        """The whole module."""
        nodes = [f"!{n} = {content}" for n, content in enumerate(self.metadata)]
        library = collect(self.library.values(), called=self._called())
        return "\n".join([*functions, *self.helpers.values(), library, *self.declarations.values(), *nodes, ""])

    def _called(self) -> set[str]:
        """Functions that are not inlined because the code would be too long, those with the most of it."""
        sizes = {symbol: self.sites[symbol] * function.size for symbol, function in self.library.items()}
        called: set[str] = set()
        total = 0
        for symbol in sorted(sizes, key=lambda symbol: (sizes[symbol], symbol)):
            total += sizes[symbol]
            if total > INLINED:
                called.add(symbol)
        return called


class Text:
    """The instructions of one function, block after block."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.entry: list[str] = []
        """Instructions at the very beginning (stack slots)."""
        self.lines: list[str] = []
        self.label = "entry"
        """The block that is being filled."""
        self.exits: list[int] = []
        """Lines that leave the function early."""
        self.stretches: list[Stretch] = []
        """What may become functions, in order."""
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

    def leave(self, instructions: str) -> None:
        """Closes the block and leaves the function before its end."""
        self.exits.append(len(self.lines))
        self.do(instructions)

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
    def counted(self, start: str, stop: str, step: int, unroll: int = 1) -> Generator[str]:
        """A loop over `start, start + step, ...` below `stop`, all i64; gives the counter. LLVM unrolls it so often."""
        loop, done, before = self.fresh_label("loop"), self.fresh_label("looped"), self.label
        self.branch(self.op(f"icmp slt i64 {start}, {stop}"), loop, done)
        self.begin(loop)
        counter, hole = self.name(), self.hole()
        yield counter
        following = self.op(f"add nsw i64 {counter}, {step}")
        again = self.op(f"icmp slt i64 {following}, {stop}")
        self.fill(hole, f"{counter} = phi i64 [ {start}, %{before} ], [ {following}, %{self.label} ]")
        hint = f'!"llvm.loop.unroll.count", i32 {unroll}' if unroll > 1 else '!"llvm.loop.unroll.disable"'
        how = self.module.node(f"!{{{hint}}}")
        node = self.module.node(f"distinct !{{!{len(self.module.metadata)}, {how}}}")
        self.branch(again, loop, done, f", !llvm.loop {node}")
        self.begin(done)

    def slot(self, type_: str, align: int = 64) -> str:
        """Stack memory of the whole function."""
        register = self.name()
        self.entry.append(f"  {register} = alloca {type_}, align {align}")
        return register

    def here(self) -> tuple[int, str]:
        """Where a stretch may begin."""
        return len(self.lines), self.label

    def cut(self, since: tuple[int, str]) -> tuple[int, str]:
        """Marks what was written since a place of the same block of the graph, if it is long enough; gives where the
        next stretch begins."""
        start, first = since
        if self.stretches and self.stretches[-1].stop > start:
            return self.here()
        if len(self.lines) - start < PART:
            return since
        self.stretches.append(Stretch(start, len(self.lines), first, self.label))
        return self.here()

    def render(self, header: str) -> str:
        """The function, and those that are parts of it."""
        lines, parts = self.lines, []
        if len(lines) > WHOLE and self.stretches:
            prefix = f"qd_part{self.module.parts}_"
            self.module.parts += 1
            lines, parts = split(header, self.entry, lines, self.stretches, self.exits, prefix)
        return "\n".join([header + " {", "entry:", *self.entry, *lines, "}", *parts])
