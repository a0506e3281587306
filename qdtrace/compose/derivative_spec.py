"""Specifies a derivative: its program, its directions, and which operands and results the primitive has."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar

from qdtrace.compose.staged_program import StagedProgram, chosen, within
from qdtrace.frozen import frozen
from qdtrace.trace.dtypes import is_x64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from qdtrace.autodiff.residuals import Moment
    from qdtrace.ir.program import Program, Var

    Mask = tuple[bool, ...]
    Levels = tuple[tuple[int, tuple[Mask, ...]], ...]

T = TypeVar("T")


@frozen
class Derivative:
    """Specifies a derivative of a program, and so the operands and results of the primitive.

    Operands are those of the program (but `absent` ones) and its residuals, then for an adjoint one of each result in
    `out`, then for each direction one of each parameter in its mask.
    """

    base: StagedProgram
    directions: tuple[Mask, ...]
    """Masks of the parameters that have a part in each direction; then of the adjoints of results, if these change."""
    out: Mask
    """Results whose tangents are returned, or whose adjoints are operands."""
    wrt: Mask | None = None
    """Parameters whose adjoints are returned, or None for a directional derivative."""
    place: int = 0
    """The number of the direction that is transposed, among all: a user's rule need not be symmetric in them."""
    residuals: tuple[Moment, ...] = ()
    """Residuals that the primal returns; only first derivatives have any."""
    ruled: Mask | None = None
    """Parameters that a program with rules of `jax.custom_vjp` was transposed for; JAX may later ask for fewer."""
    before: Mask | None = None
    """Parameters that a derivative was asked for before this one: what depends on them is what the derivative rules of
    users return as values. None: such rules return the function's own value, or there are none."""
    handed: tuple[Mask, Mask] | None = None
    """The parameters and results that the residuals were chosen for; JAX may later ask for fewer."""
    absent: Mask = ()
    """Parameters that are no operands, as nothing depends on their values: the program is linear in them. Empty if
    none is."""
    moving: frozenset[int] = frozenset()
    """Numbers of the directions, among all, in whose place their changes stand: it must be linear in these."""
    levels: tuple[tuple[int, tuple[Mask, ...]], ...] = ()
    """Batches, the innermost first: the size, and for each group of operands the mask of those that have its axis. The
    axis of the outermost batch is the first. Every result has all axes."""
    x64: bool = field(default_factory=is_x64)
    """True if it was asked for in the x64 mode, in which JAX's rules run then."""

    @property
    def program(self) -> Program:
        """The program that is differentiated."""
        return self.base.program

    @property
    def given(self) -> Mask:
        """The parameters that are operands."""
        return tuple(not a for a in self.absent) or (True,) * len(self.program.params)

    def of_given(self, mask: Iterable[bool]) -> Mask:
        """Returns a mask of parameters from one of those that are operands."""
        return within(self.given, mask)

    def of_some(self, wanted: Iterable[bool]) -> Derivative:
        """Returns the derivative with some of its results."""
        if self.wrt is None:
            return replace(self, out=within(self.out, wanted))
        return replace(self, wrt=within(self.wrt, wanted))

    def groups(self) -> list[int]:
        """Returns the numbers of operands: of the program with its residuals, of adjoints (0 for a directional
        derivative), of each direction."""
        adjoints = 0 if self.wrt is None else sum(self.out)
        return [sum(self.given) + len(self.residuals), adjoints, *map(sum, self.directions)]

    def split(self, operands: Sequence[T]) -> list[list[T]]:
        """Splits operands into groups."""
        left = iter(operands)
        return [[next(left) for _ in range(n)] for n in self.groups()]

    def results(self) -> Iterator[Var]:
        """Returns the references whose types the results have."""
        if self.wrt is None:
            return chosen(self.program.results, self.out)
        return chosen(self.program.params, self.wrt)

    def sizes(self) -> tuple[int, ...]:
        """Returns the sizes of the batches in the order of axes in results."""
        return tuple(size for size, _ in reversed(self.levels))

    def regrouped(self, change: Callable[[Sequence[Mask]], Sequence[Sequence[bool]]]) -> Levels:
        """Returns the batches with `change` applied to the masks of each."""
        return tuple((size, tuple(map(tuple, change(masks)))) for size, masks in self.levels)

    def __repr__(self) -> str:
        kind = "derivative" if self.wrt is None else "adjoint"
        return f"<{kind} of {self.program.name}, {len(self.directions)} directions>"
