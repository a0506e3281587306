"""Compiles Triton source to machine code, without needing a GPU."""

from __future__ import annotations

import hashlib
import importlib
import linecache
import re
import tempfile
import threading
from typing import TYPE_CHECKING, Any

from lowering.simt.code import Launch
from lowering.triton.types import POINTER
from qdtrace.errors import BackendError
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from lowering.triton.code import TritonCode, TritonLaunch

_one_at_a_time = threading.Lock()
"""Serialises compilation, as Triton's settings are global to the process."""
_ALIGNMENT = 16
"""Bytes of alignment promised to Triton; XLA's buffers, and ours in scratch, are aligned to more."""
_WAVE_32 = re.compile(r"gfx1\d\d\d")


@frozen(slots=True)
class MachineCode:
    """One compiled kernel."""

    launch: Launch
    """Its launch, with the arguments that all kernels of a task take."""
    image: bytes
    """A cubin, or an AMD code object, with this kernel alone."""
    assembly: str
    """The code as text: PTX, or AMD's assembly."""


class TritonError(BackendError):
    """Triton is not loaded or does not compile our source; the rule says why in one line."""


def compile_kernels(code: TritonCode, device: str) -> tuple[MachineCode, ...]:
    """Returns machine code of each launch, in order, for a kind of GPU: "sm_90", "gfx942".

    Raises TritonError if Triton cannot be imported or does not compile the source.
    """
    try:
        triton = _triton("")
    except ImportError as e:
        raise TritonError(f"Triton cannot be imported: {_reason(e)}", help="codegen='llvm' does without Triton") from e
    knobs = triton.knobs
    with (
        _one_at_a_time, tempfile.TemporaryDirectory(prefix="qdtrace-triton-") as folder,
        knobs.cache.scope(), knobs.runtime.scope(),
    ):  # fmt: skip
        knobs.cache.dir = folder  # our own cache keeps the machine code
        knobs.runtime.interpret = False
        module = _load(code.text)
        return tuple([_compile(code, launch, module, device) for launch in code.launches])


def _triton(module: str) -> Any:
    """Imports Triton, or a module of it, as `Any`: it has no types."""
    return importlib.import_module(f"triton{module}")


def _load(text: str) -> dict[str, Any]:
    """Executes the source as a module. Triton looks up the lines of functions, so linecache gets them."""
    name = f"<qdtrace triton {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    module: dict[str, Any] = {"__name__": name}
    exec(compile(text, name, "exec"), module)
    return module


def _target(device: str) -> Any:
    target = _triton(".backends.compiler").GPUTarget
    if device.startswith("sm_"):
        return target("cuda", int(device.removeprefix("sm_")), 32)
    return target("hip", device, 32 if _WAVE_32.fullmatch(device) else 64)


def _compile(code: TritonCode, launch: TritonLaunch, module: dict[str, Any], device: str) -> MachineCode:
    function = module[launch.name]
    kinds = [*(POINTER[r.dtype] for r in code.refs), "i64", "i64", "*i64", "*i8", "constexpr"]
    signature = dict(zip(function.arg_names, kinds, strict=True))
    aligned = [k for k, kind in enumerate(kinds) if kind.startswith("*") and k != len(code.refs) + 2]
    attributes = {(k,): [["tt.divisibility", _ALIGNMENT]] for k in aligned}
    source = _triton(".compiler").ASTSource(function, signature, {"BLOCK": launch.block}, attributes)
    options = {
        "num_warps": launch.warps, "enable_fp_fusion": code.fast_math, "enable_reflect_ftz": False, "debug": False,
        "sanitize_overflow": False,
    }  # fmt: skip
    target = _target(device)
    if launch.registers and target.backend == "cuda":
        options["maxnreg"] = launch.registers
    try:
        compiled = _triton("").compile(source, target=target, options=options)
    except Exception as e:
        raise TritonError(
            f"Triton did not compile `{launch.name}` for {device}: {_reason(e)}",
            notes=(str(e),),
            help="codegen='llvm' does without Triton",
        ) from e
    metadata = compiled.metadata
    cuda = target.backend == "cuda"
    assembly = compiled.asm["ptx" if cuda else "amdgcn"]
    taken = _arguments(assembly, metadata.name, cuda=cuda)
    threads, nulls = launch.warps * target.warp_size, taken - (len(kinds) - 1)
    made = Launch(metadata.name, threads, launch.programs, shared_bytes=metadata.shared, null_arguments=nulls)
    return MachineCode(made, compiled.asm["cubin" if cuda else "hsaco"], assembly)


def _reason(error: Exception) -> str:
    """Returns the first line of an error, without the excerpt of source that Triton's errors begin with."""
    lines = str(getattr(error, "error_message", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _arguments(assembly: str, name: str, *, cuda: bool) -> int:
    """Returns the number of arguments that the compiled kernel takes, which Triton may have added to."""
    if cuda:
        entry = re.search(rf"\.entry {re.escape(name)}\((.*?)\)", assembly, re.DOTALL)
        return 0 if entry is None else entry[1].count(".param")
    listed = re.search(r"\.args:(.*?)\.group_segment_fixed_size", assembly, re.DOTALL)
    return 0 if listed is None else len(re.findall(r"\.value_kind:\s+(?:global_buffer|by_value)", listed[1]))
