"""The text of a program after each stage, with names kept, and what a stage changed in it.

The printer numbers names from the top, so one equation less renames all that follow. Here a variable keeps the name
that it had at the stage before, and only unused names are given to new variables: equal lines have equal text.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.ir.printer import Printer
from qdtrace.ir.walk import blocks_of, bound_in_block

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from qdtrace.errors import Loc
    from qdtrace.ir.program import Program, Var

_LOC = "\0"


@frozen(slots=True)
class Line:
    """One line of a printed program."""

    text: str
    loc: str = ""
    """The user's source line, empty if there is none."""

    @property
    def depth(self) -> int:
        """Number of spaces before the text."""
        return len(self.text) - len(self.text.lstrip(" "))


@frozen(slots=True)
class Change:
    """A line of a difference: `kind` is one of same, added, removed and changed."""

    kind: str
    line: Line
    before: Line | None = None
    """The old line of a changed one; None for other kinds."""


class StageTexts:
    """Prints one program after the other, with names kept."""

    def __init__(self) -> None:
        self._names: dict[Var, str] = {}

    def lines(self, program: Program) -> list[Line]:
        """Returns the lines of the program."""
        bound = {*program.params, *program.buffers}
        for task in program.tasks:
            bound.update(v for block in blocks_of(task) for v in bound_in_block(block))
            if task.index is not None:
                bound.add(task.index)
        printer = _Printer({v: name for v, name in self._names.items() if v in bound})
        printer.program(program)
        self._names = printer.names
        return [Line(*line.split(_LOC)) for line in printer.lines]


class _Printer(Printer):
    """Prints with given names, and the source line behind each line."""

    def __init__(self, kept: dict[Var, str]) -> None:
        super().__init__()
        self.kept = kept
        self.used |= set(kept.values())

    def line(self, depth: int, text: str, loc: Loc | None = None) -> None:
        super().line(depth, text + _LOC + (str(loc) if loc is not None else ""))

    def bind(self, var: Var, prefix: str = "v") -> str:
        name = self.kept.get(var)
        if name is None:
            return super().bind(var, prefix)
        self.names[var] = name
        return name


def changes(before: Sequence[Line], after: Sequence[Line]) -> list[Change]:
    """Returns the difference of two texts, line by line.

    Tasks that are equal are found first, then those with equal first lines, and lines are compared in what is left: the
    time is linear in the number of tasks that stay apart.
    """
    found: list[Change] = []
    old, new = _tasks(before), _tasks(after)
    for equal, a, b, c, d in _opcodes([_texts(t) for t in old], [_texts(t) for t in new]):
        if equal:
            found += [Change("same", line) for task in new[c:d] for line in task]
            continue
        heads = [task[0].text for task in old[a:b]], [task[0].text for task in new[c:d]]
        for same, e, f, g, h in _opcodes(*heads):
            if same:
                for one, other in zip(old[a + e : a + f], new[c + g : c + h], strict=True):
                    found += _line_changes(one, other)
            else:
                found += _line_changes(
                    [x for t in old[a + e : a + f] for x in t], [x for t in new[c + g : c + h] for x in t]
                )
    return found


def _line_changes(before: list[Line], after: list[Line]) -> Iterator[Change]:
    for equal, a, b, c, d in _opcodes(_texts(before), _texts(after)):
        if equal:
            yield from (Change("same", line) for line in after[c:d])
            continue
        # A line that defines the same names is the same line, changed.
        gone = {_defined(line): line for line in before[a:b]}
        kept = {_defined(line) for line in after[c:d]} - {""}
        yield from (Change("removed", line) for line in before[a:b] if _defined(line) not in kept)
        for line in after[c:d]:
            old = gone.get(_defined(line)) if _defined(line) else None
            yield Change("added", line) if old is None else Change("changed", line, old)


def _opcodes(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[bool, int, int, int, int]]:
    """Returns pieces `before[a:b]`, `after[c:d]` in order, and whether they are equal."""
    codes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [(kind == "equal", a, b, c, d) for kind, a, b, c, d in codes]


def _texts(lines: Sequence[Line]) -> tuple[str, ...]:
    return tuple(line.text for line in lines)


def _defined(line: Line) -> str:
    """Returns the names that a line defines, empty for none."""
    names, equals, _ = line.text.partition(" = ")
    return names.strip() if equals and not names.lstrip().startswith(("while ", "for ")) else ""


def _tasks(lines: Sequence[Line]) -> list[list[Line]]:
    """Returns the lines of each task; lines around the tasks are pieces of their own."""
    pieces: list[list[Line]] = []
    for line in lines:
        if line.depth <= 2 or not pieces:
            pieces.append([])
        pieces[-1].append(line)
    return pieces
