"""LLVM's passes and code generators for GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from lowering.llvm.modules import parsed
from lowering.llvm.unlocked import run_passes
from lowering.simt.devices import CUDA

if TYPE_CHECKING:
    from lowering.simt.devices import Device


LONG = 16_000
"""Lines of a module from which on NVIDIA's code is selected without the passes of LLVM's code generator. One of them
compares each computation of an address with all before it, 10 of 16 s at 25,000 lines; another one makes counters of
a loop's addresses, which costs registers. NVIDIA's assembler has passes of its own: five steps of a robot's simulation
take 0.92 of their time without LLVM's, and the code generator 0.3 s. What is lost counts in short kernels: loads of
16 bytes, and through the cache of what nobody writes."""


def optimised(text: str, device: Device) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Returns the module after LLVM's passes, and the target machine that prints it.

    Printing changes the module, so it can be done only once.
    """
    target = device.target
    kind = llvm.Target.from_triple(target.triple)
    level = 0 if device.family == CUDA and text.count("\n") > LONG else 3
    machine = kind.create_target_machine(cpu=target.cpu, features=target.features, opt=level)
    module = parsed(text)
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
