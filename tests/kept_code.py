"""What LLVM makes of modules, kept in a folder for workers and later runs.

LLVM takes a third of the time of tests that compile, and makes equal code of equal modules. The name of a file is a
hash of all that the code depends on: the module's text, the target, LLVM's version, and the source that calls LLVM. So
an emitter that writes other text has its code made anew.
"""

import hashlib
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from lowering.llvm import target, unlocked
from lowering.llvm.target import Target
from lowering.runtime import compile, keys
from lowering.simt import assembly, code_object
from lowering.simt.devices import Device

_CALLERS = (target, unlocked, compile, assembly, code_object)
"""Modules that choose LLVM's passes and options."""


full_code = compile.machine_code
"""What makes the machine code that users run."""
takes_quick = False
"""Whether the package's code is made by `quick_code`."""
for shorter_way in ("fast-isel", "global-isel"):  # they choose LLVM's instructions without optimisation, other ones
    llvm.set_option("tests", f"-{shorter_way}=false")


def shared_code(folder: Path) -> None:
    """Has the package take from a folder what LLVM made of the same module before, for processors and GPUs."""
    global full_code
    make_text = assembly.assembly
    text_of = kept(lambda text, device: make_text(text, device).encode(), folder / "text")
    assembly.assembly = lambda text, device: text_of(text, device).decode()
    code_object._relocatable = kept(code_object._relocatable, folder / "gpu")
    full_code, quick = kept(compile.machine_code, folder / "cpu"), kept(quick_code, folder / "quick")
    compile.machine_code = lambda text, to: (quick if takes_quick else full_code)(text, to)
    version = keys.compiler_version  # a part of the names of what users' processes load, too
    keys.compiler_version = lambda: version() + "quick" * takes_quick


def quick_code(text: str, to: Target) -> bytes:
    """Returns the machine code of an LLVM module after all passes, in two thirds of the time: its instructions are
    those that users run, but neither ordered nor given registers well."""
    module, _ = compile.optimised(text, to)
    native = llvm.Target.from_triple(to.triple)
    machine = native.create_target_machine(cpu=to.cpu, features=to.features, opt=0, reloc="pic", codemodel="small")
    return unlocked.emit_object(machine, module)


def kept(make: Callable[..., bytes], folder: Path) -> Callable[[str, Target | Device], bytes]:
    """Returns a function like `make`, of a module's text and a target, that runs it once for all processes."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [*(module.__file__ for module in _CALLERS), __file__]
    source = hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).digest()
    versions = (llvmlite.__version__, target.LLVM_VERSION, source)

    @wraps(make)
    def found(text: str, machine: Target | Device) -> bytes:
        to = getattr(machine, "target", machine)
        parts = (versions, to.triple, to.cpu, to.features, to.data_layout, to.level, text)
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
