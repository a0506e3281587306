"""Tools of others that read SPIR-V: assembler, validator and translator of Khronos, and pocl's OpenCL."""

import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lowering.llvm.options import DEFAULTS
from lowering.simt.emit import emit_kernels
from lowering.spirv.backend import device
from lowering.spirv.generate import assembly
from qdtrace.ir.program import Literal, Program, ref_type

TRANSLATORS = ("llvm-spirv-15", "llvm-spirv")
OUTSIDE = ("spirv-as", "spirv-val")


def has_validator() -> bool:
    return all(shutil.which(name) for name in OUTSIDE)


@cache
def translator() -> str | None:
    return next((name for name in TRANSLATORS if shutil.which(name)), None)


def validated(text: str, folder: Path) -> Path:
    """Assembles SPIR-V and validates it, in a file."""
    source, binary = folder / "kernel.spvasm", folder / "kernel.spv"
    source.write_text(_with_zeros(text))
    subprocess.run(["spirv-as", "--target-env", "spv1.2", source, "-o", binary], check=True)
    subprocess.run(["spirv-val", "--target-env", "opencl2.2", binary], check=True)
    return binary


def _with_zeros(text: str) -> str:
    """Writes zeros of integers as constants: the translator takes only those, though `OpConstantNull` is right."""
    numbers = set(re.findall(r"(%\d+) = OpType(?:Int|Float)\b", text))
    zero = lambda m: f"OpConstant {m[1]} 0" if m[1] in numbers else m[0]  # noqa: E731
    return re.sub(r"OpConstantNull (%\d+)", zero, text)


def kernels(cl: Any, context: Any, text: str) -> Any:
    """Builds the OpenCL program of an LLVM module, which has become SPIR-V and LLVM's form of SPIR on the way."""
    made, refusal = assembly(text)
    assert made, refusal
    with tempfile.TemporaryDirectory() as folder:
        binary, bitcode = validated(made, Path(folder)), Path(folder, "kernel.bc")
        subprocess.run([translator(), "-r", binary, "-o", bitcode], check=True, capture_output=True)
        program = cl.Program(context, context.devices, [bitcode.read_bytes()])
    return program.build(options=["-x", "spir", "-spir-std=1.2"])


def run(program: Program, args: list[np.ndarray]) -> list[np.ndarray]:
    """Runs a program whose ranges are known, task by task."""
    import pyopencl as cl

    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    memory = dict(zip(program.params, args, strict=True))
    for v in program.buffers:
        fill = program.initial.get(v)
        memory[v] = np.full(ref_type(v).shape, 0 if fill is None else fill.value, v.dtype.numpy)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR

    def buffer(array: np.ndarray) -> Any:
        return cl.Buffer(context, flags, hostbuf=np.resize(array, max(array.size, 1)))

    on_device = {v: buffer(array) for v, array in memory.items()}
    for task in program.tasks:
        code = emit_kernels(task, device(), DEFAULTS)
        built = kernels(cl, context, code.text)
        assert isinstance(task.start, Literal)
        assert isinstance(task.stop, Literal)
        start, stop = (1, 2) if task.index is None else (int(task.start.value), int(task.stop.value))
        failure, scratch = buffer(np.zeros(8, np.int64)), buffer(np.zeros(code.scratch_bytes + 64, np.uint8))
        for launch in code.launches:
            count = launch.blocks_for(max(stop - start, 0)) * launch.threads
            refs = [on_device[v] for v in code.refs]
            if count:
                ends = np.int64(start), np.int64(stop)
                getattr(built, launch.name)(queue, (count,), (launch.threads,), *refs, *ends, failure, scratch)
    found = []
    for v in program.results:
        out = np.empty(max(int(np.prod(ref_type(v).shape)), 1), v.dtype.numpy)
        cl.enqueue_copy(queue, out, on_device[v])
        found.append(out[: int(np.prod(ref_type(v).shape))].reshape(ref_type(v).shape))
    queue.finish()
    return found
