"""Equality up to names: what is the same and what is not."""

import pytest

from qdtrace.ir.parser import parse_program
from tests.ir.equal import programs_equal, tasks_equal

TEXT = """\
program p(x: ref[f32,4], y: ref[f32,4])
  buffer t: ref[f32,4] = 0.0:f32
  range_for i in 0:i32 : 4:i32 {block_dim=64}
    head
      n: i32 = add 1:i32 2:i32
    a: f32 = load x i
    b: f32 = for k in 0:i32 : n : 1:i32 carry s = a
      c: f32 = add s a
      yield c
    store y b i
  serial
    d: f32 = load y 0:i32
    accum[op=add] t d 0:i32
  return y, t"""


def test_names_do_not_count():
    renamed = TEXT
    for old, new in [("program p", "program q"), ("  serial", "  serial @end"), ("a: f32", "aa: f32")]:
        assert old in renamed
        renamed = renamed.replace(old, new)
    renamed = renamed.replace("carry s = a", "carry s = aa").replace("add s a", "add s aa")
    assert programs_equal(parse_program(TEXT), parse_program(renamed))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y: ref[f32,4]", "y: ref[f32,5]"),
        ("buffer t: ref[f32,4] = 0.0:f32", "buffer t: ref[f32,4] = 0.0:f32\n  buffer u: ref[f32]"),
        ("buffer t: ref[f32,4] = 0.0:f32", "buffer t: ref[f32,4]"),
        ("ref[f32,4] = 0.0:f32", "ref[f32,4] = -0.0:f32"),
        ("buffer t: ref[f32,4]", "buffer t: ref[f32,4] in x"),
        ("block_dim=64", "block_dim=32"),
        ("add 1:i32 2:i32", "add 1:i32 3:i32"),
        ("0:i32 : 4:i32 {", "1:i32 : 4:i32 {"),
        ("load x i", "load y i"),
        ("carry s = a", "carry s = 0.0:f32"),
        ("add s a", "add a s"),
        ("add s a", "mul s a"),
        ("yield c", "yield s"),
        ("op=add", "op=max"),
        ("  serial\n", "  range_for j in 0:i32 : 1:i32\n"),
        ("return y, t", "return t, y"),
        ("return y, t", "return y"),
        ("    accum[op=add] t d 0:i32\n", ""),
    ],
)
def test_all_else_counts(old, new):
    assert old in TEXT
    assert not programs_equal(parse_program(TEXT), parse_program(TEXT.replace(old, new)))


def test_tasks_of_one_program_are_compared_by_their_references():
    text = "program p(x: ref[f32], y: ref[f32])\n" + 2 * "  serial\n    a: f32 = load x\n    store y a\n"
    first, second = parse_program(text).tasks
    assert tasks_equal(first, second)
    first, second = parse_program(text[::-1].replace("x daol", "y daol", 1)[::-1]).tasks
    assert not tasks_equal(first, second)
