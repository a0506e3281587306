"""Questions about compiled Python code, for diagnosis only: which variables may be read before they are set again,
and where execution goes after a `with` block. Nothing here ever builds a part of a program.

Knows the instruction sets of CPython 3.11 to 3.14, those of 3.14 by the names that they had before.
"""

from __future__ import annotations

import bisect
import dis
import functools
import itertools
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any

_ACCESS = re.compile("(LOAD|STORE|DELETE)_(FAST|DEREF|CLOSURE|CLASSDEREF|NAME|GLOBAL|FROM_DICT)")
_JUMPS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_APPENDS = {"LIST_APPEND", "SET_ADD", "MAP_ADD"}
_COMPARES = {"COMPARE_OP", "CONTAINS_OP", "IS_OP"}
_RENAMED = {"LOAD_FAST_BORROW": "LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST_LOAD_FAST"}
_PADDING = {"EXTENDED_ARG", "NOT_TAKEN"}
_HAS_TARGET = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


def _names(instruction: dis.Instruction) -> tuple[str, ...]:
    value = instruction.argval
    return value if isinstance(value, tuple) else (value,)


def _accesses(instruction: dis.Instruction) -> list[tuple[str, str]]:
    """Returns the variables that an instruction reads, writes or hides."""
    op = instruction.opname
    if op == "STORE_FAST_LOAD_FAST":
        stored, loaded = _names(instruction)
        return [(stored, "write"), (loaded, "read")]
    if op == "LOAD_FAST_AND_CLEAR":
        return [(name, "hidden") for name in _names(instruction)]
    found = _ACCESS.match(op)
    return [(name, "read" if found[1] == "LOAD" else "write") for name in _names(instruction)] if found else []


def _renamed(instruction: dis.Instruction, before: str) -> dis.Instruction:
    """Returns an instruction of 3.14 by its name of 3.13; `before` is the attribute that the one in front loads."""
    name = _RENAMED.get(instruction.opname, instruction.opname)
    if name == "BINARY_OP" and instruction.argrepr == "[]":
        name = "BINARY_SUBSCR"
    elif name == "CALL" and before == "__enter__":  # a `with` block loads its two methods and calls the first
        name = "BEFORE_WITH"
    return instruction if name == instruction.opname else instruction._replace(opname=name)


Span = tuple[tuple[int, int], tuple[int, int]]
"""Line and column of both ends of a piece of source."""


def _begin(instruction: dis.Instruction) -> object:
    """Returns the line and column at which the source of an instruction begins."""
    span = _span(instruction)
    return object() if span is None else span[0]


def _span(instruction: dis.Instruction) -> Span | None:
    """Returns where the source of an instruction is; None if that is not known."""
    match instruction.positions:
        case (int() as line, int() as end_line, int() as column, int() as end_column):
            return (line, column), (end_line, end_column)
        case _:
            return None


class CodeMap:
    """The instructions of a code object as a graph; an instruction is named by its position in the list."""

    def __init__(self, code: CodeType) -> None:
        self._cells = frozenset(code.co_cellvars)
        self._free = frozenset(code.co_freevars)
        self.instructions: list[dis.Instruction] = []
        self._position: dict[int, int] = {}
        special = ""
        for instruction in dis.get_instructions(code):
            # A jump to an instruction with a long argument goes to its prefix.
            self._position[instruction.offset] = len(self.instructions)
            if instruction.opname not in _PADDING:
                self.instructions.append(_renamed(instruction, special))
            special = instruction.argrepr if instruction.opname == "LOAD_SPECIAL" else ""
        self._offsets = [i.offset for i in self.instructions]
        handlers: Any = dis.Bytecode(code)
        self._handlers = [(entry.start, entry.end, entry.target) for entry in handlers.exception_entries]
        self._accesses: dict[str, dict[int, str]] = {}
        for position, instruction in enumerate(self.instructions):
            for name, access in _accesses(instruction):
                self._accesses.setdefault(name, {}).setdefault(position, access)
        self._first_reads: dict[str, dict[int, int]] = {}

    def at(self, offset: int) -> int:
        """Returns the position of the instruction that holds this offset (which may point into its inline cache)."""
        return bisect.bisect_right(self._offsets, offset) - 1

    def opname(self, position: int) -> str:
        """Returns the name of the instruction."""
        return self.instructions[position].opname

    def line(self, position: int) -> int | None:
        """Returns the source line of the instruction."""
        positions = self.instructions[position].positions
        return positions.lineno if positions else None

    def is_compared(self, position: int) -> bool:
        """Returns whether the source of the instruction is in a comparison."""
        span = _span(self.instructions[position])
        if span is None:
            return False
        start, end = span
        return any(a <= start and end <= b for a, b in self._comparisons.get(start[0], ()))

    @functools.cached_property
    def _comparisons(self) -> dict[int, set[Span]]:
        """Returns where comparisons are in the source, by each line that they have."""
        found: dict[int, set[Span]] = {}
        spans = [_span(i) for i in self.instructions if i.opname in _COMPARES]
        for span in [one for one in spans if one is not None]:
            for line in range(span[0][0], span[1][0] + 1):
                found.setdefault(line, set()).add(span)
        return found

    def target(self, position: int) -> int | None:
        """Returns the position that a jump may go to; None for other instructions."""
        instruction = self.instructions[position]
        return self._position.get(instruction.argval) if instruction.opcode in _HAS_TARGET else None

    def successors(self, position: int) -> Iterator[int]:
        """Yields the positions that may run next, exceptions aside."""
        name = self.opname(position)
        target = self.target(position)
        if target is not None:
            yield target
        if name not in _JUMPS and name not in _ENDS and position + 1 < len(self.instructions):
            yield position + 1

    def first_read(self, name: str, start: int) -> int | None:
        """Returns a read of the variable from `start` on, or the making of a function that reads it, before a write."""
        if name not in self._first_reads:
            self._first_reads[name] = self._ahead(name, self._accesses.get(name, {}))
        return self._first_reads[name].get(start)

    def caught_read(self, name: str, start: int) -> bool:
        """Returns whether there is such a read as `first_read` finds, and one where exceptions are caught."""
        if self.first_read(name, start) is None:
            return False
        reads = [self._offsets[p] for p, access in self._accesses[name].items() if access == "read"]
        return any(begin <= offset < end for begin, end, _ in self._handlers for offset in reads)

    def always_read(self, name: str, start: int, barrier: int | None = None) -> int | None:
        """Returns the first read of a variable that all paths from `start` read before they do else with it."""
        if self.first_read(name, start) is None:
            return None
        seen: set[int] = set()
        reads: list[int] = []
        work = [start]
        while work:
            position = work.pop()
            if position in seen:
                continue
            seen.add(position)
            access = self._access(name, position)
            if access == "read" and not self._is_capture(position):
                reads.append(position)
                continue
            following = [] if access is not None or position == barrier else list(self.successors(position))
            if not following:
                return None
            work.extend(following)
        return min(reads, default=None)

    def _is_capture(self, position: int) -> bool:
        """Returns whether the read only makes a function, which may read the variable when it is called."""
        return self.opname(position) == "LOAD_CLOSURE" or (
            self.opname(position) == "LOAD_FAST" and self.instructions[position].argval in self._cells | self._free
        )

    def is_captured(self, name: str, end: int) -> bool:
        """Returns whether a function made before `end`, or outside, closes over the variable, and so may read it."""
        if name in self._free:
            return True
        capture = {"LOAD_CLOSURE", "LOAD_FAST"}
        return name in self._cells and any(i.opname in capture and i.argval == name for i in self.instructions[:end])

    def is_written(self, name: str, start: int, end: int) -> bool:
        """Returns whether an instruction between the positions sets the variable."""
        return any(start <= p < end for p, access in self._accesses.get(name, {}).items() if access == "write")

    def updated(self, position: int) -> str | None:
        """Returns the local variable that an in-place operator sets, `v` for that of `v += 1`; None for all else."""
        operator, *behind = self.instructions[position : position + 2]
        is_update = operator.opname == "BINARY_OP" and operator.argrepr.endswith("=")
        return _names(behind[0])[0] if is_update and behind[0].opname.startswith("STORE_FAST") else None

    def is_used(self, name: str, store: int) -> bool:
        """Returns whether code after this store of a variable may read it, other than to update it in place."""
        updates = [p for p in range(len(self.instructions)) if self.updated(p) == name]
        begins = {_begin(self.instructions[p]) for p in updates}  # they begin with the variable
        others: dict[int, str] = {}
        for position, access in self._accesses[name].items():
            instruction = self.instructions[position]
            if name in _names(instruction)[1:]:  # it loads two, or stores and loads
                others[position] = "read"
            elif position - 1 not in updates and not (access == "read" and _begin(instruction) in begins):
                others[position] = access
        return store in self._ahead(name, others)

    @functools.cached_property
    def copies(self) -> frozenset[tuple[str, str]]:
        """All (a, b) with a statement `a = b` of two variables, or `a = b = value`."""
        found: set[tuple[str, str]] = set()
        for position in range(len(self.instructions)):
            found |= set(itertools.permutations(self._targets(position), 2))
        for first, second in itertools.pairwise(self.instructions):
            read, written = _accesses(first)[-1:], _accesses(second)[:1]
            if read and written and (read[0][1], written[0][1]) == ("read", "write") and "STORE" in second.opname:
                found.add((written[0][0], read[0][0]))
        return frozenset(found)

    def _targets(self, position: int) -> list[str]:
        """Returns the variables of a statement `a = b = value` that stores them from this position on; else nothing."""
        targets: list[str] = []
        while self.opname(position) == "COPY" and self.opname(position + 1).startswith("STORE_"):
            targets += [name for name, kind in _accesses(self.instructions[position + 1]) if kind == "write"]
            position += 2  # there is a copy for each target but the last
        if len(targets) == 1 and self.opname(position).startswith("STORE_"):
            targets += [name for name, kind in _accesses(self.instructions[position]) if kind == "write"]
        return targets

    def _ahead(self, name: str, accesses: dict[int, str]) -> dict[int, int]:
        """Returns a read before the next write for all positions that have one, from the reads backward."""
        ahead: dict[int, int] = {}
        resumed: dict[int, list[int]] = {}
        for position, access in accesses.items():
            if access == "hidden":
                resumed.setdefault(self._comprehension_end(name, position), []).append(position)
        for read in sorted(p for p, access in accesses.items() if access == "read"):
            ahead[read] = read
            work = [read]
            while work:
                position = work.pop()
                before = [p for p in self._predecessors[position] if p not in accesses] + resumed.get(position, [])
                for p in before:
                    if p not in ahead:
                        ahead[p] = read
                        work.append(p)
        return ahead

    @functools.cached_property
    def _predecessors(self) -> list[list[int]]:
        """Predecessors of each instruction, exception edges included."""
        found: list[list[int]] = [[] for _ in self.instructions]
        for position in range(len(self.instructions)):
            for following in (*self.successors(position), *self._caught.get(position, ())):
                found[following].append(position)
        return found

    @functools.cached_property
    def _caught(self) -> dict[int, list[int]]:
        """Position -> handlers (`except`, `finally`) of its exceptions. A `with` has none, as it raises them again."""
        found: dict[int, list[int]] = {}
        for start, end, handler in self._handlers:
            target = self._position.get(handler)
            if target is None or self.opname(target + 1) == "WITH_EXCEPT_START":
                continue
            for position in range(self.at(start), len(self.instructions)):
                if self._offsets[position] >= end:
                    break
                found.setdefault(position, []).append(target)
        return found

    def _access(self, name: str, position: int) -> str | None:
        return self._accesses.get(name, {}).get(position)

    def _comprehension_end(self, name: str, position: int) -> int:
        """Returns the position after an inlined comprehension, which hides the variable and restores it."""
        end = position
        while end < len(self.instructions) and self.opname(end) != "FOR_ITER":
            end += 1
        end = self.target(end) or end if end < len(self.instructions) else end
        while end < len(self.instructions) and self._access(name, end) != "write":
            end += 1
        return end + 1

    def is_comprehension(self, loop: int) -> bool:
        """Returns whether the FOR_ITER at this position belongs to an inlined comprehension."""
        if loop > 0 and self.opname(loop - 1) == "SWAP":
            return True
        inner: int | None = None
        for position in range(loop, self.target(loop) or loop):
            if self.opname(position) == "FOR_ITER":
                inner = position
            appends = self.opname(position) in _APPENDS and (self.instructions[position].arg or 0) > 1
            if appends and inner == loop:
                return True
        return False

    def after_with(self, enter: int) -> int | None:
        """Returns the position behind a `with` whose BEFORE_WITH is at `enter`; None if it is not found.

        Read off the path on which `__exit__` swallows an exception: it is always there, also when the normal end of
        the block is unreachable.
        """
        offset = self._offsets[enter + 1]
        handler = next((self._position.get(h) for s, e, h in self._handlers if s <= offset < e), None)
        if handler is None or self.opname(handler + 1) != "WITH_EXCEPT_START":
            return None
        jump = handler + 2
        while not self.opname(jump).startswith("POP_JUMP"):
            jump += 1
        position = self.target(jump)
        for expected in ("POP_TOP", "POP_EXCEPT", "POP_TOP", "POP_TOP"):
            if position is None or self.opname(position) != expected:
                return None
            position += 1
        return self.follow(position + (sys.version_info >= (3, 14)))  # one more is popped there

    def after_exit(self, call: int) -> int | None:
        """Returns the position at which execution continues after this call of `__exit__`; None if it is unknown."""
        return self.follow(call + 2) if self.opname(call + 1) == "POP_TOP" else None

    def follow(self, position: int) -> int:
        """Returns the first instruction that does something, after jumps."""
        while self.opname(position) in _JUMPS or self.opname(position) == "NOP":
            target = self.target(position)
            position = position + 1 if target is None else target
        return position

    def same_code(self, a: int, b: int) -> bool:
        """Returns whether both positions run the same code: one position, or copies of what leads to one, or returns.

        Python 3.13 copies the end of an `except` clause for the path on which `__exit__` swallows an exception.
        """
        for _ in self.instructions:
            if a == b:
                return True
            one, two = self.instructions[a], self.instructions[b]
            if (one.opname, one.argval) != (two.opname, two.argval) or one.opcode in _HAS_TARGET:
                return False
            if one.opname in _ENDS:
                return True
            a, b = self.follow(a + 1), self.follow(b + 1)
        return False


@functools.lru_cache(maxsize=512)
def code_map(code: CodeType) -> CodeMap:
    """Returns the instruction graph of a code object."""
    return CodeMap(code)
