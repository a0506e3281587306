"""What LLVM makes of modules, kept in a folder for workers and later runs.

LLVM takes a third of the time of tests that compile, and makes equal code of equal modules. The name of a file is a
hash of all that the code depends on: the module's text, the target, LLVM's version, and the source that calls LLVM. So
an emitter that writes other text has its code made anew.
"""

from __future__ import annotations

import hashlib
import tempfile
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import llvmlite

from lowering.llvm import target, unlocked
from lowering.runtime import compile
from lowering.simt import assembly, code_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.target import Target
    from lowering.simt.devices import Device

_CALLERS = (target, unlocked, compile, assembly, code_object)
"""Modules that choose LLVM's passes and options."""


def shared_code(folder: Path) -> None:
    """Has the package take from a folder what LLVM made of the same module before, for processors and GPUs."""
    make_text = assembly.assembly
    text_of = kept(lambda text, device: make_text(text, device).encode(), folder / "text")
    assembly.assembly = lambda text, device: text_of(text, device).decode()
    code_object._relocatable = kept(code_object._relocatable, folder / "gpu")
    compile.machine_code = kept(compile.machine_code, folder / "cpu")


def kept(make: Callable[..., bytes], folder: Path) -> Callable[[str, Target | Device], bytes]:
    """Returns a function like `make`, of a module's text and a target, that runs it once for all processes."""
    folder.mkdir(parents=True, exist_ok=True)
    source = hashlib.sha256(b"".join(Path(module.__file__).read_bytes() for module in _CALLERS)).digest()
    versions = (llvmlite.__version__, target.LLVM_VERSION, source)

    @wraps(make)
    def found(text: str, machine: Target | Device) -> bytes:
        to = getattr(machine, "target", machine)
        parts = (versions, to.triple, to.cpu, to.features, to.data_layout, text)
        file = folder / hashlib.sha256(repr(parts).encode()).hexdigest()
        try:
            return file.read_bytes()
        except FileNotFoundError:
            made = make(text, machine)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as whole:
            whole.write(made)
        Path(whole.name).replace(file)
        return made

    return found
