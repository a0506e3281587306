"""The fixed point: what it reaches, that it ends early, and that its work is linear."""

from dataclasses import replace

import pytest

from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Block, Program, Task, literal
from qdtrace.ir.types import DType
from qdtrace.passes import simplify as module
from qdtrace.passes.mem2reg import Mem2Reg
from qdtrace.passes.rewrite import Rewriter
from qdtrace.passes.simplify import ROUNDS, Simplify
from tests.passes.harness import parsed, rewrites

ZERO, ONE = literal(0, DType.i32), literal(1, DType.i32)


def test_the_passes_feed_each_other() -> None:
    rewrites(Simplify())("""
program p(x: ref[f32,8], y: ref[f32,8], dt: ref[f32])
- buffer t: ref[f32,8]
  range_for i in 0:i32 : 8:i32
-   below: bool = lt i 0:i32
-   far: i32 = add i 8:i32
-   at: i32 = select below far i
-   one: i32 = sub 3:i32 2:i32
-   s: f32 = for k in 0:i32 : one : 1:i32 carry c = 0.0:f32
+   head
      h: f32 = load dt
      hh: f32 = mul h h
-     a: f32 = load x at
-     b: f32 = mul hh a
-     d: f32 = sub b c
-     yield d
-   p: bool = not below
-   if p
-     store y s at
-   else
-     store y 0.0:f32 at
-   store t s at
+   a: f32 = load x i
+   b: f32 = mul hh a
+   store y b i
  return y
""")


def test_a_loop_left_early_keeps_only_its_flag() -> None:
    rewrites(Simplify())("""
program p(x: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    r: f32, f: bool = for k in 0:i32 : 8:i32 : 1:i32 carry c = 0.0:f32, gone = false
-     stay: bool = not gone
-     d: f32, g: bool = if stay
+     d: f32, g: bool = if gone
+       yield c, true
+     else
        a: f32 = load x k
        b: f32 = add c a
        big: bool = gt b 1.0:f32
-       live: bool = not gone
-       e: bool = and big live
-       yield b, e
-     else
-       yield c, gone
+       yield b, big
      yield d, g
    store y r i
  return y
""")


def chain(tasks: int, eqns: int) -> Program:
    """Tasks over one buffer, each a chain of equations with a few things to simplify."""
    ref = ref_var(DType.f32, (16,), "x")
    made = []
    for _ in range(tasks):
        builder = Builder()
        index = scalar_var(DType.i32, "i")
        with builder.block() as block:
            cell = builder.cell(DType.f32, (), "c")
            value = builder.load(ref, index)
            builder.store(cell, value)
            for k in range(eqns // 4):
                value = builder("mul", value, literal(1.0, DType.f32))
                value = builder("add", value, literal(0.5 + k, DType.f32))
                builder.accum(cell, value)
                value = builder("neg", builder("neg", builder.load(cell)))
            builder.store(ref, value, index)
        made.append(Task("range_for", index, ZERO, literal(16, DType.i32), block.close()))
    return Program("chain", (ref,), (), tuple(made), (ref,))


def visits(monkeypatch: pytest.MonkeyPatch, program: Program) -> int:
    """Equations that all walks look at."""
    total = 0

    class Counted(Rewriter):
        def rebuild_task(self, task: Task) -> Task:
            nonlocal total
            made = super().rebuild_task(task)
            total += self.visits
            return made

    monkeypatch.setattr(module, "Rewriter", Counted)
    Simplify()(Mem2Reg()(program))
    return total


def test_work_is_linear_in_tasks_and_in_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    base = visits(monkeypatch, chain(4, 100))
    assert base >= 4 * 100
    assert visits(monkeypatch, chain(8, 100)) == 2 * base
    assert visits(monkeypatch, chain(4, 200)) <= 2.1 * base


def test_settled_tasks_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Simplify()(Mem2Reg()(chain(8, 40)))
    settled = visits(monkeypatch, program)
    assert settled == sum(len(t.body.eqns) for t in program.tasks)
    changed = chain(1, 40).tasks[0]
    body = replace(changed, body=Block((), (), ()))
    with_dead = replace(program, tasks=(*program.tasks, body))
    assert visits(monkeypatch, with_dead) == settled


def test_a_second_run_looks_at_tasks_that_other_passes_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline runs one object several times."""
    looked: list[str] = []

    class Noted(Rewriter):
        def rebuild_task(self, task: Task) -> Task:
            looked.append(task.name)
            return super().rebuild_task(task)

    simplify = Simplify()
    plain = Mem2Reg()(chain(3, 40))
    program = simplify(plain)
    monkeypatch.setattr(module, "Rewriter", Noted)
    assert simplify(program) is program
    assert looked == []
    other = replace(plain.tasks[1], name="changed")
    changed = replace(program, tasks=(program.tasks[0], other, program.tasks[2]))
    made = simplify(changed)
    assert set(looked) == {"changed"}
    assert made.tasks[0] is program.tasks[0]
    assert len(made.tasks[1].body.eqns) == len(program.tasks[1].body.eqns)


def test_rounds_are_few_and_reported() -> None:
    seen: list[str] = []
    Simplify(on_round=lambda name, program: seen.append(name))(Mem2Reg()(chain(2, 40)))
    assert seen[:4] == [
        "simplify_1_rewrite",
        "simplify_1_loop_invariant",
        "simplify_1_constant_extraction",
        "simplify_1_dead_code",
    ]
    assert len(seen) // 4 < ROUNDS
    once: list[str] = []
    Simplify(rounds=1, on_round=lambda name, program: once.append(name))(chain(2, 40))
    assert len(once) == 4


def test_without_folding_and_sharing() -> None:
    text = """
program p(x: ref[f32])
  serial
    a: f32 = load x
    b: f32 = exp a
    c: f32 = exp a
    d: i32 = add 1:i32 2:i32
    e: f32 = convert[dtype=f32] d
    f: f32 = sub b c
    g: f32 = add f e
    store x g
  return x
"""
    plain = Simplify(constant_folding=False, share=False)(parsed(text))
    assert [e.primitive.name for e in plain.all_eqns].count("exp") == 2
    assert [e.primitive.name for e in plain.all_eqns].count("convert") == 1
    full = Simplify()(parsed(text))
    assert [e.primitive.name for e in full.all_eqns] == ["load", "exp", "sub", "add", "store"]
