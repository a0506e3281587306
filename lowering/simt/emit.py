"""The driver of emission: turns a task into the text of an LLVM module of kernels.

The kernels are `qd_kernel` and, if needed, `qd_begin` before it (bounds that the task itself changes, a counter of
iterations) and `qd_combine` after it (sums of blocks; several if parts may share elements). `code.Launch` lists their
arguments.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.options import DEFAULTS, EmitOptions
from lowering.llvm.prologue import alias_metadata
from lowering.simt.code import KernelCode, Launch
from lowering.simt.emit_spans import KERNELS, emit_span_kernels
from lowering.simt.kernel import Kernel, new_module
from lowering.simt.plan import plan_task

if TYPE_CHECKING:
    from lowering.simt.devices import Device
    from qdtrace.ir.program import Task

def emit_kernels(
    task: Task, device: Device, options: EmitOptions = DEFAULTS, block_dim: int | None = None
) -> KernelCode:
    """Returns the kernels of a task for a device."""
    plan = plan_task(task, device, block_dim, stages=options.may("spans"))
    module = new_module(device, options)
    aliases = alias_metadata(plan.facts, module)
    launches = [Launch("qd_kernel", plan.threads, plan.blocks, plan.group)]
    if plan.spans is None:
        functions = [Kernel(plan, module, aliases, options).main()]
    else:
        functions = emit_span_kernels(plan, module, aliases, options)
        held = plan.spans.held_percent
        launches = [replace(launches[0], name=name, held=held * (name == "qd_kernel")) for name in KERNELS]
    if plan.begins_apart:
        functions.append(Kernel(plan, module, aliases, options).begin())
        launches.insert(0, Launch("qd_begin", 1, 1))
    for turn, parts in enumerate(plan.combines):
        name = f"qd_combine_{turn}" if turn else "qd_combine"
        functions.append(Kernel(plan, module, aliases, options).combine(name, parts))
        launches.append(Launch(name, plan.threads, sum(part.size for part in parts)))
    at_once = device.multiprocessors * device.threads
    if task.kind == "serial":
        at_once = 1
    elif plan.stacks.nbytes:  # each launched thread has its own stacks
        at_once = plan.blocks * plan.threads
    return KernelCode(
        module.render(functions),
        plan.facts.refs,
        tuple(launches),
        plan.scratch_bytes,
        at_once,
        plan.reason,
        plan.scratch_bytes - plan.stacks_at if plan.stacks.nbytes else 0,
    )
