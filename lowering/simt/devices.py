"""Kinds of GPU: LLVM's target, the spelling of a kernel for it, and how many threads run at a time."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from lowering.llvm.target import Target
from qdtrace.analysis.machine import GPU
from qdtrace.errors import BackendError
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.analysis.machine import Machine

GLOBAL, SHARED = 1, 3
"""LLVM's numbers of address spaces, the same for both families."""

BUFFER_ALIGNMENT = 16
"""Bytes of the widest access. XLA aligns its buffers to more, and so does the layout those in scratch."""


@frozen(slots=True)
class Family:
    """Facts that all chips of a maker share."""

    name: str
    """JAX's name of the platform."""
    triple: str
    convention: str
    """LLVM's calling convention of kernels."""
    thread: str
    """Intrinsic that returns the number of a thread in its block."""
    block: str
    """Intrinsic that returns the number of a block in the launch."""
    barrier: str
    """Intrinsic that waits for the threads of the block."""
    fence: str
    """LLVM's sync scope of a block for fences around the barrier; empty if the barrier orders stores itself."""
    most: str
    """Intrinsic for the maximum (`max`, `umax`) of 32-bit numbers over a warp; empty if threads run alone."""
    active: str
    """Intrinsic that returns the active threads of the warp for `most`; empty if `most` takes no mask."""
    threads_attribute: str
    """Attribute of a kernel that fixes the threads of a block."""
    scope: str
    """LLVM's sync scope of the whole device, for atomics."""
    private_space: int
    atomic_promises: tuple[str, ...]
    part_half: bool
    has_approximations: bool
    """True if the hardware has the approximate f32 functions of `approximations`."""
    module_flags: tuple[str, ...]
    """LLVM metadata that every module gets as flags."""
    definitions: tuple[tuple[str, str], ...] = ()
    """Functions in the place of intrinsics: names, and definitions with all that they declare."""


CUDA = Family(
    name="cuda",
    triple="nvptx64-nvidia-cuda",
    convention="ptx_kernel",
    thread="llvm.nvvm.read.ptx.sreg.tid.x",
    block="llvm.nvvm.read.ptx.sreg.ctaid.x",
    barrier="llvm.nvvm.barrier0",
    fence="",
    most="llvm.nvvm.redux.sync.{}",
    active="llvm.nvvm.activemask",
    threads_attribute='"nvvm.maxntid"="{threads}"',
    scope="device",
    private_space=0,  # LLVM finds the local memory by itself
    atomic_promises=(),
    part_half=False,
    has_approximations=True,
    module_flags=(),
)
ROCM = Family(
    name="rocm",
    triple="amdgcn-amd-amdhsa",
    convention="amdgpu_kernel",
    thread="llvm.amdgcn.workitem.id.x",
    block="llvm.amdgcn.workgroup.id.x",
    barrier="llvm.amdgcn.s.barrier",
    fence="workgroup",
    most="llvm.amdgcn.wave.reduce.{}.i32",
    active="",
    threads_attribute='"amdgpu-flat-work-group-size"="{threads},{threads}"',
    scope="agent",
    private_space=5,
    # XLA's memory is the device's own, cached as a whole
    atomic_promises=("amdgpu.no.fine.grained.memory", "amdgpu.no.remote.memory"),
    part_half=True,
    has_approximations=False,
    module_flags=('!{i32 1, !"amdhsa_code_object_version", i32 500}',),  # all versions of ROCm 6 and later load it
)


@frozen(slots=True)
class Device:
    """A kind of GPU."""

    family: Family
    target: Target
    multiprocessors: int
    """Multiprocessors of the largest chip of the kind, which size launches with a fixed number of blocks."""
    threads: int
    """Resident threads per multiprocessor."""
    warp: int

    @property
    def name(self) -> str:
        """Name of the kind: "sm_90", "gfx942"."""
        return self.target.cpu

    @property
    def adds_vectors(self) -> bool:
        """True if an instruction adds two or four neighbouring f32 to memory at once."""
        return self.family is CUDA and int(self.name.removeprefix("sm_")) >= 90

    @property
    def machine(self) -> Machine:
        """The machine model of the device that passes use."""
        return self.target.machine


KINDS: Mapping[str, tuple[Family, str, int, int, int]] = {
    "sm_80": (CUDA, "+ptx80", 108, 2048, 32),
    "sm_86": (CUDA, "+ptx80", 84, 1536, 32),
    "sm_89": (CUDA, "+ptx80", 142, 1536, 32),
    "sm_90": (CUDA, "+ptx81", 132, 2048, 32),
    "sm_100": (CUDA, "+ptx86", 148, 2048, 32),
    "sm_120": (CUDA, "+ptx87", 170, 1536, 32),
    "gfx90a": (ROCM, "", 104, 2048, 64),
    "gfx942": (ROCM, "", 304, 2048, 64),
    "gfx950": (ROCM, "", 256, 2048, 64),
    "gfx1100": (ROCM, "", 96, 1024, 32),
}


def kinds_of(family: Family) -> tuple[str, ...]:
    """Returns the names of the kinds of a maker."""
    return tuple(name for name, (of, *_) in KINDS.items() if of is family)


@functools.cache
def device(name: str) -> Device:
    """Returns the kind of GPU of that name. Raises BackendError if it is unknown, or if this LLVM cannot print it."""
    if name not in KINDS:
        raise BackendError(f"the target must be cpu, {', '.join(KINDS)}; got {name!r}")
    family, features, multiprocessors, threads, warp = KINDS[name]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        kind = llvm.Target.from_triple(family.triple)
    except RuntimeError as e:
        raise BackendError(f"this build of llvmlite has no code generator for {name}", notes=(str(e),)) from None
    layout = str(kind.create_target_machine(cpu=name, features=features).target_data)
    target = Target(
        family.name, family.triple, name, features,
        vector_bits=0, registers=255, data_layout=layout, has_masks=False, has_half=True,
        machine=replace(GPU, platform=family.name, lanes=multiprocessors * threads),
        private_space=family.private_space,
        atomic_scope=family.scope, atomic_promises=family.atomic_promises, part_half=family.part_half,
    )  # fmt: skip
    return Device(family, target, multiprocessors, threads, warp)
