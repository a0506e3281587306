"""The lowering that all machines share makes a device function of a task: one thread per iteration, no masks."""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest

from lowering.llvm.facts import TaskFacts
from lowering.llvm.frame import Frame
from lowering.llvm.prologue import alias_metadata, head_for, open_function
from lowering.llvm.rules import RULES, emitter
from lowering.llvm.target import Target, optimise
from lowering.llvm.text import Module, Text
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Eqn, Task

HALVE = """program p(x: ref[f32,64], n: ref[i32,64], y: ref[f32,64])
  range_for i in 0:i32 : 64:i32
    head
      s: f32 = load x 3:i32
    a: f32 = load x i
    c: f32 = sin a
    k: i32 = load n i
    z: f32, m: i32 = while carry v = c, left = k
      more: bool = gt left 0:i32
      test more
      h: f32 = mul v 0.5:f32
      t: f32 = add h s
      odd: i32 = and left 1:i32
      even: bool = eq odd 0:i32
      w: f32 = if even
        q: f32 = sub t 1.0:f32
        yield q
      else
        yield t
      less: i32 = sub left 1:i32
      yield w, less
    store y z i
  return y
"""


def in_order(f: Frame, eqns: Sequence[Eqn]) -> None:
    for eqn in eqns:
        RULES[eqn.primitive.name](f, eqn)


def device_function(task: Task, target: Target, header: str, index: str, prefix: str = "%p") -> str:
    """A function that runs one iteration, whose references are parameters."""
    facts, module = TaskFacts(task), Module()
    f = Frame(Text(module, private_space=target.private_space), facts, target, fast_math=False, emit=emitter(in_order))
    head = head_for(task.head, facts.used, checks=False)
    open_function(f, alias_metadata(facts, module), lambda n: f"{prefix}{n}", head, RULES)
    assert task.index is not None
    f.bind_index(task.index, f.text.op(index))
    f.emit(task.body.eqns)
    f.text.do("ret void")
    return module.render([f.text.render(header)])


def test_the_shared_part_alone_computes_what_the_task_means() -> None:
    program = parse_program(HALVE)
    target = Target.named("scalar")
    header = "define void @one(i64 %i, ptr noalias %p0, ptr noalias %p1, ptr noalias %p2)"
    module = llvm.parse_assembly(device_function(program.tasks[0], target, header, "add i64 %i, 0"))
    module.triple, module.data_layout = target.triple, target.data_layout
    machine = target.llvm_machine()
    optimise(module, machine)
    builder = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module)).export_symbol("one")
    jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
    library = builder.add_current_process().link(jit, "shell")
    one = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * 3)(library["one"])
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    n = (np.arange(64) % 7).astype(np.int32)
    y = np.zeros(64, np.float32)
    order = dict(zip(program.params, (x, n, y), strict=True))
    pointers = [order[r].ctypes.data for r in TaskFacts(program.tasks[0]).refs]
    for i in range(64):
        one(i, *pointers)
    (expected,) = evaluate(program, [x, n, np.zeros(64, np.float32)])
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def machine_of(triple: str, **options: str) -> llvm.TargetMachine:
    """A machine of another kind; builds of llvmlite need not have all that LLVM can print code for."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        kind = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip(f"this LLVM has no target for {triple}")
    return kind.create_target_machine(opt=3, **options)


def test_the_shared_part_compiles_for_a_gpu() -> None:
    """PTX of a kernel, one thread an iteration, with the references in global memory."""
    triple = "nvptx64-nvidia-cuda"
    machine = machine_of(triple, cpu="sm_80", features="+ptx70")
    target = replace(
        Target.named("scalar"), name="cuda", triple=triple, cpu="sm_80", data_layout=str(machine.target_data)
    )
    task = parse_program(HALVE).tasks[0]
    names = range(len(TaskFacts(task).refs))
    header = f"define ptx_kernel void @one({', '.join(f'ptr addrspace(1) %r{n}' for n in names)})"
    text = device_function(task, target, header, "zext i32 %thread to i64")
    casts = [f"  %p{n} = addrspacecast ptr addrspace(1) %r{n} to ptr" for n in names]
    thread = "  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()"
    text = text.replace("entry:\n", "\n".join(["entry:", *casts, thread, ""]), 1)
    module = llvm.parse_assembly(text + "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n")
    module.triple, module.data_layout = triple, target.data_layout
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    ptx = machine.emit_assembly(module)
    assert ".visible .entry one(" in ptx
    assert "ld.global" in ptx
    assert "st.global.b32" in ptx or "st.global.f32" in ptx
    assert not re.search(r"<\d+ x ", text)


ROWS = """program p(x: ref[f32,64x4], n: ref[i32,64], y: ref[f32,64])
  range_for i in 0:i32 : 64:i32
    c: cell[f32,4] = cell[dtype=f32, shape=(4)]
    for k in 0:i32 : 4:i32 : 1:i32
      a: f32 = load x i k
      store c a k
    at: i32 = load n i
    b: f32 = load c at
    store y b i
  return y
"""


def test_memory_has_the_address_spaces_of_the_target() -> None:
    """An AMD GPU: references in global memory, private arrays in scratch; no access through a pointer to anywhere."""
    triple = "amdgcn-amd-amdhsa"
    machine = machine_of(triple, cpu="gfx942")
    target = replace(
        Target.named("scalar"), name="rocm", triple=triple, cpu="gfx942", data_layout=str(machine.target_data),
        private_space=5,
    )  # fmt: skip
    header = "define amdgpu_kernel void @one(ptr %p0, ptr %p1, ptr %p2)"
    text = device_function(parse_program(ROWS).tasks[0], target, header, "zext i32 %thread to i64")
    text = text.replace("entry:\n", "entry:\n  %thread = call i32 @llvm.amdgcn.workitem.id.x()\n", 1)
    module = llvm.parse_assembly(text + "declare i32 @llvm.amdgcn.workitem.id.x()\n")
    module.triple, module.data_layout = triple, target.data_layout
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    code = machine.emit_assembly(module)
    assert "global_load" in code
    assert re.search(r"alloca \[4 x float\], align 64, addrspace\(5\)", text)
    assert not re.search(r"\bflat_(load|store)", code)
