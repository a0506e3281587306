"""Calls at lengths at which a function is not traced: what it does there is known from other lengths.

A path is what a function did with lengths (`trace/lengths`): arithmetic, decisions with their outcomes, and the graphs
that it became. At other lengths with the same outcomes it is traced to the same equations, whose operands the recorded
arithmetic gives. In the graphs of a path nothing but lengths of memory, and the checks of indices against them, differs
from length to length, and each length of memory is a number of the recording, or the same always. Where several numbers
were equal at all lengths that the path was traced at, they have to be equal at the new ones; otherwise the function is
traced there, which tells them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.frozen import frozen
from qdtrace.lengths.indices import is_inside
from qdtrace.lengths.skeleton import SIZE
from qdtrace.lengths.traced import Known, Made

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from qdtrace.lengths.opened import Opened
    from qdtrace.lengths.traced import Source, Trace

LEAST = 3
"""The fewest lengths that a path is traced at."""
MOST = 8
"""The most of them that are remembered."""

Row = tuple[Any, ...]


@frozen(eq=False, slots=True)
class At:
    """A call of a path at some lengths: what `kinds` makes a form of."""

    operands: tuple[Source, ...]
    results: tuple[Source, ...]
    tree: Any
    sizes: list[int]
    """Lengths of memory, by their number in the program of all lengths."""
    numbers: list[Any]
    """Values of its operands that depend on lengths alone."""


@frozen(eq=False, slots=True)
class _Sample:
    """The numbers at the lengths of one trace."""

    values: Row
    """The numbers of the recording."""
    rows: tuple[Row, ...]
    """Literals of each graph, and behind them lengths of its memory."""


class Path:
    """One way of a function through its decisions by lengths, with the numbers of several traces."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        recording = traces[0].recording
        assert recording is not None
        self.recording = recording
        self.keys: list[Hashable] = [t.key for t in traces]
        """Keys of its graphs."""
        self._calls = [(t.operands, t.results, t.tree) for t in traces]
        self._samples: list[_Sample] = []
        self._is_sound = True
        self._is_unchecked = any(t.options.bounds == "unchecked" for t in traces)
        self._rows: list[_Rows | None] | None = None

    @staticmethod
    def key(traces: Sequence[Trace]) -> Hashable:
        """Returns a key that is equal for traces of one path."""
        recording = traces[0].recording
        assert recording is not None
        return recording.key, *[t.key for t in traces]

    def add(self, traces: Sequence[Trace]) -> None:
        """Adds a trace at other lengths."""
        recording = traces[0].recording
        assert recording is not None
        for (operands, results, tree), trace in zip(self._calls, traces, strict=True):
            pairs = [*zip(operands, trace.operands, strict=True), *zip(results, trace.results, strict=True)]
            self._is_sound &= tree == trace.tree and all(_is_same(a, b) for a, b in pairs)
        rows = tuple([tuple(t.skeleton.row) for t in traces])
        self._samples = [*self._samples[-MOST + 1 :], _Sample(tuple(recording.values), rows)]
        self._rows = None

    def at(self, lengths: Sequence[int], opened: Sequence[Opened]) -> list[At] | None:
        """Returns the calls at other lengths, by the programs of all lengths; None if the function is to be traced."""
        count = len(lengths)
        if not self._is_sound or len({s.values[:count] for s in self._samples}) < LEAST:
            return None
        for k, n in enumerate(lengths):
            first, *others = [s.values[k] for s in self._samples]
            if n != first and all(x == first for x in others):
                return None  # of this length nothing is known
        values = self.recording.at(lengths)
        if values is None:
            return None
        if self._rows is None:
            self._rows = [self._rows_of(k, one) for k, one in enumerate(opened)]
        found = [self._call(k, values, one) for k, one in enumerate(opened)]
        calls = [call for call in found if call is not None]
        return calls if len(calls) == len(found) else None

    def _rows_of(self, graph: int, opened: Opened) -> _Rows | None:
        """Returns the numbers of a graph at any lengths, or None if what is proven at those of traces may not hold."""
        like = opened.first
        inside = () if self._is_unchecked else opened.accesses
        if inside is None:
            return None
        columns = list(zip(*[s.rows[graph] for s in self._samples], strict=True))
        are_sizes = [*(k == SIZE for _, k in like.literals), *(True for _ in like.lengths)]
        for form, _ in inside:  # ends of loops that go through an array
            if form[0] == "loop" and form[3][0] == "row":
                are_sizes[form[3][1]] = True
        sizes = {n: tuple([s.values[n] for s in self._samples]) for n in sorted(self.recording.sizes)}
        found: dict[Hashable, tuple[frozenset[int], bool, Any]] = {}
        keys = [(is_size, type(c[0]), c) for is_size, c in zip(are_sizes, columns, strict=True)]
        for key in keys:
            is_size, kind, column = key
            if key not in found:
                numbers = [n for n, values in sizes.items() if is_size and values == column]
                is_constant = all(type(x) is kind and x == column[0] for x in column)
                found[key] = frozenset(numbers), is_constant, column[0]
        return _Rows([found[key] for key in keys])

    def _call(self, graph: int, values: Sequence[Any], opened: Opened) -> At | None:
        assert self._rows is not None
        rows = self._rows[graph]
        row = rows and rows.at(values)
        if row is None:
            return None
        count = len(opened.first.literals)
        numbers = opened.values_of(row[:count])
        sizes = opened.sizes_of(row[count:])
        operands, results, tree = self._calls[graph]
        known = [values[s.number] if isinstance(s, Known) and s.number is not None else None for s in operands]
        inside = () if self._is_unchecked else opened.accesses or ()
        if numbers is None or sizes is None or not opened.are_inside(row, known):
            return None
        if not all(is_inside(form, row, known, row[length]) for form, length in inside):
            return None
        try:
            given = [_at(source, values) for source in operands]
        except OverflowError:  # a number that its type does not hold is an error of the call
            return None
        return At(tuple(given), results, tree, sizes, numbers)


@frozen(eq=False, slots=True)
class _Rows:
    """The numbers of a graph at any lengths."""

    sources: list[tuple[frozenset[int], bool, Any]]
    """The numbers of the recording that each may be, and whether it may be a constant, with that."""

    def at(self, values: Sequence[Any]) -> list[Any] | None:
        """Returns literals, then lengths; None if they are not known."""
        row: list[Any] = []
        for numbers, is_constant, constant in self.sources:
            found = {values[n] for n in numbers}
            if is_constant:
                found.add(constant)
            if len(found) != 1:
                return None
            row += found
        return row


def _at(source: Source, values: Sequence[Any]) -> Source:
    if not isinstance(source, Known) or source.number is None:
        return source
    return Known(np.asarray(values[source.number], source.value.dtype))


def _is_same(a: Source, b: Source) -> bool:
    """Returns whether operands, or results, of two traces have one source."""
    if isinstance(a, Made) and isinstance(b, Made):
        return (a.number, a.is_weak) == (b.number, b.is_weak)
    if not (isinstance(a, Known) and isinstance(b, Known)):
        return type(a) is type(b) and a == b
    if a.value is b.value:
        return True
    one, other = np.asarray(a.value), np.asarray(b.value)
    if a.number is not None or b.number is not None:
        return a.number == b.number and one.dtype == other.dtype and a.value.weak_type == b.value.weak_type
    same_type = (one.dtype, one.shape) == (other.dtype, other.shape)
    return (
        same_type
        and getattr(a.value, "weak_type", None) == getattr(b.value, "weak_type", None)
        and (one.tobytes() == other.tobytes())
    )
