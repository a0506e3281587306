"""The program of many lengths: numbers in which traces differ become operands.

Before:  program f(x: ref[f32,1000])            After:  program f(x: ref[f32,C], n: ref[i32])
           range_for i in 0:i32 : 1000:i32                range_for i in 0:i32 : v
             a: f32 = load x i                              head
             b: f32 = div a 1000.0:f32                        v: i32 = load n
                                                              w: f32 = load n_1
                                                            a: f32 = load x i
                                                            b: f32 = div a w

`C` is more than any length. What follows from it may be wrong for a length, such as that an index is in range and its
load may be executed early. So there is a second program with 1 in its place, and the code of both has to be the same.
Where it is not, as a loop over one element is taken for a scalar, the second program has lengths from 3 on.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from qdtrace.frozen import frozen
from qdtrace.ir.builder import ref_var
from qdtrace.ir.primitives import LOAD
from qdtrace.ir.program import Eqn, Program, Task, Var, literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import SCALARS, DType, RefType
from qdtrace.lengths.indices import indices_in, is_inside
from qdtrace.lengths.skeleton import SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from qdtrace.ir.program import Atom, Block, Literal
    from qdtrace.lengths.indices import Index
    from qdtrace.lengths.skeleton import Skeleton, Slot

T = TypeVar("T")
MOST_ELEMENTS = 1 << 30
"""Elements of the largest array of such a program: 32 bits count them."""
LEAST = 1 << 12
"""The fewest rows of an array of such a program."""


class PinnedError(Exception):
    """The reason why each length of a function needs a program of its own."""


class UnseenError(PinnedError):
    """A function ran that was found on disk, so that nobody saw what it does with lengths."""


@frozen(eq=False, slots=True)
class Opened:
    """A program of many lengths: with more than any of them, and with the least in their place.

    Numbers that are equal at each length that was met are one operand, or one length.
    """

    first: Skeleton
    operands: tuple[int | None, ...]
    """The operand that each literal becomes, if it does."""
    lengths: tuple[int | None, ...]
    """The number of each length that is open."""
    most: int
    """The largest length."""
    least: int
    """The smallest length, which the second program begins with: of one element, a loop is no other than a copy of a
    scalar, and lengths above are told apart."""
    programs: tuple[Program, Program]
    dropped: list[tuple[Index, int]]
    """Indices without their checks, with the position of the size; see `indices`."""
    accesses: set[tuple[Index, int]] | None
    """Indices of first axes with the position of the length, or None if one is unknown."""

    @property
    def larger(self) -> list[int]:
        """Lengths by number in the first of the programs."""
        return [_larger(self.most, k) for k in self._numbers]

    @property
    def smaller(self) -> list[int]:
        """Lengths by number in the second of the programs."""
        return [_smaller(self.least, k) for k in self._numbers]

    @property
    def _numbers(self) -> range:
        return range(len({n for n in self.lengths if n is not None}))

    def values(self, other: Skeleton) -> list[Literal] | None:
        """Returns the operands for a program of other lengths, or None if it is another program."""
        if other.text != self.first.text:
            return None
        values = _common(self.operands, self.first.literals.values(), other.literals.values())
        return values if self.sizes(other) is not None and self.are_inside(other.row, other.params) else None

    def are_inside(self, row: Sequence[Any], params: Sequence[Any]) -> bool:
        """Returns whether all indices without a check are inside of their arrays at other lengths."""
        return all(is_inside(form, row, params, row[size]) for form, size in self.dropped)

    def values_of(self, literals: Sequence[Any]) -> list[Any] | None:
        """Returns the operands for literals of other lengths, or None if they are those of another program."""
        return _common(self.operands, [a.value for a in self.first.literals.values()], literals)

    def is_long_enough(self, other: Skeleton) -> bool:
        """Returns whether no length that is open is below the least."""
        pairs = zip(self.lengths, other.lengths.values(), strict=True)
        return all(number is None or n >= self.least for number, n in pairs)

    def sizes(self, other: Skeleton) -> list[int] | None:
        """Returns lengths by number of a program of other lengths, or None if it is another program."""
        return self.sizes_of(other.lengths.values())

    def sizes_of(self, lengths: Iterable[int]) -> list[int] | None:
        """Returns lengths by number, or None if they are those of another program."""
        found = _common(self.lengths, self.first.lengths.values(), lengths)
        return found if found is not None and all(self.least <= n <= self.most for n in found) else None


def _common(numbers: Sequence[int | None], first: Iterable[T], other: Iterable[T]) -> list[T] | None:
    """Returns the value of each number, or None if two have one number, or one without a number is another one."""
    found: dict[int, T] = {}
    for number, a, b in zip(numbers, first, other, strict=True):
        if (a if number is None else found.setdefault(number, b)) != b:
            return None
    return [found[k] for k in range(len(found))]


def opened(traces: Sequence[Skeleton], least: int = 1) -> Opened:
    """Returns the program of several traces of equal texts. Raises PinnedError if there is none."""
    first = traces[0]
    operands, values = _numbered([tuple(t.literals.values()) for t in traces])
    lengths, found = _numbered([tuple(t.lengths.values()) for t in traces])
    pairs = zip(first.lengths, lengths, strict=True)
    widest = max([prod(ref_type(v).shape[1:]) for v, number in pairs if number is not None], default=1)
    most = MOST_ELEMENTS // max(widest, 1)
    if most < LEAST:
        raise PinnedError(f"rows of {widest} elements are too long")
    params = tuple(ref_var(row[0].dtype, (), "n") for row in values)
    slots = {slot: params[k] for slot, k in zip(first.literals, operands, strict=True) if k is not None}

    most = (most - 8 * len(found)) // 2
    indices, known = indices_in(first), [(t.row, t.params) for t in traces]
    dropped = {
        eqn: (form, size)
        for eqn, (form, size) in indices.checks.items()
        if all(is_inside(form, row, params, row[size]) for row, params in known)
    }

    def chosen(length: Callable[[int], int]) -> Program:
        sizes = {v: length(k) for v, k in zip(first.lengths, lengths, strict=True) if k is not None}
        return _Opening(sizes, slots, most, dropped).program(first.program, params)

    return Opened(
        first,
        operands,
        lengths,
        most,
        least,
        (chosen(lambda k: _larger(most, k)), chosen(lambda k: _smaller(least, k))),
        list(dropped.values()),
        indices.accesses,
    )


def _larger(most: int, number: int) -> int:
    """Returns a length of its own for a number, more than any length that there is."""
    return 2 * most + 5 * number


def _smaller(least: int, number: int) -> int:
    """Returns a length for a number, of its own unless that is 1."""
    return least + 2 * number if least > 1 else 1


def _numbered(rows: Sequence[tuple[T, ...]]) -> tuple[tuple[int | None, ...], list[tuple[T, ...]]]:
    """Returns a number for each column in which rows differ, the same for equal columns, and those columns."""
    found: dict[tuple[T, ...], int] = {}
    columns = list(zip(*rows, strict=True))
    numbers = tuple([None if all(x == c[0] for x in c) else found.setdefault(c, len(found)) for c in columns])
    return numbers, list(found)


def with_sizes(programs: Sequence[Program], of: Opened) -> list[Program]:
    """Returns the programs that `of` became, with lengths as further operands if a task of theirs ends at one.

    Such a task is a copy of a whole array, which reverse mode adds.
    """
    params = [ref_var(DType.i32, (), "n") for _ in of.larger]
    numbers = {pair: k for k, pair in enumerate(zip(of.larger, of.smaller, strict=True))}
    first, other = (p.tasks for p in programs)
    ends = [[getattr(t.stop, "value", None) for t in tasks] for tasks in (first, other)]
    found = [numbers.get(pair) for pair in zip(*ends, strict=False)]
    if len(first) != len(other) or all(k is None for k in found):
        return list(programs)

    def sized(task: Task, number: int | None) -> Task:
        if number is None:
            return task
        end = Var(SCALARS[DType.i32], "n")
        load = Eqn(LOAD, (params[number],), (end,), {}, (), task.loc)
        return replace(task, stop=end, head=(load, *task.head))

    return [replace(p, params=(*p.params, *params), tasks=tuple(map(sized, p.tasks, found))) for p in programs]


class _Opening(Rebuilder):
    """Replaces literals by operands, and lengths of references by others."""

    def __init__(
        self, lengths: Mapping[Var, int], operands: Mapping[Slot, Var], most: int, dropped: Container[Eqn]
    ) -> None:
        super().__init__({v: Var(RefType(v.dtype, (n, *ref_type(v).shape[1:])), v.hint) for v, n in lengths.items()})
        self.operands, self.most, self.dropped = operands, most, dropped
        self.loaded: dict[Var, Var] = {}
        """Values of operands in the present task."""

    def program(self, of: Program, params: Sequence[Var]) -> Program:
        """Returns a program with further parameters."""
        return Program(
            of.name,
            (*self.refs(of.params), *params),
            self.refs(of.buffers),
            tuple(map(self.rebuild_task, of.tasks)),
            self.refs(of.results),
            {self.refs((v,))[0]: value for v, value in of.initial.items()},
            stage=of.stage,
        )

    def refs(self, refs: tuple[Var, ...]) -> tuple[Var, ...]:
        """Returns references of the new lengths."""
        return tuple([v for v in self.atoms(refs) if isinstance(v, Var)])

    def rebuild_task(self, task: Task) -> Task:
        """Returns the task rebuilt; its head loads the operands first."""
        self.loaded = {}
        start, stop = self.put(task, (task.start, task.stop))
        made = super().rebuild_task(replace(task, start=start, stop=stop))
        loads = [Eqn(LOAD, (ref,), (value,), {}, (), task.loc) for ref, value in self.loaded.items()]
        return replace(made, head=(*loads, *made.head))

    def rebuild_block(self, block: Block) -> Block:
        """Returns the block rebuilt."""
        results = self.put(block, block.results)
        return super().rebuild_block(block if results is block.results else replace(block, results=results))

    def visit(self, eqn: Eqn) -> None:
        """Appends the equation with its operands replaced."""
        invars = self.put(eqn, eqn.invars)
        made = eqn if invars is eqn.invars else replace(eqn, invars=invars)
        if eqn in self.dropped:
            (self.env[eqn.outvar],) = self.atoms(invars)
        elif (size := self.operands.get((eqn, SIZE))) is None:
            super().visit(made)
        else:
            self.bounded(made, self.value(size))

    def bounded(self, eqn: Eqn, size: Var) -> None:
        """Emits a check of an index whose result is below `size`, whatever an access thinks of the check."""
        self.loc = eqn.loc
        index = Var(eqn.outvar.type, eqn.outvar.hint)
        params = {**eqn.params, "size": self.most}
        self.append(replace(eqn, invars=self.atoms(eqn.invars), outvars=(index,), params=params))
        inside = self("lt", index, size)
        self.emit("check", inside, message="")
        self.env[eqn.outvar] = self("select", inside, index, literal(0, index.dtype))

    def put(self, owner: Eqn | Block | Task, atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """Returns atoms with the literals replaced that are operands."""
        refs = [self.operands.get((owner, k)) for k in range(len(atoms))]
        if not any(refs):
            return atoms
        return tuple([a if r is None else self.value(r) for a, r in zip(atoms, refs, strict=True)])

    def value(self, ref: Var) -> Var:
        """Returns the value of an operand."""
        return self.loaded.setdefault(ref, Var(SCALARS[ref.dtype], ref.hint))
