"""Sums on a GPU that have the same bits in every run: integers are added up, which no order changes.

Before:  accum[op=add] out v i        After:  the bits of v's mantissa, shifted, go to one integer of 64 bits of out's
                                              element, by v's exponent: accum[op=add] planes bits plane i
                                              Then a task adds each element's integers, from the last plane on, to out.

Each integer ("plane") stands for 8 exponents, so 24 bits of a mantissa fill 31, and 2**32 additions fit: the sum of the
values is exact until the end, which rounds it once. Infinities and NaN are counted in three planes more. Mantissas of
f64 go there in three parts. Sums of an element that all iterations share are kept by threads and combined in the order
of blocks (`lowering/plan/sums`): they stay. (Idea: Kulisch's long accumulator, in pieces as in ReproBLAS.)
"""

from __future__ import annotations

from dataclasses import replace
from math import ldexp, prod
from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from lowering.llvm.types import compute_dtype
from lowering.plan.sums import Where, find_sums, unordered_updates
from qdtrace.errors import BackendError
from qdtrace.frozen import frozen
from qdtrace.ir.builder import Builder, emit_loop, ref_var, scalar_var, unravel
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import Task, literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Collection

    from qdtrace.analysis.machine import AccumulationLimits
    from qdtrace.ir.program import Atom, Eqn, Program, Var

EXPONENTS = 8
"""Exponents of one plane."""
PART = 24
"""Bits of a mantissa that one plane takes."""
INFINITY, NEGATIVE_INFINITY, NAN = range(3)
"""Planes behind those of numbers."""
MOST_BYTES = 1 << 32
"""The most memory for the planes of one array."""


@frozen(slots=True)
class Format:
    """The bits of the numbers of a dtype."""

    bits: DType
    fraction: int
    """Bits of the mantissa without the first one."""
    exponent: int
    """The exponent's bits, all set, as of infinities and NaN."""

    @property
    def parts(self) -> int:
        """The number of parts of a mantissa."""
        return -(-(self.fraction + 1) // PART)

    @property
    def planes(self) -> int:
        """The number of planes of finite numbers."""
        return (self.exponent - 2 + PART * (self.parts - 1)) // EXPONENTS + 1

    @property
    def largest_unit(self) -> float:
        """The number that one in the last plane stands for: in the first plane it is the smallest number."""
        return ldexp(1.0, EXPONENTS * (self.planes - 1) + 1 - self.exponent // 2 - self.fraction)


FORMATS = {DType.f32: Format(DType.u32, 23, (1 << 8) - 1), DType.f64: Format(DType.u64, 52, (1 << 11) - 1)}


def reproducible(program: Program, limits: AccumulationLimits) -> Program:
    """Returns a program none of whose sums depends on the order of threads.

    Raises BackendError at the first update that does and is no sum of its own: one whose old value is asked for, a
    product, a task that also reads or stores the array, or one whose planes would take more than 4 GiB.
    """
    planes: dict[Var, Var] = {}
    tasks: list[Task] = []
    for task in program.tasks:
        facts = TaskFacts(task)
        sums = find_sums(facts, limits)
        eqns = unordered_updates(facts, sums, Where.COPY, Where.SHARED, Where.ATOMIC)
        for eqn in eqns:
            _check(eqn, sums.where(eqn) if eqn.primitive is ACCUM else Where.ATOMIC)
            ref = reference(eqn)
            if ref not in planes:
                shape = FORMATS[compute_dtype(ref.dtype)].planes + NAN + 1, *ref_type(ref).shape
                planes[ref] = ref_var(DType.i64, shape, f"{ref.hint or 'sums'}_planes")
        tasks.append(_InPlanes(planes, {*eqns}).rebuild_task(task) if eqns else task)
        tasks += [_merge(task, ref, planes[ref]) for ref in dict.fromkeys(map(reference, eqns))]
    if not planes:
        return program
    initial = {**program.initial, **dict.fromkeys(planes.values(), literal(0, DType.i64))}
    buffers = (*program.buffers, *planes.values())
    return replace(program, tasks=tuple(tasks), buffers=buffers, initial=initial)


def _check(eqn: Eqn, where: Where) -> None:
    ref = reference(eqn)
    form = FORMATS.get(compute_dtype(ref.dtype))
    if where is Where.ATOMIC or form is None or eqn.params["op"] != "add":
        what = "atomic updates of"
    elif 8 * (form.planes + NAN + 1) * prod(ref_type(ref).shape) > MOST_BYTES:
        what = f"more than {MOST_BYTES >> 30} GiB for the exact sums of"
    else:
        return
    raise BackendError(
        f"deterministic=True needs sums that do not depend on the order of threads, got {what} "
        f"`{ref.hint or 'memory'}` on a GPU",
        loc=eqn.loc,
        help="run it on a CPU (`jax.default_device`), in order (`qd.range(n, serial=True)`), or sum integers",
    )


class _InPlanes(Rebuilder):
    """Rebuilds a task whose updates in a set go to the planes of their references."""

    def __init__(self, planes: dict[Var, Var], updates: Collection[Eqn]) -> None:
        super().__init__()
        self.planes = planes
        self.updates = updates

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or what takes the place of an update."""
        if eqn not in self.updates:
            super().visit(eqn)
            return
        self.loc = eqn.loc
        ref, value = self.atoms(eqn.invars[:2])
        self._add(self.planes[reference(eqn)], value, self.atoms(indices_of(eqn)), compute_dtype(ref.dtype))

    def _add(self, planes: Var, value: Atom, indices: tuple[Atom, ...], dtype: DType) -> None:
        form = FORMATS[dtype]
        x = self.convert(value, dtype)

        def number(k: int) -> Atom:
            return literal(k, DType.i64)

        bits = self.convert(self("bitcast", x, dtype=form.bits), DType.i64)
        field = self("shift_right_logical", bits, number(form.fraction))
        exponent = self("and", field, number(form.exponent))
        is_normal = self("gt", exponent, number(0))
        first = self("select", is_normal, number(1 << form.fraction), number(0))
        mantissa = self("or", self("and", bits, number((1 << form.fraction) - 1)), first)
        place = self("sub", exponent, self("select", is_normal, number(1), number(0)))
        is_number = self("lt", exponent, number(form.exponent))
        is_negative = self("lt", x, literal(0, dtype))
        infinite = self("select", is_negative, number(form.planes + NEGATIVE_INFINITY), number(form.planes + INFINITY))
        special = self("select", self("eq", x, x), infinite, number(form.planes + NAN))
        for part in range(form.parts):
            piece: Atom = mantissa
            if form.parts > 1:
                piece = self("shift_right_logical", mantissa, number(PART * part)) if part else mantissa
                piece = self("and", piece, number((1 << PART) - 1))
            at = self("add", place, number(PART * part)) if part else place
            amount = self("shift_left", piece, self("and", at, number(EXPONENTS - 1)))
            amount = self("select", is_negative, self("neg", amount), amount)
            plane = self("shift_right_logical", at, number(EXPONENTS.bit_length() - 1))
            amount = self("select", is_number, amount, number(1))
            plane = self("select", is_number, plane, special)
            self.accum(planes, amount, self.convert(plane, DType.i32), *indices)


def _merge(task: Task, ref: Var, planes: Var) -> Task:
    """Returns the task that adds to each element of a reference what its planes have, and clears them."""
    type, form = ref_type(ref), FORMATS[compute_dtype(ref.dtype)]
    dtype = DType.i32 if type.size < 1 << 31 else DType.i64
    index, b, wide = scalar_var(dtype, "i"), Builder(), DType.f64
    b.loc = task.loc
    with b.block() as body:
        at = unravel(b, index, type.shape)

        def taken(plane: Atom) -> Atom:
            found = b.load(planes, plane, *at)
            b.store(planes, literal(0, DType.i64), plane, *at)
            return found

        def further(k: Var, carries: list[Var]) -> list[Atom]:
            total, unit = carries
            found = b("mul", b.convert(taken(k), wide), unit)
            return [b("add", total, found), b("mul", unit, literal(0.5**EXPONENTS, wide))]

        bounds = [literal(k, DType.i32) for k in (form.planes - 1, -1, -1)]
        total, _ = emit_loop(b, bounds, (literal(0.0, wide), literal(form.largest_unit, wide)), further, index="k")
        infinite, negative, none = (
            b("ne", taken(literal(form.planes + k, DType.i32)), literal(0, DType.i64))
            for k in (INFINITY, NEGATIVE_INFINITY, NAN)
        )
        total = b("select", infinite, literal(float("inf"), wide), total)
        total = b("select", negative, literal(float("-inf"), wide), total)
        is_none = b("or", none, b("and", infinite, negative))
        total = b("select", is_none, literal(float("nan"), wide), total)
        old = b.load(ref, *at)
        b.store(ref, b.convert(b("add", b.convert(old, wide), total), ref.dtype), *at)
    name = f"{task.name}_exact" if task.name else ""
    return Task("range_for", index, literal(0, dtype), literal(type.size, dtype), body.close(), (), name, task.loc)
