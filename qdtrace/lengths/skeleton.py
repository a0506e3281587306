"""The numbers of a graph that may depend on the lengths of arguments, and the text of all the rest.

A function that is traced at two lengths gave the same program if the texts are equal: what may differ are literals,
lengths of first axes, and the lengths that checks of indices compare with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.frozen import frozen
from qdtrace.ir.primitives import BOUND
from qdtrace.ir.printer import Printer
from qdtrace.ir.program import Block, Eqn, Literal, Task, is_global, literal, ref_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qdtrace.ir.program import Atom, Program, Var

    Slot = tuple[Eqn | Block | Task, int]

SIZE = -1
"""Position of the length that a check compares an index with."""


@frozen(eq=False, slots=True)
class Skeleton:
    """A graph, taken apart. All mappings have the order of the graph."""

    program: Program
    text: str
    """The graph without these numbers."""
    literals: Mapping[Slot, Literal]
    """The literals by place: an operand of an equation, a result of a block, a bound of a task; at `SIZE` the length
    that a check compares an index with."""
    lengths: Mapping[Var, int]
    """Lengths of the first axes of parameters and buffers."""
    known: Mapping[Var, int]
    """Values of the parameters that lengths decide, if these were recorded."""

    @property
    def row(self) -> list[Any]:
        """Values of the literals, then lengths."""
        return [*[a.value for a in self.literals.values()], *self.lengths.values()]

    @property
    def params(self) -> list[int | None]:
        """Values of the parameters, where lengths decide them."""
        return [self.known.get(v) for v in self.program.params]


def skeleton_of(program: Program, known: Mapping[Var, int]) -> Skeleton:
    """Returns a graph, taken apart."""
    literals = {(owner, k): a for owner, k, a in _atoms(program) if isinstance(a, Literal)}
    lengths = {v: ref_type(v).shape[0] for v in (*program.params, *program.buffers) if ref_type(v).ndim}
    return Skeleton(program, "\n".join(_lines(program)), literals, lengths, known)


def first_difference(one: Program, other: Program) -> str:
    """Returns the first line that two graphs differ in but for numbers, with the user's line."""
    rows = zip(_lines(one, locs=True), _lines(other, locs=True), strict=False)
    return next((a.strip() for a, b in rows if a != b), "its end")


def _lines(program: Program, *, locs: bool = False) -> list[str]:
    printer = _Text(locs=locs)
    printer.program(program)
    return [*printer.lines, *(f"{printer.names[b]} begins with {value!r}" for b, value in program.initial.items())]


def _atoms(program: Program) -> Iterator[tuple[Eqn | Block | Task, int, Atom]]:
    """Yields what is used where: owner, position, atom."""
    for task in program.tasks:
        for k, atom in enumerate((task.start, task.stop)):
            yield task, k, atom
        yield from _inside(Block((), task.head))
        yield from _inside(task.body)


def _inside(block: Block) -> Iterator[tuple[Eqn | Block, int, Atom]]:
    for eqn in block.eqns:
        for k, atom in enumerate(eqn.invars):
            yield eqn, k, atom
        if eqn.primitive is BOUND:
            yield eqn, SIZE, literal(eqn.params["size"], eqn.invars[0].dtype)
        for inner in eqn.blocks:
            yield from _inside(inner)
    for k, atom in enumerate(block.results):
        yield block, k, atom


class _Text(Printer):
    """Printer of a graph with marks in place of its numbers."""

    def atom(self, atom: Atom) -> str:
        """Returns a variable as text, or the dtype of a literal."""
        return f"?:{atom.dtype.value}" if isinstance(atom, Literal) else super().atom(atom)

    def type(self, var: Var) -> str:
        """Returns a type, without the length of the first axis if it is not private."""
        if not is_global(var):
            return super().type(var)
        found = ref_type(var)
        return f"ref[{found.dtype.value},{found.ndim},{found.shape[1:]}]"

    def _params(self, eqn: Eqn) -> Mapping[str, object]:
        remarks = eqn.primitive.remarks  # errors have the texts of a program of their lengths
        found = {k: v for k, v in eqn.params.items() if k not in remarks}
        return {**found, "size": 0} if eqn.primitive is BOUND else found
