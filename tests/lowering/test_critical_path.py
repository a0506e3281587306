"""Latencies of the chains of operations in loops, and the number of vectors that run side by side to hide them."""

import re
from itertools import pairwise

import numpy as np
import pytest

from lowering.llvm.facts import TaskFacts
from lowering.llvm.target import Target
from lowering.simd.critical_path import vectors_to_fill
from lowering.simd.emit import emit_task
from lowering.simd.plan import plan_task
from lowering.simd.shape import Shape
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.ir.parser import parse_program
from tests.lowering.harness import agrees

HEAD = "program p(x: ref[f32,64], y: ref[f32,64])\n  range_for i in 0:i32 : 64:i32\n    a: f32 = load x i\n"


def loop(lines: list[str], results: list[str], initial: str = "a", until: str = "9:i32") -> str:
    """A program that carries some values through a loop and stores their sum."""
    carried = range(len(results))
    outs = ", ".join(f"o{k}: f32" for k in carried)
    carry = ", ".join(f"c{k} = {initial}" for k in carried)
    text = f"{HEAD}    {outs} = for k in 0:i32 : {until} : 1:i32 carry {carry}\n"
    text += "".join(f"      {line}\n" for line in lines) + f"      yield {', '.join(results)}\n"
    for k in carried:
        text += f"    accum[op=add] y o{k} i\n"
    return text + "  return y\n"


def chain(length: int, of: int) -> tuple[list[str], str]:
    """Sums, one after another, that begin at carry `of`."""
    lines = [f"v{of}_{k + 1}: f32 = add v{of}_{k} a" for k in range(length)]
    lines[0] = f"v{of}_1: f32 = add c{of} a"
    return lines, f"v{of}_{length}"


def shape_of(text: str) -> Shape:
    return plan_task(parse_program(text).tasks[0], Target.named("avx512")).shape


def to_fill(text: str) -> float:
    task = parse_program(text).tasks[0]
    return vectors_to_fill(TaskFacts(task).innermost_loops, analyse_uniformity(task).varying)


def chains(count: int, length: int) -> str:
    made = [chain(length, k) for k in range(count)]
    return loop([line for lines, _ in made for line in lines], [result for _, result in made])


@pytest.mark.parametrize(("count", "length"), [(1, 1), (1, 7), (2, 5), (4, 3)])
def test_independent_chains_fill_the_wait_of_each_other(count: int, length: int) -> None:
    assert to_fill(chains(count, length)) == 8 / count


def test_a_product_for_one_sum_is_part_of_it() -> None:
    fused = loop(["m: f32 = mul c0 a", "s: f32 = add m 1.0:f32"], ["s"])
    shared = loop(["m: f32 = mul c0 a", "s: f32 = add m m"], ["s"])
    assert to_fill(fused) == 8
    # one operation after another either way; two of them when the product is needed itself
    assert to_fill(shared) == 8
    two = loop(["m: f32 = mul a a", "s: f32 = add m c0"], ["s"])
    assert to_fill(two) == 8


def test_what_does_not_depend_on_carried_values_does_not_wait() -> None:
    lines = ["b: f32 = load x k", "d: f32 = sub b a", "e: f32 = mul d d", "f: f32 = mul e d", "s: f32 = add c0 f"]
    assert to_fill(loop(lines, ["s"])) < 3
    assert to_fill(loop(["d: f32 = mul a a"], ["a"])) == 0


def test_the_number_of_a_trip_is_known() -> None:
    names = "bcdefg"
    powers = [f"{after}: f32 = mul {before} a" for before, after in pairwise(names)]
    lines = ["b: f32 = load x k", *powers, f"s: f32 = add c0 {names[-1]}"]
    assert to_fill(loop(lines, ["s"])) < 2


def test_through_branches() -> None:
    lines = ["p: bool = lt c0 a", "r: f32 = if p", "  d: f32 = add c0 a", "  yield d", "else", "  yield a"]
    lines.append("s: f32 = sub r a")
    assert to_fill(loop(lines, ["s"])) == 8 * 3 / 4


@pytest.mark.parametrize(
    ("text", "vectors"),
    [pytest.param(chains(1, 4), 4, id="few values"), pytest.param(chains(9, 6), 2, id="many chains")],
)
def test_the_shape(text: str, vectors: int) -> None:
    assert shape_of(text).vectors == vectors


def wide(values: int) -> str:
    """One chain through the sum of many values that stay alive."""
    lines = [f"w{k}: f32 = add c0 {k}.5:f32" for k in range(values)]
    lines += [f"t{k + 1}: f32 = mul t{k} w{k}" for k in range(values)]
    lines[values] = "t1: f32 = mul a w0"
    lines += [f"z{k + 1}: f32 = sub z{k} w{k}" for k in range(values)]
    lines[2 * values] = f"z1: f32 = sub t{values} w0"
    return loop(lines, [f"z{values}"])


def test_three_where_four_do_not_fit() -> None:
    shapes = [shape_of(wide(n)) for n in (10, 16, 24)]
    assert [s.vectors for s in shapes] == [4, 3, 2]


def leaving(operations: int, values: int = 0, divisions: int = 0) -> str:
    """A loop that lanes leave at different times: a chain of operations, with values from before and divisions."""
    lines = [f"    h{k}: f32 = mul a -0.000{k + 10}:f32\n" for k in range(values)]
    lines += ["    r: f32 = while carry c = a\n", "      on: bool = gt c 0.5:f32\n", "      test on\n"]
    lines += [f"      v{k + 1}: f32 = mul v{k} 0.998:f32\n" for k in range(operations)]
    lines += [f"      w{k + 1}: f32 = add w{k} h{k}\n" for k in range(values)]
    last = f"w{values}" if values else f"v{operations}"
    lines += [f"      q{k}: f32 = div a c\n" for k in range(divisions)]
    text = "".join(lines).replace("v0 ", "c ").replace("w0 ", f"v{operations} ")
    return f"{HEAD}{text}      yield {last}\n    store y r i\n  return y\n"


def summed(text: str) -> str:
    """The same with the sum of all results."""
    return text.replace("store y r i", "accum[op=add] y r 0:i32")


def loading(text: str) -> str:
    """The same with a load in each iteration."""
    return text.replace("      v1: f32 = mul c", "      l: f32 = load x 5:i32\n      v1: f32 = mul l")


@pytest.mark.parametrize(
    ("text", "target", "vectors"),
    [
        pytest.param(leaving(40), "avx2", 4, id="32 lanes wait"),
        pytest.param(leaving(40), "avx512", 4, id="64 lanes wait, or take further elements"),
        pytest.param(summed(leaving(40)), "avx512", 2, id="64 lanes of a sum would wait"),
        pytest.param(loading(leaving(40)), "avx512", 2, id="64 lanes that load would wait"),
        pytest.param(leaving(40, values=8), "avx512", 4, id="a long wait, though registers do not hold all"),
        pytest.param(leaving(40, values=14), "avx512", 4, id="as many values as may be held"),
        pytest.param(leaving(40, values=20), "avx2", 2, id="many values"),
        pytest.param(leaving(40, values=16), "avx2", 3, id="values of three vectors"),
        pytest.param(leaving(12, values=5), "avx2", 3, id="a quiet loop of 32-bit lanes"),
        pytest.param(leaving(12, values=5), "neon", 4, id="a quiet loop in 32 registers"),
        pytest.param(leaving(40, values=8, divisions=5), "avx512", 2, id="a wait that does not pay for the stack"),
        pytest.param(leaving(40, divisions=4), "avx2", 4, id="divisions"),
        pytest.param(leaving(40, divisions=9), "avx2", 2, id="divisions take longer than the chain"),
    ],
)
def test_vectors_of_lanes_that_leave_at_different_times(text: str, target: str, vectors: int) -> None:
    assert plan_task(parse_program(text).tasks[0], Target.named(target)).shape.vectors == vectors


@pytest.mark.parametrize(("target", "aligned"), [("avx512", "(64)"), ("avx2", "(32)"), ("neon", ""), ("portable", "")])
def test_vectors_on_the_stack_lie_within_cache_lines(target: str, aligned: str) -> None:
    text = emit_task(parse_program(leaving(40)).tasks[0], Target.named(target)).text
    assert set(re.findall(r"alignstack(\(\d+\))", text)) == ({aligned} if aligned else set())


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64])
def test_many_lanes_leave_at_different_times(n: int) -> None:
    text = leaving(40, values=16).replace(",64]", f",{n}]").replace("0:i32 : 64", f"0:i32 : {n}")
    args = [np.random.default_rng(n).uniform(0, 9, n).astype(np.float32), np.zeros(n, np.float32)]
    agrees(parse_program(text), args, ("avx512", "avx2"), vectors=(None, 4))


@pytest.mark.parametrize("n", [1, 47, 48, 49, 64])
def test_three_vectors_compute_the_same(n: int) -> None:
    text = wide(16).replace("64", str(n))
    rng = np.random.default_rng(n)
    args = [rng.normal(size=n).astype(np.float32), np.zeros(n, np.float32)]
    agrees(parse_program(text), args, ("avx512", "avx2"), vectors=(None, 3))


def test_private_memory_of_vectors_side_by_side_stays_in_the_nearest_cache() -> None:
    def shape(elements: int) -> tuple[int, int]:
        cell = f"    p: cell[f32,{elements}] = cell[dtype=f32, shape=({elements})]\n"
        lines = "".join(f"      {line}\n" for line in ("store p a k", "m: i32 = sub 8:i32 k", "b: f32 = load p m"))
        text = f"{HEAD}{cell}    for k in 0:i32 : 9:i32 : 1:i32\n{lines}      accum[op=add] y b i\n  return y\n"
        found = shape_of(text)
        return found.width, found.vectors

    assert [shape(n) for n in (128, 256, 512, 4096, 8192)] == [(16, 4), (16, 2), (16, 1), (16, 1), (8, 1)]
