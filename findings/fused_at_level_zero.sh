#!/usr/bin/env bash
# llvmlite 0.50.0 (LLVM 22.1).
# The guess: at level 0 LLVM's code generator for NVIDIA fuses no product with a sum, as it optimises nothing there, so
# kernels that need fused multiply-adds need level 1 or more.
# The behaviour: `fmul contract` and `fadd contract` become one `fma.rn.f32` at each level. Unmarked ones stay `mul.rn.f32` and `add.rn.f32` at each level.
# Seen: "contract: fma at level 0, fma at level 3" and "plain: mul add at level 0, mul add at level 3".
# Exits non-zero if that has changed. Needs Python 3.11 or newer, and a package index; no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
newer() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
for python in python3 python3.11 python3.12 python3.13 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[123].*/bin/python; do
  if newer "$python"; then break; fi
done
newer "$python" || { echo "needs Python 3.11 to 3.13" >&2; exit 1; }
"$python" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q llvmlite==0.50.0
cat > "$folder/program.py" <<'PROGRAM'
import re

import llvmlite.binding as llvm

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
TEXT = """
define ptx_kernel void @k(ptr addrspace(1) %a, ptr addrspace(1) %b) {
  %x = load float, ptr addrspace(1) %a
  %p = fmul FLAG float %x, %x
  %s = fadd FLAG float %p, %x
  store float %s, ptr addrspace(1) %b
  ret void
}
"""


def names(flag, level):
    triple = "nvptx64-nvidia-cuda"
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu="sm_90", features="+ptx80", opt=level)
    module = llvm.parse_assembly(TEXT.replace("FLAG", flag), llvm.create_context())
    module.triple, module.data_layout = triple, str(machine.target_data)
    return " ".join(re.findall(r"^\s+(fma|mul|add)\.rn\.f32", machine.emit_assembly(module), re.M))


found = {name: [names(flag, level) for level in (0, 3)] for name, flag in (("contract", "contract"), ("plain", ""))}
for name, (zero, three) in found.items():
    print(f"{name}: {zero} at level 0, {three} at level 3")
assert found == {"contract": ["fma", "fma"], "plain": ["mul add", "mul add"]}
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
