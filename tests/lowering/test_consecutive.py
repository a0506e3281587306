"""Loads that are contiguous but at borders: wrapped, clamped and chosen neighbours, in whole and in masked steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lowering.llvm.options import EmitOptions
from lowering.llvm.target import Target
from lowering.simd.emit import emit_task
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.program import Atom, Program, Var
from qdtrace.ir.types import DType
from tests.lowering.harness import agrees, branch, execute, f32, i32, same_bits, task
from tests.selection import drawn

SIZES = (1, 15, 16, 70, 257)
EXAMPLES = settings(
    max_examples=drawn(30), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)  # fmt: skip
TEXT = """\
program p(x: ref[f32,256], k: ref[i32,256], y: ref[f32,256])
  range_for i in 0:i32 : 256:i32
{lines}    v: f32 = load x j
    store y v i
  return y
"""


def neighbour(draw: Callable[..., Any], b: Builder, i: Var, n: int) -> Atom:
    """An index that follows i for most of its values, in range: what stencils write, and chains of it."""
    found: Atom = i
    for _ in range(draw(st.integers(1, 3))):
        shift, how = draw(st.integers(-3, 3)), draw(st.integers(0, 5))
        moved = b("add", found, i32(shift))
        if how == 0:
            found = b("min", moved, i32(n - 1))
        elif how == 1:
            found = b("max", moved, i32(draw(st.integers(0, 2))))
        elif how == 2:
            found = b("rem", moved, i32(n))
        elif how == 3:
            found = b("select", b("lt", moved, i32(0)), b("add", moved, i32(n)), moved)
        elif how == 4:
            found = b("and", moved, i32(255))
        else:
            found = b("select", b("lt", moved, i32(draw(st.integers(0, n)))), moved, i)
    return b("max", b("min", found, i32(n - 1)), i32(0))


@st.composite
def _programs(draw: Callable[..., Any]) -> tuple[Program, list[np.ndarray]]:
    n = draw(st.sampled_from(SIZES))
    x, y = ref_var(DType.f32, (n,), "x"), ref_var(DType.f32, (n,), "y")

    def body(b: Builder, i: Var) -> None:
        index = neighbour(draw, b, i, n)
        if draw(st.booleans()):
            b.store(y, b.load(x, index), i)
            return
        own = b.load(x, i)
        (found,) = branch(b, b("gt", own, f32(0.5)), lambda: (b.load(x, index),), lambda: (own,))
        b.store(y, found, i)

    program = Program("p", (x, y), (), (task(n, body),), (y,))
    return program, [np.random.default_rng(n).random(n, dtype=np.float32), np.zeros(n, np.float32)]


@pytest.mark.full
@EXAMPLES
@given(_programs(), st.sampled_from(["avx512", "avx2", "portable"]), st.sampled_from([None, 1, 2]))
def test_any_index(made: tuple[Program, list[np.ndarray]], target: str, vectors: int | None) -> None:
    program, args = made
    want = evaluate(program, args)
    for cuts in ((), (0.13, 0.6)):
        (got,) = execute(program, args, target, EmitOptions(fast_math=False, vectors=vectors), cuts)
        same_bits(got, want[0])


def text(*lines: str) -> str:
    return TEXT.format(lines="".join(f"    {line}\n" for line in lines))


TRIED = {
    "wrapped": ["a: i32 = add i 1:i32", "j: i32 = and a 255:i32"],
    "clamped": ["a: i32 = add i -1:i32", "j: i32 = max a 0:i32"],
    "remainder": ["a: i32 = add i 1:i32", "b: i32 = min a 255:i32", "j: i32 = rem b 200:i32"],
    "chosen": ["c: bool = lt i 9:i32", "a: i32 = add i 1:i32", "b: i32 = select c a i", "j: i32 = min b 255:i32"],
}
GATHERED = {
    "loaded": ["j: i32 = load k i"],
    "short rows": ["j: i32 = rem i 3:i32"],
    "clamped strides": ["a: i32 = mul i 2:i32", "j: i32 = min a 255:i32"],
    "backward": ["a: i32 = sub 254:i32 i", "j: i32 = max a 0:i32"],
}


ENDS = {
    "remainder": ["a: i32 = add i -3:i32", "b: i32 = rem a 200:i32", "j: i32 = max b 0:i32"],
    "wrapped": ["a: i32 = add i -1:i32", "c: bool = lt a 0:i32", "b: i32 = add i 255:i32", "j: i32 = select c b a"],
    "above": ["a: i32 = add i 9:i32", "c: bool = ge a 256:i32", "b: i32 = add i -247:i32", "j: i32 = select c b a"],
}
COMPARED = {
    "no mask of a remainder": ["a: i32 = and i 191:i32", "j: i32 = min a 99:i32"],
    "jumps": ["c: bool = lt i 100:i32", "a: i32 = add i -100:i32", "b: i32 = max a 0:i32", "j: i32 = select c b i"],
    "jumps up": ["c: bool = ge i 3:i32", "a: i32 = add i 9:i32", "b: i32 = select c a i", "j: i32 = and b 255:i32"],
}
"""Indices that may rise by more than one from lane to lane, so that all lanes are compared."""
CASES = [(lines, kind is ENDS) for kind in (ENDS, COMPARED) for lines in kind.values()]


@pytest.mark.parametrize(("lines", "ends"), CASES)
def test_two_lanes_tell_about_all_where_indices_rise_by_one_at_most(lines: list[str], ends: bool) -> None:
    assert ("icmp eq <16 x i32>" in emitted(lines)) != ends
    rng = np.random.default_rng(0)
    agrees(
        parse_program(text(*lines)),
        [rng.random(256, dtype=np.float32), np.arange(256, dtype=np.int32), np.zeros(256, np.float32)],
    )


def emitted(lines: list[str]) -> str:
    return emit_task(parse_program(text(*lines)).tasks[0], Target.named("avx512")).text


@pytest.mark.parametrize("lines", TRIED.values(), ids=TRIED.keys())
def test_neighbours_are_loaded_as_vectors_where_they_are_consecutive(lines: list[str]) -> None:
    assert "consecutive" in emitted(lines)
    rng = np.random.default_rng(0)
    agrees(
        parse_program(text(*lines)),
        [rng.random(256, dtype=np.float32), np.arange(256, dtype=np.int32), np.zeros(256, np.float32)],
    )


@pytest.mark.parametrize("lines", GATHERED.values(), ids=GATHERED.keys())
def test_others_are_gathered(lines: list[str]) -> None:
    assert "consecutive" not in emitted(lines)
