"""Kernels of GPUs: what they compute, run on the host; what is launched; and that code generators take them."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowering.cuda.ptxas import assemblers
from lowering.llvm import addresses
from lowering.llvm.facts import TaskFacts
from lowering.llvm.options import EmitOptions
from lowering.simt import frame, grouping, stacks
from lowering.simt.assembly import assembly
from lowering.simt.code import Launch
from lowering.simt.devices import device
from lowering.simt.emit import emit_kernels
from lowering.simt.plan import plan_task
from lowering.tables import CACHE_LINE
from qdtrace.errors import BackendError, BoundsError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.types import DType
from tests.differential.checked import checked, meaning, outcome
from tests.differential.compare import EXACT, Tolerance, compare
from tests.differential.corpus import Case, replay
from tests.differential.programs import programs
from tests.differential.task_programs import random_case
from tests.lowering.guards import STRICT
from tests.lowering.harness import same_bits
from tests.lowering.kernels import execute_kernels, host_device
from tests.lowering.test_elementwise import operations, table, values_of
from tests.selection import drawn

RANDOM = settings(max_examples=drawn(25), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
FUNCTIONS = Tolerance(ulps=5)
CUDA, ROCM = ("sm_80", "sm_90", "sm_100"), ("gfx90a", "gfx942", "gfx950", "gfx1100")


def agree(case: Case, tolerance: Tolerance = EXACT) -> None:
    compare(execute_kernels(case.program, case.args), evaluate(case.program, case.args), tolerance)


@pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in replay()])
def test_corpus(case: Case) -> None:
    agree(case)


@pytest.mark.full
@RANDOM
@given(programs())
def test_programs_with_control_flow(case: Case) -> None:
    agree(case)


@pytest.mark.full
@settings(RANDOM, max_examples=8)
@given(programs(functions=True, tasks=1))
def test_functions(case: Case) -> None:
    agree(case, FUNCTIONS)


MORE = [pytest.param(first, marks=pytest.mark.gpu) for first in range(1000, 1300, 10)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("first", [*range(0, 30, 10), *MORE])
def test_task_programs(first: int) -> None:
    for seed in range(first, first + 10):
        agree(random_case(seed))


SMALL_GROUPS = """program p(x: ref[f32,40], y: ref[f64,40], z: ref[i8,40x2], c: ref[i32,40], s: ref[f64], h: ref[i32,7])
  range_for i in {start}:i32 : {stop}:i32
    a: f32 = load x i
    k: i32 = load c i
    j: i32 = bound[size=7, axis=0, buffer="h", shape=(7)] k
    b: f64 = convert[dtype=f64] a
    store y b i
    m: i8 = load z i 1:i32
    e: i8 = add m 1:i8
    store z e i 1:i32
    accum[op=add] s b
    accum[op=max] h i j
  return x, y, z, s, h
"""


@pytest.mark.parametrize(("start", "stop"), [(0, 8), (0, 9), (1, 9), (3, 40), (2, 3), (5, 5)])
@pytest.mark.parametrize("wrong", [None, 6])
def test_neighbours_together(start: int, stop: int, wrong: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of iterations, whole and not, aligned and not; one that fails a check leaves the others alone."""
    monkeypatch.setattr(grouping, "WAVES", 0)
    n = 40
    program = parse_program(SMALL_GROUPS.format(start=start, stop=stop))
    assert plan_task(program.tasks[0], host_device()).group == 2
    places = np.arange(n, dtype=np.int32) % 7
    args = [np.arange(n, dtype=np.float32), np.zeros(n), np.zeros((n, 2), np.int8), places]
    args += [np.zeros(()), np.full(7, -1, np.int32)]
    if wrong is None or not start <= wrong < stop:
        compare(execute_kernels(program, args), evaluate(program, args))
        return
    places[wrong] = 7
    with pytest.raises(BoundsError, match="index 7 "):
        execute_kernels(program, args)


def test_what_may_be_loaded_early() -> None:
    """Nothing behind a check, nothing that the task writes."""
    facts = TaskFacts(parse_program(SMALL_GROUPS.format(start=0, stop=8)).tasks[0])
    assert [e.invars[0].hint for e in grouping.early_loads(facts)] == ["x", "c"]


@pytest.mark.full
@settings(RANDOM, max_examples=10)
@given(st.integers(0, 10_000))
def test_groups_in_random_tasks(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "WAVES", 0)
        patch.setattr(grouping, "LIGHT", 1 << 20)
        agree(random_case(seed))


ROWS = """program p(x: ref[f32,6x7], y: ref[f32,6x7], z: ref[f32,42])
  range_for i in 0:i64 : 42:i64
    c: i64 = rem i 7:i64
    r: i64 = div i 7:i64
    v: f32 = load x r c
    u: f32 = load x 2:i64 3:i64
    w: f32 = add v u
    store y w r c
    t: f32 = load z i
    q: f32 = add t v
    store z q i
  return y, z
"""


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All arrays are addressed as those of more than 2**31 elements."""
    for module in (grouping, addresses, frame):
        monkeypatch.setattr(module, "MODULAR", 0)


@pytest.mark.usefixtures("large")
def test_neighbours_in_rows_of_large_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address is computed from row and column, though the index of the task says as much."""
    monkeypatch.setattr(grouping, "WAVES", 0)
    program = parse_program(ROWS)
    args = [np.arange(42, dtype=np.float32).reshape(6, 7), np.zeros((6, 7), np.float32), np.ones(42, np.float32)]
    assert plan_task(program.tasks[0], host_device()).group > 1
    compare(execute_kernels(program, args), evaluate(program, args))


@pytest.mark.full
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("seed", range(8))
def test_random_tasks_on_large_arrays(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "WAVES", 0)
    monkeypatch.setattr(grouping, "LIGHT", 1 << 20)
    agree(random_case(seed))


@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.value)
def test_primitives_agree_with_the_reference(dtype: DType) -> None:
    values = values_of(dtype)
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    c = np.roll(b, 3)
    names = operations(dtype)
    made = table(dtype, names, len(a))
    results = zip(names, execute_kernels(made, [a, b, c]), evaluate(made, [a, b, c]), strict=True)
    for (name, params, _), got, want in results:
        same_bits(got, want, (name, params, dtype))


@pytest.mark.full
@settings(RANDOM, max_examples=10)
@given(st.integers(0, 10_000))
def test_checks_that_fail(seed: int) -> None:
    """Where one check can fail, it is the one that is reported, with its value; nothing beside arrays is touched."""
    case = random_case(seed, 3)
    made = checked(case.program, seed)
    for site in (0, *random.Random(seed).sample(range(1, made.sites + 1), min(3, made.sites))):
        args = [*case.args, np.asarray(np.int32(site))]
        got = outcome(lambda a=args: execute_kernels(made.program, a))
        want = meaning(made.program, case.args, site)
        if isinstance(got, str) or isinstance(want, str):
            assert got == want
        else:
            compare(got, want)


NEGATIVE = """program p(x: ref[f32,10], p: ref[i64,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    a: i64 = load p i
    b: i64 = bound[size=10, axis=0, buffer="x", shape=(10)] a
    v: f32 = load x b
    store y v i
  return y
"""


@pytest.mark.parametrize("index", [-1, 10, -(1 << 47), (1 << 47) - 1])
def test_the_index_that_fails_is_reported(index: int) -> None:
    program = parse_program(NEGATIVE)
    places = np.arange(8)
    places[5] = index
    with pytest.raises(BoundsError, match=f"index {index} "):
        execute_kernels(program, [np.zeros(10, np.float32), places, np.zeros(8, np.float32)])


FAR = [(1 << 47, (1 << 47) - 1), ((1 << 63) - 1, (1 << 47) - 1), (-(1 << 63), -(1 << 47))]


@pytest.mark.parametrize(("index", "told"), FAR)
def test_an_index_that_a_word_has_no_room_for(index: int, told: int) -> None:
    places = np.arange(8)
    places[5] = index
    with pytest.raises(BoundsError, match=f"index {told} "):
        execute_kernels(parse_program(NEGATIVE), [np.zeros(10, np.float32), places, np.zeros(8, np.float32)])


SUM = """program p(n: ref[i32], x: ref[f32,1000], s: ref[f32], h: ref[i32,5])
  range_for i in 0:i32 : m
    head
      m: i32 = load n
    v: f32 = load x i
    accum[op=add] s v
    k: i32 = rem i 5:i32
    accum[op=max] h i k
  return s, h
"""


def test_sums_meet_in_the_same_memory_of_the_block() -> None:
    """A block has 48 KiB that it need not ask for."""
    names = [f"s{k}" for k in range(40)]
    refs, sums = (", ".join(f"{s}: ref[f64]" for s in names), "".join(f"    accum[op=add] {s} v\n" for s in names))
    program = parse_program(f"""program p(x: ref[f64,70000], h: ref[f64,4096], {refs})
  range_for i in 0:i32 : 70000:i32
    v: f64 = load x i
    j: i32 = rem i 4096:i32
    accum[op=max] h v j
{sums}  return {", ".join(names)}, h
""")
    text = emit_kernels(program.tasks[0], device("sm_90"), block_dim=1024).text
    assert sorted(re.findall(r"addrspace\(3\) global \[(.*)\] undef", text)) == ["32768 x i8", "8192 x i8"]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000])
def test_sums_over_a_range_known_on_the_device_only(n: int) -> None:
    program = parse_program(SUM)
    args = [np.array(n, np.int32), np.arange(1000, dtype=np.float32), np.array(5, np.float32), np.full(5, -3, np.int32)]
    for blocks in (1, 2, 5):
        got = execute_kernels(program, args, STRICT, host_device(blocks))
        compare(got, evaluate(program, args))


def test_launches() -> None:
    program = parse_program(SUM)
    code = emit_kernels(program.tasks[0], device("sm_90"))
    assert code.launches == (Launch("qd_kernel", 256, 132 * 8, 4), Launch("qd_combine", 256, 6))
    assert code.scratch_bytes == 132 * 8 * (8 + 24)
    assert "1056 blocks of 256 walk over the range 4 iterations a thread, as it reduces" in code.reason
    assert "1 sums in registers, 1 arrays with copies a block" in code.reason
    few = parse_program("""program p(x: ref[f32,300], s: ref[f32])
  range_for i in 0:i32 : 300:i32
    v: f32 = load x i
    accum[op=add] s v
  return s
""")
    assert emit_kernels(few.tasks[0], device("sm_90")).launches[0] == Launch("qd_kernel", 32, 10)
    assert emit_kernels(few.tasks[0], device("sm_90"), block_dim=64).launches[0] == Launch("qd_kernel", 64, 5)


def test_parts_that_may_meet_take_turns() -> None:
    """Two known elements never meet; an unknown one, or a copy of the array, may meet any."""
    program = parse_program("""program p(x: ref[i32,400], c: ref[i32], s: ref[i32,4], t: ref[i32,4])
  range_for i in 0:i32 : 400:i32
    head
      a: i32 = load c
    v: i32 = load x i
    accum[op=add] s v 0:i32
    accum[op=add] s v 1:i32
    accum[op=add] t v 2:i32
    accum[op=add] t v a
    k: i32 = and v 3:i32
    accum[op=add] s v k
  return s, t
""")
    launches = emit_kernels(program.tasks[0], device("sm_90")).launches
    assert [(launch.name, launch.blocks) for launch in launches[1:]] == [("qd_combine", 3), ("qd_combine_1", 5)]
    for a in range(4):
        args = [np.arange(400, dtype=np.int32), np.array(a, np.int32), *np.ones((2, 4), np.int32)]
        compare(execute_kernels(program, args), evaluate(program, args))


BACK = """program p(x: ref[f32,64x12], n: ref[i32,64])
  range_for i in 0:i32 : 64:i32
    m: i32 = load n i
    c: i32 = for k in m : {stop}:i32 : {step}:i32 carry b = 0:i32
      j: i32 = max k 0:i32
      v: f32 = load x i j
      w: f32 = add v 2.0:f32
      store x w i j
      d: i32 = add b 1:i32
      yield d
    f: f32 = convert[dtype=f32] c
    store x f i 11:i32
  return x
"""


@pytest.mark.parametrize(("stop", "step"), [(-1, -1), (0, -1), (-1, -2), (-2, -3), (3, -1), (9, 1), (10, 3)])
def test_loops_do_not_wrap_around_to_their_end(stop: int, step: int) -> None:
    """NVIDIA's assembler makes an iteration too many of a loop that ends as an unsigned number is -2."""
    program = parse_program(BACK.format(stop=stop, step=step))
    text = assembly(emit_kernels(program.tasks[0], device("sm_90")).text, device("sm_90"))
    assert not re.search(r"setp\.\w+\.u\d+\s+%p\d+, %rd?\d+, -", text)
    args = [np.zeros((64, 12), np.float32), np.arange(64, dtype=np.int32) % 10]
    compare(execute_kernels(program, args), evaluate(program, args))


def test_sums_have_the_same_bits_in_each_run() -> None:
    rng = np.random.default_rng(3)
    args = [np.array(1000, np.int32), rng.normal(size=1000).astype(np.float32), np.zeros((), np.float32)]
    args.append(np.zeros(5, np.int32))
    results = [execute_kernels(parse_program(SUM), args)[0] for _ in range(3)]
    assert len({x.tobytes() for x in results}) == 1


SERIAL = """program p(x: ref[i32,4])
  serial
    a: i32 = load x 1:i32
    accum[op=add] x a 0:i32
    accum[op=add] x a 0:i32
  return x
"""


def test_a_serial_task_is_one_thread() -> None:
    program = parse_program(SERIAL)
    code = emit_kernels(program.tasks[0], device("sm_90"))
    assert code.launches == (Launch("qd_kernel", 1, 0),)
    assert code.reason == "serial task: one thread"
    (x,) = execute_kernels(program, [np.array([1, 2, 3, 4], np.int32)])
    assert list(x) == [5, 2, 3, 4]


MANY = """program p(x: ref[f32,64], c: ref[i32,64], h: ref[f32,9], s: ref[f64], t: ref[f16,64], u: ref[i8,3])
  range_for i in 0:i32 : 64:i32
    a: f32 = load x i
    k: i32 = load c i
    b: f32 = sin a
    e: f32 = pow b a
    accum[op=add] h e k
    d: f64 = convert[dtype=f64] e
    f: f64 = log d
    accum[op=add] s f
    g: f16 = convert[dtype=f16] e
    old: f16 = atomic[op=add] t g k
    q: i8 = convert[dtype=i8] k
    w: i8 = atomic[op=max] u q 0:i32
    cell_: cell[f32,4] = cell[dtype=f32, shape=(4)]
    z: i32 = and k 3:i32
    store cell_ e z
    y: f32 = load cell_ 2:i32
    store x y i
  return x, h, s, t, u
"""


@pytest.mark.parametrize("name", [*CUDA, *ROCM])
@pytest.mark.parametrize("fast_math", [True, False])
def test_code_generators_take_kernels(name: str, fast_math: bool) -> None:
    """Registers, atomics, shared and private memory, f16, f64 and the maths library, for each kind of GPU."""
    code = emit_kernels(parse_program(MANY).tasks[0], device(name), EmitOptions(fast_math=fast_math), block_dim=256)
    text = assembly(code.text, device(name))
    for launch in code.launches:
        assert launch.name in text
    if name in CUDA:
        assert ".visible .entry qd_kernel(" in text
        assert f".target {name}" in text
        assert "ld.global.nc" in text
        assert "atom.shared" in text.replace(".relaxed.gpu", "").replace(".acq_rel.gpu", "")
        assert "bar.sync" in text or "barrier.sync" in text
        assert ".ftz" not in text  # XLA keeps subnormal numbers, too
    else:
        assert ".amdhsa_kernel qd_kernel" in text
        assert "global_load" in text
        assert "s_barrier" in text


STACK = """program p(n: ref[i32,20], y: ref[f32,20])
  range_for i in 0:i32 : 20:i32
    c: cell[f32,5000] = cell[dtype=f32, shape=(5000)]
    d: cell[bool,3] = cell[dtype=bool, shape=(3)]
    e: cell[i8,300] = cell[dtype=i8, shape=(300)]
    m: i32 = load n i
    for k in 0:i32 : m : 1:i32
      a: f32 = convert[dtype=f32] k
      b: f32 = mul a 0.5:f32
      store c b k
      f: i8 = convert[dtype=i8] k
      store e f 7:i32
    store d true 1:i32
    s: f32 = for k in 0:i32 : m : 1:i32 carry t = 0.0:f32
      a: f32 = load c k
      u: f32 = add t a
      yield u
    g: i8 = load e 7:i32
    h: f32 = convert[dtype=f32] g
    r: f32 = add s h
    store y r i
  return y
"""


@pytest.mark.parametrize("warp", [1, 4, 3])
def test_large_private_arrays_are_in_scratch(warp: int) -> None:
    program = parse_program(STACK)
    code = emit_kernels(program.tasks[0], device("sm_90"))
    assert code.launches == (Launch("qd_kernel", 32, 1),)
    assert code.scratch_bytes == 32 * (20000 + 304)
    assert "walk over the range, as each thread has 20304 bytes of scratch" in code.reason
    assert "alloca [5000 x float]" not in code.text
    assert "alloca [3 x i8]" in code.text
    args = [np.arange(20, dtype=np.int32) * 7 % 119 + 1, np.zeros(20, np.float32)]
    host = replace(host_device(2), warp=warp)
    compare(execute_kernels(program, args, STRICT, host), evaluate(program, args))


def test_the_launch_has_as_many_threads_as_have_stacks() -> None:
    text = STACK.replace("n: ref[i32,20], y: ref[f32,20]", "n: ref[i32,1000000], y: ref[f32,1000000]")
    (task,) = parse_program(text.replace("20:i32", "1000000:i32")).tasks
    code = emit_kernels(task, device("sm_90"))
    assert code.launches == (Launch("qd_begin", 1, 1), Launch("qd_kernel", 128, 132 * 3))
    assert code.scratch_bytes == CACHE_LINE + 132 * 3 * 128 * 20304
    assert code.lanes == 132 * 3 * 128
    assert "396 blocks of 128 take turns on the range, as each thread has 20304 bytes of scratch" in code.reason


def test_sums_do_not_depend_on_who_takes_which_turn() -> None:
    text = STACK.replace("n: ref[i32,20], y: ref[f32,20]", "n: ref[i32,1000000], y: ref[f32,1000000]")
    text = text.replace("20:i32", "1000000:i32").replace("program p(", "program p(z: ref[f32], ")
    (task,) = parse_program(text.replace("    store y r i\n", "    accum[op=add] z r\n")).tasks
    plan = plan_task(task, device("sm_90"))
    assert plan.slot.parts
    assert plan.stacks.nbytes
    assert not plan.in_turns


def test_arrays_that_a_task_waits_for_stay_in_local_memory() -> None:
    def nbytes(elements: int, *more: str) -> int:
        text = STACK.replace("f32,5000", f"f32,{elements}").replace("shape=(5000)", f"shape=({elements})")
        text = text.replace("      store c b k", "\n".join([*(f"      {e}" for e in more), "      store c b k"]))
        return stacks.plan_stacks(TaskFacts(parse_program(text).tasks[0])).nbytes

    assert nbytes(4020) == 0
    assert nbytes(4021) == 16088 + 304
    much = [f"w{k}: f32 = sqrt {'a' if k == 0 else f'w{k - 1}'}" for k in range(60)]
    assert nbytes(400, *much) == 0
    assert nbytes(600, *much) == 600 * 4 + 304
    assert nbytes(600, *much, "l: f32 = load y k") == 0


@pytest.mark.full
@RANDOM
@given(programs())
def test_private_arrays_of_random_programs_in_scratch(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacks, "LOCAL_BYTES", -1)
        patch.setattr(stacks, "WAITING_BYTES", -1)
        patch.setattr(stacks, "LARGE", 0)
        agree(case)


TOGETHER = """program p(x: ref[{d},64], y: ref[{d},64])
  range_for i in 0:i32 : 64:i32
    a: {d} = load x i
    b: {d} = lane_max a
    store y b i
  return y
"""


STEPS = """program p(x: ref[f32,1000000], y: ref[f32,1000000], n: ref[i32])
  range_for i in 0:i32 : 1000000:i32
    a: f32 = load x i
    m: i32 = load n
    s: f32 = for k in 0:i32 : 1000:i32 : 1:i32 carry t = a
      u: f32 = mul t t
      yield u
    store y s i
  return y
"""


@pytest.mark.parametrize(
    ("old", "new", "threads"),
    [("", "", 128), ("1000:i32 : 1:i32", "m : 1:i32", 256), ("u: f32 = mul t t", "u: f32 = load x k", 256)],
)
def test_threads_that_only_count_are_in_small_blocks(old: str, new: str, threads: int) -> None:
    (task,) = parse_program(STEPS.replace(old, new)).tasks
    assert plan_task(task, device("sm_90")).threads == threads


@pytest.mark.parametrize("name", ["sm_80", "gfx942", "gfx1100"])
@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64", "i16"])
def test_threads_of_a_warp_agree(name: str, dtype: str) -> None:
    (task,) = parse_program(TOGETHER.format(d=dtype)).tasks
    text = assembly(emit_kernels(task, device(name)).text, device(name))
    word = "s32" if dtype.startswith("i") else "u32"
    found = text.count("redux.sync.max") if name in CUDA else text.count("v_readlane_b32")
    assert found == 1 + (dtype.endswith("64"))
    if name in CUDA:
        assert f"redux.sync.max.{word}" in text
        assert ("redux.sync.max.u32" in text) == (dtype != "i32" and dtype != "i16")


@pytest.mark.parametrize(("dtype", "size"), [("u8", 5), ("i16", 3), ("bf16", 7), ("f64", 3)])
def test_memory_of_a_block_is_whole_words(dtype: str, size: int) -> None:
    """Atomics of small numbers exchange the word around them, at the end of an array as well."""
    text = f"""program p(k: ref[i32,9000], h: ref[{dtype},{size}])
  range_for i in 0:i32 : 9000:i32
    j: i32 = load k i
    accum[op=max] h {"1" if dtype[0] in "ui" else "1.0"}:{dtype} j
  return h
"""
    (task,) = parse_program(text).tasks
    made = emit_kernels(task, device("sm_90")).text
    sizes = [int(n) for n in re.findall(r"@qd_copy_\d+ = internal addrspace\(3\) global \[(\d+) x i8\]", made)]
    assert sizes
    assert all(n % 8 == 0 for n in sizes)


STREAM = """program p(x: ref[f32,16777216], y: ref[f32,16777216])
  range_for i in 0:i32 : 16777216:i32
    a: f32 = load x i
    b: f32 = load y i
    c: f32 = mul a b
    store y c i
  return y
"""


def test_streams_move_sixteen_bytes_at_a_time() -> None:
    code = emit_kernels(parse_program(STREAM).tasks[0], device("sm_90"))
    assert code.launches == (Launch("qd_kernel", 256, 0, 4),)
    assert code.launches[0].blocks_for(16777216) == 16384
    text = assembly(code.text, device("sm_90"))
    assert "ld.global.nc.v4.b32" in text
    assert "st.global.v4.b32" in text
    assert "global_load_dwordx4" in assembly(
        emit_kernels(parse_program(STREAM).tasks[0], device("gfx942")).text, device("gfx942")
    )


def test_refusals() -> None:
    with pytest.raises(BackendError, match=r"must be cpu, sm_80, .*; got 'sm_1'"):
        device("sm_1")
    with pytest.raises(BackendError, match=r"`block_dim` must be at most 1024, got 2000"):
        emit_kernels(parse_program(SUM).tasks[0], device("sm_90"), block_dim=2000)


HALF = """program p(x: ref[f16,64], y: ref[f32,64])
  range_for i in 0:i32 : 64:i32
    a: f16 = load x i
    b: f32 = load y i
    c: f16 = convert[dtype=f16] b
    d: f16 = add a c
    e: f16 = max d c
    f: f16 = mul e a
    store x f i
    g: f32 = convert[dtype=f32] a
    h: f32 = mul g b
    store y h i
  return x, y
"""


@pytest.mark.parametrize("name", ["sm_80", "sm_90"])
def test_arithmetic_of_f16_keeps_subnormal_numbers(name: str) -> None:
    """Instructions of f16 are those that LLVM makes of f32 and a rounding, where nothing below 6e-5 is a zero."""
    (task,) = parse_program(HALF).tasks
    text = assembly(emit_kernels(task, device(name), EmitOptions(approximate=True)).text, device(name))
    for instruction in ("add.f16", "setp.gt.f16", "cvt.f32.f16", "cvt.rn.f16.f32", "mul.ftz.f32"):
        assert instruction in text
    assert not re.search(r"\.ftz[.\w]*\.f16", text)
    assert all(each.cubin(text, name) is not None for each in assemblers())
