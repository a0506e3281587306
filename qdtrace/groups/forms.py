"""Forms of a kernel: the longest side of its tiles, the warps of a lane, and how it makes products of f32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.frozen import frozen
from qdtrace.groups import pieces
from qdtrace.groups.work import LEAST, MOST, work_of

if TYPE_CHECKING:
    from collections.abc import Iterator


MOST_PIECES = 8
"""Most products by pieces in a kernel whose tiles have the shortest side. There one product is 128 multiply-adds of a
thread, and pieces save a quarter of the time; what they are written out in is long: a gradient of attention, 15
products, takes 12 s of Triton and the assembler, 2 without."""


@frozen
class Form:
    """Says how a kernel works on a lane."""

    side: int = MOST
    """The longest side of a tile; longer arrays are blocks."""
    warps: int = 1
    by_pieces: bool = False
    """Products of f32 are of pieces of bf16 (`pieces`)."""


def forms_of(jaxpr: Any) -> Iterator[Form]:
    """Yields the forms to try for the jaxpr of one lane, the best one first."""
    work = work_of(jaxpr)
    longest = max((n for e in work.eqns for v in (*e.invars, *e.outvars) for n in v.aval.shape), default=1)
    # four tiles need fewer steps for all of their elements, but solves may be refused in that form
    if work.has("cholesky") and not work.products and not work.has("scan") and LEAST < longest <= MOST:
        yield Form(LEAST)
    # one product waits for memory, and pieces would only add work
    matrices = [e for e in work.products if all(min(v.aval.shape, default=1) > 1 < v.aval.ndim for v in e.invars)]
    is_chain = len(matrices) > 1 or (bool(matrices) and work.has("scan"))
    pays = longest > LEAST or len(matrices) <= MOST_PIECES
    by_pieces = is_chain and pays and all(map(pieces.are_for, matrices))
    if by_pieces and longest > MOST and not work.factors:
        yield Form(2 * MOST, 4, True)
    yield Form(by_pieces=by_pieces)
