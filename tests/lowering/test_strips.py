"""Loops along records of lanes in strips of trips: what they become, random ones against the interpreter, and which."""

from dataclasses import replace

import numpy as np
import pytest

from lowering.llvm.facts import TaskFacts
from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from lowering.simd.lane_facts import LaneFacts
from lowering.simd.strips import StripFacts, in_strips
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program
from qdtrace.ir.verify import verify_program
from tests.ir.equal import programs_equal
from tests.lowering.harness import TARGETS, execute, same_bits
from tests.selection import drawn

LANES = EmitOptions(fast_math=False, vectorize=True)
N = 37
SUM = """program p(x: ref[f32,37x{m}])
  buffer y: ref[f32,37x{m}]
  buffer out: ref[f32,37]
  range_for i in 0:i32 : 37:i32
    s_1: f32 = for k in {bounds} carry s = 0.0:f32
      v: f32 = load x i k
      u: f32 = add s v
      store y u i k
      yield u
    store out s_1 i
  return y, out
"""
DOWN = """program p(x: ref[f32,37x10])
  buffer y: ref[f32,37x10]
  buffer out: ref[f32,37]
  range_for i in 0:i32 : 37:i32
    v: f32 = load x i 9:i32
    u: f32 = add 0.0:f32 v
    store y u i 9:i32
    v_1: f32 = load x i 8:i32
    u_1: f32 = add u v_1
    store y u_1 i 8:i32
    s_1: f32 = for k in 0:i32 : 2:i32 : 1:i32 carry s = u_1
      a: i32 = mul k -4:i32
      a_1: i32 = add a 7:i32
      v_2: f32 = load x i a_1
      u_2: f32 = add s v_2
      store y u_2 i a_1
      a_2: i32 = add a 6:i32
      v_3: f32 = load x i a_2
      u_3: f32 = add u_2 v_3
      store y u_3 i a_2
      a_3: i32 = add a 5:i32
      v_4: f32 = load x i a_3
      u_4: f32 = add u_3 v_4
      store y u_4 i a_3
      a_4: i32 = add a 4:i32
      v_5: f32 = load x i a_4
      u_5: f32 = add u_4 v_5
      store y u_5 i a_4
      yield u_5
    store out s_1 i
  return y, out
"""


def stripped(program: Program, width: int) -> Program | None:
    task = program.tasks[0]
    found = in_strips(LaneFacts(TaskFacts(task), analyse_uniformity(task)), width)
    return None if found is None else replace(program, tasks=(found.task,))


def test_a_loop_downwards_begins_with_the_rest():
    made = stripped(parse_program(SUM.format(m=10, bounds="9:i32 : -1:i32 : -1:i32")), 4)
    assert made is not None
    verify_program(made)
    assert programs_equal(made, parse_program(DOWN))


@pytest.mark.parametrize("m", [4, 9, 10, 16, 24, 31, 32, 40, 100, 144])
@pytest.mark.parametrize("bounds", ["0:i32 : {m}:i32 : 1:i32", "{last}:i32 : -1:i32 : -1:i32"])
def test_rows_of_every_length(m: int, bounds: str):
    """Whole rows neither gather nor scatter where pieces cover them."""
    program = parse_program(SUM.format(m=m, bounds=bounds.format(m=m, last=m - 1)))
    x = np.random.default_rng(m).normal(size=(N, m)).astype(np.float32)
    want = evaluate(program, [x])
    for target in TARGETS:
        for got, expected in zip(execute(program, [x], target, LANES), want, strict=True):
            same_bits(got, expected, (m, target))
    if m > 9 and m % 4 == 0:
        text = emit_task(program.tasks[0], Target.named("avx512"), LANES).text
        assert "gather" not in text
        assert "scatter" not in text


def walks(rng: np.random.Generator) -> tuple[str, list[np.ndarray]]:
    """Returns a program with loops along lines of records, part of them in nests and branches, and its arguments."""
    lines, m = int(rng.integers(1, 4)), int(rng.integers(4, 45))
    text = [
        f"program p(x: ref[f32,{N}x{lines}x{m}], z: ref[f32,{N}x{lines * m}], n: ref[i32,{N}])",
        f"  buffer y: ref[f32,{N}x{lines}x{m}] = 0.5:f32", f"  buffer out: ref[f32,{N}]",
        f"  range_for i in 0:i32 : {N}:i32", "    c: i32 = load n i",
        f"    a: cell[f32,{m}] = cell[dtype=f32, shape=({m})]",
        f"    for at in 0:i32 : {m}:i32 : 1:i32", "      store a 0.25:f32 at",
    ]  # fmt: skip
    total = "0.0:f32"
    for k in range(rng.integers(1, 4)):
        low, high = int(rng.integers(3)), m - int(rng.integers(3))
        bounds = [f"{low}:i32 : {high}:i32 : 1:i32", f"{high - 1}:i32 : {low - 1}:i32 : -1:i32"][rng.integers(2)]
        branch, space, line = rng.integers(4) == 0, "    ", f"{rng.integers(lines)}:i32"
        if branch:
            text += [f"{space}b{k}: bool = gt c {k}:i32", f"{space}t{k}: f32 = if b{k}"]
            space += "  "
        nest = rng.integers(2)
        if nest:
            text.append(f"{space}q{k}: f32 = for l{k} in 0:i32 : {lines}:i32 : 1:i32 carry d{k} = {total}")
            space, line = space + "  ", f"l{k}"
        text.append(f"{space}r{k}: f32 = for k{k} in {bounds} carry s{k} = {f'd{k}' if nest else total}")
        inner = space + "  "
        text += [f"{inner}f{k}: i32 = mul {line} {m}:i32", f"{inner}g{k}: i32 = add f{k} k{k}"]
        value = f"s{k}"
        for e in range(rng.integers(1, 5)):
            at = [f"k{k}", f"k{k}", f"k{k}", f"{low}:i32"][rng.integers(4)]
            loaded = [f"x i {line} {at}", f"z i g{k}", f"y i {line} {at}", f"a {at}"][rng.integers(4)]
            text += [f"{inner}v{k}_{e}: f32 = load {loaded}", f"{inner}w{k}_{e}: f32 = add {value} v{k}_{e}"]
            value = f"w{k}_{e}"
            kind = rng.integers(4)
            if kind < 2:
                text.append(f"{inner}store {f'y {value} i {line}' if kind else f'a {value}'} {at}")
            elif kind == 2:
                text.append(f"{inner}accum[op=add] y v{k}_{e} i {line} {at}")
        text.append(f"{inner}yield {value}")
        total = f"r{k}"
        if nest:
            text.append(f"{space}yield r{k}")
            space, total = space[2:], f"q{k}"
        if branch:
            text += [f"{space}yield {total}", "    else", f"      yield {0.5 * k}:f32"]
            total = f"t{k}"
    text += [f"    store out {total} i", "  return y, out"]
    x, z = rng.normal(size=(2, N, lines * m)).astype(np.float32)
    return "\n".join(text) + "\n", [x.reshape(N, lines, m), z, rng.integers(0, 3, N).astype(np.int32)]


@pytest.mark.full
def test_random_walks():
    """Trips stay in order, so strips have the bits of loops, by the interpreter and in machine code."""
    in_them = 0
    for seed in range(drawn(40)):
        text, args = walks(np.random.default_rng(seed))
        program = parse_program(text)
        want, made = evaluate(program, args), stripped(program, 16)
        if made is not None:
            verify_program(made)
            in_them += 1
            for got, expected in zip(evaluate(made, args), want, strict=True):
                same_bits(got, expected, seed)
        for target in TARGETS:
            for got, expected in zip(execute(program, args, target, LANES), want, strict=True):
                same_bits(got, expected, (seed, target))
    assert in_them > 5


KEPT = {
    "a step of two": "0:i32 : 40:i32 : 2:i32", "few trips": "0:i32 : 3:i32 : 1:i32",
    "a number that a user asked for": "0:i32 : 40:i32 : 1:i32 [unroll=4]",
    "one, too": "0:i32 : 40:i32 : 1:i32 [unroll=1]",
}  # fmt: skip


@pytest.mark.parametrize("bounds", KEPT.values(), ids=KEPT)
def test_loops_that_stay(bounds: str):
    assert stripped(parse_program(SUM.format(m=40, bounds=bounds)), 16) is None


def test_a_sweep_that_keeps_states_is_in_strips():
    assert stripped(parse_program(SUM.format(m=40, bounds="0:i32 : 40:i32 : 1:i32 [unroll=false]")), 16) is not None


def test_checks_behind_strips_keep_their_numbers():
    """An equation that reads what strips carry is another one, and reports as the one that it was."""
    lines = '    n: i32 = convert[dtype=i32] s_1\n    b: i32 = bound[axis=0, buffer="out", shape=(37), size=37] n\n'
    text = SUM.format(m=40, bounds="0:i32 : 40:i32 : 1:i32").replace("    store out", lines + "    store out")
    task = parse_program(text).tasks[0]
    found = in_strips(LaneFacts(TaskFacts(task), analyse_uniformity(task)), 16)
    assert isinstance(found, StripFacts)
    assert list(found.check_numbers.values()) == [0]
