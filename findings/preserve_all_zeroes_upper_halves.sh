#!/usr/bin/env bash
# llvmlite 0.50.0 (LLVM 22), x86-64 with AVX2.
# The guess: a function of LLVM's calling convention `preserve_allcc` leaves all vector registers as they were ("it also
# preserves all floating-point registers (XMMs/YMMs)", LLVM's language reference), so a cold path may be called so and the
# caller keeps its vectors of 256 bits in registers around it.
# The behaviour: the callee restores the registers, and then LLVM puts `vzeroupper` in front of its return, as into each
# function that used them and returns no wide vector. The caller, which was told that they are preserved, goes on with upper
# halves that are zero. Module and caller are valid; nothing warns. With the feature -vzeroupper the answer is right.
# Seen: "default [1. 1. 1. 1. 0. 0. 0. 0.], without vzeroupper [1. 1. 1. 1. 1. 1. 1. 1.]".
# Exits non-zero if that has changed. Needs Python 3.11 to 3.14 on a processor with AVX2.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q llvmlite==0.50.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import ctypes

import llvmlite.binding as llvm
import numpy as np

TEXT = """
define preserve_allcc void @cold(<8 x float> %x, ptr %out) noinline {
  %y = fadd <8 x float> %x, splat (float 1.0)
  store <8 x float> %y, ptr %out, align 32
  ret void
}
define void @run(ptr %in, ptr %kept, ptr %out) {
  %x = load <8 x float>, ptr %in, align 32
  call preserve_allcc void @cold(<8 x float> %x, ptr %out)
  store <8 x float> %x, ptr %kept, align 32
  ret void
}
"""
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
own = llvm.get_host_cpu_features()
assert own["avx2"]


def kept(features):
    target = llvm.Target.from_default_triple().create_target_machine("x86-64-v3", features)
    jit = llvm.create_lljit_compiler(target)
    library = llvm.JITLibraryBuilder().add_ir(TEXT).export_symbol("run").link(jit, "library")
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(library["run"])
    raw = np.zeros(3 * 8 + 8, np.float32)
    first = -raw.ctypes.data % 32 // 4
    given, after, out = raw[first : first + 24].reshape(3, 8)
    given[:] = 1
    run(given.ctypes.data, after.ctypes.data, out.ctypes.data)
    assert (out == 2).all()
    return str(after)


seen = f"default {kept('')}, without vzeroupper {kept('-vzeroupper')}"
print(seen)
assert seen == "default [1. 1. 1. 1. 0. 0. 0. 0.], without vzeroupper [1. 1. 1. 1. 1. 1. 1. 1.]"
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
