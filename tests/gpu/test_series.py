"""Small tasks that one block runs in one kernel: what is launched and computed, and which tasks stay alone."""


import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.cuda.ptxas import assemblers
from lowering.gpu import block_memory as block_memory_module
from lowering.gpu.block_memory import block_memory, held_in_blocks
from lowering.gpu.commands import BLOCK, filled_before
from lowering.runtime.layout import Layout, plan_layout
from lowering.simt import series
from lowering.simt.assembly import assembly
from lowering.simt.devices import device
from lowering.simt.emit_series import emit_series
from lowering.simt.plan import plan_in_series
from lowering.simt.series import Filling, Series, find_series, why_alone
from qdtrace.analysis.machine import GPU
from qdtrace.config import Options
from qdtrace.errors import BackendError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Program, Task, Var
from qdtrace.stats import stats
from tests.differential.compare import compare
from tests.gpu.fake import FakeDriver, Launched, fake_backend
from tests.runtime.programs import chain, total, uncached

OPTIONS = uncached(block_dim=4, fast_math=False)


def f32(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def called(program: Program, *args: np.ndarray, options: Options = OPTIONS) -> list[str]:
    """The launches and fills of a call that gives what the interpreter gives, twice: scratch is dirty then."""
    with jax.enable_x64(True), fake_backend() as (backend, driver):
        call = jax.jit(backend.compile(program, options).call)
        for _ in range(2):
            driver.asked.clear()
            compare([np.asarray(x) for x in call(*args)], evaluate(program, args))
    return [c.name if isinstance(c, Launched) else "fill" for c in driver.asked]


@pytest.mark.parametrize("n", [1, 3, 4, 5, 50])
def test_three_tasks_are_one_launch(n: int) -> None:
    assert called(chain(n), f32(n)) == ["qd_kernel"]
    assert called(chain(n), f32(n), options=uncached(block_dim=4, fuse_tasks="off")) == ["qd_kernel"] * 3


def test_serial_tasks_as_they_are_traced() -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] *= 2
        for k in qd.range(3, serial=True):
            x[k] += x[k + 1]
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = x[i] + x[0]
        return out

    (staged,) = f.lower(f32(8), target="sm_90").programs
    assert "serial" in {task.kind for task in staged.optimised_for(GPU).tasks}
    assert called(staged.optimised_for(GPU), f32(8)) == ["qd_kernel"]


def test_arguments() -> None:
    """The references of each task in order, no range, no word where nothing fails, and no memory of kernels."""
    program = chain(100)
    with fake_backend(FakeDriver(runs=False)) as (backend, driver):
        done = backend.compile(program, OPTIONS)
        jax.block_until_ready(jax.jit(done.call)(f32(100)))
    (launch,) = driver.asked
    assert isinstance(launch, Launched)
    assert (launch.blocks, launch.threads) == (1, 4)
    *refs, start, stop, word, memory = launch.arguments
    assert (start, stop, word, memory) == (0, 0, 0, 0)
    y, z = program.buffers
    names = [v for used in done.layout.task_refs for v in used]
    places = dict(zip(names, refs, strict=True))
    assert [places[v] for v in names] == refs
    assert places[y] == places[z] == 0  # they are in memory of the block
    assert done.layout.places[y].slot == done.layout.places[z].slot == BLOCK
    assert done.layout.places[y].offset != done.layout.places[z].offset
    assert done.layout.scratch_bytes == 0


EVERYTHING = """program p(x: ref[f32,11], k: ref[i32,11])
  buffer a: ref[f32,11]
  buffer h: ref[i32,3] = 2:i32
  buffer s: ref[f32] = 1.5:f32
  buffer b: ref[i8,7] = -1:i8
  buffer e: ref[f64,3] = 0.5:f64
  buffer c: ref[i32] = 0:i32
  buffer o: ref[i32,11]
  buffer unused: ref[f16,3] = 2.0:f16
  range_for i in 0:i32 : 11:i32
    v: f32 = load x i
    w: f32 = mul v 2.0:f32
    store a w i
  range_for i in 2:i32 : 9:i32
    j: i32 = sub 10:i32 i
    v: f32 = load a j
    accum[op=add] s v
    accum[op=max] e 4.0:f64 1:i32
    p: i32 = load k i
    accum[op=add] h 1:i32 p
  range_for i in 5:i32 : 5:i32
    store a 0.0:f32 i
  serial
    v: f32 = load s
    w: f32 = add v 1.0:f32
    store s w
    accum[op=add] h 5:i32 0:i32
    t: i32 = load h 1:i32
    store h t 2:i32
  range_for i in 0:i32 : 7:i32
    q: i8 = load b i
    r: i8 = sub q 1:i8
    store b r i
    old: i32 = atomic[op=add] c 1:i32
    v: f32 = load s
    store a v i
  range_for i in 0:i32 : 11:i32
    n: i32 = load c
    store o n i
  return a, h, s, b, e, o, unused
"""


@pytest.mark.parametrize("threads", [1, 4, 7, 64])
def test_sums_fills_and_single_threads(threads: int) -> None:
    """Registers, arrays and atomics of a block; fills of each width before their task; an empty range; one thread."""
    places = np.array([0, 1, 2] * 3 + [0, 1], np.int32)
    asked = called(parse_program(EVERYTHING), f32(11), places, options=uncached(block_dim=threads, fast_math=False))
    assert asked == ["qd_kernel", "fill"]


def test_a_sum_alone_is_one_launch() -> None:
    assert called(total(100), f32(100), np.float32(1)) == ["qd_kernel"]


HALVES = """program p(x: ref[f16,9], y: ref[bf16,9])
  buffer s: ref[f16,2] = 0.0:f16
  buffer t: ref[bf16] = 1.0:bf16
  range_for i in 0:i32 : 9:i32
    v: f16 = load x i
    accum[op=add] s v 1:i32
    w: bf16 = load y i
    accum[op=max] t w
  return s, t
"""


def test_small_floats_are_rounded_when_they_reach_memory() -> None:
    x = f32(9).astype(np.float16)
    assert called(parse_program(HALVES), x, jnp.asarray(f32(9), jnp.bfloat16)) == ["qd_kernel"]


def test_memory_that_buffers_share_in_turn() -> None:
    """Two buffers of the scratch have one place, as their tasks do not overlap; the second one is filled."""
    program = parse_program("""program p(x: ref[f32,16])
  buffer a: ref[f32,16]
  buffer b: ref[f32,16]
  buffer c: ref[f32,16] = 3.0:f32
  buffer r: ref[f32,16]
  range_for i in 0:i32 : 16:i32
    v: f32 = load x i
    store a v i
  range_for i in 0:i32 : 16:i32
    j: i32 = sub 15:i32 i
    v: f32 = load a j
    store b v i
  range_for i in 0:i32 : 16:i32
    j: i32 = sub 15:i32 i
    v: f32 = load b j
    accum[op=add] c v i
  range_for i in 0:i32 : 16:i32
    j: i32 = sub 15:i32 i
    v: f32 = load c j
    store r v i
  return r""")
    with fake_backend() as (backend, _):
        layout = backend.compile(program, OPTIONS).layout
    a, b, c, _ = program.buffers
    assert layout.places[a] == layout.places[c] != layout.places[b]
    assert called(program, f32(16)) == ["qd_kernel"]


CHECKED = """program p(x: ref[f32,8], k: ref[i32,8], m: ref[i32,8])
  buffer a: ref[f32,8]
  buffer b: ref[f32,8]
  range_for i in 0:i32 : 8:i32 @"f.0"
    p: i32 = load k i
    j: i32 = bound[size=8, axis=0, buffer="x", shape=(8)] p
    v: f32 = load x j
    store a v i
  range_for i in 0:i32 : 8:i32 @"f.1"
    p: i32 = load m i
    j: i32 = bound[size=8, axis=0, buffer="a", shape=(8)] p
    v: f32 = load a j
    store b v i
  return b
"""


@pytest.mark.parametrize("bad", [0, 1])
def test_a_failed_check_ends_its_iteration_and_tells_its_task(bad: int) -> None:
    """All threads still meet at the barrier; the word is that of the task; the next call is right."""
    places = [np.arange(8, dtype=np.int32)[::-1].copy() for _ in range(2)]
    wrong = [p.copy() for p in places]
    wrong[bad][6] = 12
    with fake_backend() as (backend, driver):
        call = jax.jit(backend.compile(parse_program(CHECKED), OPTIONS).call)
        assert np.array_equal(call(f32(8), *places)[0], f32(8))
        (out,) = jax.block_until_ready(call(f32(8), *wrong))
        error = backend.words.failure()
        assert isinstance(error, qd.BoundsError)
        assert error.rule.startswith("index 12 is out of bounds for axis 0 of " + "`x`" * (1 - bad) + "`a`" * bad)
        where = 1 if bad == 0 else 6
        assert np.array_equal(np.delete(out, where), np.delete(f32(8), where))
        assert np.array_equal(call(f32(8), *places)[0], f32(8))
        assert {c.name for c in driver.asked} == {"qd_kernel"}
        assert len(driver.asked) == 3


def test_what_the_driver_refuses_names_all_tasks() -> None:
    with fake_backend(FakeDriver(refusal=7)) as (backend, _):
        call = backend.compile(parse_program(CHECKED), OPTIONS).call
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"refused f\.0 to f\.1: qd_kernel: FAKE_ERROR_7"):
            jax.block_until_ready(jax.jit(call)(f32(8), np.zeros(8, np.int32), np.zeros(8, np.int32)))


BODY = "    v: f32 = load x i\n    store y v i\n"
LOOP = """    head
      m: i32 = load n
    v: f32 = load x i
    cell_: f32 = for j in 0:i32 : {stop} : 1:i32 carry c = v
      w: f32 = mul c 0.5:f32
      yield w
    store y cell_ i
"""


def task_of(body: str, head: str = "range_for i in 0:i32 : 8:i32") -> Task:
    params = "x: ref[f32,9000], y: ref[f32,9000], n: ref[i32]"
    return parse_program(f"program p({params})\n  {head}\n{body}  return y").tasks[0]


@pytest.mark.parametrize(
    ("body", "head", "reason"),
    [
        (BODY, "range_for i in 0:i32 : 4096:i32", None),
        (BODY, "range_for i in 0:i32 : 4097:i32", "more than 4096 iterations"),
        (BODY, "range_for i in 0:i32 : 8:i32 {block_dim=64}", "block_dim=64"),
        ("    head\n      m: i32 = load n\n" + BODY, "range_for i in 0:i32 : m", "its bounds are known only on"),
        (LOOP.format(stop="m"), "range_for i in 0:i32 : 8:i32", "loops that may be long"),
        (LOOP.format(stop="40:i32"), "range_for i in 0:i32 : 1024:i32", None),
        (LOOP.format(stop="400:i32"), "range_for i in 0:i32 : 1024:i32", "too much work for one multiprocessor"),
        (LOOP.format(stop="400:i32"), "range_for i in 0:i32 : 100:i32", None),
        (
            "    head\n      m: i32 = load n\n    store n m\n    j: i32 = add m i\n    store n j\n",
            "range_for i in 0:i32 : 8:i32",
            "it changes what all its iterations read at first",
        ),
    ],
)
def test_which_tasks_stay_alone(body: str, head: str, reason: str | None) -> None:
    found = why_alone(task_of(body, head))
    assert found == reason if reason is None else found is not None and found.startswith(reason)


def test_a_serial_loop_stays_alone() -> None:
    """It may be a scan, or long."""
    text = "  serial\n    for j in 0:i32 : 9:i32 : 1:i32\n      store y 0.0:f32 j\n"
    (task,) = parse_program(f"program p(y: ref[f32,9])\n{text}  return y").tasks
    assert why_alone(task) == "loops that may be long"


def test_series_end_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    light, large = task_of(BODY), task_of(BODY, "range_for i in 0:i32 : 9000:i32")
    kind = device("sm_90")
    assert find_series([light], {}, kind) == ()
    assert find_series([light], {0: 400}, kind) == (Series(range(1), 32),)
    assert find_series([light], {0: 1 << 20}, kind) == ()
    assert find_series([light, large, light, light], {}, kind) == (Series(range(2, 4), 32),)
    assert find_series([light] * 4, {2: 1 << 20}, kind) == (Series(range(2), 32), Series(range(2, 4), 32))
    wide = task_of(BODY, "range_for i in 0:i32 : 1000:i32")
    assert find_series([light, wide], {}, kind)[0].threads == 1000 // 32 * 32 + 32
    assert find_series([light, wide], {}, kind, threads=96)[0].threads == 96
    assert find_series([light, wide], {}, kind, threads=2000) == ()
    monkeypatch.setattr(series, "MOST_REFS", 6)
    assert [s.tasks for s in find_series([light] * 5, {}, kind)] == [range(2), range(2, 4)]
    empty = task_of(BODY, "range_for i in 3:i32 : 3:i32")
    assert find_series([empty, empty], {}, kind) == ()


def test_copies_take_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they begin: three of 68 bytes are more than 256."""
    text = """program p(k: ref[i32,1000], h: ref[i32,17])
  range_for i in 0:i32 : 1000:i32
    p: i32 = load k i
    accum[op=add] h 1:i32 p
  return h
"""
    (task,) = parse_program(text).tasks
    kind = device("sm_90")
    assert "arrays with copies" in plan_in_series(task, kind, 32).reason
    monkeypatch.setattr(series, "COPY_BYTES", 256)
    assert [s.tasks for s in find_series([task] * 3, {}, kind)] == [range(2), range(2, 3)]


def test_the_user_cannot_ask_for_more_threads_than_there_are() -> None:
    with fake_backend() as (backend, _), pytest.raises(BackendError, match="`block_dim` must be at most 1024"):
        backend.compile(chain(8), uncached(block_dim=2000))


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx1100"])
def test_code_generators_take_them(name: str) -> None:
    """What an earlier task wrote is never read as if it were constant."""
    program = parse_program(EVERYTHING)
    steps = [program.tasks[0], Filling(7, b"\xff"), *program.tasks[1:]]
    text = assembly(emit_series(steps, device(name), 256).text, device(name))
    assert "qd_kernel" in text
    if name.startswith("sm"):
        assert ".maxntid 256" in text
        assert "ld.global.nc" not in text
        assert "call" not in text
        assert "bar.sync" in text or "barrier.sync" in text or "barrier.cta.sync" in text
    else:
        assert "s_barrier" in text


ATOMICS = """program p(x: ref[{d},8], k: ref[i32,8])
  buffer a: ref[{d},8] = {one}:{d}
  buffer y: ref[{d},8]
  range_for i in 0:i32 : 8:i32
    v: {d} = load x i
    j: i32 = load k i
    accum[op={op}] a v j
  range_for i in 0:i32 : 8:i32
    w: {d} = atomic[op={op}] a {one}:{d} i
    store y w i
  return y"""


@pytest.mark.parametrize("op", ["add", "mul", "max"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i8", "u16", "i32", "u64"])
def test_atomics_in_memory_of_the_block(dtype: str, op: str) -> None:
    """What the host's threads give, and what code generators and assemblers of GPUs take."""
    program = parse_program(ATOMICS.format(d=dtype, op=op, one="1.0" if "f" in dtype else "1"))
    with jax.enable_x64(True):
        x = np.array([2, 1, 3, 0, 1, 2, 1, 3]).astype(program.params[0].dtype.numpy)
        asked = called(program, x, np.array([0, 1, 1, 2, 3, 1, 0, 7], np.int32))
    assert asked == ["qd_kernel"]
    (one,) = find_series(program.tasks, {0: x.nbytes}, device("sm_90"))
    layout = plan_layout(program)
    layout = plan_layout(program, elsewhere=held_in_blocks(layout, [one]))
    inside = block_memory(layout, one.tasks)
    steps: list[Filling | Task] = [Filling(x.nbytes, b"\1" * x.itemsize), *program.tasks]
    for name in ("sm_90", "gfx942"):
        kind = device(name)
        text = assembly(emit_series(steps, kind, one.threads, inside=inside).text, kind)
        assert "atom.global" not in text
        assert "global_atomic" not in text
        assert "flat_atomic" not in text
        if name == "sm_90":
            assert all(each.cubin(text, name) is not None for each in assemblers())


def test_buffers_that_only_a_series_uses_need_no_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what is returned, what other tasks use, what commands fill, nor what has no room."""
    lines = ["program p(x: ref[f32,9000])", "  buffer big: ref[f32,9000] = 1.0:f32"]
    lines += [f"  buffer {name}: ref[f32,{n}]" for name, n in {"out": 8, "later": 8, "one": 8, "two": 100}.items()]
    tasks = [("x", "one"), ("one", "two"), ("two", "later"), ("later", "out"), ("big", "x"), ("later", "x")]
    for (a, b), stop in zip(tasks, (8, 8, 8, 8, 8, 9000), strict=True):
        at = "i" if stop == 8 else "0:i32"
        lines += [f"  range_for i in 0:i32 : {stop}:i32", f"    v: f32 = load {a} {at}", f"    store {b} v i"]
    program = parse_program("\n".join([*lines, "  return x, out"]))
    _, out, later, one, two = program.buffers

    def held() -> tuple[list[Var], Layout]:
        layout = plan_layout(program)
        series = find_series(program.tasks, filled_before(layout), device("sm_90"))
        assert [s.tasks for s in series] == [range(4)]
        found = held_in_blocks(layout, series)
        return list(found), plan_layout(program, elsewhere=found)

    found, layout = held()
    assert set(found) == {one, two}
    assert layout.places[later].slot == layout.scratch_slot
    assert out in layout.written
    assert block_memory(layout, range(4)).offsets == {1: 448, 2: 448, 3: 0, 4: 0}
    assert called(program, f32(9000)) == ["qd_kernel", "fill", "qd_kernel", "qd_kernel"]
    monkeypatch.setattr(block_memory_module, "HELD_BYTES", 64)
    assert held()[0] == [one]
    monkeypatch.setattr(block_memory_module, "HELD_BYTES", 0)
    assert held()[0] == []


EMPTY = """program p(x: ref[f32,8])
  buffer b: ref[f32,0]{initial}
  buffer y: ref[f32,8]
  range_for i in 0:i32 : 8:i32
    v: f32 = load x i
    far: bool = gt v 100.0:f32
    if far
      k: i32 = bound[size=0, axis=0, buffer="b", shape=(0)] i
      store b v k
    store y v i
  range_for i in 0:i32 : 8:i32
    v: f32 = load y i
    w: f32 = mul v 2.0:f32
    store y w i
    far: bool = gt w 100.0:f32
    if far
      k: i32 = bound[size=0, axis=0, buffer="b", shape=(0)] i
      u: f32 = load b k
      store y u i
  return y
"""


@pytest.mark.parametrize("initial", ["", " = 0.0:f32"])
def test_a_buffer_without_elements(initial: str) -> None:
    assert called(parse_program(EMPTY.format(initial=initial)), f32(8)) == ["qd_kernel"]


def test_equal_series_are_compiled_once_and_kept(tmp_path) -> None:
    """Two series of equal tasks with a large one between; a second process finds all of it."""
    options = uncached(block_dim=4, offline_cache=True, offline_cache_dir=str(tmp_path))
    lines = ["program p(x: ref[f32,9000], y: ref[f32,9000], z: ref[f32,9000])"]
    for stop in (8, 8, 9000, 8, 8):
        lines += [f"  range_for i in 0:i32 : {stop}:i32", "    v: f32 = load x i", "    store y v i"]
    program = parse_program("\n".join([*lines, "  return y"]))
    compiled = []
    for _ in range(2):
        before = stats()
        with fake_backend(kind=77) as (backend, driver):
            call = backend.compile(program, options).call
            compiled.append(stats().compiled - before.compiled)
            assert np.array_equal(jax.jit(call)(f32(9000), f32(9000) * 0, f32(9000))[0], f32(9000))
            assert [c.name for c in driver.asked] == ["qd_kernel"] * 3
    series_task_launcher_and_handler = 4
    assert compiled == [series_task_launcher_and_handler, 0]


def test_what_is_printed() -> None:
    """Each task says how it is launched and why; the code is that of what is launched."""

    @qd.jit
    def f(x):
        a, b, c = (qd.empty_like(x) for _ in range(3))
        for i in qd.range(8):
            a[i] = x[i] * 2.0
        for i in qd.range(8):
            b[i] = a[(i * 3) % 8]
        for i in qd.range(x.shape[0]):
            c[i] = b[(i * 5) % 8]
        return c

    low = f.lower(jnp.ones(9000), target="sm_90")
    first, second, third = (task.reason for task in low.tasks)
    assert first == second == "one block of 32 threads, in one kernel with 1 other small task"
    assert third.endswith("; a launch of its own: more than 4096 iterations")
    assert low.as_text("ptx").count(".entry qd_kernel(") == 2
    assert low.as_text("llvm").count("call void @qd_task_") == 2
    assert low.memory_analysis()["temporaries"] == 2 * 9000 * 4
    with qd.options(fuse_tasks="off"):
        low = f.lower(jnp.ones(9000), target="sm_90")
    assert low.as_text("ptx").count(".entry qd_kernel(") == 3


def test_a_large_fill_is_a_command_before_the_series() -> None:
    program = parse_program(f"""program p(x: ref[f32,8])
  buffer a: ref[f32,{1 << 14}] = 2.0:f32
  buffer b: ref[f32,8] = 1.0:f32
  range_for i in 0:i32 : 8:i32
    v: f32 = load x i
    accum[op=add] a v i
  range_for i in 0:i32 : 8:i32
    v: f32 = load a i
    accum[op=add] b v i
  return a, b""")
    assert called(program, f32(8)) == ["fill", "qd_kernel"]
