"""Code objects of AMD GPUs: ELF files with the kernels of a module, which HIP loads.

LLVM writes an object file, and a linker makes it loadable: the one that comes with Triton, in this process, or else an
`ld.lld`. Neither needs a GPU.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowering.simt.assembly import optimised
from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.simt.devices import Device

_HELP = "install Triton (`pip install triton`), or an ld.lld of LLVM 18 or later"
_one_at_a_time = threading.Lock()
"""The linker inside of Triton has global state."""


def code_object(text: str, device: Device) -> bytes:
    """Returns the linked code object of a module. Raises BackendError without a linker, or when it refuses."""
    return linked(_relocatable(text, device))


def _relocatable(text: str, device: Device) -> bytes:
    """Returns LLVM's object file. The module must end here: an error's frame could free it after its context."""
    module, machine = optimised(text, device)
    return machine.emit_object(module)


def linked(relocatable: bytes) -> bytes:
    """Returns a loadable code object from LLVM's object file. Raises BackendError if the linker refuses it."""
    link = _linker()
    with tempfile.TemporaryDirectory(prefix="qdtrace-") as folder:
        source, target = Path(folder) / "kernels.o", Path(folder) / "kernels.hsaco"
        source.write_bytes(relocatable)
        try:
            link(source, target)
        except RuntimeError as e:
            raise BackendError("the linker refused the code of an AMD GPU", notes=(str(e),), help=_HELP) from None
        return target.read_bytes()


@functools.cache
def _linker() -> Callable[[Path, Path], None]:
    try:
        inside: Any = import_module("triton._C.libtriton").amd.link_hsaco
    except (ImportError, AttributeError):
        pass  # no Triton, one without AMD, or a later one that calls it otherwise
    else:
        return functools.partial(_by_triton, inside)
    rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "llvm" / "bin"
    program = shutil.which("ld.lld", path=str(rocm)) or shutil.which("ld.lld")
    if program is None:
        raise BackendError("code of AMD GPUs needs a linker", help=_HELP)
    return functools.partial(_by_program, program)


def _by_triton(link: Any, source: Path, target: Path) -> None:
    with _one_at_a_time:
        link(str(source), str(target))


def _by_program(program: str, source: Path, target: Path) -> None:
    done = subprocess.run(
        [program, "-shared", "--no-undefined", str(source), "-o", str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{program}: {done.stderr.strip()}")
