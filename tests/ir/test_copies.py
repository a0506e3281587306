"""The task that copies a reference."""

import numpy as np
import pytest

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import ref_var
from qdtrace.ir.copies import copy_task
from qdtrace.ir.program import Program
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program


@pytest.mark.parametrize(("shape", "front"), [((), ()), ((3, 4), ()), ((3, 4), (2,)), ((), (5,)), ((0, 4), (2,))])
def test_all_elements_are_copied(shape: tuple[int, ...], front: tuple[int, ...]) -> None:
    source, target = ref_var(DType.f32, shape, "x"), ref_var(DType.f32, (*front, *shape), "y")
    program = Program("copies", (source,), (target,), (copy_task(source, target),), (target,))
    verify_program(program)
    given = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    (found,) = evaluate(program, [given])
    np.testing.assert_array_equal(found, np.broadcast_to(given, (*front, *shape)))


@pytest.mark.parametrize(("size", "dtype"), [(2**31 - 1, DType.i32), (2**31, DType.i64)])
def test_the_index_counts_all_elements(size: int, dtype: DType) -> None:
    task = copy_task(ref_var(DType.f32, (size,), "x"), ref_var(DType.f32, (size,), "y"))
    assert task.index is not None
    assert task.index.dtype is dtype
    assert int(task.stop.value) == size
