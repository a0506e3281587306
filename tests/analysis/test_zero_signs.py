"""Who sees the sign of a zero that `max` or `min` chose; lanes agree with the reference bit for bit all the same."""

import itertools

import numpy as np
import pytest

from qdtrace.analysis.zero_signs import unsigned_zeros
from qdtrace.ir.parser import parse_program
from tests.lowering.harness import agrees

VALUES = [0.0, -0.0, 1.0, -1.0, 3.5, np.inf, -np.inf, np.nan]
PAIRS = np.array(list(itertools.product(VALUES, VALUES)), np.float32)
TEXT = """
program p(x: ref[f32,64], h: ref[f32,64], y: ref[f32,64], n: ref[i32,64])
  range_for i in 0:i32 : 64:i32
    a: f32 = load x i
    b: f32 = load h i
    m: f32 = {extreme} a b
{rest}
    store y r i
  return y, n
"""
HIDDEN = {
    "a square": "r: f32 = mul m m",
    "a size": "r: f32 = abs m",
    "an exponential": "r: f32 = exp m",
    "a comparison": "p: bool = ge m 0.0:f32\nr: f32 = select p 1.0:f32 2.0:f32",
    "an integer": "k: i32 = convert[dtype=i32] m\nstore n k i\nr: f32 = mul a 1.0:f32",
    "a sum with a constant": "r: f32 = add m 1.5:f32",
    "a difference from a constant": "r: f32 = sub 1.5:f32 m",
    "the larger one of it and zero": "r: f32 = max m 0.0:f32",
    "the smaller one of it and negative zero": "r: f32 = min m -0.0:f32",
    "the larger one of it and one": "r: f32 = max m 1.0:f32",
    "a square of its root of a product": "s: f32 = mul m b\nt: f32 = sqrt s\nu: f32 = neg t\nr: f32 = mul u u",
    "a square of a quotient": "q: f32 = div m 3.0:f32\nr: f32 = mul q q",
    "a branch whose result is squared": (
        "p: bool = gt a 0.0:f32\nu: f32 = if p\n  yield m\nelse\n  yield b\nr: f32 = mul u u"
    ),
    "a branch that compares": (
        "p: bool = gt a 0.0:f32\nr: f32 = if p\n  q: bool = lt m 0.0:f32\n  s: f32 = select q 1.0:f32 b\n  yield s\n"
        "else\n  yield b"
    ),
    "a loop that compares": (
        "r: f32 = for k in 0:i32 : 3:i32 : 1:i32 carry c = b\n  q: bool = lt m 0.0:f32\n"
        "  s: f32 = select q 1.0:f32 c\n  yield s"
    ),
}
SEEN = {
    "a store": "r: f32 = mul m 1.0:f32",
    "a reciprocal": "r: f32 = div 1.0:f32 m",
    "a square and a store": "s: f32 = mul m m\nr: f32 = add s m",
    "a sum with zero": "r: f32 = add m -0.0:f32",
    "the larger one of it and negative zero": "r: f32 = max m -0.0:f32",
    "the larger one of it and minus one": "r: f32 = max m -1.0:f32",
    "the smaller one of it and zero": "r: f32 = min m 0.0:f32",
    "a product with something else": "r: f32 = mul m b",
    "the bits of zeros": (
        "k: i32 = bitcast[dtype=i32] m\np: bool = eq m 0.0:f32\nz: i32 = select p k 7:i32\nstore n z i\n"
        "r: f32 = mul m m"
    ),
    "an angle": "r: f32 = atan2 m b",
    "a branch": "p: bool = gt a 0.0:f32\nr: f32 = if p\n  yield m\nelse\n  yield b",
    "a loop that begins with it": (
        "s: f32 = for k in 0:i32 : 3:i32 : 1:i32 carry c = m\n  t: f32 = mul c 0.5:f32\n  yield t\n"
        "r: f32 = add s -0.0:f32"
    ),
    "a loop whose next iteration inverts it": (
        "r: f32 = for k in 0:i32 : 3:i32 : 1:i32 carry c = b\n  t: f32 = div 1.0:f32 c\n  w: f32 = {extreme} t m\n"
        "  yield w"
    ),
}


def source(rest: str, extreme: str) -> str:
    lines = rest.format(extreme=extreme).splitlines()
    return TEXT.format(extreme=extreme, rest="\n".join(f"    {line}" for line in lines))


def unsigned(text: str) -> set[str]:
    return {v.hint for v in unsigned_zeros(parse_program(text).tasks[0].body)}


@pytest.mark.parametrize("extreme", ["max", "min"])
@pytest.mark.parametrize("rest", HIDDEN.values(), ids=HIDDEN)
def test_hidden(rest: str, extreme: str) -> None:
    assert "m" in unsigned(source(rest, extreme))


@pytest.mark.parametrize("extreme", ["max", "min"])
@pytest.mark.parametrize("rest", SEEN.values(), ids=SEEN)
def test_seen(rest: str, extreme: str) -> None:
    assert "m" not in unsigned(source(rest, extreme))


@pytest.mark.parametrize("rest", [*HIDDEN.values(), *SEEN.values()], ids=[*HIDDEN, *SEEN])
def test_code_has_the_bits_of_the_reference(rest: str) -> None:
    arrays = [PAIRS[:, 0].copy(), PAIRS[:, 1].copy(), np.zeros(64, np.float32), np.zeros(64, np.int32)]
    for extreme in ("max", "min"):
        made = parse_program(source(rest.replace("exp", "abs").replace("atan2", "nextafter"), extreme))
        agrees(made, arrays, ("avx512", "avx2", "scalar"), ())


def test_a_distance_to_a_box() -> None:
    assert unsigned(source("d: f32 = max m 0.0:f32\nr: f32 = mul d d", "max")) == {"m", "d"}
