"""Long modules of NVIDIA's GPUs, whose instructions LLVM selects at once."""

import pytest

from lowering.llvm.options import EmitOptions
from lowering.simt import assembly as simt_assembly
from lowering.simt.devices import device
from lowering.simt.emit import emit_kernels
from qdtrace.ir.parser import parse_program
from tests.lowering.test_kernels import MANY


@pytest.mark.parametrize("fast_math", [True, False])
def test_long_modules_are_selected_at_once(fast_math: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and sums in them are fused as in short ones."""
    fused = """program p(x: ref[f32,64], y: ref[f32,64])
  range_for i in 0:i32 : 64:i32
    a: f32 = load x i
    b: f32 = mul a a
    c: f32 = add b a
    store y c i
  return y
"""
    kind, options = device("sm_90"), EmitOptions(fast_math=fast_math)
    many, one = (emit_kernels(parse_program(p).tasks[0], kind, options, block_dim=256).text for p in (MANY, fused))

    def selected(text: str) -> str:  # `assembly` may be kept from a run before (tests/kept_code)
        module, machine = simt_assembly.optimised(text, kind)
        return machine.emit_assembly(module)

    short = selected(many)
    monkeypatch.setattr(simt_assembly, "LONG", 0)
    assert selected(many) != short
    assert ("fma.rn.f32" in selected(one)) == fast_math
