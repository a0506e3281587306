"""Kernels whose blocks compute values of positions together: the same results as the program, for spans of any kind."""

import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest

from lowering.simt import emit_spans
from lowering.simt import spans as block_spans
from lowering.simt.assembly import assembly
from lowering.simt.devices import device
from lowering.simt.emit import emit_kernels
from lowering.simt.plan import plan_task
from qdtrace.errors import BoundsError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program
from tests.lowering.guards import STRICT, guarded_memory, untouched
from tests.lowering.harness import same_bits
from tests.lowering.kernels import Kernels, host_device
from tests.lowering.test_spans import FAR, KINDS, RAGGED, case

THREADS = 16


def drawn(seed: int, kind: str, n: int, mean: int) -> Iterator[tuple[Program, list[np.ndarray]]]:
    """Cases whose blocks run in parts."""
    for k in itertools.count(seed):
        program, args = case(k, kind, n, mean, FAR)
        if plan_task(program.tasks[0], host_device(), THREADS).spans is not None:
            yield program, args


def agree(program: Program, args: list[np.ndarray], what: object) -> None:
    """Kernels give what the interpreter gives, or both give an error of bounds."""
    (task,) = program.tasks
    kernels = Kernels(task, host_device(), STRICT, THREADS)
    raws, memory = guarded_memory(program, args)
    try:
        want = evaluate(program, args, fuel=1 << 30)
    except BoundsError:
        with pytest.raises(BoundsError):
            kernels.run(memory)
        return
    kernels.run(memory)
    for raw in raws:
        untouched(raw)
    for result, expected in zip(program.results, want, strict=True):
        same_bits(memory[result], expected, what)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels(kind: str) -> None:
    for program, args in itertools.islice(drawn(100 * KINDS.index(kind), kind, 50, 7), 2):
        agree(program, args, kind)


def test_neighbours_run_in_parts_and_others_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the code for the others the results are right for neighbours only."""
    monkeypatch.setattr(emit_spans._Written, "_once", lambda self: None)
    agree(*next(drawn(3, "neighbours", 50, 7)), "neighbours")
    for kind in ("overlapping", "gaps", "turned", "shuffled", "long"):
        with pytest.raises(AssertionError):
            agree(*next(drawn(3, kind, 200, 7)), kind)
    monkeypatch.setattr(emit_spans._InParts, "_parts", lambda self, *operands: None)
    with pytest.raises(AssertionError):
        agree(*next(drawn(3, "neighbours", 50, 7)), "neighbours")


@pytest.mark.parametrize(("n", "mean"), [(40, 60), (100, 3), (33, 0)])
def test_some_iterations_at_a_time(n: int, mean: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks whose spans do not fit the memory together; the last block is not full."""
    monkeypatch.setattr(block_spans, "POSITIONS", 5)
    for program, args in itertools.islice(drawn(7, "neighbours", n, mean), 2):
        agree(program, args, (n, mean))


def test_code_generators_take_the_kernel() -> None:
    text = RAGGED.replace("9:i32", "100000:i32").replace("i32,9]", "i32,100000]").replace("f32,9]", "f32,100000]")
    (task,) = parse_program(text.replace("50]", "70000]").replace("60]", "70000]").replace("=60", "=70000")).tasks
    for name in ("sm_80", "sm_90", "gfx942"):
        code = emit_kernels(task, device(name))
        assert "values of positions apart" in code.reason
        made = assembly(code.text, device(name))
        assert made


PRODUCT = """program product(first: ref[{k},41], w: ref[f32,{m}], col: ref[i32,{m}], x: ref[f32,9])
  buffer far: ref[f32,70000] = 0.0:f32
  buffer y: ref[f32,40]
  range_for i in 0:i32 : 40:i32
    i1: i32 = add i 1:i32
    lo: {k} = load first i
    hi: {k} = load first i1
    s: f32 = for k in lo : hi : 1:{k} carry c = 0.0:f32
      p: {k} = bound[axis=0, buffer=w, shape=({m}), size={m}] k
      a: f32 = load w p
      b: i32 = load col p
      d: i32 = bound[axis=0, buffer=x, shape=(9), size=9] b
      e: f32 = load x d
      f: f32 = mul a e
      accum[op=add] far c b
      g: f32 = add c f
      yield g
    store y s i
  return far, y
"""


@pytest.mark.parametrize("kind", ["i32", "i64"])
@pytest.mark.parametrize("begin", [0, 5])
def test_rows_of_a_sparse_matrix(kind: str, begin: int) -> None:
    """Offsets by sums, that begin anywhere, with empty rows and a row that is long beside the others."""
    rng = np.random.default_rng(begin)
    lengths = rng.integers(0, 9, 40)
    lengths[[3, 17]] = 0, 90
    first = begin + np.concatenate([[0], np.cumsum(lengths)])
    m = int(first[-1])
    w, col, x = rng.integers(-4, 5, m), rng.integers(0, 9, m), rng.integers(-4, 5, 9)
    args = [first.astype(kind.replace("i", "int")), w.astype(np.float32), col.astype(np.int32), x.astype(np.float32)]
    agree(parse_program(PRODUCT.format(k=kind, m=m)), args, kind)


@pytest.mark.parametrize("threads", [32, 256, 1024])
@pytest.mark.parametrize("kind", ["i32", "i64"])
def test_memory_of_a_block(kind: str, threads: int) -> None:
    """Any number of threads leaves room for some positions, within what a block may have."""
    text = PRODUCT.format(k=kind, m=70000).replace("40:i32", "100000:i32")
    (task,) = parse_program(text.replace("41]", "100001]").replace("f32,40]", "f32,100000]")).tasks
    plan = plan_task(task, device("sm_90"), threads)
    assert plan.spans is not None
    assert plan.spans.most >= 4 * threads
    code = emit_kernels(task, device("sm_90"), block_dim=threads)
    sizes = re.findall(r"@qd_\w+ = internal addrspace\(3\) global \[(\d+) x", code.text)
    assert len(sizes) == 2
    assert sum(map(int, sizes)) <= block_spans.BLOCK_BYTES
