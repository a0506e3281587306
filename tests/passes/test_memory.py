"""The memory pass: its three parts together, what the options change, and its report."""


from pathlib import Path

import pytest

from qdtrace.analysis.memory import TaskMemory
from qdtrace.config import Options
from qdtrace.ir.printer import print_program
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.by_name import memory_for
from qdtrace.passes.dead_stores import DeadStores
from qdtrace.passes.memory import Memory
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.scalar_replacement import ScalarReplacement
from qdtrace.passes.store_forwarding import StoreForwarding
from tests.passes.harness import assert_same_results, check, keeps, parsed

memory = Memory()

SUM = """
program p(r: ref[f32,8x4], b: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    store b 0.0:f32 i
    for k in 0:i32 : 4:i32 : 1:i32
      a: f32 = load r i k
      accum[op=add] b a i
    v: f32 = load b i
    store y v i
  return b, y
"""


def test_a_row_sum_is_carried_and_stored_once() -> None:
    check(
        memory,
        SUM,
        """
program p(r: ref[f32,8x4], b: ref[f32,8], y: ref[f32,8])
  range_for i in 0:i32 : 8:i32
    t: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry c = 0.0:f32
      a: f32 = load r i k
      d: f32 = add c a
      yield d
    store b t i
    store y t i
  return b, y
""",
    )


def test_places_come_first_because_what_they_store_is_forwarded() -> None:
    program = parsed(SUM)
    swapped = ScalarReplacement()(StoreForwarding()(program))
    loads = [sum(e.primitive.name == "load" for e in p.all_eqns) for p in (memory(program), swapped)]
    assert loads == [1, 3]


def test_a_program_without_traffic() -> None:
    keeps(memory)("""
program p(x: ref[f32,8], y: ref[f32,8], e: ref[i32,8])
  range_for i in 0:i32 : 8:i32
    a: f32 = load x i
    b: f32 = mul a a
    store y b i
  range_for i in 0:i32 : 8:i32
    j: i32 = load e i
    a: f32 = load x i
    accum[op=add] y a j
  return y
""")


@pytest.mark.parametrize(
    ("options", "loads"),
    [({}, 1), ({"opt_level": 0}, 2), ({"cfg_optimization": False}, 2), ({"advanced_optimization": False}, 1)],
)
def test_options_that_turn_it_off(options: dict[str, int], loads: int) -> None:
    text = SUM.replace("for k in 0:i32 : 4:i32", "n: i32 = load e i\n    for k in 0:i32 : n")
    program = parsed(text.replace("y: ref[f32,8])", "y: ref[f32,8], e: ref[i32,8])"))
    made = optimise(program, Options(**options))  # type: ignore[arg-type]
    found = [e for e in made.all_eqns if e.primitive.name == "load" and e.invars[0] is not program.params[3]]
    assert len(found) == loads
    assert_same_results(program, made)


PROGRAM = """
program p(x: ref[f32,8], y: ref[f32,8])
  buffer t: ref[f32,8]
  range_for i in 0:i32 : 8:i32 @"p.0"
    v: f32 = load x i
    p: bool = gt v 0.0:f32
    store t v i
    if p
      store t 1.0:f32 i
    w: f32 = load t i
    store y w i
    for k in 0:i32 : 2:i32 : 1:i32
      u: f32 = load x i
      store y u i
  range_for i in 0:i32 : 8:i32
    store t 2.0:f32 i
  range_for i in 0:i32 : 8:i32
    a: f32 = load t i
    accum[op=add] y a i
  return y
"""


def report(per_task: bool) -> str:
    said: list[str] = []
    Memory(per_task=per_task, on_report=lambda program, text: said.append(text))(parsed(PROGRAM))
    (text,) = said
    return text


def test_the_report() -> None:
    assert (
        report(per_task=False)
        == """\
memory of p, through all tasks
task 0 `p.0`
  live in: x
  live out: y
  after if p: t[i] = one of two
  into for k: x[i] = v
  dead: store t v i  # <graph>:7
  dead: store t 1.0:f32 i  # <graph>:9
  dead: store y t_1 i  # <graph>:11
task 1
  live in: y
  live out: y, t
task 2
  live in: y, t
  live out: y
"""
    )


def test_the_report_of_each_task_by_itself() -> None:
    text = report(per_task=True)
    assert text.splitlines()[:4] == [
        "memory of p, each task by itself",
        "task 0 `p.0`",
        "  live in: x, y, t",
        "  live out: y, t",
    ]
    assert "dead: store t" not in text


@pytest.mark.parametrize(("per_task", "stores"), [(True, 2), (False, 0)])
def test_the_option_that_looks_for_dead_stores_through_all_tasks(per_task: bool, stores: int) -> None:
    program = parsed(PROGRAM)
    made = memory_for(Options(cfg_optimization_per_task=per_task))(program)
    (t,) = program.buffers
    assert sum(e.primitive.name == "store" and e.invars[0] is t for e in walk_eqns(made.tasks[0].body)) == stores
    assert_same_results(program, made)


def test_a_report_changes_nothing() -> None:
    program = parsed(PROGRAM)
    said = Memory(on_report=lambda program, text: None)(program)
    assert print_program(said) == print_program(Memory()(program))
    assert_same_results(program, said)


def test_dump_cfg_writes_the_analysis_of_the_whole_program(tmp_path: Path) -> None:
    program = parsed(PROGRAM)
    made = optimise(program, Options(dump_cfg=True, debug_dump_path=str(tmp_path), fuse_tasks="off"))
    (text, *_) = [p.read_text() for p in sorted(tmp_path.glob("*_p/memory_*.txt"))]
    assert text.startswith("memory of p, through all tasks\ntask 0 `p.0`\n  live in: x\n")
    assert_same_results(program, made)
    apart = optimise(program, Options(fuse_tasks="off"))
    stores = [[e.primitive.name for e in p.all_eqns].count("store") for p in (made, apart)]
    assert stores == [1, 4]


def test_dead_stores_see_no_way_through_tasks_unless_asked() -> None:
    program = parsed(PROGRAM)
    assert DeadStores()(program) is not DeadStores(per_task=False)(program)


def straight_line(tasks: int, statements: int) -> str:
    """Tasks with many accesses to rows at several unknown indices, branches and loops."""
    lines = ["program p(x: ref[f32,64x8], y: ref[f32,64x8], e: ref[i32,64])"]
    for _ in range(tasks):
        lines.append("  range_for i in 0:i32 : 64:i32")
        lines.append("    j: i32 = load e i")
        lines.append("    q: bool = gt j 3:i32")
        for s in range(statements):
            k = s % 8
            lines.append(f"    a{s}: f32 = load x j {k}:i32")
            lines.append(f"    store y a{s} i {k}:i32")
            lines.append(f"    b{s}: f32 = load y i {(k + 3) % 8}:i32")
            lines.append("    if q")
            lines.append(f"      store y b{s} i {(k + 1) % 8}:i32")
            lines.append(f"    for k{s} in 0:i32 : j : 1:i32")
            lines.append(f"      c{s}: f32 = load y i {k}:i32")
            lines.append(f"      accum[op=add] y c{s} i k{s}")
    return "\n".join(lines) + "\n  return y\n"


@pytest.mark.parametrize("shape", [((4, 8), (8, 8)), ((2, 12), (2, 24))])
def test_the_work_is_linear_in_the_program(
    shape: tuple[tuple[int, int], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the tasks, or twice the equations of a task, are twice the locations looked at and compared."""
    counts: list[int] = []
    at, may_meet = TaskMemory.at, TaskMemory.may_meet

    def counted_at(self: TaskMemory, *args: object) -> object:
        counts[-1] += 1
        return at(self, *args)  # type: ignore[arg-type]

    def counted_meeting(self: TaskMemory, *args: object) -> bool:
        counts[-1] += 1
        return may_meet(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(TaskMemory, "at", counted_at)
    monkeypatch.setattr(TaskMemory, "may_meet", counted_meeting)
    for tasks, statements in shape:
        program = parsed(straight_line(tasks, statements))
        counts.append(0)
        memory(program)
    assert counts[0] > 100
    # what is known at the start of a task is less than what is known later: a tenth on top
    assert counts[1] <= 2.2 * counts[0]
