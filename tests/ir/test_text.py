"""The text form: what is printed, what is read back, and what is refused with line and column."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qdtrace.errors import Loc
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.parser import ParseError, parse_program
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.printer import print_program, print_task
from qdtrace.ir.program import Block, Literal, Program, Task, Var, literal
from qdtrace.ir.syntax import literal_text, literal_value
from qdtrace.ir.types import DType, ScalarType
from qdtrace.ir.verify import verify_program
from tests.ir.equal import programs_equal

EVERYTHING = """\
program "all <of> it"(x: ref[f32,4x8], n: ref[i32], e: ref[bool,0x3], q: ref[i64,9] in (-1,4,8), m: ref[u8] in (0,4))
  buffer t: ref[f64]
  buffer flag: ref[i32] = -1:i32
  buffer unread: ref[bool,2] = true
  buffer u: ref[f32,4x8] in x
  buffer set: ref[i32] in n = 2:i32
  range_for i in 0:i32 : stop @rows {block_dim=128, unroll=true}
    head
      stop: i32 = load n
      scale: f32 = convert[dtype=f32] stop
    c: cell[f32,2] = cell[dtype=f32, shape=(2)]
    store c scale 0:i32
    total: f32, last: i32 = for k in 0:i32 : 8:i32 : 1:i32 [unroll=4] carry s = 0.0:f32, j = -1:i32
      a: f32 = load x i k
      b: f32 = add s a
      yield b, k
    w: f32 = while carry z = total
      big: bool = gt z 1.0:f32
      test big
      half: f32 = mul z 0.5:f32
      yield half
    while
      test false
    positive: bool = gt w 0.0:f32
    r: f32 = if positive
      yield w
    else
      minus: f32 = neg w
      yield minus
    if positive
      store x r i 0:i32
    accum[op=max] c r 1:i32
    old: i32 = atomic[op=cas] flag 0:i32 1:i32
  serial @"a b"
    y: f64 = atan2 nan:f64 -inf:f64
    store t y
  serial
  return x, t, u, set"""


def test_everything_is_printed_as_it_is_read():
    program = parse_program(EVERYTHING)
    assert print_program(program).splitlines() == EVERYTHING.splitlines()
    verify_program(program)


def test_parsing_what_is_printed_gives_the_program():
    program = parse_program(EVERYTHING)
    assert programs_equal(parse_program(print_program(program)), program)


def test_the_example_of_the_grammar_page():
    page = Path("qdtrace/ir/README.md").read_text(encoding="utf-8")
    examples = [t for t in re.findall(r"```\n(.*?)```", page, re.DOTALL) if t.startswith("program step")]
    assert len(examples) == 1
    program = parse_program(examples[0])
    verify_program(program)
    assert print_program(program) == examples[0].rstrip()


def test_the_grammar_page_lists_every_dtype():
    page = Path("qdtrace/ir/README.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith("dtype     ::="))
    assert re.findall(r'"(\w+)"', line) == [d.value for d in DType]


def test_equations_remember_their_line():
    task = parse_program("program p(x: ref[f32])\n  # a remark\n  serial\n    a: f32 = load x\n", file="f.qd").tasks[0]
    assert task.loc == Loc("f.qd", 3)
    assert task.body.eqns[0].loc == Loc("f.qd", 4)


def one_task(emit, index="i"):
    """A program of one task whose body `emit` fills."""
    x = ref_var(DType.f32, (4,), "x")
    i = scalar_var(DType.i32, index)
    builder = Builder()
    with builder.block() as body:
        emit(builder, x, i)
    task = Task("range_for", i, literal(0, DType.i32), literal(4, DType.i32), body.close())
    return Program("p", (x,), (), (task,), (x,))


def test_hints_are_made_unique_words():
    def emit(b, x, i):
        for hint in ("a", "a", "a_1", "add", "λ!", "3d", "", "v0", "my name"):
            b("add", literal(1, DType.i32), i, hint=hint)

    names = [line.split(":")[0].strip() for line in print_program(one_task(emit)).splitlines()[2:-1]]
    assert names == ["a", "a_1", "a_1_1", "add_", "v0", "_3d", "v1", "v0_1", "my_name"]


def test_locs_are_comments_that_the_parser_skips():
    def emit(b, x, i):
        b.loc = Loc("model.py", 7, "step")
        b.store(x, literal(1, DType.f32), i)

    program = one_task(emit)
    text = print_program(program, locs=True)
    assert "    store x 1.0:f32 i  # model.py:7 in step" in text.splitlines()
    assert programs_equal(parse_program(text), program)


def canonical(text: str) -> list[str]:
    return [print_task(t, canonical=True) for t in parse_program(text).tasks]


def test_canonical_text_ignores_names():
    (one,) = canonical(
        "program p(x: ref[f32,4])\n  range_for i in 0:i32 : 4:i32 @t\n    a: f32 = load x i\n    store x a i"
    )
    (two,) = canonical(
        "program q(n: ref[i8], y: ref[f32,4])\n  range_for k in 0:i32 : 4:i32 {fuse=false}\n"
        "    b: f32 = load y k  # here\n    store y b k"
    )
    assert one == two
    assert one.splitlines() == [
        "task(r0: ref[f32,4])",
        "range_for v0 in 0:i32 : 4:i32",
        "  v1: f32 = load r0 v0",
        "  store r0 v1 v0",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("f32,4]", "f32,5]"),
        ("0.0:f32", "-0.0:f32"),
        ("4:i32", "5:i32"),
        ("add", "sub"),
        ("{unroll=2}", "{unroll=3}"),
        ("op=add", "op=max"),
        ("x a i", "x a 0:i32"),
        ("range_for i in 0:i32", "range_for i in 1:i32"),
    ],
)
def test_canonical_text_has_all_that_influences_code(old, new):
    text = (
        "program p(x: ref[f32,4])\n  range_for i in 0:i32 : 4:i32 {unroll=2}\n    a: f32 = add 0.0:f32 1.5:f32\n"
        "    accum[op=add] x a i"
    )
    assert old in text
    assert canonical(text) != canonical(text.replace(old, new))


def test_printing_is_deterministic():
    program = parse_program(EVERYTHING)
    assert print_program(program) == print_program(program)
    assert print_program(parse_program(print_program(program))) == print_program(program)


# Literals.

SINGLES = [0.1, -0.0, 1e-45, 3.4028235e38, np.inf, -np.inf, np.nan, 16777216.0, 2.0**-126, 1 / 3]


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float])
def test_float_literals_keep_every_bit(dtype):
    integer = np.dtype(f"u{dtype.itemsize}")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, np.iinfo(integer).max, 2000, integer, endpoint=True).view(dtype.numpy)
    with np.errstate(over="ignore"):
        values = [*np.array(SINGLES).astype(dtype.numpy), *bits]
    for value in values:
        given = Literal(value, ScalarType(dtype))
        number, _, name = literal_text(given).rpartition(":")
        assert literal_value(number, DType(name)) == given


@pytest.mark.full
@pytest.mark.parametrize("dtype", [DType.f16, DType.bf16])
def test_every_half_keeps_its_bits(dtype):
    for value in np.arange(2**16, dtype=np.uint16).view(dtype.numpy):
        given = Literal(value, ScalarType(dtype))
        assert literal_value(literal_text(given).rpartition(":")[0], dtype) == given


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_integer])
def test_integer_literals_at_the_ends(dtype):
    for value in (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max, 0, 1):
        given = literal(value, dtype)
        assert literal_text(given) == f"{value}:{dtype.value}"
        assert literal_value(str(value), dtype) == given


def test_literal_texts():
    negative_nan = Literal(np.uint32(0xFFC00000).view(np.float32), ScalarType(DType.f32))
    assert literal_text(negative_nan) == "nan(0xffc00000):f32"
    assert literal_text(literal(0.1, DType.f32)) == "0.1:f32"
    assert literal_text(literal(-0.0, DType.f64)) == "-0.0:f64"
    assert literal_text(literal(True, DType.bool)) == "true"
    assert literal_text(Literal(ml_dtypes.bfloat16(1.5), ScalarType(DType.bf16))) == "1.5:bf16"


# Refusals.

HEADER = "program p(x: ref[f32,4])\n  serial\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: needs `program`, got an empty text"),
        ("task", "line 1, column 1: needs `program`, got `task`"),
        ("program p(x: f33)", "line 1, column 14: needs a dtype, `ref[...]` or `cell[...]`, got `f33`"),
        ("program p(x: ref[f32,a])", "line 1, column 22: needs a shape such as 4x8, got `a`"),
        ("program p(x: ref[f32],\n", "line 1, column 23: needs a name, got the end of the line"),
        ("program p(x: ref[i8] in 3)", "line 1, column 25: needs the limits of an array such as (0, 8, 2), got `3`"),
        ("program p(x: ref[i8] in (0))", "line 1, column 25: needs the limits of an array such as (0, 8, 2), got `(`"),
        ("program p(x: ref[f32] y)", "line 1, column 23: needs `,`, got `y`"),
        ("program p(x: ref[f32], x: ref[f32])", "line 1, column 24: `x` is already bound"),
        ("program p(add: ref[f32])", "line 1, column 11: `add` is a word of the language and names no variable"),
        ("program p()\n   serial", "line 2, column 4: needs an indentation of pairs of spaces, got 3"),
        ("program p()\n    serial", "line 2, column 5: needs an indentation of 2 spaces or fewer, got 4"),
        ("program p()\n  for", "line 2, column 3: needs `range_for`, `serial` or `return`, got `for`"),
        ("program p()\n  return y", "line 2, column 10: `y` is not bound here"),
        ("program p()\n  buffer b: ref[f32] = 0", "line 2, column 24: needs a dtype after the number, as in `0:f32`"),
        ("program p(x: ref[f32])\n  buffer b: ref[f32] = x", "line 2, column 24: needs a literal, got `x`"),
        ("program p()\n  buffer b: ref[i8] = 0:i8 1", "line 2, column 28: needs the end of the line, got `1`"),
        ("program p()\n  buffer b: ref[i8] in x", "line 2, column 24: `x` is not bound here"),
        ("program p(x: ref[f32] = 0:f32)", "line 1, column 23: needs `,`, got `=`"),
        ("program p()\nprogram q()", "line 2, column 1: needs the end of the program, got `program`"),
        (HEADER + "    a: f32 = lod x", "line 3, column 14: `lod` is no primitive"),
        (HEADER + "    a: f32 = load x 0", "line 3, column 21: needs a dtype after the number, as in `0:f32`"),
        (HEADER + "    a: f32 = load x 0:f99", "line 3, column 21: `f99` is no dtype"),
        (HEADER + "    a: i8 = neg 128:i8", "line 3, column 17: 128 is out of range for i8"),
        (HEADER + "    a: i8 = neg 1.5:i8", "line 3, column 17: 1.5 is no integer"),
        (HEADER + "    a: f16 = neg 1e6:f16", "line 3, column 18: 1e6 is out of range for f16"),
        (HEADER + "    a: f32 = neg nan(0x1):f32", "line 3, column 18: nan(0x1) is no NaN of f32"),
        (HEADER + "    a: f32 = load x k", "line 3, column 21: `k` is not bound here"),
        (HEADER + "    a: f32 = load[op=] x", "line 3, column 22: needs a value, got `]`"),
        (HEADER + "    a: f32 = load $", "line 3, column 19: no word, literal or mark begins with '$'"),
        (
            HEADER + "    while\n      a: bool = not true",
            "line 3, column 10: needs a `test` in the block of this `while`",
        ),
        (HEADER + "    if true x\n", "line 3, column 13: needs the end of the line, got `x`"),
        (HEADER + "    for i in 0:i32 : 1:i32", "line 3, column 27: needs `:`, got the end of the line"),
        (
            HEADER + "    if true\n      a: bool = not true\n    b: bool = not a",
            "line 5, column 19: `a` is not bound here",
        ),
    ],
)
def test_refusals(text, message):
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    assert str(caught.value) == message


def test_every_primitive_has_a_word_the_parser_reads():
    for name in PRIMITIVES:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)


def test_an_unbound_variable_still_prints():
    stray = Var(ScalarType(DType.f32), "stray")
    program = one_task(lambda b, x, i: b.store(x, stray, i))
    assert "store x stray i" in print_program(program)
    assert print_task(Task("serial", None, stray, stray, Block())) == "serial"
