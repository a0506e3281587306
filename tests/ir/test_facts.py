"""Facts of primitives, and what is made of them."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qdtrace.autodiff.partials import partials
from qdtrace.interpret.numpy_rules import quiet, scalar_function
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.combining import ON_BOOL, combining, identity
from qdtrace.ir.memory import indices_of, mode_of, values_of
from qdtrace.ir.primitives import FUNCTIONS, PRIMITIVES, Effect, Primitive, primitive
from qdtrace.ir.program import is_global, is_local, literal
from qdtrace.ir.type_rules import ACCUM_OPS, IrTypeError
from qdtrace.ir.types import BOOL, DType, ScalarType
from tests.differential.values import FLOATS

BITWISE = ("and", "or", "xor")
FLAGS = (
    "commutative", "structured", "loops", "cheap", "maskable", "is_function", "is_predicate", "gives_whole",
    "has_no_sign", "locally_constant", "finite_slope",
)  # fmt: skip
PLAIN = "cheap maskable"
COMPARES = f"{PLAIN} is_predicate locally_constant"
ANSWERS = {
    "add min max": f"{PLAIN} commutative finite_slope",
    "mul": f"{PLAIN} commutative",
    "sub neg nextafter select convert load": f"{PLAIN} finite_slope",
    "abs": f"{PLAIN} has_no_sign finite_slope",
    "div rem sqrt integer_pow fma quotient": "maskable",
    "sign bitcast": f"{PLAIN} locally_constant finite_slope",
    "floor ceil round_even round_away trunc": f"{PLAIN} gives_whole locally_constant finite_slope",
    "pow atan2 rsqrt cbrt expm1 log log2 log1p sin cos tan asin acos atan sinh tanh asinh acosh atanh erf erf_inv "
    "lgamma digamma": "is_function",
    "exp exp2 logistic cosh erfc": "is_function has_no_sign",
    "lt le gt ge is_finite": COMPARES,
    "eq ne": f"{COMPARES} commutative",
    "and or xor": f"{PLAIN} commutative locally_constant",
    "not shift_left shift_right_logical shift_right_arithmetic population_count clz": f"{PLAIN} locally_constant",
    "at_most lane_max lane_count lane_rank bound check tell platform": f"{PLAIN} locally_constant",
    "custom": PLAIN,
    "store accum atomic": "cheap",
    "cell": "cheap locally_constant",
    "for while": "cheap structured loops",
    "if": f"{PLAIN} structured",
}
"""Every primitive, with the columns that it answers by yes: somebody must give the answers of one that is added."""


def names(has: Callable[[Primitive], object]) -> set[str]:
    return {name for name, p in PRIMITIVES.items() if has(p)}


def test_every_primitive_answers_every_column() -> None:
    wanted = {name: set(yes.split()) for group, yes in ANSWERS.items() for name in group.split()}
    assert {name: {flag for flag in FLAGS if getattr(p, flag)} for name, p in PRIMITIVES.items()} == wanted
    compares = {"lt", "le", "gt", "ge", "eq", "ne"}
    always = {"add", "sub", "min", "max", "select"} | compares
    assert names(lambda p: p.any_number(DType.i32)) == always
    assert names(lambda p: p.any_number(DType.f32)) == always | {"mul", "div", "quotient", "fma", "pow", "atan2"}
    assert {name: (p.blocks, p.control) for name, p in PRIMITIVES.items() if p.blocks or p.control} == {
        "for": (1, 3), "while": (2, 0), "if": (2, 1),
    }  # fmt: skip
    linear = {"add", "sub", "neg", "mul", "fma", "div", "select", "convert"}
    assert names(lambda p: p.slope_reads is not None) == linear
    assert {name: p.latency for name, p in PRIMITIVES.items() if p.latency > 1 and name not in FUNCTIONS} == {
        "div": 4, "sqrt": 4, "rem": 6,
    }  # fmt: skip
    assert {PRIMITIVES[name].latency for name in FUNCTIONS} == {10}
    assert {name: p.instructions for name, p in PRIMITIVES.items() if p.instructions > 1} == {
        "load": 3, "store": 3, "accum": 6, "atomic": 12, "bound": 6, "check": 4, "for": 12, "while": 12, "if": 6,
    }  # fmt: skip


def scalar(name: str, dtype: DType, *operands: object) -> Any:
    with quiet():
        return scalar_function(name, (dtype,) * len(operands), {})(*operands)


def test_comparisons_are_negated_and_mirrored() -> None:
    compares = names(lambda p: p.negation)
    assert compares == names(lambda p: p.mirror) == {"lt", "le", "gt", "ge", "eq", "ne"}
    for name, dtype in itertools.product(compares, (DType.i32, DType.u8, DType.f32)):
        p = primitive(name)
        for a, b in itertools.product(numbers(dtype), repeat=2):
            assert scalar(name, dtype, a, b) == scalar(p.mirror, dtype, b, a)
            if not dtype.is_float:
                assert scalar(name, dtype, a, b) != scalar(p.negation, dtype, a, b)


def test_predicates_give_a_bool_from_floats() -> None:
    floats = [ScalarType(DType.f32)]
    for p in PRIMITIVES.values():
        for arity in (1, 2):
            try:
                gives = p.type_rule(floats * arity, {}, ())
            except (IrTypeError, KeyError, ValueError):
                continue
            assert (gives == (BOOL,)) == p.is_predicate, p


def test_some_results_are_whole_and_some_constant_between_steps() -> None:
    points = [np.float64(v) for v in (-2.7, -0.3, 0.4, 1.3, 5.6)]
    for name in names(lambda p: p.gives_whole) | {"sign"}:
        for x in points:
            assert primitive(name).locally_constant
            assert scalar(name, DType.f64, x) == scalar(name, DType.f64, x * (1 + 1e-9)), name
            assert not primitive(name).gives_whole or float(scalar(name, DType.f64, x)).is_integer()


def test_some_results_have_no_sign() -> None:
    for p in (p for p in PRIMITIVES.values() if p.has_no_sign):
        got = [scalar(p.name, DType.f32, x) for x in numbers(DType.f32)]
        assert not any(np.signbit(v) for v in got if v == v), p


def test_a_derivative_reads_what_the_column_says() -> None:
    for p in (p for p in PRIMITIVES.values() if p.slope_reads is not None):
        for k, reads in enumerate(p.slope_reads or ()):
            b = Builder()
            given = [DType.f32 for _ in p.slope_reads or ()]
            given[0] = DType.bool if p.name == "select" else DType.f32
            loaded = [b.load(b.cell(d)) for d in given]
            out = b(p, *loaded, **({"dtype": DType.f64} if p.name == "convert" else {}))
            eqn = b.current.eqns[-1]
            (*_, part) = (f for j, f in enumerate(partials(b, eqn, loaded, out, {loaded[k]}, ())) if j <= k)
            if part is None:
                assert reads in (None, ()), p
                continue
            before, tangent = len(b.current.eqns), b.load(b.cell(out.dtype))
            part(tangent)
            used = {a for e in b.current.eqns[before:] for a in e.invars}
            assert [j for j, v in enumerate(loaded) if v in used] == list(reads or ()), p


def test_the_mode_of_an_access_is_that_of_its_accumulation() -> None:
    builder = Builder()
    x = ref_var(DType.i32, (), "x")
    builder.accum(x, builder.load(x), op="max")
    builder("atomic", x, literal(1, DType.i32), op="add")
    assert [mode_of(e) for e in builder.current.eqns] == ["load", "max", "atomic"]


def test_what_touches_elements() -> None:
    assert names(lambda p: p.is_access) == {"load", "store", "accum", "atomic"}
    assert names(lambda p: p.writes) == {"store", "accum", "atomic"}
    assert names(lambda p: p.reads) == {"load", "accum", "atomic"}
    for p in PRIMITIVES.values():
        assert p.is_access == (not p.effects.isdisjoint({Effect.READ, Effect.WRITE, Effect.ACCUM}))


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
