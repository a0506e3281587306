"""Long functions in parts: stretches of code become functions of their own.

LLVM's instruction selection, register allocation and motion out of loops take time that grows faster than the
function they work on. So the emitter marks stretches of `PART` instructions while it writes a block, and where a
function has more than `WHOLE` instructions, each stretch becomes a function that gets what it uses as arguments and
returns what others use. Whatever is inside of a stretch (loops and branches too) stays together; a stretch begins and
ends in one place of the code, but for failed checks: then the function returns that its caller has to leave.

Measured on 4000 steps of `v * v + c`, CPU time of code generation: 0.97 s in one piece, 0.25 s in parts; run time
1.02 to 1.15 of that in one piece; 2000 checked gathers: 51 s and 3.0 s. Shorter functions stay whole, as values that
cross a border go through memory.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PART = 1000
"""Instructions of a stretch, at least."""
WHOLE = 4000
"""Instructions of a function that stays as it is, at most."""
_NAME = re.compile(r"%[\w.]+")
_TYPE = re.compile(r"<\d+ x [^>]+>|\{[^}]*\}|\[\d+ x [^\]]+\]|\b(?:ptr|float|double|half|bfloat|i\d+)\b")
_VECTOR = re.compile(r"<(\d+) x ([^>]+)>")
_CASTS = frozenset({
    "trunc", "zext", "sext", "fptrunc", "fpext", "fptosi", "fptoui", "sitofp", "uitofp", "ptrtoint", "inttoptr",
    "bitcast",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stretch:
    """Lines of a function that control enters in the block `first` and leaves in the block `last`."""

    start: int
    stop: int
    first: str
    last: str


def split(
    header: str,
    entry: Sequence[str],
    lines: Sequence[str],
    stretches: Sequence[Stretch],
    exits: Sequence[int],
    prefix: str,
) -> tuple[list[str], list[str]]:
    """The lines of the function, with calls in the places of the stretches, and the functions that these became.

    Lines of `exits` leave the function. In a stretch they return to it, with a bit that says so.
    """
    uses = [_NAME.findall(line) for line in lines]
    for n in exits:
        uses[n] = []
    before = [*_NAME.findall(header.partition("(")[2]), *(_NAME.findall(line)[0] for line in entry)]
    defined = dict.fromkeys(before, -1)
    """Line of each register; -1 for what there is before the first."""
    for n, line in enumerate(lines):
        if line.startswith("  %"):
            defined[uses[n][0]] = n
    ends: dict[str, tuple[int, int]] = {}
    """First and last line that has a register."""
    for n, names in enumerate(uses):
        for name in names:
            if name in defined:
                low, high = ends.get(name, (n, n))
                ends[name] = (min(low, n), max(high, n))
    types = _Types(header, entry, lines, defined)
    attributes = header.rpartition(")")[2]
    out: list[str] = []
    functions: list[str] = []
    done = 0
    for k, s in enumerate(stretches):
        inside = range(s.start, s.stop)
        mentioned = dict.fromkeys(name for n in inside for name in uses[n] if name in defined)
        taken = [name for name in mentioned if defined[name] not in inside]
        given = [n for n in mentioned if defined[n] in inside and not (ends[n][0] in inside and ends[n][1] in inside)]
        leaving = exits[bisect_left(exits, s.start) : bisect_left(exits, s.stop)]
        part = _Part(f"{prefix}{k}", [f"{types.of(name)} {name}" for name in taken], given, list(map(types.of, given)))
        body = list(lines[s.start : s.stop])
        for n in leaving:
            body[n - s.start] = part.leave()
        ending = part.ending(bool(leaving))
        header_line = f"define internal fastcc {part.result(bool(leaving))} @{part.symbol}({', '.join(part.arguments)})"
        functions.append("\n".join([f"{header_line} noinline{attributes} {{", f"{s.first}:", *body, *ending, "}"]))
        out += lines[done : s.start]
        out += part.call(lines[leaving[0]] if leaving else "", s)
        done = s.stop
    return [*out, *lines[done:]], functions


@dataclass(frozen=True, slots=True)
class _Part:
    """A function that a stretch became: what it takes, and the registers it gives with their types."""

    symbol: str
    arguments: Sequence[str]
    given: Sequence[str]
    kinds: Sequence[str]

    def result(self, leaves: bool) -> str:
        """The type that it returns."""
        kinds = ["i1", *self.kinds] if leaves else self.kinds
        if len(kinds) < 2:
            return kinds[0] if kinds else "void"
        return f"{{ {', '.join(kinds)} }}"

    def leave(self) -> str:
        """Returns from the middle of it, so that its caller leaves too."""
        rest = "".join(f", {kind} poison" for kind in self.kinds)
        return f"  ret {self.result(True)} {{ i1 true{rest} }}" if rest else "  ret i1 true"

    def ending(self, leaves: bool) -> Iterator[str]:
        """Returns at the end."""
        result = self.result(leaves)
        if not result.startswith("{"):
            value = "i1 false" if leaves else f"{result} {self.given[0]}" if self.given else "void"
            yield f"  ret {value}"
            return
        whole = "poison"
        values = ["i1 false"] if leaves else []
        values += [f"{kind} {name}" for kind, name in zip(self.kinds, self.given, strict=True)]
        for k, value in enumerate(values):
            yield f"  %result{k} = insertvalue {result} {whole}, {value}, {k}"
            whole = f"%result{k}"
        yield f"  ret {result} {whole}"

    def call(self, leave: str, s: Stretch) -> Iterator[str]:
        """What stands in the place of the stretch; `leave` is how the function is left, if the stretch may do so."""
        result, whole = self.result(bool(leave)), f"%{self.symbol}"
        call = f"call fastcc {result} @{self.symbol}({', '.join(self.arguments)})"
        if not result.startswith("{"):
            name = whole if leave else self.given[0] if self.given else ""
            yield f"  {name} = {call}" if name else f"  {call}"
        else:
            yield f"  {whole} = {call}"
        if leave:
            left = whole
            if result.startswith("{"):
                left = f"{whole}.left"
                yield f"  {left} = extractvalue {result} {whole}, 0"
            yield f"  br i1 {left}, label %{self.symbol}.leave, label %{s.last}"
            yield f"{self.symbol}.leave:"
            yield leave
            yield f"{s.last}:"
        elif s.last != s.first:
            # what follows knows the block by its name
            yield f"  br label %{s.last}"
            yield f"{s.last}:"
        if result.startswith("{"):
            for k, name in enumerate(self.given):
                yield f"  {name} = extractvalue {result} {whole}, {k + bool(leave)}"


class _Types:
    """The types of registers, read from the instructions that define them."""

    def __init__(self, header: str, entry: Sequence[str], lines: Sequence[str], defined: dict[str, int]) -> None:
        self._lines = lines
        self._defined = defined
        self._known = dict.fromkeys((_NAME.findall(line)[0] for line in entry), "ptr")
        for argument in header.partition("(")[2].rpartition(")")[0].split(","):
            found = _TYPE.search(argument)
            if found:
                self._known[_NAME.findall(argument)[0]] = found[0]

    def of(self, name: str) -> str:
        """The type of a register."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = type_of(self._lines[self._defined[name]].partition("= ")[2])
        return found


def type_of(instruction: str) -> str:
    """The type of the result of an instruction as the emitter writes it."""
    opcode = instruction.partition(" ")[0]
    if opcode in _CASTS:
        return _TYPE.findall(instruction.rpartition(" to ")[2])[0]
    kinds: list[str] = _TYPE.findall(instruction)
    first = kinds[0]
    match opcode:
        case "icmp" | "fcmp":
            return _vector(first, "i1")
        case "select":
            return kinds[1]
        case "alloca":
            return "ptr"
        case "getelementptr":
            return next((_vector(k, "ptr") for k in kinds[1:] if _VECTOR.fullmatch(k)), "ptr")
        case "extractelement":
            return first[:-1].partition(" x ")[2]
        case "shufflevector":
            lanes = kinds[2][1:].partition(" ")[0]
            return f"<{lanes} x {first[:-1].partition(' x ')[2]}>"
        case "atomicrmw":
            return kinds[1]
        case "cmpxchg":
            return f"{{ {kinds[1]}, i1 }}"
        case "extractvalue":
            return first[1:-1].split(",")[int(instruction.rpartition(" ")[2])].strip()
        case _:
            return first


def _vector(like: str, element: str) -> str:
    """A type of as many elements."""
    found = _VECTOR.fullmatch(like)
    return f"<{found[1]} x {element}>" if found else element
