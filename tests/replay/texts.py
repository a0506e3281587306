"""The texts of one program: its graph at each stage for each machine, what reverse mode keeps, and its code."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lowering.backend import CpuBackend
from lowering.llvm.target import Target
from qdtrace.backend import backend
from qdtrace.errors import QdError
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program, Stage
from qdtrace.lowered import Lowered
from qdtrace.passes.pipelines import optimise
from tests.replay.programs import Make

MACHINES = ("cpu", "sm_90", "gfx942")


def _processors() -> dict[str, Target]:
    """Kinds of processors that lanes are emitted for. Only their text is made, so the host need not be one."""
    plain = Target.named("scalar")
    x86 = replace(plain, triple="x86_64-unknown-linux-gnu", has_half=True)
    return {
        "avx512": replace(x86, cpu="x86-64-v4", vector_bits=512, registers=32, has_masks=True),
        "avx2": replace(x86, cpu="x86-64-v3", vector_bits=256, registers=16),
        "aarch64": replace(plain, triple="aarch64-unknown-linux-gnu", vector_bits=128, registers=32, has_half=True),
    }


def texts_of(make: Make) -> dict[str, str]:
    """The texts by their names, such as `cpu final` or `sm_90 llvm`; the message in place of what is refused."""
    found: dict[str, str] = {}
    for machine in MACHINES:
        try:
            found.update(_texts_for(make, machine))
        except QdError as error:
            found[f"{machine} refused"] = f"{type(error).__name__}: {error}"
    return found


def _texts_for(make: Make, machine: str) -> Iterator[tuple[str, str]]:
    used = backend(machine)
    staged = make(used.machine)
    final = [(s.optimised_for(used.machine), s.options) for s in staged]
    for stage in (Stage.TRACED, Stage.CANONICAL, Stage.JOINED):
        reached = [optimise(s.program, s.options, machine=used.machine, until=stage) for s in staged]
        yield f"{machine} {stage.name.lower()}", _printed(reached)
    yield f"{machine} final", _printed([program for program, _ in final])
    yield f"{machine} storage", "\n".join(map(str, Lowered("", list(staged), machine, lambda: None).storage))
    if machine == "cpu":
        for name, target in _processors().items():
            codes = [CpuBackend(target).emit(task, options) for program, options in final for task in program.tasks]
            facts = [f"{c.reason}; cost {c.cost}, lanes {c.lanes}, slot {c.slot_bytes}, {c.updates}" for c in codes]
            yield f"{name} reports", "\n".join(facts)
            yield f"{name} llvm", "\n".join(code.text for code in codes)
        return
    reports = (r for one in final for r in used.reports(*one))
    yield f"{machine} reports", "\n".join(f"{r.codegen}, {r.reason}, {r.at_once}, {r.kernel_scratch}" for r in reports)
    yield f"{machine} llvm", "\n".join(text for one in final for text in used.texts(*one, "llvm"))
    if machine == "sm_90":
        yield f"{machine} triton", "\n".join(text for one in final for text in used.texts(*one, "triton"))


def _printed(programs: Sequence[Program]) -> str:
    return "\n".join(print_program(program, locs=True) for program in programs)
