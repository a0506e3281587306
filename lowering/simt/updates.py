"""Updates of arrays that all threads share: components of one element together, where the device adds vectors.

The caches of a GPU take an addition of four floats in the time of one. Rows of an odd number of components begin at an
aligned pair or one component after it: pairs are taken from where the address says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead, element_pointer
from lowering.llvm.atomics import atomic_scalar
from lowering.llvm.borders import after, before
from lowering.llvm.types import BYTES, MEMORY
from lowering.plan.update_groups import BASE_ALIGNMENT, group_updates
from lowering.simt.devices import GLOBAL
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.llvm.rules import Rule
    from lowering.plan.update_groups import UpdateGroup
    from lowering.simt.frame import KernelFrame
    from qdtrace.ir.program import Eqn

_FLOAT = BYTES[MEMORY[DType.f32]]


def emit_in_groups(rules: Mapping[str, Rule], f: KernelFrame, eqns: Sequence[Eqn]) -> None:
    """Emits equations in order, and each group of updates before the first equation that cannot join it."""
    *updates, last = group_updates(f.plan.sums, eqns)
    for eqn, groups in zip(eqns, updates, strict=True):
        before(f, eqn)
        for group in groups:
            _update(f, group)
        rules[eqn.primitive.name](f, eqn)
        after(f, eqn)
    for group in last:
        _update(f, group)


def _update(f: KernelFrame, group: UpdateGroup) -> None:
    """Emits the accumulation of a group."""
    memory, d = f.globals[group.ref], group.ref.dtype
    pointer = element_pointer(f, memory, group.indices)
    values = [f.scalar_of(value) for value in group.values]
    if not (f.device.adds_vectors and d is DType.f32 and group.op == "add"):
        for k, value in enumerate(values):
            atomic_scalar(f, group.op, d, memory, ahead(f, MEMORY[d], pointer, k), [value])
    elif len(values) % 2 and group.alignment % (2 * _FLOAT):
        _add_odd(f, memory, pointer, values)
    else:
        for k, count in group.aligned(BASE_ALIGNMENT):
            _add(f, memory, ahead(f, MEMORY[d], pointer, k), values[k : k + count])


def _add_odd(f: KernelFrame, memory: GlobalMemory, pointer: str, values: Sequence[str]) -> None:
    """Adds an odd number of values, whose pairs are aligned from the first on, or else from the second."""
    text, last = f.text, len(values) - 1
    late = text.op(f"and i64 {text.op(f'ptrtoint ptr {pointer} to i64')}, {_FLOAT}")
    is_early = text.op(f"icmp eq i64 {late}, 0")

    def either(early: int, other: int) -> str:
        return text.op(f"select i1 {is_early}, float {values[early]}, float {values[other]}")

    first = text.op(f"getelementptr i8, ptr {pointer}, i64 {late}")
    for k in range(0, last, 2):
        _add(f, memory, ahead(f, "float", first, k), [either(k, k + 1), either(k + 1, k + 2)])
    left = text.op(f"select i1 {is_early}, i64 {last}, i64 0")
    _add(f, memory, text.op(f"getelementptr float, ptr {pointer}, i64 {left}"), [either(last, 0)])


def _add(f: KernelFrame, memory: GlobalMemory, pointer: str, values: Sequence[str]) -> None:
    """Adds values to neighbouring floats, aligned to all of them, in one instruction without a result."""
    if len(values) == 1:
        atomic_scalar(f, "add", DType.f32, memory, pointer, [*values])
        return
    place = f.text.op(f"addrspacecast ptr {pointer} to ptr addrspace({GLOBAL})")
    names = ", ".join(f"${k + 1}" for k in range(len(values)))
    code = f"red.relaxed.gpu.global.add.v{len(values)}.f32 [$0], {{{names}}};"
    given = ", ".join(f"float {value}" for value in values)
    constraints = ",".join(["l", *"f" * len(values)])
    f.text.do(f'call void asm sideeffect "{code}", "{constraints}"(ptr addrspace({GLOBAL}) {place}, {given})')
