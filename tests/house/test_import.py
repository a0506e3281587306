"""`import qdtrace` loads no module that is needed only once a function is traced."""

import subprocess
import sys

import pytest

import qdtrace as qd

PACKAGES = ("ir", "analysis", "rules", "passes", "interpret", "trace.importer")
LATER = (*(f"qdtrace.{name}" for name in PACKAGES), "lowering", "llvmlite")
GPU_ONLY = ("lowering.gpu", "lowering.cuda", "lowering.simt", "lowering.triton")
CHILD = """
import sys
import qdtrace as qd

@qd.jit
def f(x):
    for i in qd.range(x.shape[0]):
        x[i] += 1
    return x

print(*[m for m in sys.modules if m.split(".")[0] in ("qdtrace", "lowering", "llvmlite")])
qd.Lowered, qd.def_import_rule
f.lower(__import__("jax").numpy.zeros(3))
print("qdtrace.passes.pipelines" in sys.modules)
f.lower(__import__("jax").numpy.zeros(3), target="cpu").as_text("llvm")
print(*[m for m in sys.modules if m.startswith("lowering.")])
"""


def test_passes_rules_and_emitters_are_loaded_when_a_function_is_traced() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    first, second, third = done.stdout.splitlines()
    loaded = first.split()
    assert "qdtrace.trace.loops" in loaded
    assert [m for m in loaded if m.startswith(LATER)] == []
    assert second == "True"
    assert "lowering.simd.emit" in third.split()
    assert [m for m in third.split() if m.startswith(GPU_ONLY)] == []


def test_dir_shows_the_public_names() -> None:
    assert dir(qd) == sorted(qd.__all__)
    assert {"Lowered", "check_grads", "jit", "vmap"} <= set(dir(qd))


def test_names_that_are_loaded_late_are_there() -> None:
    for name in qd.__all__:
        assert getattr(qd, name) is not None
    with pytest.raises(AttributeError, match="module 'qdtrace' has no attribute 'nothing'"):
        _ = qd.nothing  # type: ignore[attr-defined]
