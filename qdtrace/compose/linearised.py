"""The program of a program's tangents, which JAX makes and which is transposed for adjoints."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.autodiff.extremes import with_extremes
from qdtrace.compose.staged_program import StagedProgram
from qdtrace.errors import GradientError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    Mask = tuple[bool, ...]


def chosen(values: Iterable[Any], mask: Iterable[bool]) -> Iterator[Any]:
    """Returns the values in a mask."""
    return (v for v, wanted in zip(values, mask, strict=True) if wanted)


@functools.lru_cache(maxsize=1024)
def linearised(base: StagedProgram, masks: tuple[Mask, ...], out: Mask, *, with_primal: bool = False) -> StagedProgram:
    """Returns the program of the tangents of results `out` along a direction for each mask.

    The parameters of `base` are followed by the parts of the directions, then by known values (`constants`). Results of
    `base` come before the tangents if `with_primal`. Raises GradientError if JAX has no tangents.
    """
    made = base.source
    if made is None:
        raise GradientError(f"{base.program.name}: a program that was not traced has no derivative")
    own, results = len(made.params), base.program.results
    for mask in masks:
        made = made.along((*mask, *[False] * (len(made.params) - own)))
    wanted, likes = list(chosen(made.results, out)), list(chosen(results, out))
    if with_primal:
        wanted, likes = [*made.primal, *wanted], [*results, *likes]
    with base.depth_told():
        program, constants = made.program(wanted, likes)
    summed = with_extremes(program)
    # the values that are compared are computed twice
    options = base.options if summed is program else replace(base.options, fast_math=False)
    return StagedProgram(summed, options, constants=tuple(constants))
