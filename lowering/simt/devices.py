"""Kinds of GPU: what LLVM makes code for, how a kernel is spelled there, and how many threads run at a time."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from lowering.llvm.target import Target
from qdtrace.analysis.machine import GPU
from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.analysis.machine import Machine

GLOBAL, SHARED = 1, 3
"""LLVM's address spaces, the same for both families."""


@dataclass(frozen=True, slots=True)
class Family:
    """What the chips of a maker have in common."""

    name: str
    """As JAX calls the platform."""
    triple: str
    convention: str
    """Of kernels."""
    thread: str
    """Intrinsic: the number of a thread in its block."""
    block: str
    """Intrinsic: the number of a block in the launch."""
    barrier: str
    """Intrinsic: waits for the threads of the block."""
    fence: str
    """LLVM's name of the threads of a block, where the barrier alone does not order their stores."""
    most: str
    """Intrinsic: the largest (`max`, `umax`) of the 32 bit numbers of threads; empty where each runs alone."""
    active: str
    """Intrinsic: the threads that run together, where `most` has to be told; empty where it knows."""
    threads_attribute: str
    """Says how many threads a block has."""
    scope: str
    """LLVM's name of the threads of the device."""
    private_space: int
    atomic_promises: tuple[str, ...]
    part_half: bool
    has_approximations: bool
    """Of functions of f32, in hardware: those of `approximations`."""
    module_flags: tuple[str, ...]
    """Of each module, as LLVM's metadata."""


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


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of GPU."""

    family: Family
    target: Target
    multiprocessors: int
    """Of the largest chip of the kind: launches with a fixed number of blocks are sized by it."""
    threads: int
    """That run at a time on a multiprocessor."""
    warp: int

    @property
    def name(self) -> str:
        """Of the kind: "sm_90", "gfx942"."""
        return self.target.cpu

    @property
    def machine(self) -> Machine:
        """The device as passes know it."""
        return self.target.machine


KINDS: Mapping[str, tuple[Family, str, int, int, int]] = {
    "sm_80": (CUDA, "+ptx80", 108, 2048, 32),
    "sm_86": (CUDA, "+ptx80", 84, 1536, 32),
    "sm_89": (CUDA, "+ptx80", 142, 1536, 32),
    "sm_90": (CUDA, "+ptx80", 132, 2048, 32),
    "sm_100": (CUDA, "+ptx86", 148, 2048, 32),
    "sm_120": (CUDA, "+ptx87", 170, 1536, 32),
    "gfx90a": (ROCM, "", 104, 2048, 64),
    "gfx942": (ROCM, "", 304, 2048, 64),
    "gfx950": (ROCM, "", 256, 2048, 64),
    "gfx1100": (ROCM, "", 96, 1024, 32),
}


@functools.cache
def device(name: str) -> Device:
    """The kind of GPU of that name. Raises BackendError for one that is not known, or that this LLVM cannot print."""
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
