"""Joining tasks, contraction and the whole pipeline leave random programs of many tasks as they are.

A program that is valid and free of races before must be so after, in any order of iterations: a joined program with a
race was joined wrongly, even where the result happens to be right.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lowering.llvm.options import EmitOptions
from qdtrace.config import Options
from qdtrace.errors import QdError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program, print_task
from qdtrace.ir.program import Block, Literal, Program, Task
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.verify import verify_program
from qdtrace.passes.by_name import pass_named
from qdtrace.passes.pipelines import optimise
from tests.differential.compare import compare
from tests.differential.corpus import Case, case, replay
from tests.differential.reduce import reduced
from tests.differential.task_programs import FUEL, ORDERS, SEEDS, is_definite, random_case, task_programs
from tests.lowering.harness import execute
from tests.selection import drawn

MODES = {
    "auto": Options(fast_math=False),
    "aggressive": Options(fast_math=False, fuse_tasks="aggressive"),
    "not raw": Options(fast_math=False, fuse_tasks="aggressive", fuse_tasks_raw=False),
}
OFF = Options(fast_math=False, fuse_tasks="off")
EXAMPLES = settings(
    max_examples=drawn(20),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
SIDES = st.sampled_from(list(MODES))


def same_results(after: Program, given: Case, *, races: bool = True) -> None:
    """In all orders, without a race, and for all arguments for which the program has one result.

    `races=False` after passes that may load what is then not used, in front of a loop or a condition.
    """
    verify_program(after)
    for seed in SEEDS:
        other = case(given.program, given.kind, seed)
        if not is_definite(other):
            continue
        want = evaluate(other.program, other.args, fuel=FUEL)
        for order in ORDERS:
            compare(evaluate(after, other.args, order=order, check_races=races, fuel=FUEL), want)


def check_pass(given: Case, options: Options, name: str) -> Program:
    """The pass keeps what the program means, and a second run finds nothing."""
    change = pass_named(name, options)
    after = change(given.program)
    try:
        same_results(after, given)
        assert len(after.tasks) <= len(given.program.tasks)
        assert change(after) is after, "changes its own result"
        assert print_program(change(given.program)) == print_program(after)
    except (AssertionError, QdError) as e:
        raise AssertionError(f"{e}\nafter {name}:\n{print_program(after)}") from e
    return after


def check_fusion(given: Case, options: Options) -> Program:
    """What holds for every pass, and opted-out tasks stay as they are."""
    after = check_pass(given, options, "fuse_tasks")
    alone = [print_task(t) for t in given.program.tasks if t.hints.get("fuse") is False]
    left = [print_task(t) for t in after.tasks]
    assert all(text in left for text in alone), f"joined a task that opted out:\n{print_program(after)}"
    return after


def check_pipeline(given: Case, options: Options) -> Program:
    """Fusion, contraction, and then everything; in that order, so that the first wrong one is named."""
    fused = check_fusion(given, options)
    check_pass(given._replace(program=fused), options, "contract")
    after = optimise(given.program, replace(options, verify=True))
    try:
        same_results(after, given, races=False)
        assert len(after.tasks) <= len(given.program.tasks)
    except (AssertionError, QdError) as e:
        raise AssertionError(f"{e}\nafter everything:\n{print_program(after)}") from e
    return after


def check_cpu(after: Program, given: Case, target: str) -> None:
    """The machine code, in one piece and in chunks, gives what the interpreter gives for the traced program."""
    want = evaluate(given.program, given.args, fuel=FUEL)
    for cuts in ((), (0.4, 0.7)):
        got = execute(after, given.args, target, EmitOptions(fast_math=False), cuts)
        compare(got, want)


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_fused_is_unfused(mode: str) -> None:
    @EXAMPLES
    @given(task_programs())
    def check(case: Case) -> None:
        check_fusion(case, MODES[mode])

    check()


@pytest.mark.full
@EXAMPLES
@given(task_programs())
def test_off_does_nothing(case: Case) -> None:
    assert pass_named("fuse_tasks", OFF)(case.program) is case.program


@pytest.mark.full
@EXAMPLES
@given(task_programs())
def test_contraction_without_fusion(case: Case) -> None:
    check_pass(case, OFF, "contract")


@EXAMPLES
@given(task_programs(), SIDES)
@pytest.mark.full
def test_the_pipeline(case: Case, mode: str) -> None:
    check_pipeline(case, MODES[mode])


@settings(EXAMPLES, max_examples=6)
@given(task_programs(tasks=4), st.sampled_from(["avx512", "avx2", "scalar"]))
def test_the_cpu(case: Case, target: str) -> None:
    check_cpu(optimise(case.program, MODES["aggressive"]), case, target)


@pytest.mark.full
@pytest.mark.parametrize(("name", "case"), [pytest.param(n, c, id=n) for n, c in replay()])
def test_the_corpus(name: str, case: Case) -> None:
    check_pipeline(case, MODES["aggressive"])


def run_many(check: Callable[[Case], object], seeds: range) -> None:
    """Runs a check on the programs of many numbers; fails with a small program."""

    def fails(case: Case) -> bool:
        if not is_definite(case):
            return False
        try:
            check(case)
        except (AssertionError, QdError):
            return True
        return False

    for seed in seeds:
        made = random_case(seed)
        if fails(made):
            small = reduced(made, fails)
            try:
                check(small)
            except (AssertionError, QdError) as e:
                raise AssertionError(f"program {seed}, made smaller:\n{small!r}\n{e}") from e


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_numbered_programs(mode: str) -> None:
    run_many(lambda case: check_pipeline(case, MODES[mode]), range(drawn(20)))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_many(mode: str) -> None:
    run_many(lambda case: check_pipeline(case, MODES[mode]), range(1000, 5000))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx512", "avx2", "scalar"])
def test_many_on_the_cpu(target: str) -> None:
    run_many(lambda case: check_cpu(optimise(case.program, MODES["aggressive"]), case, target), range(5000, 5500))


# The checks find what they are for.


def joined(a: Task, b: Task) -> Task:
    """Two tasks behind each other, whatever they do."""
    assert a.index is not None
    assert b.index is not None
    body = Rebuilder({b.index: a.index}).rebuild_block(b.body)
    return replace(a, body=Block((), (*a.body.eqns, *body.eqns)), head=(*a.head, *b.head))


def careless(program: Program) -> Program:
    """Joins neighbours of equal static bounds without a look at what they do."""
    tasks = list(program.tasks[:1])
    for task in program.tasks[1:]:
        last = tasks[-1]
        bounds = (last.start, last.stop, task.start, task.stop)
        static = last.index is not None and task.index is not None and all(isinstance(a, Literal) for a in bounds)
        if static and bounds[:2] == bounds[2:]:
            tasks[-1] = joined(last, task)
        else:
            tasks.append(task)
    return replace(program, tasks=tuple(tasks))


@pytest.mark.full
def test_a_careless_fusion_is_found() -> None:
    """By the race detector, by the verifier (a head that reads what the body now writes), by a wrong result."""
    found = {"race": 0, "head": 0, "result": 0}
    for seed in range(70):
        made = random_case(seed)
        after = careless(made.program)
        try:
            same_results(after, made)
        except QdError as e:
            found["race" if "race" in str(e) else "head"] += 1
        try:
            want = evaluate(made.program, made.args)
            for order in ORDERS:
                compare(evaluate(after, made.args, order=order), want)
        except (AssertionError, QdError):
            found["result"] += 1
    assert min(found.values()) > 0, found
    assert found["race"] >= 10, found
