"""Products and factorisations of the jaxpr of one lane, by which work is given to groups; it loads no Pallas."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from qdtrace.frozen import frozen
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

LEAST = 16
"""The shortest side of an operand of Triton's product."""
MOST = 32
"""The longest side of an array that registers of a warp hold, with the others of a chain."""
_side = ContextVar("the longest side of a tile", default=MOST)
FEW_TERMS = 7
"""Terms of each sum of a product that XLA writes out, lanes side by side, in one loop with what is around: memory is
its limit. A thread reads and stores rows far apart (0.3 to 0.97 of XLA's speed on an H200, 4 x 4 to 7 x 7)."""
PRODUCT = "dot_general"
FACTORS = ("cholesky", "triangular_solve")
HEAVY = frozenset({PRODUCT, *FACTORS, "scan", "jit", "custom_jvp_call"})
"""Primitives that need many registers, or may hold some that do."""
_MOVES = frozenset({"jit", "transpose", "convert_element_type"})


def most() -> int:
    """Returns the longest side of a tile in the kernel that is being made."""
    return _side.get()


@contextmanager
def tiles_to(side: int) -> Generator[None]:
    """Has kernels that are made inside hold arrays in tiles up to this side."""
    before = _side.set(side)
    try:
        yield
    finally:
        _side.reset(before)


def lanes_of(operands: Sequence[Any], mapped: Sequence[bool]) -> int:
    """Returns the number of lanes of operands."""
    return next(x.shape[0] for x, is_mapped in zip(operands, mapped, strict=True) if is_mapped)


@frozen
class Work:
    """The equations of a jaxpr, with those inside of its loops and calls, by kind."""

    eqns: list[Any]
    products: list[Any]
    factors: list[Any]
    """Factorisations and triangular solves."""

    def has(self, name: str) -> bool:
        """Returns whether an equation is of the primitive of this name."""
        return any(e.primitive.name == name for e in self.eqns)


def work_of(jaxpr: Any) -> Work:
    """Returns the work of a jaxpr, open or closed."""
    eqns = list(compat.all_eqns(compat.open_jaxpr(jaxpr).eqns))
    products = [e for e in eqns if e.primitive.name == PRODUCT]
    return Work(eqns, products, [e for e in eqns if e.primitive.name in FACTORS])


def is_small_product(jaxpr: Any) -> bool:
    """Returns whether a jaxpr is one product of two small matrices, and nothing else."""
    work = work_of(jaxpr)
    if len(work.products) != 1 or {e.primitive.name for e in work.eqns} - _MOVES != {PRODUCT}:
        return False
    shapes = [v.aval.shape for v in work.products[0].invars]
    return all(len(shape) > 1 and max(shape) <= FEW_TERMS for shape in shapes)
