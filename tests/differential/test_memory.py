"""The memory pass and its parts leave the results of programs of many tasks as they are, in any order of iterations.

The programs are free of races; so must be what the passes make of them.
"""

import re
from collections.abc import Sequence

import numpy as np
import pytest

from qdtrace.config import Options
from qdtrace.errors import InterpreterError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program
from qdtrace.ir.verify import verify_program
from qdtrace.passes.by_name import simplify_for
from qdtrace.passes.dead_stores import DeadStores
from qdtrace.passes.fuse_tasks import FuseTasks
from qdtrace.passes.memory import Memory
from qdtrace.passes.scalar_replacement import ScalarReplacement
from qdtrace.passes.store_forwarding import StoreForwarding
from tests.differential.compare import compare
from tests.differential.task_programs import ORDERS, random_case
from tests.selection import drawn

EXACT = Options(fast_math=False)


def fused(program: Program) -> Program:
    """As much in one task as may be, then the memory pass as often as the pipeline runs it."""
    simplify = simplify_for(EXACT)
    program = Memory()(FuseTasks("aggressive")(simplify(program)))
    return Memory(per_task=False)(simplify(program))


# Sums of these programs are exact in any order, so `fast_math` must not show.
CHANGES = {
    "scalar_replacement": ScalarReplacement(),
    "scalar_replacement_fast": ScalarReplacement(fast_math=True),
    "store_forwarding": StoreForwarding(),
    "dead_stores": DeadStores(),
    "dead_stores_of_all_tasks": DeadStores(per_task=False),
    "memory": Memory(fast_math=True),
    "fused": fused,
}


ACCUMULATIONS = re.compile("accumulates into it with .*\n.*accumulates into it with ")


def _run(program: Program, args: Sequence[np.ndarray], order: str, races: bool) -> tuple[np.ndarray, ...]:
    """Interprets. Accumulations of a loop that does not run may become one of nothing: beside another operation it is a
    race by the letter."""
    try:
        return evaluate(program, args, order=order, check_races=races)
    except InterpreterError as error:
        if not ACCUMULATIONS.search(str(error)):
            raise
        return evaluate(program, args, order=order)


def preserves(seed: int, name: str) -> bool:
    """Whether there was something to change."""
    case = random_case(seed)
    after = CHANGES[name](case.program)
    if after is case.program:
        return False
    verify_program(after)
    want = evaluate(case.program, case.args)
    try:
        for order in ORDERS:
            # simplify loads in vain what another iteration may write, which is a race by the letter
            races = order == "forward" and name != "fused"
            compare(_run(after, case.args, order, races), want)
    except Exception as e:
        before = print_program(case.program)
        raise AssertionError(f"program {seed}\n{before}after {name}:\n{print_program(after)}") from e
    return True


@pytest.mark.sample(full=3)
@pytest.mark.parametrize("name", CHANGES)
def test_some_programs(name: str) -> None:
    assert sum(preserves(seed, name) for seed in range(drawn(30))) > drawn(3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_many_programs(name: str) -> None:
    assert sum(preserves(seed, name) for seed in range(3000)) > 300
