"""Facts of primitives, and what is made of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from qdtrace.interpret.numpy_rules import quiet, scalar_function
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.combining import ON_BOOL, combining, identity
from qdtrace.ir.memory import MEMORY, READERS, WRITERS, indices_of, values_of
from qdtrace.ir.primitives import ACCUM_OPS, FUNCTIONS, PRIMITIVES, Effect
from qdtrace.ir.program import is_global, is_local, literal
from qdtrace.ir.types import DType
from tests.differential.values import FLOATS

BITWISE = ("and", "or", "xor")


def test_what_touches_elements() -> None:
    assert {"load", "store", "accum", "atomic"} == MEMORY
    assert {"store", "accum", "atomic"} == WRITERS
    assert {"load", "accum", "atomic"} == READERS
    for name, p in PRIMITIVES.items():
        touches = not p.effects.isdisjoint({Effect.READ, Effect.WRITE, Effect.ACCUM})
        assert touches == (name in MEMORY)


def test_where_operands_stand() -> None:
    builder = Builder()
    x = ref_var(DType.i32, (3, 4), "x")
    i, j, v, w = (literal(k, DType.i32) for k in (1, 2, 7, 8))
    builder.emit("load", x, i, j)
    builder.emit("store", x, v, i, j)
    builder.emit("accum", x, v, i, j, op="max")
    builder.emit("atomic", x, v, i, j, op="add")
    builder.emit("atomic", x, v, w, i, j, op="cas")
    found = [(values_of(e), indices_of(e)) for e in builder.current.eqns]
    assert found == [((), (i, j)), ((v,), (i, j)), ((v,), (i, j)), ((v,), (i, j)), ((v, w), (i, j))]
    cell = builder.cell(DType.f32, (2,))
    assert (is_global(x), is_local(x), is_global(cell), is_local(cell)) == (True, False, False, True)
    assert not is_local(v)
    assert not is_global(v)


def test_costs() -> None:
    assert all(p.cost >= 0 for p in PRIMITIVES.values())
    assert {name for name, p in PRIMITIVES.items() if p.cost >= 18} == FUNCTIONS | {"atomic"}
    assert {name for name, p in PRIMITIVES.items() if not p.cost} == {"cell", "bound", "custom", "platform"}


def numbers(dtype: DType) -> list[np.generic]:
    if dtype is DType.bool:
        return [np.bool_(False), np.bool_(True)]
    if dtype.is_float:
        return [dtype.numpy.type(v) for v in FLOATS]
    info = np.iinfo(dtype.numpy)
    return [dtype.numpy.type(v) for v in (info.min, info.min + 1, 0, 1, 5, info.max - 1, info.max)]


@pytest.mark.parametrize("dtype", DType)
def test_the_identity_changes_nothing(dtype: DType) -> None:
    ops = ACCUM_OPS if dtype.is_float else (*ACCUM_OPS, *BITWISE)
    with quiet():
        for op, value in itertools.product(ops, numbers(dtype)):
            neutral = identity(op, dtype)
            assert neutral.dtype is dtype
            combine = scalar_function(combining(op, dtype).name, (dtype, dtype), {})
            for got in (combine(neutral.value, value), combine(value, neutral.value)):
                assert got.tobytes() == value.tobytes() or (got != got and value != value), (op, value)


def test_truth_values_combine_as_numpy_has_them() -> None:
    functions = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    assert ON_BOOL.keys() == functions.keys() == set(ACCUM_OPS)
    for op, (a, b) in itertools.product(functions, itertools.product((np.False_, np.True_), repeat=2)):
        got = scalar_function(combining(op, DType.bool).name, (DType.bool, DType.bool), {})(a, b)
        assert got == functions[op](a, b)
