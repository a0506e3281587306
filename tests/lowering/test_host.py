"""Host code written as Python functions: what each part of it computes, and what is refused when it is emitted."""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING

import pytest

from lowering.llvm.host import Cell, External, function, module_text
from lowering.llvm.target import Target
from lowering.runtime.compile import object_code
from lowering.runtime.jit import link

if TYPE_CHECKING:
    from lowering.llvm.host import I32, I64, Code, Function, Ptr

NUMBER = ctypes.c_int64
SMALL, LARGE = -(1 << 63), (1 << 63) - 1
_names = itertools.count()


def run(f: Function, *arguments: int) -> int:
    """Compiles a function of numbers and calls it."""
    host = Target.host()
    code = object_code(module_text([f], host.triple), host)
    address = link(f"test_host_{next(_names)}", code, (f.name,), {}, host)[f.name]
    return ctypes.CFUNCTYPE(NUMBER, *[NUMBER] * len(arguments))(address)(*arguments)


@function()
def add_up(c: Code, start: I64, stop: I64) -> I64:
    total = Cell(c.value(0, "i64"))
    with c.each(start, stop) as k:
        total.value = total.value + k
    return total.value


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (-3, 3), (2, 2), (7, 1), (SMALL, SMALL + 1)])
def test_a_loop_over_numbers(start: int, stop: int) -> None:
    @function()
    def qd_sum(c: Code, start: I64, stop: I64) -> I64:
        return add_up(c, start, stop)

    assert run(qd_sum, start, stop) == sum(range(start, stop))


@pytest.mark.parametrize(("a", "b"), [(7, 3), (-7, 3), (SMALL, 1), (LARGE, LARGE), (0, 1), (-1, 64)])
def test_arithmetic(a: int, b: int) -> None:
    def wrapped(n: int) -> int:
        return (n + (1 << 63)) % (1 << 64) - (1 << 63)

    unsigned = a % (1 << 64)
    expected = {
        "add": wrapped(a + b), "sub": wrapped(a - b), "mul": wrapped(a * b), "div": wrapped(unsigned // b),
        "and": a & b, "or": a | b, "less": a < b, "at least": a >= b, "at most": a <= b, "greater": a > b,
        "below": unsigned < b, "equal": a == b, "differs": a != b, "smaller": min(a, b), "larger": max(a, b),
        "left": wrapped(a << 3), "right": unsigned >> 3, "rest": wrapped(unsigned % b), "narrow": a % (1 << 32),
    }  # fmt: skip

    @function()
    def qd_each(c: Code, a: I64, b: I64, out: Ptr) -> I64:
        results = [
            a + b, a - b, a * b, a // b, a & b, a | b, a < b, a >= b, a <= b, a > b, a.below(b), a.equals(b),
            a.differs(b), c.smaller(a, b), c.larger(a, b), a << 3, a >> 3, a % b, a.to("i32", "trunc"),
        ]  # fmt: skip
        for k, value in enumerate(results):
            out.word(k).store(value if value.type == "i64" else value.to("i64"))
        return c.value(len(results), "i64")

    out = (NUMBER * len(expected))()
    assert run(qd_each, a, b, ctypes.addressof(out)) == len(expected)
    assert dict(zip(expected, out, strict=True)) == expected


@pytest.mark.parametrize("n", [0, 1, 6, 27])
def test_a_loop_that_is_left_in_the_middle_and_a_function_from_inside(n: int) -> None:
    @function()
    def qd_steps(c: Code, n: I64, most: I64) -> I64:
        """Collatz's steps to 1; -1 after too many."""
        value, steps = Cell(n), Cell(c.value(0, "i64"))
        c.give_if(n.equals(0), 0)
        with c.loop() as leave:
            leave(value.value.equals(1))
            steps.value = steps.value + 1
            c.give_if(steps.value > most, -1)
            odd = (value.value & 1).equals(1)
            value.value = c.select(odd, value.value * 3 + 1, value.value >> 1)
        return steps.value

    assert run(qd_steps, n, 1000) == {0: 0, 1: 0, 6: 8, 27: 111}[n]
    assert run(qd_steps, n, 5) == {0: 0, 1: 0, 6: -1, 27: -1}[n]


def test_a_branch_whose_block_ends_and_one_that_goes_on() -> None:
    @function()
    def qd_sign(c: Code, n: I64, unused: I64) -> I64:
        found = Cell(c.value(0, "i64"))
        with c.when(n < 0):
            c.give(-1)
        with c.when(n > 0):
            found.value = 1
        return found.value

    assert [run(qd_sign, n, 0) for n in (-5, 0, 5)] == [-1, 0, 1]


def test_calls_with_more_arguments_memory_and_strings() -> None:
    printed = External("i32 snprintf(ptr, i64, ptr, ...)")

    @function()
    def qd_print(c: Code, out: Ptr, n: I64) -> I64:
        text = c.array("i8", n, 1)
        printed(c, text, n, c.string('"%s" \\ %lld'), c.string("ä"), n)
        return printed(c, out, n, c.string("<%s>"), text).to("i64")

    out = ctypes.create_string_buffer(64)
    assert run(qd_print, ctypes.addressof(out), 64) == len(out.value)
    assert out.value == '<"ä" \\ 64>'.encode()


def test_a_module_has_what_its_exports_reach() -> None:
    @function()
    def qd_alone(c: Code) -> I64:
        return c.value(1, "i64")

    @function()
    def qd_sum(c: Code, n: I64) -> I64:
        return add_up(c, 0, n)

    assert "add_up" not in module_text([qd_alone], "")
    assert module_text([qd_sum, qd_alone], "").count("define internal i64 @add_up(") == 1


def refusal(body) -> str:
    with pytest.raises(TypeError) as raised:
        module_text([function()(body)], "")
    return str(raised.value)


def test_what_is_refused_while_it_is_emitted() -> None:
    def other_type(c: Code, n: I64) -> I64:
        return add_up(c, n, c.value(None, "ptr"))

    def few(c: Code, n: I64) -> I64:
        return add_up(c, n)

    def many(c: Code, n: I64) -> I64:
        return add_up(c, n, n, n)

    def result(c: Code, n: I32) -> I64:
        return n

    def condition(c: Code, n: I64) -> I64:
        return n if n > 0 else c.value(0, "i64")

    assert refusal(other_type) == "needs i64, got ptr"
    assert refusal(few) == "needs 2 arguments, got 1"
    assert refusal(many) == "needs 2 arguments, got 3"
    assert refusal(result) == "needs i64, got i32"
    assert refusal(condition) == "a value is known when the code runs: use `when` or `select`"
