"""Random programs of many tasks as whole calls, on a fake device and on a real one, against the interpreter; also with
failing checks."""

import itertools
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
import qdtrace.backend
from lowering.gpu.backend import GpuBackend
from lowering.tables import FAILURE_BITS
from qdtrace.analysis.machine import GPU
from qdtrace.config import Options
from qdtrace.errors import QdError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.passes.pipelines import optimise
from qdtrace.passes.unreachable import without_empty_tasks
from tests.differential.checked import checked, meaning
from tests.differential.compare import EXACT, Tolerance, compare
from tests.differential.corpus import Case
from tests.differential.dtype_programs import dtype_case
from tests.differential.task_programs import random_case
from tests.gpu.both_emitters import triton_where_it_can
from tests.gpu.fake import fake_backend
from tests.runtime.programs import uncached

MORE = [pytest.param(seed, marks=pytest.mark.gpu) for seed in range(200, 280)]
ZEROS = Tolerance(signed_zeros=False)


def in_a_word(text: str) -> str:
    """What a report has room for: of an index that is far away the nearest one."""
    most = (1 << FAILURE_BITS - 1) - 1
    return re.sub(r"^index (-?\d+)", lambda found: f"index {min(max(int(found[1]), ~most), most)}", text)


@contextmanager
def backends(seed: int) -> Iterator[list[tuple[GpuBackend, Options]]]:
    """With a GPU it, once with all tasks by LLVM and once with those by Triton that it can make; else a fake one. Each
    third program has small tasks apart."""
    options = {"fast_math": False, "fuse_tasks": "auto" if seed % 3 else "off"}
    if jax.default_backend() != "gpu":
        with fake_backend() as (fake, _):
            yield [(fake, uncached(block_dim=4, **options))]
        return
    cuda = qdtrace.backend.backend("cuda")
    with triton_where_it_can():
        yield [(cuda, uncached(codegen=made_by, **options)) for made_by in ("llvm", "triton")]


def agree(case: Case, seed: int) -> None:
    """As written, and after all passes, which turn fills into initial values; twice, as scratch is dirty then."""
    wanted = evaluate(case.program, case.args)
    programs = [case.program, optimise(case.program, Options(), machine=GPU)]
    with jax.enable_x64(True), backends(seed) as found:
        for (backend, options), program in itertools.product(found, programs):
            call = jax.jit(backend.compile(program, options).call)
            tolerance = ZEROS if options.codegen == "triton" else EXACT
            for _ in range(2):
                compare([np.asarray(x) for x in call(*case.args)], wanted, tolerance)


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", [*range(100, 112), *MORE])
def test_calls_agree_with_the_interpreter(seed: int) -> None:
    agree(random_case(seed), seed)


@pytest.mark.full
def test_pushes_agree_with_the_interpreter() -> None:
    x = np.linspace(-2, 2, 20, dtype=np.float32) ** 3

    @qd.jit
    def pairs(x: jax.Array) -> object:
        out, large = qd.append(99, like=(0, 0.0)), qd.append(20, like=0)
        for i in qd.range(x.shape[0]):
            for j in qd.range(i % 5):
                with qd.when(x[i] * x[j] > 0):
                    out.push((j, x[i]))
            with qd.when(x[i] > 1):
                large.push(i)
        return out, large

    agree(Case(parse_program(str(pairs.lower(x).graph("trace"))), [x]), 1)


LONG = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 400)]


@pytest.mark.parametrize("seed", [*range(12), *MORE[:24], *LONG])
def test_dtypes_and_ranges_from_anywhere(seed: int) -> None:
    agree(dtype_case(seed), seed)


@pytest.mark.parametrize("seed", [*range(6), *MORE[:24]])
def test_failures_are_those_of_the_interpreter(seed: int) -> None:
    """Where one check can fail, its error is found after the call, and no other; the next call is right again."""
    case = random_case(seed, 3)
    made = checked(case.program, seed)
    program = without_empty_tasks(made.program)  # as passes do: only what runs is launched, with its head
    with jax.enable_x64(True), backends(seed) as found:
        for backend, options in found:
            call = jax.jit(backend.compile(program, options).call)
            tolerance = ZEROS if options.codegen == "triton" else EXACT
            for site in (0, *random.Random(seed).sample(range(1, made.sites + 1), min(3, made.sites)), 0):
                got = [np.asarray(x) for x in call(*case.args, np.int32(site))]
                jax.block_until_ready(jnp.zeros(1) + 1)  # behind a call whose results are its arguments, too
                error = backend.words.failure() if made.sites else None
                want = meaning(made.program, case.args, site)
                if isinstance(want, str):
                    assert isinstance(error, QdError)
                    assert str(error) == (in_a_word(want) if hasattr(error, "__notes__") else want)
                else:
                    assert error is None
                    compare(got, want, tolerance)
