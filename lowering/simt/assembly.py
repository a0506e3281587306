"""LLVM's passes and code generators for GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from lowering.llvm.unlocked import run_passes

if TYPE_CHECKING:
    from lowering.simt.devices import Device


def optimised(text: str, device: Device) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Returns the module after LLVM's passes, and the target machine that prints it.

    Printing changes the module, so it can be done only once.
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
"""LLVM fuses an f32 operation and its rounding to f16 into one f16 instruction. With flushing of f32 subnormals that
instruction flushes f16 subnormals too, which are normal in f32: everything below 6e-5."""


def assembly(text: str, device: Device) -> str:
    """Returns PTX, or the assembly of an AMD GPU, for a module."""
    module, machine = optimised(text, device)
    return _FLUSHING_HALF.sub(r"\1", machine.emit_assembly(module))
