"""Sizes from which on work of a lane is for the whole batch, on each kind of machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jax import lax

from qdtrace.frozen import frozen
from qdtrace.groups.work import is_small_product
from qdtrace.trace import compat
from qdtrace.trace.rows import is_of_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@frozen
class Limits:
    """Sizes from which on a batched library is faster than a thread of each lane, on one kind of machine."""

    product: int
    """Multiplications of one product of two arrays."""
    shared: int
    """The same, where one operand is equal in all lanes: XLA makes one product of them."""
    given: int
    """The same, where the arrays of each lane are arguments, which lanes of a vector would gather."""
    in_memory: int
    """The same, where an array is too large for registers."""
    side: int
    """Side of a matrix that is factorised, or solved with."""
    spectral: int
    """Side of a matrix whose eigenvalues or singular values are asked for."""
    eigen: int
    """The same of a real matrix that need not be symmetric: eigenvalues take each lane its own number of steps."""
    sorted: int
    """Elements of a sorted line, of all operands; `top_k` has three, besides the line its bits and positions.
    A thread moves elements one by one: on an H200 it takes 0.8 to 1.1 of XLA's time below, then 1.2 to 6 times."""
    rows_behind: bool = False
    """True: equations behind the last loop of a lane are for the whole batch, whatever their size."""


CPU = Limits(product=4097, shared=4097, given=512, in_memory=1024, side=17, spectral=17, eigen=5, sorted=1 << 31)
"""Measured with AVX-512 and AVX2: docs/design/0045. Lanes sort in 0.01 to 0.3 of XLA's time."""
GPU = Limits(product=700, shared=256, given=700, in_memory=1024, side=9, spectral=8, eigen=8, sorted=64)
"""Measured on an H100, where groups of threads have the work: docs/design/0050."""
GPU_ALONE = Limits(product=1500, shared=256, given=1500, in_memory=1024, side=12, spectral=8, eigen=8, sorted=64)
"""The same for f64 and complex numbers, which groups do not have, and beside what stays in the loop over lanes.
Measured on an H200: docs/design/0045."""
FACTOR_SIDE = 7
"""The limit `side` for a Cholesky factor and its solves with nothing beside them: threads have the values as before,
but groups the derivatives, which take 0.5 to 0.8 of a thread's time at 7 and 8, and a tenth of its first call."""
FEW_LANES = 1 << 16
"""Lanes that leave most of a GPU idle, if a thread has each: an H200 runs 270,000 threads."""
LONG = 64
"""The fewest elements of an array whose operations fill a GPU where lanes do not."""
ROW_ON_CPU = 8
"""The fewest elements of a row whose arithmetic is XLA's on a CPU: neighbouring lanes have theirs far apart."""
ROW_ON_GPU = 4
"""The same on a GPU, also with sums: XLA has a value and its derivative in one kernel, which read and write once."""
FEW_SUMS = 3
"""Sums and extremes of rows, one behind the other, that XLA computes while it reads once."""
MOST_IN_BATCH = 1 << 28
"""Elements of one array of all lanes: XLA may keep several of them in memory, where a loop keeps none."""
_CALLS = frozenset({"jit", "custom_jvp_call"})
_BESIDE_FACTORS = frozenset({
    "add", "broadcast_in_dim", "convert_element_type", "copy", "div", "ge", "iota", "le", "mul", "neg", "reduce_sum",
    "reshape", "select_n", "squeeze", "sub", "transpose",
})  # fmt: skip
"""Primitives beside factors that groups have rules for."""
_SUMS = frozenset({"reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum"})
AS_FAST_ON_CPU = frozenset({
    "abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "convert_element_type", "copy", "div", "eq", "exp",
    "ge", "gt", "integer_pow", "is_finite", "le", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "not", "or", "reshape", "rsqrt", "select_n", "sign", "sqrt", "square", "squeeze", "stop_gradient", "sub", "tanh",
}) | _CALLS  # fmt: skip
"""Primitives that XLA's loops on a CPU compute as fast as ours: sines, logarithms and powers take it 5 to 15 times as
long."""
_FUNCTIONS = frozenset({"exp", "logistic", "tanh"})
"""Primitives among these that take long enough that a kernel and its reverse, which compute both, lose by it."""
_PERMUTING = frozenset({"rev", "transpose"})
"""Primitives that move each element to another place. XLA's loops on a CPU read there, also those of derivatives; of
parts of arrays, and of what is put together from them, it makes arrays."""


def limits_on_cpu(jaxpr: Any, lanes: int) -> Limits | None:
    """Returns the limits of the jaxpr of one element on a CPU; None if whatever may run for the whole batch does so."""
    opened = compat.open_jaxpr(jaxpr)
    every = list(compat.all_eqns(opened.eqns))
    names = {e.primitive.name for e in every}
    is_fast = names <= AS_FAST_ON_CPU | _PERMUTING and not (_grows(opened) and names.isdisjoint(_FUNCTIONS))
    return None if is_fast and _is_streamed(opened, every, lanes, ROW_ON_CPU, _PERMUTING) else CPU


def _grows(jaxpr: Any) -> bool:
    """Returns whether a jaxpr makes an array that is larger than all of its arguments, as outer products are.

    Its derivative sums along both axes, which XLA does in two passes: lanes take 0.1 to 0.8 of the time.
    """
    given, made = (max((v.aval.size for v in side), default=0) for side in (jaxpr.invars, jaxpr.outvars))
    return given < made


def limits_on_gpu(jaxpr: Any, lanes: int, varies: Collection[Any]) -> Limits | None:
    """Returns the limits of the jaxpr of one element on a GPU; None if whatever may run for the whole batch does so."""
    opened = compat.open_jaxpr(jaxpr)
    every = list(compat.all_eqns(opened.eqns))
    bound = list(map(stays, opened.eqns))
    if any(bound):
        last = [e for e, is_behind in zip(opened.eqns, behind(opened.eqns, bound), strict=True) if is_behind]
        return replace(GPU_ALONE, rows_behind=_is_of_rows(list(compat.all_eqns(last)), lanes))
    stored = max((v.aval.shape[-1] for v in opened.outvars if v.aval.shape), default=0)
    if _is_of_rows(every, lanes, stored) or _is_streamed(opened, every, lanes, ROW_ON_GPU):
        return None
    if all(v in varies for v in opened.invars) and is_small_product(jaxpr):
        return None
    dtypes = {str(getattr(v.aval, "dtype", "")) for e in every for v in e.outvars}
    if not dtypes.isdisjoint(("float64", "complex64", "complex128")):
        return GPU_ALONE
    names = {e.primitive.name for e in every}
    is_of_factors = "cholesky" in names and names <= _BESIDE_FACTORS | _CALLS | {"cholesky", "triangular_solve"}
    return replace(GPU, side=FACTOR_SIDE) if is_of_factors else GPU


def stays(eqn: Any) -> bool:
    """Returns whether an equation is for the loop over lanes.

    Lanes leave a `while` at different times, and only this package has its derivative; effects happen in each lane.
    """
    return bool(eqn.effects) or any(e.primitive is lax.while_p for e in compat.all_eqns((eqn,)))


def behind(eqns: Sequence[Any], bound: Sequence[bool]) -> list[bool]:
    """Returns of each equation whether it reads what loops of a lane make, and no loop reads what it makes."""
    made: set[Any] = set()
    read: set[Any] = set()
    found: list[bool] = []
    for eqn, is_bound in zip(eqns, bound, strict=True):
        found.append(not is_bound and any(isinstance(v, compat.Var) and v in made for v in eqn.invars))
        if is_bound or found[-1]:
            made.update(eqn.outvars)
    for k in range(len(eqns) - 1, -1, -1):
        if bound[k] or not read.isdisjoint(eqns[k].outvars):
            read.update(v for v in eqns[k].invars if isinstance(v, compat.Var))
            found[k] = False
    return found


def _is_of_rows(eqns: Sequence[Any], lanes: int, stored: int = 0) -> bool:
    """Returns whether a GPU needs the elements of long arrays side by side.

    Lanes may be too few to fill it, or threads would store their results, rows of `stored` elements, far apart.

    Loops stay with lanes: XLA starts a kernel for each operation of each of their steps.
    """
    if any(e.primitive is lax.scan_p for e in eqns):
        return False
    sizes = [largest_result(e).size for e in eqns if e.outvars and not compat.holds_jaxpr(e)]
    is_convolved = any(e.primitive is lax.conv_general_dilated_p for e in eqns)  # a thread takes a quarter of the time
    is_for_elements = lanes < FEW_LANES or (stored >= LONG and not is_convolved)
    is_small = lanes * max(sizes, default=0) < MOST_IN_BATCH
    return is_for_elements and is_small and sum(n for n in sizes if n >= LONG) > sum(sizes) / 2


def _is_streamed(
    jaxpr: Any, every: Sequence[Any], lanes: int, least: int, besides: frozenset[str] = frozenset()
) -> bool:
    """Returns whether a jaxpr does arithmetic on rows of `least` elements or more, with few sums, and makes no larger.

    `every` has its equations, inner ones too, which may be primitives named in `besides`, too.

    What an optimiser of array operations has as one loop over all lanes is limited by memory, and so is its derivative,
    which this package would compute by two more passes.
    """
    row = max((v.aval.size for v in (*jaxpr.invars, *jaxpr.outvars)), default=0)
    if not is_of_rows(every, besides) or row < least or lanes * row >= MOST_IN_BATCH:
        return False
    names = [e.primitive.name for e in every]
    is_small = all(largest_result(e).size <= row for e in every if e.outvars)
    return is_small and "argmax" not in names and "argmin" not in names and sum(n in _SUMS for n in names) <= FEW_SUMS


def largest_result(eqn: Any) -> Any:
    """Returns the type of the largest result of an equation."""
    return max((v.aval for v in eqn.outvars), key=lambda a: a.size)
