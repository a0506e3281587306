"""Long functions in parts: stretches of code become functions of their own.

LLVM's instruction selection, register allocation and motion out of loops take time that grows faster than the
function they work on. So the emitter marks stretches of `PART` instructions while it writes a block, and where a
function has more than `WHOLE` instructions, each stretch becomes a function that gets what it uses as arguments and
returns what others use. Whatever is inside of a stretch (loops and branches too) stays together; a stretch begins and
ends in one place of the code.

Measured on 4000 steps of `v * v + c`, CPU time of code generation: 0.97 s in one piece, 0.25 s in parts; run time
1.02 to 1.15 of that in one piece; shorter functions stay whole, as values that cross a border go through memory.
"""

from __future__ import annotations

import re
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
    header: str, entry: Sequence[str], lines: Sequence[str], stretches: Sequence[Stretch], prefix: str
) -> tuple[list[str], list[str]]:
    """The lines of the function, with calls in the places of the stretches, and the functions that these became."""
    uses = [_NAME.findall(line) for line in lines]
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
        symbol = f"{prefix}{k}"
        result = _joined(types, given)
        arguments = ", ".join(f"{types.of(name)} {name}" for name in taken)
        functions.append(
            "\n".join([
                f"define internal fastcc {result} @{symbol}({arguments}) noinline{attributes} {{",
                f"{s.first}:", *lines[s.start : s.stop], *_return(types, given, result), "}",
            ])
        )  # fmt: skip
        out += lines[done : s.start]
        out += _call(types, given, f"call fastcc {result} @{symbol}({arguments})", f"%{symbol}")
        if s.last != s.first:
            # what follows knows the block by its name
            out += [f"  br label %{s.last}", f"{s.last}:"]
        done = s.stop
    return [*out, *lines[done:]], functions


def _joined(types: _Types, names: Sequence[str]) -> str:
    if len(names) == 1:
        return types.of(names[0])
    return f"{{ {', '.join(map(types.of, names))} }}" if names else "void"


def _return(types: _Types, names: Sequence[str], result: str) -> Iterator[str]:
    if not names:
        yield "  ret void"
    elif len(names) == 1:
        yield f"  ret {result} {names[0]}"
    else:
        whole = "poison"
        for k, name in enumerate(names):
            yield f"  %result{k} = insertvalue {result} {whole}, {types.of(name)} {name}, {k}"
            whole = f"%result{k}"
        yield f"  ret {result} {whole}"


def _call(types: _Types, names: Sequence[str], call: str, whole: str) -> Iterator[str]:
    if not names:
        yield f"  {call}"
    elif len(names) == 1:
        yield f"  {names[0]} = {call}"
    else:
        yield f"  {whole} = {call}"
        for k, name in enumerate(names):
            yield f"  {name} = extractvalue {_joined(types, names)} {whole}, {k}"


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
