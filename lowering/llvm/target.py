"""Targets: a machine's vectors, registers and LLVM options, and the LLVM passes that we run."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import replace
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


@frozen(slots=True)
class _Level:
    """Properties that all processors of one kind have."""

    cpu: str
    """LLVM's name of the least processor of that kind."""
    vector_bits: int
    registers: int
    arch: str = ""
    """First part of the triples of its processors; empty: any has this level."""
    needs: tuple[str, ...] = ()
    """LLVM's names of the features that tell these processors from others of the same architecture."""
    has_masks: bool = False
    has_half: bool = False


_X86, _ARM = "x86_64", "aarch64"
_LEVELS = {
    "avx512": _Level("x86-64-v4", 512, 32, _X86, ("avx512f", "avx512bw", "avx512dq", "avx512vl"), True, True),
    "avx2": _Level("x86-64-v3", 256, 16, _X86, ("avx2", "fma"), has_half=True),
    "neon": _Level("generic", 128, 32, _ARM, has_half=True),
    "portable": _Level("", 128, 16),
    "scalar": _Level("", 0, 16),
}
"""Kinds of processors, the widest vectors first."""
_LEAST = {_X86: "x86-64", _ARM: "generic"}
"""LLVM's name of the least processor of an architecture."""


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
    level: int = 2
    """LLVM's level of code generation."""

    @property
    def key(self) -> str:
        """A short hash of all that object code depends on, for caches."""
        kind = (self.vector_bits, self.registers, self.has_masks, self.has_half)
        parts = (self.name, self.triple, self.cpu, self.features, self.level, *kind, LLVM_VERSION)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def has_gathers(self) -> bool:
        """Returns whether LLVM makes instructions of gathers, as it does where these are fast."""
        return self.has_masks or (self.vector_bits == 256 and _makes_gathers(self))

    @property
    def has_fast_gathers(self) -> bool:
        """Returns whether gathers take less than loads one by one: AMD's have instructions that take as much."""
        return self.has_gathers and not self.cpu.startswith("znver")

    @property
    def vector_attributes(self) -> str:
        """Returns LLVM's attributes of functions with vectors: their width, and a stack that is aligned to them.

        Else vectors on the stack would straddle cache lines, by where a thread's stack begins.
        """
        stack = f" alignstack({self.vector_bits // 8})" if self.vector_bits > 128 else ""
        return f'"prefer-vector-width"="{max(128, self.vector_bits)}"{stack}'

    @property
    def quick(self) -> Target:
        """Returns the target for code that runs a few times a call: the launcher, and handlers.

        At LLVM's level 0 instructions are not scheduled, and few passes look for better ones: 0.4 of the time. Of other
        architectures that level is a selector which this package does not use.
        """
        return replace(self, level=0) if _arch(self.triple) == _X86 else self

    @property
    def packs_masks(self) -> bool:
        """Returns whether LLVM packs and unpacks masks that cross blocks, as with AVX2 (`lowering/simd/live_lanes`)."""
        return self.vector_bits == 256 and not self.has_masks

    @staticmethod
    def host() -> Target:
        """Returns the host's processor; `QD_CPU_TARGET` forces another kind that it can run (`here`)."""
        forced = os.environ.get(_FORCED, "")
        if forced in _LEVELS and forced not in _here():
            raise BackendError(
                f"the CPU target {forced} does not run on this processor, which runs {', '.join(_here())}",
                help=f"unset {_FORCED}",
            )
        return Target.named(forced) if forced else _host()

    @staticmethod
    def here() -> tuple[str, ...]:
        """Returns the names of the kinds of processors whose code the host runs, the widest vectors first."""
        return _here()

    @staticmethod
    def named(name: str) -> Target:
        """Returns "host" or a kind by name: avx512, avx2, neon, portable (128 bits), scalar (no vectors).

        Code is made for kinds that the host does not run, too.
        """
        return _host() if name == "host" else _named(name)

    def llvm_machine(self) -> llvm.TargetMachine:
        """Returns a fresh LLVM target machine (they are not shared between threads)."""
        _initialise(_arch(self.triple))
        target = llvm.Target.from_triple(self.triple)
        # the linker puts a task's constants beside its code, so that 32 bit offsets reach them
        return target.create_target_machine(
            cpu=self.cpu, features=self.features, opt=self.level, reloc="pic", codemodel="small"
        )


@functools.cache
def _initialise(arch: str) -> None:
    if arch == _host_arch():
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    # LLVM schedules straight-line loads and stores in time quadratic in their number, up to these limits (its own are
    # 1000 and 500). For a body with thousands of them, code generation took 3 times as long for the same code.
    for option, accesses in (("dag-maps-huge-region", 100), ("dag-maps-reduction-size", 50)):
        llvm.set_option("qdtrace", f"-{option}={accesses}")
    # At level 0, too: registers for values, as a launcher with all of them on the stack takes 40 ns a task longer, and
    # the instructions of level 2.
    for option in ("optimize-regalloc=1", "fast-isel=0"):
        llvm.set_option("qdtrace", f"-{option}")


def _arch(triple: str) -> str:
    """Returns the architecture of a triple; Apple's name of aarch64 is arm64."""
    return triple.split("-")[0].replace("arm64", _ARM)


def _host_arch() -> str:
    return _arch(llvm.get_process_triple())


def _make(level: _Level, cpu: str, features: str = "", *, half: bool = False) -> Target:
    arch = level.arch or _host_arch()
    triple = llvm.get_process_triple() if arch == _host_arch() else f"{arch}-unknown-linux-gnu"
    _initialise(arch)
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
    return Target(
        "cpu", triple, cpu, features, level.vector_bits, level.registers, str(machine.target_data), level.has_masks,
        has_half=half or level.has_half,
    )  # fmt: skip


@functools.cache
def _here() -> tuple[str, ...]:
    arch, features = _host_arch(), cast("dict[str, bool]", llvm.get_host_cpu_features())
    return tuple(
        name
        for name, level in _LEVELS.items()
        if level.arch in ("", arch) and all(features.get(f, False) for f in level.needs)
    )


@functools.cache
def _host() -> Target:
    features: Any = llvm.get_host_cpu_features()
    level = _LEVELS[_here()[0]]
    return _make(level, llvm.get_host_cpu_name(), features.flatten(), half=features.get("f16c", False))


@functools.cache
def _named(name: str) -> Target:
    if name not in _LEVELS:
        raise BackendError(
            f"the CPU target must be one of host, {', '.join(_LEVELS)}, got {name!r}", help=f"set or unset {_FORCED}"
        )
    level = _LEVELS[name]
    return _make(level, level.cpu or _LEAST.get(_host_arch(), "generic"))


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
