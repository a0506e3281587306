"""Tasks that walk over spans: parts mean what the whole means, for spans of any kind."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from lowering.llvm.facts import TaskFacts
from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.plan.span_parts import cut_spans
from lowering.simd.divergence.in_blocks import BLOCK
from lowering.simd.emit import emit_task
from lowering.simd.plan import plan_task
from qdtrace.analysis.spans import find_walks
from qdtrace.errors import BoundsError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program
from qdtrace.ir.rebuild import Copier
from qdtrace.ir.verify import verify_program
from tests.lowering import span_programs
from tests.lowering.harness import Kernel, run_kernels, runnable, same_bits

FAR, NEAR = 70_000, 12_000
"""Elements of arrays that are too large for a copy a chunk, and that have one."""
KINDS = (
    "neighbours", "overlapping", "gaps", "turned", "shuffled", "one after another", "empty", "long", "outside", "wrong",
)  # fmt: skip


def spans(kind: str, rng: np.random.Generator, n: int, mean: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Ends of spans and how many positions there are."""
    lengths = rng.geometric(1 / (mean + 1), n) - 1
    if kind == "empty":
        lengths[:] = 0
    if kind == "long":
        lengths[n // 3] = 60_000
    ends = np.cumsum(lengths)
    first, last = ends - lengths, ends.copy()
    some = rng.random(n) < 0.05
    if kind == "overlapping":
        first = np.maximum(first - 3 * some, 0)
    if kind == "gaps":
        last = np.where(some, np.maximum(last - 2, first), last)
    if kind == "turned":
        first, last = np.where(some, last + 1, first), np.where(some, first, last)
    if kind == "shuffled":
        order = rng.permutation(n)
        first, last = first[order], last[order]
    if kind == "one after another":  # a first block of neighbours, then the same spans again
        first, last = (np.concatenate([a[: n // 2], a[: n - n // 2]]) for a in (first, last))
    m = int(max(last.max(), first.max(), 1))
    if kind == "outside":
        m = max(1, m - 2)
    return first.astype(np.int32), last.astype(np.int32), m


def case(seed: int, kind: str, n: int, mean: int, size: int = FAR) -> tuple[Program, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    first, last, m = spans(kind, rng, n, mean)
    col, met = rng.integers(0, size, m), np.zeros(m + 2, bool)
    for low, high in zip(first, last, strict=True):
        met[low : max(low, high)] = True
    col[~met[:m]] = -5  # nobody looks there
    if kind == "wrong":
        col[m // 2] = size
    most = max(size, m)
    args = [first, last, *(rng.integers(-99, 99, shape) for shape in (m, (m, 2)))]
    args += [col, *(rng.integers(-99, 99, shape) for shape in (size, (size, 2), (), most))]
    return parse_program(span_programs.random_walks(seed, n, m, size, most)), [np.asarray(a, np.int32) for a in args]


def drawn(seed: int, kind: str, n: int, mean: int, size: int = FAR) -> Iterator[tuple[Program, list[np.ndarray]]]:
    """Cases that run in parts."""
    for k in itertools.count(seed):
        program, args = case(k, kind, n, mean, size)
        blocks = plan_task(program.tasks[0], Target.named("avx512")).divergence.blocks
        if blocks is not None and blocks.spans is not None:
            yield program, args


def as_tasks(program: Program, most: int = 1 << 20) -> Program | None:
    """The program with its task in parts, as tasks one after another."""
    (task,) = program.tasks
    facts = TaskFacts(task)
    parts = cut_spans(task, facts.written, set(facts.accumulated))
    if parts is None or parts.limit > most:  # positions that only a check bounds: a task over all of them would not end
        return None
    # parts share the head of the whole, tasks of a program do not
    tasks = [Copier().rebuild_task(t) for t in (parts.before, parts.rows, parts.after) if t is not None]
    made = Program(
        program.name, program.params, (*program.buffers, *parts.kept), tuple(tasks), program.results, program.initial
    )
    verify_program(made)
    return made


@pytest.mark.sample(3, full=3)
@pytest.mark.parametrize("seed", range(60))
def test_parts_mean_what_the_whole_means(seed):
    program, args = case(seed, "neighbours", 40, 4)
    made = as_tasks(program)
    if made is None:
        return
    want = evaluate(program, args)
    for got, expected in zip(evaluate(made, args), want, strict=True):
        same_bits(got, expected)


@pytest.mark.full
def test_most_random_walks_have_parts():
    found = [as_tasks(case(seed, "neighbours", 40, 4)[0]) for seed in range(60)]
    assert sum(made is not None and len(made.tasks) == 3 for made in found) > 20
    assert sum(made is None for made in found) < 20


def agree(program: Program, args: list[np.ndarray], target: str, what: object) -> None:
    """Machine code gives what the interpreter gives, or both give an error of bounds."""
    kernels = [Kernel(t, runnable(target), EmitOptions(fast_math=False)) for t in program.tasks]
    try:
        want = evaluate(program, args, fuel=1 << 30)
    except BoundsError:
        with pytest.raises(BoundsError):
            run_kernels(program, kernels, args, (), alone=True)
        return
    for alone, cuts in ((True, ()), (False, (0.2, 0.7))):
        for got, expected in zip(run_kernels(program, kernels, args, cuts, alone), want, strict=True):
            same_bits(got, expected, (what, alone))


@pytest.mark.sample(4, full=5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("target", "size"), [("avx512", FAR), ("avx512", NEAR), ("avx2", NEAR)])
def test_machine_code(size, target, kind):
    program, args = next(drawn(1000 * size + 100 * KINDS.index(kind), kind, 300, 7, size))
    agree(program, args, target, kind)


@pytest.mark.slow
@pytest.mark.parametrize("size", [FAR, NEAR])
@pytest.mark.parametrize("kind", KINDS)
def test_more_machine_code(kind, size):
    for program, args in itertools.islice(drawn(10_000 * (1 + KINDS.index(kind)), kind, 500, 5, size), 25):
        agree(program, args, "avx512", kind)


@pytest.mark.parametrize(("n", "mean"), [(2 * BLOCK + 77, 2), (700, 90), (90, 900)])
@pytest.mark.full
def test_blocks_and_parts_of_blocks(n, mean):
    """Several blocks; one that is cut as it has many positions; one of which no part is small enough."""
    program, args = next(drawn(7, "neighbours", n, mean))
    agree(program, args, "avx512", (n, mean))


@pytest.mark.full
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_private_memory_from_the_heap(target, monkeypatch):
    small, large = (f"c: cell[i32,{n}] = cell[dtype=i32, shape=({n})]" for n in (1, 200_000))
    monkeypatch.setattr(span_programs, "BUFFERS", span_programs.BUFFERS.replace(small, large))
    program, args = next(drawn(11, "neighbours", 100, 5))
    (task,) = program.tasks
    assert "aligned_alloc" in emit_task(task, Target.named(target)).text
    agree(program, args, target, "heap")


def parts_of(text: str):
    (task,) = parse_program(text).tasks
    facts = TaskFacts(task)
    return cut_spans(task, facts.written, set(facts.accumulated))


RAGGED = """program ragged(first: ref[i32,9], last: ref[i32,9], w: ref[f32,50], col: ref[i32,50], x: ref[f32,60])
  buffer own: ref[f32,50] = 0.0:f32
  buffer far: ref[f32,60] = 0.0:f32
  buffer y: ref[f32,9]
  range_for i in 0:i32 : 9:i32
    lo: i32 = load first i
    hi: i32 = load last i
    s: f32 = for k in lo : hi : 1:i32 carry c = 0.5:f32
      t: f32 = sin c
      a: f32 = load w k
      b: i32 = load col k
      d: i32 = bound[axis=0, buffer=x, shape=(60), size=60] b
      e: f32 = load x d
      f: f32 = mul a e
      g: f32 = add t f
      yield g
    less: bool = lt lo hi
    many: i32 = sub hi lo
    n: i32 = select less many 0:i32
    all: i32 = lane_max n
    from: i32 = add all -1:i32
    z: f32 = for j in from : -1:i32 : -1:i32 carry r = s
      on: bool = lt j n
      q: f32 = if on
        p: i32 = add lo j
        A: f32 = load w p
        B: i32 = load col p
        E: f32 = load x B
        u: f32 = mul r E
        v: f32 = mul r A
        accum[op=add] far v B
        accum[op=add] own u p
        o: f32 = cos r
        yield o
      else
        yield r
      yield q
    store y z i
  return own, far, y
"""


def names(task) -> list[str]:
    return sorted(e.primitive.name for e in task.all_eqns)


def test_parts_of_a_reverse_loop():
    """Gathers and checks are made once; both accumulations wait with one value of the row."""
    parts = parts_of(RAGGED)
    assert names(parts.before) == ["bound", "load", "load", "load", "mul", "store", "store"]
    assert names(parts.after) == ["accum", "accum", "load", "load", "load", "load", "mul", "mul"]
    assert names(parts.rows).count("load") == 3  # the ends and the kept product
    assert "accum" not in names(parts.rows)
    assert len(parts.kept) == 3
    assert parts.limit == 50


def test_what_rows_do_not_read_is_computed_behind_them():
    """No memory keeps it: the last part makes the check and the gather."""
    parts = parts_of(RAGGED.replace("g: f32 = add t f", "g: f32 = mul t c"))
    assert parts.before is None
    assert names(parts.after) == ["accum", "accum", "bound", "load", "load", "load", "load", "mul", "mul"]
    assert [ref.hint for ref in parts.kept] == ["left"]


def test_checks_of_what_rows_read_are_made_before_them():
    read = RAGGED.replace("g: f32 = add t f", "h: f32 = convert[dtype=f32] d\n      g: f32 = add t h")
    parts = parts_of(read)
    assert names(parts.before) == ["bound", "load"]
    assert "bound" not in names(parts.rows) + names(parts.after)


CHECK = "bound[axis=0, buffer=x, shape=(60), size=60] b"
NOT_LOADED_EARLY = {
    "nobody checks the index": (CHECK, "add b 0:i32"),
    "the check is for a longer array": (CHECK, CHECK.replace("60", "61")),
    "a constant index is outside": (f"{CHECK}\n      e: f32 = load x d", "add b 0:i32\n      e: f32 = load x 60:i32"),
    "the array is changed": ("store y z i", "store x z i"),
    "the index depends on the iteration": (CHECK, CHECK.replace(" b", " i")),
    "only some lanes are there": (
        "      e: f32 = load x d\n",
        "      h: bool = gt c 0.0:f32\n      e: f32 = if h\n        ee: f32 = load x d\n        yield ee\n      else\n"
        "        yield c\n",
    ),
}


@pytest.mark.parametrize("change", NOT_LOADED_EARLY.values(), ids=NOT_LOADED_EARLY.keys())
def test_what_may_not_be_loaded_before_the_rows(change):
    assert change[0] in RAGGED
    parts = parts_of(RAGGED.replace(*change))
    assert parts is None or parts.before is None or "store" not in names(parts.before)


NOT_LATE = {
    "what is accumulated is loaded": ("o: f32 = cos r", "o: f32 = load own p"),
    "two operations": ("accum[op=add] own u p", "accum[op=add] own u p\n        accum[op=max] own u p"),
    "the place depends on the iteration": ("accum[op=add] own u p", "accum[op=add] own u i"),
}


@pytest.mark.parametrize("change", NOT_LATE.values(), ids=NOT_LATE.keys())
def test_what_may_not_wait_for_the_rows(change):
    assert change[0] in RAGGED
    parts = parts_of(RAGGED.replace(*change))
    refs = {e.invars[0].hint for e in parts.after.all_eqns if e.primitive.name == "accum"}
    assert refs == {"far"}


NO_WALKS = {
    "a step of two": ("hi : 1:i32", "hi : 2:i32"),
    "another length": ("many: i32 = sub hi lo", "many: i32 = sub hi 1:i32"),
    "not all of a span": ("on: bool = lt j n", "on: bool = lt j many"),
    "the other end": ("p: i32 = add lo j", "p: i32 = add hi j"),
}


@pytest.mark.parametrize("change", NO_WALKS.values(), ids=NO_WALKS.keys())
def test_other_loops_are_no_walks(change):
    assert change[0] in RAGGED
    (task,) = parse_program(RAGGED.replace(*change)).tasks
    assert len(find_walks(task).found) == 1


def test_values_shared_many_times_take_no_longer():
    deep = "".join(f"      s{k + 1}: f32 = add s{k} s{k}\n" for k in range(200))
    text = RAGGED.replace("      f: f32 = mul a e\n", f"      s0: f32 = mul a e\n{deep}      f: f32 = mul s200 e\n")
    assert names(parts_of(text).before).count("add") == 200
