"""Accumulations into buffers that nobody used become stores where each element gets exactly one."""

import pytest

from qdtrace.passes.first_accumulations import FirstAccumulations
from tests.passes.harness import check, keeps, unchanged

first = FirstAccumulations()
INITIAL = "ref[f32,4] = 0.0:f32"
ROWS = "ref[f32,4x3] = 0.0:f32"


def program(buffer: str, body: str, task: str = "range_for i in 0:i32 : 4:i32", rest: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.split("; "))
    return f"program p(x: ref[f32,8])\n  buffer b: {buffer}\n  {task}\n{lines}{rest}  return b\n"


LOAD = "a: f32 = load x i; "


def test_an_accumulation_a_place() -> None:
    check(
        first,
        program(INITIAL, LOAD + "accum[op=add] b a i"),
        program("ref[f32,4]", LOAD + "c: f32 = add 0.0:f32 a; store b c i"),
    )


@pytest.mark.parametrize(("op", "value"), [("mul", "2.0"), ("max", "-1.0"), ("min", "0.5"), ("add", "-0.0")])
def test_operations_and_initial_values(op: str, value: str) -> None:
    check(
        first,
        program(f"ref[f32,4] = {value}:f32", LOAD + f"accum[op={op}] b a i"),
        program("ref[f32,4]", LOAD + f"c: f32 = {op} {value}:f32 a; store b c i"),
    )


def test_components() -> None:
    check(
        first,
        program("ref[f32,4x2] = 0.0:f32", LOAD + "accum[op=add] b a i 1:i32; accum[op=add] b a i 0:i32"),
        program(
            "ref[f32,4x2]",
            LOAD + "c: f32 = add 0.0:f32 a; store b c i 1:i32; d: f32 = add 0.0:f32 a; store b d i 0:i32",
        ),
    )


def test_another_task_may_follow() -> None:
    rest = "  range_for j in 0:i32 : 4:i32\n    d: f32 = load x j\n    accum[op=add] b d j\n"
    check(
        first,
        program(INITIAL, LOAD + "accum[op=add] b a i", rest=rest),
        program("ref[f32,4]", LOAD + "c: f32 = add 0.0:f32 a; store b c i", rest=rest),
    )


def test_the_first_of_several_accesses() -> None:
    two = "accum[op=add] b a i"
    check(
        first,
        program(INITIAL, LOAD + f"{two}; {two}; d: f32 = load b i; store x d i"),
        program("ref[f32,4]", LOAD + f"c: f32 = add 0.0:f32 a; store b c i; {two}; d: f32 = load b i; store x d i"),
    )


@pytest.mark.parametrize("bounds", ["0:i32 : 3:i32 : 1:i32", "2:i32 : -1:i32 : -1:i32"])
@pytest.mark.parametrize(
    "more", ["", "; for t in 0:i32 : 2:i32 : 1:i32;   accum[op=mul] b 3.0:f32 i t", "; store b 1.0:f32 i 2:i32"]
)
def test_rows(bounds: str, more: str) -> None:
    loop = LOAD + f"for k in {bounds};   "
    check(
        first,
        program(ROWS, loop + "accum[op=add] b a i k" + more),
        program("ref[f32,4x3]", loop + "c: f32 = add 0.0:f32 a;   store b c i k" + more),
    )


STAYS = {
    "a place twice": (INITIAL, LOAD + "r: i32 = rem i 4:i32; accum[op=add] b a r", "range_for i in 0:i32 : 8:i32"),
    "as many, one place twice": (INITIAL, LOAD + "m: i32 = min i 2:i32; accum[op=add] b a m", ""),
    "not all places": ("ref[f32,8] = 0.0:f32", LOAD + "accum[op=add] b a i", ""),
    "loaded before": (INITIAL, LOAD + "c: f32 = load b i; accum[op=add] b a i; store x c i", ""),
    "other iterations load": (
        INITIAL,
        LOAD + "accum[op=add] b a i; n: i32 = sub 3:i32 i; c: f32 = load b n; store x c i",
        "",
    ),
    "a loop twice": (INITIAL, LOAD + "for k in 0:i32 : 2:i32 : 1:i32;   accum[op=add] b a i", ""),
    "some places in a loop": (ROWS, LOAD + "for k in 0:i32 : 2:i32 : 1:i32;   accum[op=add] b a i k", ""),
    "a loop of unknown trips": (ROWS, LOAD + "for k in 0:i32 : i : 1:i32;   accum[op=add] b a i k", ""),
    "other trips accumulate": (
        ROWS,
        LOAD + "for k in 0:i32 : 3:i32 : 1:i32;   accum[op=add] b a i k;   n: i32 = sub 2:i32 k"
        ";   accum[op=mul] b a i n",
        "",
    ),
    "places from memory": (INITIAL, LOAD + "k: i32 = convert[dtype=i32] a; accum[op=add] b a k", ""),
    "in a branch": (
        INITIAL,
        LOAD + "t: bool = gt a 0.0:f32; if t;   accum[op=add] b a i; else;   accum[op=mul] b a i",
        "",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_it_stays(name: str) -> None:
    buffer, body, task = STAYS[name]
    unchanged(first, program(buffer, body, task or "range_for i in 0:i32 : 4:i32"))


def test_it_stays_behind_another_use() -> None:
    text = program(INITIAL, "store b 1.0:f32 0:i32", "serial")
    rest = "  range_for i in 0:i32 : 4:i32\n    a: f32 = load x i\n    accum[op=add] b a i\n"
    unchanged(first, text.replace("  return", rest + "  return"))


def test_parameters_stay() -> None:
    keeps(first)("""
program p(x: ref[f32,4], y: ref[f32,4])
  range_for i in 0:i32 : 4:i32
    a: f32 = load x i
    accum[op=add] y a i
  return y
""")


def test_one_of_two_buffers() -> None:
    text = (
        "program p(x: ref[f32,8])\n  buffer b: ref[f32,4]{}\n  buffer d: ref[f32,4] = 0.0:f32\n"
        "  range_for i in 0:i32 : 4:i32\n    a: f32 = load x i\n    m: i32 = min i 2:i32\n{}    accum[op=add] d a m\n"
        "  return b, d\n"
    )
    check(
        first,
        text.format(" = 0.0:f32", "    accum[op=add] b a i\n"),
        text.format("", "    c: f32 = add 0.0:f32 a\n    store b c i\n"),
    )


@pytest.mark.parametrize(("op", "made"), [("add", "or"), ("max", "or"), ("mul", "and"), ("min", "and")])
def test_truth_values(op: str, made: str) -> None:
    text = "program p(x: ref[bool,4])\n  buffer b: ref[bool,4]{}\n  range_for i in 0:i32 : 4:i32\n"
    text += "    a: bool = load x i\n"
    before, after = f"    accum[op={op}] b a i\n", f"    c: bool = {made} false a\n    store b c i\n"
    check(first, text.format(" = false") + before + "  return b\n", text.format("") + after + "  return b\n")
