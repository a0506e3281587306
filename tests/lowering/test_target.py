"""Targets: names, forcing, keys, refusals."""

import re
from dataclasses import replace

import llvmlite.binding as llvm
import pytest

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.runtime.compile import machine_code, optimised
from lowering.runtime.handler import launcher_text
from lowering.simd.emit import emit_task
from qdtrace.errors import BackendError
from qdtrace.ir.builder import ref_var
from qdtrace.ir.types import DType
from tests.lowering.harness import TARGETS, f32, i32, loop, task

KINDS = ("avx512", "avx2", "neon", "portable", "scalar")


def sample():
    """A task with a light loop."""
    x = ref_var(DType.f32, (64,), "x")

    def body(b, i):
        (a,) = loop(b, i32(0), i32(9), i32(1), [b.load(x, i)], lambda j, a: [b("mul", a, f32(0.5))])
        b.store(x, a, i)

    return task(64, body)


def test_forced_by_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QD_CPU_TARGET", "portable")
    assert Target.host() == Target.named("portable")
    monkeypatch.delenv("QD_CPU_TARGET")
    assert Target.host() == Target.named("host")


def test_unknown_names_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QD_CPU_TARGET", "vax")
    with pytest.raises(BackendError) as error:
        Target.host()
    assert str(error.value) == (
        "the CPU target must be one of host, avx512, avx2, neon, portable, scalar, got 'vax'\n"
        "help: set or unset QD_CPU_TARGET"
    )


def test_kinds_that_the_machine_does_not_run_are_refused(monkeypatch: pytest.MonkeyPatch):
    elsewhere = next(name for name in KINDS if name not in TARGETS)
    monkeypatch.setenv("QD_CPU_TARGET", elsewhere)
    with pytest.raises(BackendError) as error:
        Target.host()
    assert str(error.value) == (
        f"the CPU target {elsewhere} does not run on this processor, which runs {', '.join(TARGETS)}\n"
        "help: unset QD_CPU_TARGET"
    )


def test_keys_tell_targets_apart_and_are_stable():
    keys = {Target.named(name).key for name in KINDS}
    assert len(keys) == len(KINDS)
    assert Target.named("avx2").key == Target.named("avx2").key
    assert hash(Target.named("avx2")) == hash(Target.named("avx2"))


@pytest.mark.parametrize(("name", "width"), [("avx512", 16), ("avx2", 8), ("neon", 4), ("portable", 4)])
def test_lanes_fill_the_vectors(name: str, width: int):
    code = emit_task(sample(), Target.named(name), EmitOptions(vectors=1))
    assert code.lanes == width
    assert f"<{width} x float>" in code.text


def test_the_scalar_target_has_no_vectors():
    code = emit_task(sample(), Target.named("scalar"))
    assert code.lanes == 1
    assert " x float>" not in code.text


def test_code_tells_its_cost_and_reason():
    code = emit_task(sample(), Target.named("avx512"))
    assert code.cost == 2 + 9 * 2 + 2
    assert code.reason == "16 lanes of 32 bits x 4 vectors, 2 live values"
    assert [r.hint for r in code.refs] == ["x"]


def test_text_is_deterministic():
    made = sample()
    assert emit_task(made, Target.named("avx512")).text == emit_task(made, Target.named("avx512")).text
    llvm.parse_assembly(emit_task(made, Target.named("avx512")).text).verify()


@pytest.mark.parametrize(
    ("name", "instruction"), [("avx512", "vmulps.*%zmm"), ("avx2", "vmulps.*%ymm"), ("neon", r"fmul\s+v\d+\.4s")]
)
def test_machine_code_is_made_for_each_kind_on_any_machine(name: str, instruction: str):
    target = Target.named(name)
    module, machine = optimised(emit_task(sample(), target).text, target)
    assert re.search(instruction, machine.emit_assembly(module))


@pytest.mark.full
def test_code_of_the_host_is_made_at_level_0_with_values_in_registers():
    target = Target.named("avx2")
    assert (target.level, target.quick.level, Target.named("neon").quick.level) == (2, 0, 2)
    text = launcher_text(target.triple)
    quick, whole = (len(machine_code(text, kind)) for kind in (target.quick, target))
    assert 0 < quick < 1.05 * whole  # 1.15 with all values on the stack, 0.95 in registers


@pytest.mark.full
def test_the_launcher_and_a_task_are_objects_of_macos():
    made = Target.named("neon")
    triple = "arm64-apple-darwin23.0"
    layout = str(llvm.Target.from_triple(triple).create_target_machine(cpu="apple-m1").target_data)
    mac = replace(made, triple=triple, cpu="apple-m1", data_layout=layout)
    for text in (launcher_text(triple), emit_task(sample(), mac).text):
        assert machine_code(text, mac)[:8] == bytes.fromhex("cffaedfe 0c000001")  # Mach-O of 64 bits, arm64
