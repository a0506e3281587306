"""The kernel of a series: its tasks, one behind another, in one block.

Each task is a function of its own, which LLVM inlines, so facts about its references, such as that they do not overlap,
hold only inside it. Between tasks the threads of the block wait for each other, and see each other's stores. A task may
read what an earlier one wrote, so no memory of a series is marked constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.options import DEFAULTS, EmitOptions
from lowering.llvm.prologue import alias_metadata
from lowering.llvm.text import Module, Text
from lowering.simt.code import KernelCode, Launch
from lowering.simt.devices import BUFFER_ALIGNMENT, GLOBAL, SHARED
from lowering.simt.frame import wait_for_block
from lowering.simt.kernel import Kernel, new_module
from lowering.simt.plan import plan_in_series
from lowering.simt.series import BlockMemory, Filling
from lowering.tables import FIELD
from qdtrace.analysis.index.trips import trip_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.simt.devices import Device
    from lowering.simt.series import Step
    from qdtrace.ir.program import Task

_SPACE = f"ptr addrspace({GLOBAL})"
_NOWHERE = BlockMemory({}, 0)


def emit_series(
    steps: Sequence[Step], device: Device, threads: int, options: EmitOptions = DEFAULTS, inside: BlockMemory = _NOWHERE
) -> KernelCode:
    """Returns the kernel of a series.

    The kernel takes a pointer for each filling and the references of each task, in order, then what every kernel takes
    (`code.Launch`); the words of failures of its tasks are consecutive. Pointers of arguments that are `inside` shared
    memory are ignored. `KernelCode.refs` is empty: series of equal tasks have the same code, whichever references
    their tasks have in common.
    """
    module = new_module(device, options)
    family = device.family
    attributes = f"nounwind {family.threads_attribute.format(threads=threads)} {module.form.attributes}"
    text = Text(module, attributes, device.target.private_space)
    functions: list[str] = []
    if inside.nbytes:
        held = f"@qd_block = internal addrspace({SHARED}) global [{inside.nbytes} x i8] undef, align {BUFFER_ALIGNMENT}"
        functions.append(held)

    def pointer(n: int) -> str:
        if n in inside.offsets:
            there = f"getelementptr (i8, ptr addrspace({SHARED}) @qd_block, i64 {inside.offsets[n]})"
            return f"addrspacecast (ptr addrspace({SHARED}) {there} to ptr)"
        return text.op(f"addrspacecast {_SPACE} %a{n} to ptr")

    taken = number = 0
    for k, step in enumerate(steps):
        # consecutive fills are of different memory, so they need no wait between them
        if k and not (isinstance(step, Filling) and isinstance(steps[k - 1], Filling)):
            wait_for_block(text, family)
        if isinstance(step, Filling):
            _fill(text, step, pointer(taken), device, threads)
            taken += 1
            continue
        if step.kind == "serial" or trip_count(step.start, step.stop) != 0:
            code, refs = _function(step, module, device, threads, options, f"qd_task_{number}")
            functions.append(code)
            operands = "".join(f"ptr {pointer(taken + n)}, " for n in range(refs))
            word = text.op(f"getelementptr i8, {_SPACE} %failure, i64 {number * FIELD}")
            text.do(f"call void @qd_task_{number}({operands}i64 0, i64 0, {_SPACE} {word}, {_SPACE} %memory)")
        taken += len(step.refs)
        number += 1
    text.do("ret void")
    arguments = "".join(f"{_SPACE} %a{n}, " for n in range(taken))
    main = text.render(
        f"define {family.convention} void @qd_kernel({arguments}i64 %start, i64 %stop, {_SPACE} %failure, "
        f"{_SPACE} %memory)"
    )
    return KernelCode(module.render([*functions, main]), (), (Launch("qd_kernel", threads, 1),), 0, threads, "")


def _function(
    task: Task, module: Module, device: Device, threads: int, options: EmitOptions, name: str
) -> tuple[str, int]:
    """Returns the function of a task, and the number of references that it takes."""
    plan = plan_in_series(task, device, threads)
    own, _ = alias_metadata(plan.facts, module)
    return Kernel(plan, module, (own, ""), options).main(name), len(plan.facts.refs)


def _fill(text: Text, filling: Filling, place: str, device: Device, threads: int) -> None:
    """Emits a fill by all threads, in the widest words that divide the memory's size."""
    width = filling.width
    pattern = int.from_bytes(filling.value * (width // len(filling.value)), "little")
    intrinsic = device.family.thread
    text.module.declare(intrinsic, "i32", "")
    thread = text.op(f"zext i32 {text.op(f'call i32 @{intrinsic}()')} to i64")
    kind = f"i{8 * width}"
    with text.counted(thread, str(filling.nbytes // width), threads) as k:
        pointer = text.op(f"getelementptr {kind}, ptr {place}, i64 {k}")
        text.do(f"store {kind} {pattern}, ptr {pointer}, align {width}")
