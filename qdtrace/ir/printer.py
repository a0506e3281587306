"""Prints graphs: the text form of `ir/README.md`, deterministic and exact.

`print_task(task, canonical=True)` is the content key of a task: no name a user chose is in it, but everything that
influences the code made from it is (types and shapes of references, bits of literals, parameters, launch hints).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.primitives import FOR, WHILE
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.syntax import clean_hint, literal_text, value_text, word_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from qdtrace.errors import Loc
    from qdtrace.ir.program import Atom, Block, Eqn, Program, Task
    from qdtrace.limits import Limits

_NO_CODE = frozenset({"fuse", "name"})
"""Launch hints that influence passes or printing, but not the code of the final task."""


def print_program(program: Program, *, locs: bool = False) -> str:
    """Returns the text of a program. With `locs` each line ends in a comment with the user's source line."""
    printer = Printer(locs=locs)
    printer.program(program)
    return printer.text()


def print_task(task: Task, *, canonical: bool = False) -> str:
    """Returns the text of a task; `canonical` makes it independent of names and source lines, and adds references."""
    printer = Printer(canonical=canonical)
    if canonical:
        refs = [printer.binder(v, prefix="r") for v in task.refs]
        printer.line(0, "task(" + ", ".join(refs) + ")")
    printer.task(task, 0)
    return printer.text()


def print_eqn(eqn: Eqn, printer: Printer | None = None) -> str:
    """Returns the first line of an equation, with the names of `printer`, which has printed its program."""
    copy = Printer()
    if printer is not None:
        copy.names, copy.used = dict(printer.names), set(printer.used)
    copy.eqn(eqn, 0, inner=False)
    return copy.lines[0]


class Printer:
    """Printer that collects lines and names variables by their hints, made unique."""

    def __init__(self, *, locs: bool = False, canonical: bool = False) -> None:
        self.locs = locs
        self.canonical = canonical
        self.lines: list[str] = []
        self.names: dict[Var, str] = {}
        self.used: set[str] = set()
        self._next: dict[str, int] = {}
        self._written: dict[int, tuple[str, object]] = {}
        """Texts by the `id` of a type or constant, which is kept alive: hashing them would cost more than the rest."""

    def text(self) -> str:
        """Returns everything printed so far."""
        return "\n".join(self.lines)

    def line(self, depth: int, text: str, loc: Loc | None = None) -> None:
        """Prints one line at an indentation."""
        if self.locs and loc is not None:
            text = f"{text}  # {loc}"
        self.lines.append("  " * depth + text)

    # Names, types and atoms.

    def bind(self, var: Var, prefix: str = "v") -> str:
        """Gives a variable that is bound here a unique name and returns it."""
        base = "" if self.canonical else clean_hint(var.hint)
        if base and base not in self.used:
            name = base
        else:
            stem = base + "_" if base else prefix
            number = self._next.get(stem, 1 if base else 0)
            while (name := f"{stem}{number}") in self.used:
                number += 1
            self._next[stem] = number + 1
        self.used.add(name)
        self.names[var] = name
        return name

    def binder(self, var: Var, prefix: str = "v") -> str:
        """Returns `name: type` for a variable that is bound here."""
        return f"{self.bind(var, prefix)}: {self.type(var)}"

    def known(self, var: Var) -> str:
        """Returns the name of a variable, even of one that nothing binds, as errors print broken graphs."""
        return self.names.get(var) or self.bind(var)

    def type(self, var: Var) -> str:
        """Returns the type of a variable as text."""
        written = self._written.get(id(var.type))
        if written is None:
            written = self._written[id(var.type)] = str(var.type), var.type
        return written[0]

    def atom(self, atom: Atom) -> str:
        """Returns a variable or literal as text."""
        if atom.__class__ is Literal:
            written = self._written.get(id(atom))
            if written is None:
                written = self._written[id(atom)] = literal_text(atom), atom  # type: ignore[arg-type]
            return written[0]
        return self.names.get(atom) or self.bind(atom)  # type: ignore[arg-type]

    def atoms(self, atoms: Iterable[Atom]) -> str:
        """Returns atoms as text, separated by commas."""
        return ", ".join(map(self.atom, atoms))

    # Structure.

    def program(self, program: Program) -> None:
        """Prints a program."""
        params = ", ".join(self._param(var, program.limits.get(var)) for var in program.params)
        self.line(0, f"program {word_text(program.name)}({params})")
        for buffer in program.buffers:
            text = f"buffer {self.binder(buffer)}"
            if (param := program.donated_from.get(buffer)) is not None:
                text += f" in {self.known(param)}"
            if (value := program.initial.get(buffer)) is not None:
                text += f" = {self.atom(value)}"
            self.line(1, text)
        for task in program.tasks:
            self.task(task, 1)
        if program.results:
            self.line(1, f"return {self.atoms(program.results)}")

    def _param(self, var: Var, limits: Limits | None) -> str:
        known = "" if limits is None else f" in {value_text((limits.low, limits.high, *limits.steps))}"
        return self.binder(var) + known

    def task(self, task: Task, depth: int) -> None:
        """Prints a task with its head and body."""
        at = len(self.lines)
        self.line(depth, "")  # the head is printed after this line but its names are needed in it
        if task.head:
            self.line(depth + 1, "head")
            self.eqns(task.head, depth + 2)
        text = task.kind
        if task.index is not None:
            start, stop = self.atom(task.start), self.atom(task.stop)
            text += f" {self.bind(task.index)} in {start} : {stop}"
        if task.name and not self.canonical:
            text += f" @{word_text(task.name)}"
        hints = {k: v for k, v in task.hints.items() if not self.canonical or k not in _NO_CODE}
        if hints:
            text += " {" + _pairs(hints) + "}"
        self.line(depth, text, task.loc)
        self.lines[at] = self.lines.pop()
        self.block(task.body, depth + 1)

    def block(self, block: Block, depth: int) -> None:
        """Prints equations and results of a block; its owner prints the parameters."""
        self.eqns(block.eqns, depth)
        if block.results:
            self.line(depth, f"yield {self.atoms(block.results)}")

    def eqns(self, eqns: Sequence[Eqn], depth: int) -> None:
        """Prints equations, one a line."""
        for eqn in eqns:
            self.eqn(eqn, depth)

    def eqn(self, eqn: Eqn, depth: int, inner: bool = True) -> None:
        """Prints one equation, with its blocks if `inner`."""
        bind = self.bind if inner else self.known
        text = eqn.primitive.name
        params = self._params(eqn)
        if params:
            text += f"[{_pairs(params)}]"
        # Operands have names of the enclosing scope only, so they are printed before anything is bound.
        if eqn.primitive is FOR and eqn.blocks:
            start, stop, step, *inits = map(self.atom, eqn.invars)
            bounds = f" in {start} : {stop} : {step}{' ' * bool(params)}{text[3:]}"
            index, *carried = eqn.blocks[0].params
            text = f"for {bind(index)}{bounds}"
        else:
            inits = [self.atom(a) for a in eqn.invars]
            carried = []
            if eqn.primitive is WHILE and eqn.blocks:
                carried = list(eqn.blocks[0].params)
            else:
                text = " ".join([text, *inits])
        if carried:
            text += " carry " + ", ".join(f"{bind(p)} = {a}" for p, a in zip(carried, inits, strict=False))
        at = len(self.lines)
        if inner and eqn.blocks:
            self.line(depth, "")
            self._blocks(eqn, depth + 1)
        if eqn.outvars:  # bound last: inside the blocks the results have no name yet
            text = ", ".join([f"{bind(v)}: {self.type(v)}" for v in eqn.outvars]) + f" = {text}"
        self.line(depth, text, eqn.loc)
        if len(self.lines) - at > 1:
            self.lines[at] = self.lines.pop()

    def _params(self, eqn: Eqn) -> Mapping[str, object]:
        remarks = eqn.primitive.remarks
        if not (self.canonical and remarks):
            return eqn.params
        return {k: v for k, v in eqn.params.items() if k not in remarks}

    def _blocks(self, eqn: Eqn, depth: int) -> None:
        match eqn.primitive.name, eqn.blocks:
            case "while", (test, body):
                self.eqns(test.eqns, depth)
                self.line(depth, f"test {self.atoms(test.results)}")
                # The body binds the carries anew, under the names they have in the test.
                self.names |= {b: self.names[t] for t, b in zip(test.params, body.params, strict=False)}
                self.block(body, depth)
            case "if", (then, other):
                self.block(then, depth)
                if other.eqns or other.results:
                    self.line(depth - 1, "else")
                    self.block(other, depth)
            case _, blocks:  # a `for`, or a broken equation in an error message
                for block in blocks:
                    self.block(block, depth)


def _pairs(params: Mapping[str, object]) -> str:
    if len(params) == 1:
        ((key, value),) = params.items()
        return f"{key}={value_text(value)}"
    return ", ".join(f"{k}={value_text(params[k])}" for k in sorted(params))
