#!/usr/bin/env bash
# llvmlite 0.50.0 (LLVM as it comes with it).
# The guess: `llvm.masked.gather` compiled for a processor with AVX2 is the instruction `vgatherdps` or `vgatherqps`; AVX2
# has had gathers since Haswell, so Haswell, Zen 3 and the level x86-64-v3 get one each.
# The behaviour: LLVM makes the instruction only for processors that it lists as fast at it. For Haswell, Zen 1 to 3 and
# x86-64-v3 it extracts each pointer, tests each bit of the mask, and branches around each load: at least as many
# branches as lanes, which mispredict where masks differ. Skylake and Alder Lake get the instruction. Asking by `+avx2` does not help.
# Seen, LLVM 22.1.0: conditional branches of one gather of eight lanes: 12 for haswell, znver3, x86-64-v3 and x86-64 with +avx2; 0, and
# gather instructions, for skylake and alderlake.
# Exits non-zero if that has changed. Needs Python 3.11 or newer, an x86-64 build of llvmlite, and a package index.
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
"$folder/env/bin/python" - <<'PROGRAM'
import re

import llvmlite.binding as llvm

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
TEXT = """
declare <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr>, i32, <8 x i1>, <8 x float>)
define <8 x float> @f(<8 x ptr> %p, <8 x float> %a) {
  %m = fcmp ogt <8 x float> %a, zeroinitializer
  %x = call <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr> %p, i32 4, <8 x i1> %m, <8 x float> %a)
  ret <8 x float> %x
}
"""
BRANCHES = {"haswell": True, "znver3": True, "x86-64-v3": True, "x86-64": True, "skylake": False, "alderlake": False}

print("LLVM", *llvm.llvm_version_info)
for cpu, expected in BRANCHES.items():
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=cpu, features="+avx2,+fma")
    code = machine.emit_assembly(llvm.parse_assembly(TEXT))
    gathers = len(re.findall(r"^\s+v\w*gather\w+", code, re.MULTILINE))
    branches = len(re.findall(r"^\s+j(?!mp)\w+", code, re.MULTILINE))
    print(f"{cpu}: {gathers} gathers, {branches} conditional branches")
    assert (branches >= 8 and gathers == 0) if expected else (branches == 0 and gathers > 0), cpu
PROGRAM
