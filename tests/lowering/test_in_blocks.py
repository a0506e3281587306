"""Blocks of iterations as graphs: their text, and what interpreter and machine code get from them."""

from dataclasses import replace

import numpy as np
import pytest

from lowering.llvm.facts import TaskFacts
from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.divergence.in_blocks import BLOCK, block_memory, look_task, rows_task
from lowering.simd.divergence.ordering import find_ordering
from lowering.simd.lane_facts import LaneFacts
from lowering.simd.plan import plan_task
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program, Var, literal, ref_type
from qdtrace.ir.rebuild import Copier
from qdtrace.ir.verify import verify_program
from tests.lowering.harness import Kernel, run_kernels, runnable, same_bits

WHOLE = """program rows(first: ref[i64,9], last: ref[i64,9], w: ref[f32,50], y: ref[f32,9])
  range_for i in 0:i64 : 9:i64
    a: i64 = load first i
    b: i64 = load last i
    s_2: f32 = for j in a : b : 1:i64 carry s = 0.5:f32
      v: f32 = load w j
      s_1: f32 = mul s v
      yield s_1
    store y s_2 i
  return y
"""
BLOCKS = """program rows(first: ref[i64,9], last: ref[i64,9], w: ref[f32,50], y: ref[f32,9], base: ref[i64], \
trips: ref[i32,4096], order: ref[i32,4096], firsts: ref[i64,4096], lasts: ref[i64,4096])
  range_for k in 0:i64 : 4096:i64
    v0: i64 = load base
    i: i64 = add v0 k
    a: i64 = load first i
    b: i64 = load last i
    v1: i64 = sub b a
    v2: i32 = convert[dtype=i32] v1
    store trips v2 k
    store firsts a k
    store lasts b k
  range_for k in 0:i64 : 4096:i64
    v3: i32 = load order k
    v4: i64 = convert[dtype=i64] v3
    v5: i64 = load base
    i: i64 = add v5 v4
    a: i64 = load first i
    b: i64 = load last i
    s_2: f32 = for j in a : b : 1:i64 carry s = 0.5:f32
      v: f32 = load w j
      s_1: f32 = mul s v
      yield s_1
    store y s_2 i
  return y
"""


def in_blocks(program: Program, size: int) -> tuple[Program, list[tuple[Var, Var]], list[int]]:
    """The program with its task as two tasks a block of so many iterations.

    Also gives `base` and `order` of each block, which are parameters, and how many iterations blocks have.
    """
    (task,) = program.tasks
    facts = TaskFacts(task)
    ordering = find_ordering(LaneFacts(facts, analyse_uniformity(task)), 1)
    assert ordering is not None
    params, tasks, memories, counts = list(program.params), [], [], []
    results = list(program.results)
    start, stop = int(task.start.value), int(task.stop.value)
    for low in range(start, stop, size):
        memory = block_memory(task, ordering)
        counts.append(min(size, stop - low))
        for made in (look_task(task, ordering, memory), rows_task(task, memory)):
            last = made.stop if size == BLOCK else literal(counts[-1], task.index.dtype)
            tasks.append(Copier().rebuild_task(replace(made, stop=last)))
        params += memory
        results.append(memory.trips)
        memories.append((memory.base, memory.order))
    whole = replace(program, params=tuple(params), tasks=tuple(tasks), results=tuple(results))
    return whole, memories, counts


def test_text():
    program, _, _ = in_blocks(parse_program(WHOLE), BLOCK)
    shown = replace(program, results=program.results[:1])
    verify_program(shown)
    assert print_program(shown) == print_program(parse_program(BLOCKS))


PARAMETERS = "first: ref[{d},{n}], last: ref[{d},{n}], w: ref[i32,{m}], col: ref[i32,{m}], z: ref[i32,{n}x2]"
HEADER = (
    f"program drawn({PARAMETERS})"
    + """
  buffer y: ref[i32,{n}] = 0:i32
  buffer far: ref[i32,70000] = 0:i32
  buffer near: ref[i32,9] = 0:i32
  buffer total: ref[i32] = 0:i32
  range_for i in {low}:{d} : {n}:{d} {{refill=false}}
    a: {d} = load first i
    b: {d} = load last i
    c: cell[i32,3] = cell[dtype=i32, shape=(3)]
    store c 1:i32 0:i32
"""
)
LOOPS = {
    "up": "    {r}: i32 = for j{k} in a : b : 1:{d} carry s{k} = {s}\n{body}      yield {last}\n",
    "down": """    e{k}: {d} = sub b 1:{d}
    g{k}: {d} = sub a 1:{d}
    {r}: i32 = for j{k} in e{k} : g{k} : -1:{d} carry s{k} = {s}
{body}      yield {last}
""",
    "while": """    q{k}: {d}, {r}: i32 = while carry j{k} = a, s{k} = {s}
      p{k}: bool = gt b j{k}
      test p{k}
{body}      l{k}: {d} = add j{k} 1:{d}
      yield l{k}, {last}
""",
}


def random_rows(seed: int, n: int, m: int) -> str:
    """A task in integers of one or two loops, with all kinds of sums, and indices of both types."""
    rng = np.random.default_rng(seed)
    d, low = rng.choice(["i32", "i64"]), rng.integers(0, 3)
    text, result = HEADER.format(n=n, m=m, d=d, low=low), "3:i32"
    for k in range(rng.integers(1, 3)):
        lines, values = [f"v{k}: i32 = load w j{k}", f"x{k}: i32 = load col j{k}"], [f"v{k}", f"x{k}", f"s{k}", "7:i32"]
        for step in range(rng.integers(1, 6)):
            one, other, name = rng.choice(values), rng.choice(values), f"t{k}x{step}"
            match rng.integers(8):
                case 0:
                    lines.append(f"accum[op=add] far {one} x{k}")
                case 1:
                    lines += [f"m{name}: i32 = rem x{k} 9:i32", f"accum[op=max] near {one} m{name}"]
                case 2:
                    lines.append(f"accum[op=add] total {one}")
                case 3:
                    lines += [f"{name}: i32 = load c 0:i32", f"store c {one} 0:i32"]
                    values.append(name)
                case 4:
                    lines += [f"h{name}: bool = lt {one} {other}", f"{name}: i32 = if h{name}"]
                    lines += [f"  u{name}: i32 = mul {one} s{k}", f"  yield u{name}", "else", f"  yield {other}"]
                    values.append(name)
                case _:
                    lines.append(f"{name}: i32 = {rng.choice(['add', 'sub', 'xor', 'mul'])} {one} {other}")
                    values.append(name)
        body = "".join(f"      {line}\n" for line in lines)
        kind = LOOPS[str(rng.choice(list(LOOPS)))]
        text += kind.format(r=f"r{k}", k=k, d=d, s=result, body=body, last=rng.choice(values[2:]))
        result = f"r{k}"
        text += f"    accum[op=add] y {result} i\n" if rng.integers(2) else ""
    return text + f"    store z {result} i {rng.integers(2)}:i32\n  return y, far, near, total, z\n"


def case(seed: int, n: int) -> tuple[Program, list[np.ndarray]]:
    """A program, and spans that overlap, are empty, or end before they begin; some are long."""
    rng, m = np.random.default_rng(seed), 300
    program = parse_program(random_rows(seed, n, m))
    lengths = np.where(rng.random(n) < 0.1, rng.integers(0, 60, n), rng.integers(-2, 5, n))
    first = rng.integers(2, m - 60, n)
    dtype = ref_type(program.params[0]).dtype.numpy
    args = [first.astype(dtype), (first + lengths).astype(dtype)]
    args += [rng.integers(-99, 99, m, np.int32), rng.integers(0, 70_000, m, np.int32), np.zeros((n, 2), np.int32)]
    return program, args


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(60))
def test_blocks_in_any_order_mean_what_the_task_means(seed):
    program, args = case(seed, 23)
    made, memories, counts = in_blocks(program, 8)
    rng, given, low = np.random.default_rng(seed), list(args), int(program.tasks[0].start.value)
    for (base, _), count in zip(memories, counts, strict=True):
        order = np.full(BLOCK, -1, np.int32)
        order[:count] = rng.permutation(count)
        ends = [np.zeros(BLOCK, args[0].dtype) for _ in range(2)]
        given += [np.asarray(low, base.dtype.numpy), np.full(BLOCK, -7, np.int32), order, *ends]
        low += count
    want, got = evaluate(program, args), evaluate(made, given)
    for one, other in zip(got, want, strict=False):
        same_bits(one, other, seed)
    trips = np.concatenate([found[:count] for found, count in zip(got[len(want) :], counts, strict=True)])
    start = int(program.tasks[0].start.value)
    np.testing.assert_array_equal(trips, (args[1] - args[0])[start:])
    assert all((found[count:] == -7).all() for found, count in zip(got[len(want) :], counts, strict=True))


@pytest.mark.sample(8)
@pytest.mark.parametrize("n", [3, 77, pytest.param(BLOCK + 77, marks=pytest.mark.full)])
@pytest.mark.parametrize("seed", range(100, 124))
def test_machine_code(seed, n):
    program, args = case(seed, n)
    options = EmitOptions(fast_math=False, vectorize=True)  # one iteration is scalar code else
    assert "ordered by trip counts" in plan_task(program.tasks[0], Target.named("avx2"), options).reason
    kernels = [Kernel(t, runnable("avx2"), options) for t in program.tasks]
    want = evaluate(program, args)
    for alone, cuts in ((True, ()), (False, (0.2, 0.7))):
        for got, expected in zip(run_kernels(program, kernels, args, cuts, alone), want, strict=True):
            same_bits(got, expected, (seed, n, alone))
