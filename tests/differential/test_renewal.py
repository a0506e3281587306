"""Programs that overwrite their arguments have the same results wherever the old content is, and whatever is in the
memory of the new one.

They are those of `test_reuse_donated` whose results are the arguments themselves: tasks with branches and loops that
read and write `x` and `w`, at indices that agree, nearly agree or do not. The harness runs a task that renews a
reference with its old content elsewhere.
"""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from lowering.plan import renewal
from qdtrace.interpret.reference import evaluate
from qdtrace.ir import memory
from tests.differential.corpus import Case, case
from tests.differential.task_programs import is_definite
from tests.differential.test_fusion import check_cpu
from tests.differential.test_reuse_donated import Maker
from tests.runtime.programs import compiled


@pytest.fixture(autouse=True)
def _every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE", 0)


def drawn(seed: int) -> Case:
    """The program of a number."""
    maker = Maker(random.Random(seed).randrange)
    maker.y, maker.z = maker.x, maker.w
    tasks = tuple(maker.task() for _ in range(1 + maker.draw(3)))
    program = maker.program()
    results = maker.pick([(maker.x,), (maker.w, maker.x)])
    return case(type(program)("p", program.params, (), tasks, results), "plain", seed % 3)


def definite(numbers: range) -> Iterator[Case]:
    """The programs whose results do not depend on the order of iterations."""
    return (one for one in map(drawn, numbers) if is_definite(one))


def check_call(one: Case) -> None:
    """A call whose operands stay gives what the interpreter gives."""
    want = evaluate(one.program, one.args)
    done = compiled(one.program, fast_math=False)
    for got, expected in zip(done.call(*one.args, needed=range(len(one.args))), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_programs_are_taken_and_refused() -> None:
    """Neither always nor never, and with the same results."""
    cases = [*definite(range(40))]
    taken = [one for one in cases if renewal.renewals(one.program)]
    assert 0.1 < len(taken) / len(cases) < 0.9
    for one in taken[:3]:
        check_call(one)


@pytest.mark.full
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_machine_code(target: str) -> None:
    programs = [(one, one.program) for one in definite(range(60))]
    made = [one for one, p in programs if any(renewal.sources_of(task, renewal.large(p.params)) for task in p.tasks)]
    assert made
    for one in made[:8]:
        check_cpu(one.program, one, target)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_very_many(first: int) -> None:
    for one in definite(range(first, first + 100)):
        if renewal.renewals(one.program):
            check_call(one)
            check_cpu(one.program, one, "avx512")
