"""Targets: a machine's vectors, registers and LLVM options, and the LLVM passes that we run."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import TYPE_CHECKING, Any, cast

import llvmlite.binding as llvm

from lowering.llvm.unlocked import run_passes
from qdtrace.analysis.machine import CPU
from qdtrace.errors import BackendError
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from qdtrace.analysis.machine import Machine

LLVM_VERSION = cast("tuple[int, ...]", llvm.llvm_version_info)
_FORCED = "QD_CPU_TARGET"
_LEVELS = {
    "avx512": ("x86-64-v4", 512, 32),
    "avx2": ("x86-64-v3", 256, 16),
    "portable": ("x86-64", 128, 16),
    "scalar": ("x86-64", 0, 16),
}


@frozen(slots=True)
class Target:
    """A kind of processor. Equal targets accept the same object code."""

    name: str
    """Name of the family: "cpu"."""
    triple: str
    cpu: str
    features: str
    vector_bits: int
    registers: int
    """Number of vector registers."""
    data_layout: str
    has_masks: bool
    """True if masks have registers of their own (AVX-512)."""
    has_half: bool
    """True if the hardware converts f16."""
    machine: Machine = CPU
    """The machine model that passes use."""
    private_space: int = 0
    """LLVM's address space of private memory."""
    atomic_scope: str = ""
    """LLVM's sync scope of atomic operations; empty: all threads of the system."""
    atomic_promises: tuple[str, ...] = ()
    """Names of metadata that promise LLVM properties of the memory of atomic operations."""
    part_half: bool = False
    """True if LLVM must not fuse an f32 product with its rounding to f16, as that turns -0.0 into 0.0."""

    @property
    def key(self) -> str:
        """A short hash of all that object code depends on, for caches."""
        parts = (self.name, self.triple, self.cpu, self.features, self.vector_bits, LLVM_VERSION)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def has_gathers(self) -> bool:
        """Returns whether LLVM makes instructions of gathers, as it does where these are fast."""
        return self.has_masks or (self.vector_bits == 256 and _makes_gathers(self))

    @staticmethod
    def host() -> Target:
        """Returns the host's processor; `QD_CPU_TARGET` (avx512, avx2, portable, scalar) forces another kind."""
        forced = os.environ.get(_FORCED, "")
        return Target.named(forced) if forced else _host()

    @staticmethod
    def named(name: str) -> Target:
        """Returns a processor by name: "host", "avx512", "avx2", "portable" (128 bits) or "scalar" (no vectors)."""
        return _host() if name == "host" else _named(name)

    def llvm_machine(self) -> llvm.TargetMachine:
        """Returns a fresh LLVM target machine (they are not shared between threads)."""
        _initialise()
        target = llvm.Target.from_triple(self.triple)
        # the linker puts a task's constants beside its code, so that 32 bit offsets reach them
        return target.create_target_machine(cpu=self.cpu, features=self.features, opt=2, reloc="pic", codemodel="small")


@functools.cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # LLVM schedules straight-line loads and stores in time quadratic in their number, up to these limits (its own are
    # 1000 and 500). For a body with thousands of them, code generation took 3 times as long for the same code.
    for option, accesses in (("dag-maps-huge-region", 100), ("dag-maps-reduction-size", 50)):
        llvm.set_option("qdtrace", f"-{option}={accesses}")


def _make(cpu: str, features: str, bits: int, registers: int, has_masks: bool, has_half: bool) -> Target:
    _initialise()
    triple = llvm.get_process_triple()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
    layout = str(machine.target_data)
    return Target("cpu", triple, cpu, features, bits, registers, layout, has_masks, has_half)


@functools.cache
def _host() -> Target:
    features: Any = llvm.get_host_cpu_features()
    wide = all(features.get(f, False) for f in ("avx512f", "avx512bw", "avx512dq", "avx512vl"))
    avx2 = features.get("avx2", False) and features.get("fma", False)
    arm = llvm.get_process_triple().startswith(("aarch64", "arm64"))
    bits, registers = (512, 32) if wide else (256, 16) if avx2 else (128, 32 if arm else 16)
    half = features.get("f16c", False) or arm
    return _make(llvm.get_host_cpu_name(), features.flatten(), bits, registers, wide, half)


@functools.cache
def _named(name: str) -> Target:
    if name not in _LEVELS:
        raise BackendError(
            f"the CPU target must be one of host, {', '.join(_LEVELS)}, got {name!r}", help=f"set or unset {_FORCED}"
        )
    cpu, bits, registers = _LEVELS[name]
    intel = llvm.get_process_triple().startswith("x86_64")
    if not intel and name in ("avx512", "avx2"):
        raise BackendError(f"the CPU target {name} needs an x86-64 processor", help=f"unset {_FORCED}")
    return _make(cpu if intel else "generic", "", bits, registers, name == "avx512", name in ("avx512", "avx2"))


_GATHER = """
declare <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr>, i32, <8 x i1>, <8 x float>)
define <8 x float> @f(<8 x ptr> %p, <8 x i1> %m) {
  %x = call <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr> %p, i32 4, <8 x i1> %m, <8 x float> zeroinitializer)
  ret <8 x float> %x
}
"""


@functools.cache
def _makes_gathers(target: Target) -> bool:
    return "gather" in target.llvm_machine().emit_assembly(llvm.parse_assembly(_GATHER))


def optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Runs LLVM's passes on a module made by the emitter.

    It runs a short list instead of a standard level: vectors are explicit, and the graph has been simplified already.
    The passes inline the maths library, promote private memory to registers (again after unrolling of short loops)
    and clean up locally. Measured against level 2: equal run time, a fifth of the compile time.
    """
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_simplify_cfg_pass()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_loop_unroll_pass()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    run_passes(passes, module, builder)
