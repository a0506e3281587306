"""LLVM's code generator for SPIR-V, in a process of its own: it ends that where it meets what it does not know."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from llvmlite import binding as llvm

TRIPLE = "spirv64v1.2-unknown-unknown"
"""OpenCL 2.2's version of SPIR-V, with pointers of 64 bits."""
PRIVATE, _ANY = 5, 4


def layout() -> str:
    """Returns LLVM's data layout of the target. Raises RuntimeError if this build of LLVM lacks the target."""
    return str(_machine().target_data)


def assembly(text: str) -> tuple[str, str]:
    """Returns SPIR-V assembly for an LLVM module, or an empty text and what LLVM said."""
    given = with_spaces(text)
    done = subprocess.run([sys.executable, "-P", __file__], input=given, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout, ""
    told = (line for line in done.stderr.splitlines() if "error" in line.lower())
    return "", next(told, f"it ended with {done.returncode}")


def with_spaces(text: str) -> str:
    """Returns a module with SPIR-V's numbers of address spaces: 4 for pointers to any memory, 0 for private memory.

    Emitters of GPUs write 0 and `PRIVATE` for these.
    """
    text = re.sub(r"\bptr\b(?! addrspace\()", f"ptr addrspace({_ANY})", text)
    text = text.replace(f"ptr addrspace({PRIVATE})", "ptr").replace(f", addrspace({PRIVATE})", "")
    return re.sub(r"(@llvm\.[\w.]*?)\.p([05])\b", lambda m: f"{m[1]}.p{_ANY if m[2] == '0' else 0}", text)


def _machine() -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(opt=2)


def _main() -> None:
    machine = _machine()
    module = llvm.parse_assembly(sys.stdin.read(), llvm.create_context())
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    sys.stdout.write(machine.emit_assembly(module))


if __name__ == "__main__":
    assert Path(__file__).name == "generate.py"
    _main()
