#!/usr/bin/env bash
# llvmlite 0.50.0 (LLVM as it comes with it).
# The guess: code that loads a vector, selects new lanes, and stores it back is compiled for AVX2 as written: a load, a
# `vblendvps` and a plain store, whose result the next load of the same address gets forwarded.
# The behaviour: LLVM makes one masked store of the three, `vmaskmovps`, on every processor with AVX, also where the memory
# is the function's own. Zen processors run that instruction as microcode: some 20 to 40 operations, one in a dozen cycles
# or more (https://www.agner.org/optimize/instruction_tables.pdf). A `freeze` of the loaded value keeps the three apart.
# Seen, LLVM 22.1.0: znver1, znver3, haswell and skylake: 1 masked store as written, none with `freeze`. On a Zen 3 a loop
# over private arrays of 70 elements of eight lanes took a tenth of its time after the change.
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
define void @f(ptr %p, <8 x float> %new, <8 x float> %a) {{
  %m = fcmp ogt <8 x float> %a, zeroinitializer
  %old = load <8 x float>, ptr %p
  {frozen}
  %x = select <8 x i1> %m, <8 x float> %new, <8 x float> {kept}
  store <8 x float> %x, ptr %p
  ret void
}}
"""


def masked_stores(cpu, frozen):
    text = TEXT.format(frozen="%f = freeze <8 x float> %old" if frozen else "", kept="%f" if frozen else "%old")
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu=cpu, features="+avx2,+fma")
    return len(re.findall(r"vmaskmovps\s+%ymm\d+, %ymm\d+, \(", machine.emit_assembly(llvm.parse_assembly(text))))


print("LLVM", *llvm.llvm_version_info)
for cpu in ("znver1", "znver3", "haswell", "skylake"):
    plain, frozen = masked_stores(cpu, False), masked_stores(cpu, True)
    print(f"{cpu}: {plain} masked store as written, {frozen} with freeze")
    assert (plain, frozen) == (1, 0), cpu
PROGRAM
