"""Runs task fusion on graphs in text form: how many tasks are left, and whether the results are the same."""


import numpy as np

from qdtrace.config import Options
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program, ref_type
from qdtrace.ir.verify import verify_program
from qdtrace.passes.by_name import pass_named
from tests.passes.fusion_cases import task
from tests.passes.harness import assert_same_bits, parsed

FULL, SHORT = "0:i32 : 64:i32", "0:i32 : 20:i32"
ORDER = "x: ref[f32,64], y: ref[f32,64], z: ref[f32,64], b: ref[f32,64], c: ref[f32,64], s: ref[f32], k: ref[i32,64]"
COPY = "v: f32 = load {0} i; store {1} v i"


def copy(source: str, target: str) -> str:
    """A body that copies one element."""
    return COPY.format(source, target)


AGGRESSIVE = Options(fuse_tasks="aggressive")


def fuse(before: Program, **options: object) -> Program:
    """The program with tasks joined wherever that is right."""
    return pass_named("fuse_tasks", Options(**{"fuse_tasks": "aggressive", **options}))(before)  # type: ignore[arg-type]


def inputs(before: Program, seed: int = 0) -> list[np.ndarray]:
    """Whole numbers; lists of indices are below 100, and below 2 where they choose a row or column; lengths are 20."""
    rng = np.random.default_rng(seed)
    made = []
    for param in before.params:
        kind = ref_type(param)
        high = 2 if param.hint in ("k2", "k3") else 100
        array = rng.integers(0, high, kind.shape) if kind.shape else np.array(20)
        made.append(array.astype(kind.dtype.numpy))
    return made


def same(before: Program, after: Program) -> None:
    """One result in any order, before and after, and no race."""
    verify_program(after)
    for seed in range(2):
        args = inputs(before, seed)
        want = evaluate(before, args, check_races=True)
        for order in ("forward", "backward", "shuffled"):
            for x, y in zip(evaluate(after, args, order=order, check_races=True), want, strict=True):
                assert_same_bits(x, y)


def joins(text: str, count: int = 1, **options: object) -> Program:
    """That many tasks are left, with the same results."""
    before = parsed(text)
    after = fuse(before, **options)
    assert len(after.tasks) == count, print_program(after)
    same(before, after)
    assert fuse(after, **options) is after
    return after


def stays(text: str, *, valid: bool = True, **options: object) -> None:
    """The same object is left. A text that is not `valid` has races of its own, so its results say nothing."""
    before = parsed(text)
    if valid:
        evaluate(before, inputs(before), check_races=True)
    after = fuse(before, **options)
    assert after is before, print_program(after)


def headed(head: str, bounds: str, line: str) -> str:
    """A task with a head."""
    lines = "\n".join("      " + part.strip() for part in head.split(";"))
    index, *rest = task(line, bounds).split("\n", 1)
    return f"{index}\n    head\n{lines}\n{rest[0]}"
