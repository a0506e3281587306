"""The program of a program's tangents: JAX's jvp of its traced equations. Its transpose computes adjoints."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.autodiff.extremes import with_extremes
from qdtrace.compose.pass_cache import TANGENTS, GraphKey, kept, settings
from qdtrace.compose.staged_program import StagedProgram, chosen
from qdtrace.errors import GradientError
from qdtrace.frozen import frozen
from qdtrace.trace.dtypes import kept_by_mode

if TYPE_CHECKING:
    from jax.typing import ArrayLike

    from qdtrace.config import FastMath, Options

    Mask = tuple[bool, ...]


def tangents_key(staged: StagedProgram) -> GraphKey:
    """Returns the key of what JAX's rules make of a program that was traced; they look at settings, too."""
    assert staged.source is not None
    graph, source, now = staged.key, staged.source.key, settings()
    if reason := graph.reason or source.reason or ("settings of JAX" if now is None else ""):
        return GraphKey("", (), reason)
    locs = {loc: k for k, loc in enumerate(graph.locs)}
    pattern = [locs.setdefault(loc, len(locs)) for loc in source.locs]
    text = repr((graph.digest, source.digest, pattern, now))
    return GraphKey(hashlib.sha256(text.encode()).hexdigest(), tuple(locs))


@frozen(eq=False)
class Linearised:
    """The program of the tangents of results `out` of `base` along a direction for each mask.

    The parameters of `base` are followed by the parts of the directions, then by known values (`constants`). Results of
    `base` come before the tangents if `with_primal`; behind them come those along all other directions, for each number
    of a direction and results in `lower`. JAX makes it if what is wanted is not on disk.
    """

    base: StagedProgram
    masks: tuple[Mask, ...]
    out: Mask
    with_primal: bool
    lower: tuple[tuple[int, Mask], ...]

    @functools.cached_property
    def staged(self) -> StagedProgram:
        """The program. Raises GradientError if JAX has no tangents."""
        base, source = self.base, self.base.source
        assert source is not None
        made = source.traced
        own, results = len(made.params), base.program.results
        for mask in self.masks:
            made = made.along((*mask, *[False] * (len(made.params) - own)))
        wanted, likes = list(chosen(made.results, self.out)), list(chosen(results, self.out))
        if self.with_primal:
            wanted, likes = [*made.primal, *wanted], [*results, *likes]
        for number, out in self.lower:
            wanted += chosen(made.lower[number], out)
            likes += chosen(results, out)
        with base.depth_told():
            program, constants = made.program(wanted, likes)
        summed = with_extremes(program)
        # the values that are compared are computed twice
        options = base.options if summed is program else replace(base.options, fast_math=False)
        return StagedProgram(summed, options, constants=tuple(constants))

    @functools.cached_property
    def key(self) -> GraphKey:
        """The key of what is derived of it."""
        key = tangents_key(self.base)
        if key.reason:
            return self.staged.key
        text = repr((key.digest, self.masks, self.out, self.with_primal, self.lower))
        return GraphKey(hashlib.sha256(text.encode()).hexdigest(), key.locs)

    @functools.cached_property
    def _facts(self) -> tuple[FastMath, int]:
        def make() -> tuple[FastMath, int]:
            return self.staged.options.fast_math, len(self.staged.constants)

        about = ("facts", self.masks, self.out, self.with_primal, self.lower)
        return kept(TANGENTS, lambda: tangents_key(self.base), about, self.base.options, make)

    @property
    def options(self) -> Options:
        """The options of the program."""
        return replace(self.base.options, fast_math=self._facts[0])

    @property
    def constants(self) -> tuple[ArrayLike, ...]:
        """Known values, of its last parameters."""
        return self.staged.constants if self._facts[1] else ()


@kept_by_mode
def linearised(
    base: StagedProgram,
    masks: tuple[Mask, ...],
    out: Mask,
    *,
    with_primal: bool = False,
    lower: tuple[tuple[int, Mask], ...] = (),
) -> Linearised:
    """Returns the program of tangents. Raises GradientError if `base` was not traced."""
    if base.source is None:
        raise GradientError(f"{base.program.name}: a program that was not traced has no derivative")
    return Linearised(base, masks, out, with_primal, lower)
