"""Derivatives of random programs of many tasks (`tests/differential`), in double precision, against each other.

Bounds from memory, negative and strided indices, rows, conditions, divergent loops, serial tasks and accumulations of
every kind meet in one program. What cannot be differentiated is refused by a GradientError, nothing else.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

from qdtrace.analysis.machine import CPU, GPU, Machine
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.extremes import has_extremes
from qdtrace.autodiff.loops import policy, thinning
from qdtrace.batching.batch import batch
from qdtrace.config import Options
from qdtrace.errors import GradientError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program, Stage, ref_type
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from qdtrace.passes.pipelines import optimise
from tests.autodiff import bounded_loops
from tests.autodiff.derive import derive
from tests.autodiff.machines import limited, stacks_of
from tests.autodiff.programs import arguments, random_program
from tests.differential import task_bodies, task_programs
from tests.gpu.test_programs import backends
from tests.lowering.harness import KERNELS, execute

EXACT = Options(fast_math=False)


@pytest.fixture(autouse=True)
def doubles(monkeypatch):
    for module in (task_bodies, task_programs):
        monkeypatch.setattr(module, "F32", DType.f64)


@dataclass
class Case:
    """A program, its arguments, a direction and adjoints of results."""

    program: Program
    args: list[np.ndarray]
    wrt: list[bool]
    out: list[bool]
    direction: list[np.ndarray]
    adjoints: list[np.ndarray]

    def derived(self, program: Program | None = None, machine: Machine = CPU) -> tuple[Program, Program]:
        """The directional derivative, and the adjoints."""
        program = program or self.program
        stacks = stacks_of(machine)
        made = derive(program, [self.wrt], self.out, None), derive(program, [], self.out, self.wrt, stacks=stacks)
        for one in made:
            verify_program(one)
        return made

    def operands(self) -> tuple[list[Any], list[Any]]:
        """Of both."""
        return [*self.args, *self.direction], [*self.args, *self.adjoints]

    def run(self, program: Program | None = None, machine: Machine = CPU) -> list[list[np.ndarray]]:
        """Results of both."""
        pairs = zip(self.derived(program, machine), self.operands(), strict=True)
        return [evaluate(one, operands, check_races=True) for one, operands in pairs]

    def check_transposed(self, machine: Machine = CPU) -> None:
        """The adjoints along the direction are the directional derivative along the adjoints."""
        tangents, adjoints = self.run(machine=machine)
        left = sum(np.vdot(c, t) for c, t in zip(self.adjoints, tangents, strict=True))
        right = sum(np.vdot(d, g) for d, g in zip(self.direction, adjoints, strict=True))
        close([left], [right], self)

    def check_reverse(self, machine: Machine, target: Any) -> None:
        """Machine code of the adjoints computes what the interpreter does."""
        made = derive(self.program, [], self.out, self.wrt, stacks=stacks_of(machine))
        operands = self.operands()[1]
        close(execute(optimise(made, EXACT, machine=machine), operands, target), evaluate(made, operands), self)


def case_of(program, args, seed) -> Case:
    rng = np.random.default_rng(seed)
    floats = [v.dtype.is_float for v in program.params]
    wrt = [f and bool(rng.integers(4)) for f in floats]
    wrt = wrt if any(wrt) else floats
    active = active_variables(program, [v for v, w in zip(program.params, wrt, strict=True) if w])
    out = [v in active for v in program.results]
    direction = [rng.normal(size=a.shape) for a, w in zip(args, wrt, strict=True) if w]
    adjoints = [rng.normal(size=ref_type(v).shape) for v, o in zip(program.results, out, strict=True) if o]
    return Case(program, args, wrt, out, direction, adjoints)


def of_tasks(seed: int, *, extremes: bool = True, tasks: int = 4) -> Case:
    """The first program of floats from a number on that has a derivative; without `extremes` one of sums only. It has
    at most so many tasks."""
    for number in range(100 * seed, 100 * seed + 100):
        drawn = task_programs.random_case(number, tasks)
        made = case_of(drawn.program, list(drawn.args), number)
        if any(made.out) and (extremes or not has_extremes(made.program)):
            try:
                made.derived()
            except GradientError:
                continue
            return made
    raise AssertionError("no program of floats")


def of_many_tasks(seed: int) -> Case:
    return of_tasks(seed, tasks=12)


def of_floats(seed: int) -> Case:
    return case_of(random_program(seed), arguments(seed), seed)


def of_loops(seed: int) -> Case:
    return case_of(bounded_loops.random_loops(seed), bounded_loops.arguments(seed), seed)


def close(got, want, case: Case, limit: float = 1e-9) -> None:
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=limit, atol=limit, err_msg=print_program(case.program))


@pytest.mark.parametrize(
    ("make", "seed"), [*((of_tasks, seed) for seed in range(30)), *((of_loops, seed) for seed in range(12))]
)
def test_forward_and_reverse_are_transposed(make, seed):
    make(seed).check_transposed()


@pytest.mark.parametrize("seed", [*range(4), 69, 233])
def test_a_derivative_is_the_same_each_time(seed):
    """Nothing in it depends on where objects are in memory: the artifact cache finds it again in another process."""
    alive = [of_floats(seed) for _ in range(8)]
    assert len({print_program(case.derived()[1]) for case in alive}) == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(30, 45))
def test_of_joined_tasks(seed):
    # extremes share ties by halves where one iteration accumulates, equally where several do
    case = of_tasks(seed, extremes=False)
    for got, want in zip(case.run(optimise(case.program, Options(), until=Stage.JOINED)), case.run(), strict=True):
        close(got, want, case)


@pytest.mark.parametrize("make", [of_tasks, of_floats, of_loops])
@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(45, 51))
def test_every_policy_gives_the_same_bits(make, seed, monkeypatch):
    case = make(seed)
    _, want = case.run()
    for size, kept_bits, radix_bits in ((0, 1, 1), (0, 2, 3), (1 << 20, 5, 4)):
        monkeypatch.setattr(policy, "LEAST_BITS", kept_bits)
        monkeypatch.setattr(thinning, "RADIX_BITS", radix_bits)
        for steps in (1, 2, 3, 8):
            machine = limited(GPU, steps=steps, stack_bytes=size, open_stack_bytes=size, lane_bytes=1 << 26)
            for g, w in zip(case.run(machine=machine)[1], want, strict=True):
                np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("make", [of_tasks, of_floats])
@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(51, 56))
def test_batches_of_derivatives(make, seed):
    case, rng = make(seed), np.random.default_rng(seed)
    for program, operands in zip(case.derived(), case.operands(), strict=True):
        linear = range(len(case.args), len(operands))
        mask = [k in linear and bool(rng.integers(3)) for k in range(len(operands))]
        each = [
            [rng.permutation(a.reshape(-1)).reshape(a.shape) if m else a for a, m in zip(operands, mask, strict=True)]
            for _ in range(3)
        ]
        stacked = [np.stack([e[k] for e in each]) if m else operands[k] for k, m in enumerate(mask)]
        got = evaluate(batch(program, mask, 3), stacked, check_races=True)
        for b, one in enumerate(each):
            close([g[b] for g in got], evaluate(program, one), case, 1e-12)


@pytest.mark.sample(3, full=4)
@pytest.mark.parametrize(
    "target", [*(pytest.param(t, marks=pytest.mark.cpu) for t in ("avx512", "avx2", "scalar")), KERNELS]
)
@pytest.mark.parametrize("make", [of_tasks, of_floats, of_loops])
@pytest.mark.full
def test_machine_code(make, target):
    for seed, machine in zip(range(56, 59), (CPU, GPU, limited(GPU, stack_bytes=0, open_stack_bytes=0)), strict=True):
        case = make(seed)
        joined = optimise(case.program, EXACT, until=Stage.JOINED)
        second = None
        if not has_extremes(joined):
            second = derive(joined, [case.wrt], case.out, case.wrt, stacks=stacks_of(machine))
        made = [*zip(case.derived(joined, machine), case.operands(), strict=True)]
        if second is not None:
            made.append((second, [*case.args, *case.adjoints, *case.direction]))
        for program, operands in made:
            final = optimise(program, EXACT, machine=machine)
            close(execute(final, operands, target), evaluate(program, operands), case)


LONG = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 160)]


@pytest.mark.parametrize("make", [of_many_tasks, of_floats])
@pytest.mark.parametrize("seed", [*range(59, 62), *LONG])
def test_whole_calls_of_a_gpu(make, seed):
    """Derivatives with small tasks in one launch and buffers in memory of its block; twice, as that is dirty then."""
    case = make(seed)
    joined = optimise(case.program, EXACT, until=Stage.JOINED)
    machine = (GPU, limited(GPU, steps=2, stack_bytes=0, open_stack_bytes=0))[seed % 2]
    derived = zip(case.derived(joined, machine), case.operands(), strict=True)
    with backends(seed) as found:
        for (program, operands), (backend, options) in product(derived, found):
            call = jax.jit(backend.compile(optimise(program, options, machine=machine), options).call)
            for _ in range(2):
                close(call(*operands), evaluate(program, operands), case)
