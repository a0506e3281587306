"""Large pages are asked for by large fresh results only, and results are the same with and without."""

import re

import numpy as np
import pytest

from lowering.runtime.handler import TaskShape, handler_text, launcher_text
from lowering.runtime.large_pages import LARGE_BYTES
from lowering.runtime.layout import plan_layout
from qdtrace.ir.builder import ref_var
from qdtrace.ir.program import Program
from tests.runtime.programs import F32, compiled, range_for

LIMIT = LARGE_BYTES // 4


def program(size: int, *, in_place: bool = False, stored: int | None = None) -> Program:
    """Twice `x`, in place or in a fresh result, all or so many elements, through a buffer that is not returned."""
    x, y, t = ref_var(F32, (size,), "x"), ref_var(F32, (size,), "y"), ref_var(F32, (size,), "t")
    first = range_for(lambda b, i: b.store(t, b("add", b.load(x, i), b.load(x, i)), i), size)
    out = x if in_place else y
    second = range_for(lambda b, i: b.store(out, b.load(t, i), i), size if stored is None else stored)
    return Program("p", (x,), (t,) if in_place else (y, t), (first, second), (out,))


def large_results(made: Program) -> list[tuple[int, ...]]:
    """What the table of the handler says: slots (operands count first), bytes, and slots whose memory they may have, up
    to the end of the table."""
    text = handler_text(plan_layout(made, renews=True), [TaskShape(1, 1)] * len(made.tasks))
    (table,) = re.findall(r"@large = private constant (.*)", text)
    *rows, end = [tuple(map(int, row)) for row in re.findall(r"{i64 (-?\d+), i64 (\d+), i64 (-?\d+)}", table)]
    assert end == (-1, 0, -1)
    return rows


def test_only_large_fresh_results_ask() -> None:
    assert large_results(program(LIMIT)) == [(1, LARGE_BYTES, 1), (2, LARGE_BYTES, 2)]
    assert large_results(program(LIMIT - 16)) == []
    # a result that takes over an operand's memory has its pages already
    assert large_results(program(LIMIT, in_place=True, stored=LIMIT - 1)) == [(2, LARGE_BYTES, 2)]
    # one that a task renews takes it over in some calls
    assert large_results(program(LIMIT, in_place=True)) == [(1, LARGE_BYTES, 0), (2, LARGE_BYTES, 2)]


def test_other_systems_do_nothing() -> None:
    assert "madvise" in launcher_text("x86_64-unknown-linux-gnu")
    assert "madvise" not in launcher_text("arm64-apple-darwin23.0")


@pytest.mark.full
@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1, 3 * LIMIT + 5])
def test_results(size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    (y,) = compiled(program(size)).call(x)
    np.testing.assert_array_equal(np.asarray(y), 2 * x)
    (z,) = compiled(program(size, in_place=True)).call(x)
    np.testing.assert_array_equal(np.asarray(z), 2 * x)
