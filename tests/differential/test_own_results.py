"""Programs that overwrite their arguments have the same results where those become buffers, in any order of iterations.

They are those of `test_reuse_donated` whose results are the arguments themselves: tasks with branches and loops that
read and write `x` and `w`, at indices that agree, nearly agree or do not.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from qdtrace.passes.own_results import OwnResults
from tests.differential.corpus import Case, case
from tests.differential.task_programs import is_definite
from tests.differential.test_fusion import check_cpu, same_results
from tests.differential.test_reuse_donated import Maker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.ir.program import Program


def drawn(seed: int) -> Case:
    """The program of a number."""
    maker = Maker(random.Random(seed).randrange)
    maker.y, maker.z = maker.x, maker.w
    tasks = tuple(maker.task() for _ in range(1 + maker.draw(3)))
    program = maker.program()
    results = maker.pick([(maker.x,), (maker.w, maker.x)])
    made = type(program)("p", program.params, (), tasks, results)
    return case(made, "plain", seed % 3)


def definite(numbers: range) -> Iterator[Case]:
    """The programs whose results do not depend on the order of iterations."""
    return (one for one in map(drawn, numbers) if is_definite(one))


def own(program: Program) -> Program:
    """The program in which all arguments are needed."""
    return OwnResults(program.params)(program)


def test_the_programs_are_taken_and_refused() -> None:
    """Neither always nor never, and with the same results."""
    cases = [*definite(range(40))]
    taken = [(c, after) for c in cases if (after := own(c.program)) is not c.program]
    assert 0.1 < len(taken) / len(cases) < 0.9
    for one, after in taken:
        same_results(after, one, races=True)


@pytest.mark.full
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_machine_code(target: str) -> None:
    made = [(c, after) for c in definite(range(30)) if (after := own(c.program)) is not c.program]
    assert made
    for one, after in made[:5]:
        check_cpu(after, one, target)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4_000, 1_000))
def test_very_many(first: int) -> None:
    for one in definite(range(first, first + 1_000)):
        same_results(own(one.program), one, races=True)
