"""LLVM's passes and code generators for GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from lowering.llvm.unlocked import run_passes

if TYPE_CHECKING:
    from lowering.simt.devices import Device


def optimised(text: str, device: Device) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """The module after LLVM's passes, and the machine to write it with.

    Writing changes the module: it can be done once.
    """
    target = device.target
    kind = llvm.Target.from_triple(target.triple)
    machine = kind.create_target_machine(cpu=target.cpu, features=target.features, opt=3)
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple, module.data_layout = target.triple, target.data_layout
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    run_passes(builder.getModulePassManager(), module, builder)
    return module, machine


_FLUSHING_HALF = re.compile(r"\.ftz((?:\.\w+)*?\.f16)")
"""LLVM makes one instruction of f16 of an operation of f32 and its rounding. Where it is to take subnormal numbers of
f32 for zeros, that takes those of f16 too, which are normal in f32: everything below 6e-5."""


def assembly(text: str, device: Device) -> str:
    """PTX, or the assembly of an AMD GPU, of a module."""
    module, machine = optimised(text, device)
    return _FLUSHING_HALF.sub(r"\1", machine.emit_assembly(module))
