"""The library's texts: what they define and need, and the generator of its coefficients."""

import re

import llvmlite.binding as llvm
import pytest

from lowering.llvm.maths import definitions, library
from lowering.llvm.maths.builder import Builder, Value, literal
from lowering.llvm.maths.coefficients import COEFFICIENTS
from qdtrace.ir.types import DType


@pytest.mark.parametrize(("lanes", "vectors"), [(1, 1), (2, 1), (3, 1), (16, 1), (8, 4)])
@pytest.mark.parametrize("dtype", [DType.f32, DType.f64], ids=str)
def test_all_functions_make_one_valid_module(dtype: DType, lanes: int, vectors: int):
    functions = [library.function_for(name, dtype, lanes, vectors=vectors) for name in sorted(library.NAMES)]
    text = definitions.collect(functions)
    module = llvm.parse_assembly(text)
    module.verify()
    defined = {f.name for f in module.functions if not f.is_declaration}
    assert {f.symbol for f in functions} <= defined
    for symbol in re.findall(r"@([\w.]+)\(", text):
        assert symbol in defined or symbol.startswith("llvm."), symbol


def test_kernels_take_the_formula_that_shares_its_reduction():
    """A cold function that is inlined is as much code as the rest: sine and cosine then have one of it."""
    kernels = definitions.Form(inline_cold=True)
    sin, cos = (library.function_for(name, DType.f32, 1, kernels) for name in ("sin", "cos"))
    assert sin is cos
    assert sin.requires == ("qdm.reduce_huge.f32x1",)
    assert [library.PLACES[name] for name in ("sin", "cos")] == [0, 1]
    assert "noinline" not in definitions.collect([sin, cos], form=kernels)
    called = definitions.collect([sin], {sin.symbol}, kernels)
    assert re.search(r"@qdm.sin\w*.f32x1\(float %x0\) noinline", called)
    assert library.function_for("exp", DType.f32, 1, kernels) is library.function_for("exp", DType.f32, 1)


def test_definitions_are_cached_and_named_by_type():
    function = library.function_for("exp", DType.f32, 8)
    assert function is library.function_for("exp", DType.f32, 8)
    assert function.symbol == "qdm.exp.f32x8"
    assert function.text.startswith("define internal <8 x float> @qdm.exp.f32x8(<8 x float> %x0) alwaysinline ")
    assert function.requires == ()


def test_requirements_come_along_once():
    sin, cos = (library.function_for(name, DType.f32, 4) for name in ("sin", "cos"))
    assert [*sin.requires, *cos.requires] == [f"qdm.{name}_by_quarters.f32x4" for name in ("sin", "cos")]
    text = definitions.collect([sin, cos, sin])
    assert text.count("@qdm.reduce_huge.f32x4(<4 x float> %x0)") == 1
    assert text.count("define internal <4 x float> @qdm.sin.f32x4(") == 1
    (reduction,) = [f for f in definitions.closure([sin]) if f.symbol == "qdm.reduce_huge.f32x4"]
    assert reduction.text.startswith("define internal { <4 x float>, <4 x i32> } @qdm.reduce_huge.f32x4(")


def test_vectors_side_by_side_share_the_cold_function_of_one():
    one, four = (library.function_for("sin", DType.f32, 8, vectors=vectors) for vectors in (1, 4))
    assert four.symbol == "qdm.sin.f32x8x4"
    assert four.requires == one.requires == ("qdm.sin_by_quarters.f32x8",)
    assert four.text.count("  br i1 ") == 1
    assert four.text.count("@qdm.sin_by_quarters.f32x8(") == 4
    called = library.function_for("tan", DType.f64, 4, vectors=2)
    assert f"define <8 x double> @{called.symbol}(<8 x double> %x0)" in library.module_of(called.symbol)


@pytest.mark.parametrize("name", sorted(library.NAMES))
def test_no_instruction_may_be_reassociated(name: str):
    """Error-free transformations need the order as written."""
    text = definitions.collect([library.function_for(name, dtype, 4) for dtype in (DType.f32, DType.f64)])
    assert not re.search(
        r"\b(f(add|sub|mul|div|neg)|call|select) (fast|reassoc|contract|nsz|arcp|nnan|ninf|afn)\b", text
    )


def test_unknown_names_and_dtypes():
    with pytest.raises(KeyError):
        library.function_for("reduce_huge", DType.f64, 1)
    with pytest.raises(KeyError):
        library.function_for("exp", DType.i32, 4)


def test_literals_are_exact_bits():
    assert literal("float", 0.1) == "0x3FB99999A0000000"
    assert literal("double", 0.1) == "0x3FB999999999999A"
    assert literal("i32", 0x80000000) == "-2147483648"
    assert literal("i1", 1) == "true"


def test_builder_prints_formulas():
    b = Builder(4)
    x = Value(b, "%x", "float")
    b.select(x < 1.0, 2.0 - x, x / 3.0)
    assert b.lines == [
        "  %v1 = fcmp olt <4 x float> %x, splat (float 0x3FF0000000000000)",
        "  %v2 = fsub <4 x float> splat (float 0x4000000000000000), %x",
        "  %v3 = fdiv <4 x float> %x, splat (float 0x4008000000000000)",
        "  %v4 = select <4 x i1> %v1, <4 x float> %v2, <4 x float> %v3",
    ]


@pytest.mark.full
def test_coefficients_are_what_the_generator_writes():
    remez = pytest.importorskip("tests.maths.remez")
    wanted = {("exp", "f32"), ("sin", "f64"), ("sin_half", "f32"), ("cbrt", "f32")}
    for fit in remez.fits():
        if (fit.name, fit.precision) in wanted:
            wanted.discard((fit.name, fit.precision))
            found, worst = remez.minimax(fit)
            # Half a unit of f64, twice: printed and read.
            expected = pytest.approx(remez.rounded(fit, found), rel=2**-24 if fit.precision == "f32" else 2**-52)
            assert list(COEFFICIENTS[fit.name, fit.precision]) == expected
            assert worst < {"exp": 2e-8, "sin": 4e-18, "sin_half": 7e-9, "cbrt": 3e-4}[fit.name]
    assert not wanted
