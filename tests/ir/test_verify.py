"""The verifier: what it accepts and the whole text of what it refuses."""

from dataclasses import replace

import numpy as np
import pytest

from qdtrace.errors import Loc
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.parser import parse_program
from qdtrace.ir.primitives import PRIMITIVES, Primitive
from qdtrace.ir.program import Block, Eqn, Literal, Program, Task, Var, literal
from qdtrace.ir.types import BOOL, I32, DType, RefType, ScalarType, Space
from qdtrace.ir.verify import VerifyError, verify_program
from qdtrace.limits import Limits

F32 = ScalarType(DType.f32)
HEAD = "program p(x: ref[f32,4], n: ref[i32])\n"
TASK = HEAD + "  range_for i in 0:i32 : 4:i32\n"


def refusal(program: Program | str) -> str:
    with pytest.raises(VerifyError) as caught:
        verify_program(parse_program(program, file="t.qd") if isinstance(program, str) else program)
    return str(caught.value)


@pytest.mark.parametrize(
    ("lines", "rule", "printed"),
    [
        ("a: f32 = add 1.0:f32 2:i32", "typing: `add` needs operands of one dtype, got f32, i32", None),
        ("a: f32 = add 1.0:f32", "typing: `add` needs 2 operands, got 1", None),
        ("a: i32 = add 1.0:f32 1.0:f32", "typing: `add` gives f32, but the results are i32", None),
        ("a: f32 = store x 1.0:f32 i", "typing: `store` gives no results, but the results are f32", None),
        ("add i i", "typing: `add` gives i32, but the results are none", None),
        ("a: f32 = load x", "typing: `load` needs 1 indices for ref[f32,4], got 0", None),
        ("a: f32 = load x 1.0:f32", "typing: `load` index must be i32 or i64, got f32", None),
        ("a: f32 = sin i", "typing: `sin` needs float operands, got i32", None),
        ("a: f32 = neg x", "typing: `neg` operands must be scalars", None),
        ("a: f32 = convert 1:i32", "typing: `convert` needs the parameter `dtype`", None),
        ("a: f32 = neg[y=2] 1.0:f32", "typing: `neg` has no parameter `y`", None),
        ("a: f32 = integer_pow[y=2.5] 1.0:f32", "typing: `integer_pow` has the wrong `y`: 2.5", None),
        ("accum[op=sub] x 1.0:f32 i", "typing: `accum` unknown accumulation 'sub'", None),
        ("c: cell[f32] = cell[dtype=f32, shape=2]", "typing: `cell` has the wrong `shape`: 2", None),
        (
            "a: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry s = 0.0:f32\n      yield k",
            "typing: `for` body results must match the carries",
            "a: f32 = for k in 0:i32 : 4:i32 : 1:i32 carry s = 0.0:f32",
        ),
        (
            "a: f32 = while carry s = 0.0:f32\n      test s\n      yield s",
            "typing: `while` condition must give one bool",
            "a: f32 = while carry s = 0.0:f32",
        ),
        ("a: f32 = if true\n      yield 1.0:f32", "typing: `if` branches must give the same types", "a: f32 = if true"),
        ("if i", "typing: `if` needs one bool condition", None),
    ],
)
def test_typing(lines, rule, printed):
    printed = lines if printed is None else printed
    assert refusal(TASK + "    " + lines) == f"{rule}\n  at t.qd:3\nnote: in `{printed}`\nnote: in `p`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + "  range_for i in 0:i32 : 4:i64",
            "task: bounds need the type i32 of the index, got i32 and i64\n  at t.qd:2\nnote: in task 0 of `p`",
        ),
        (
            HEAD + "  range_for i in 0.0:f32 : 4.0:f32",
            "task: the index needs i32 or i64, got f32\n  at t.qd:2\nnote: in task 0 of `p`",
        ),
        (
            HEAD + "  serial\n    yield 1:i32",
            "task: a body has no parameters and no results\n  at t.qd:2\nnote: in task 0 of `p`",
        ),
        (
            HEAD + "  serial\n    head\n      store n 1:i32",
            "head: a head writes no buffer\n  at t.qd:4\nnote: in `store n 1:i32`\nnote: in `p`",
        ),
        (
            HEAD + "  range_for i in 0:i32 : 4:i32\n    head\n      m: i32 = load n\n      k: i32 = add m 1:i32\n"
            "    store n k",
            "head: the body uses `k`, which depends on a load from a buffer the task writes\n  at t.qd:2\n"
            "note: in task 0 of `p`",
        ),
        (
            HEAD + "  serial\n    head\n      c: cell[i32] = cell[dtype=i32, shape=()]\n      m: i32 = load n\n"
            "      store c m\n      k: i32 = load c\n    store n k",
            "head: the body uses `k`, which depends on a load from a buffer the task writes\n  at t.qd:2\n"
            "note: in task 0 of `p`",
        ),
        (
            HEAD + "  serial\n    head\n      m: i32 = load n\n      b: bool = gt m 0:i32\n      k: i32 = if b\n"
            "        yield 1:i32\n      else\n        yield 2:i32\n    accum[op=add] n k",
            "head: the body uses `k`, which depends on a load from a buffer the task writes\n  at t.qd:2\n"
            "note: in task 0 of `p`",
        ),
        (
            HEAD + "  serial\n    head\n      c: cell[i32] = cell[dtype=i32, shape=()]\n    store c 1:i32",
            "head: the body uses the cell `c` of the head\n  at t.qd:2\nnote: in task 0 of `p`",
        ),
        (
            HEAD + "  range_for i in 0:i32 : 4:i32\n    head\n      m: i32 = load n\n      b: bool = lt m 3:i32\n"
            "      check[message=few] b\n    store n i",
            "head: a check depends on a load from a buffer the task writes, and the bounds do not\n  at t.qd:6\n"
            "note: in `check[message=few] b`\nnote: in `p`",
        ),
        (
            HEAD + "  range_for i in 0:i32 : e\n    head\n      c: cell[i32] = cell[dtype=i32, shape=()]\n"
            "      store c 4:i32\n      e: i32 = load c\n      m: i32 = load n\n      b: bool = lt m 3:i32\n"
            "      if b\n        k: i32 = bound[size=3, axis=0, buffer=x, shape=(3)] e\n    accum[op=add] n i",
            "head: a check depends on a load from a buffer the task writes, and the bounds do not\n  at t.qd:10\n"
            "note: in `k: i32 = bound[axis=0, buffer=x, shape=(3), size=3] e`\nnote: in `p`",
        ),
    ],
)
def test_tasks_and_heads(text, message):
    assert refusal(text) == message


@pytest.mark.parametrize(
    "text",
    [
        # bounds may come from what the task writes: they are evaluated once, before it
        HEAD + "  range_for i in 0:i32 : m\n    head\n      m: i32 = load n\n    store n 1:i32",
        # and what is checked of them with them
        HEAD + "  range_for i in 0:i32 : m\n    head\n      m: i32 = load n\n      b: bool = lt m 3:i32\n"
        "      check[message=few] b\n    store n 1:i32",
        # a load from something that is only read
        HEAD + "  range_for i in 0:i32 : m\n    head\n      m: i32 = load n\n    a: f32 = convert[dtype=f32] m\n"
        "    store x a i",
        # a cell that stays in the head
        HEAD + "  range_for i in 0:i32 : m\n    head\n      c: cell[i32] = cell[dtype=i32, shape=()]\n"
        "      store c 4:i32\n      m: i32 = load c\n    store x 0.0:f32 i",
        HEAD + "  return x, x",
        "program p()",
    ],
)
def test_accepted(text):
    verify_program(parse_program(text))


def body(*eqns: Eqn, params=(), buffers=(), results=(), index=None, **kwargs) -> Program:
    kind = "range_for" if index is not None else "serial"
    task = Task(kind, index, literal(0, DType.i32), literal(4, DType.i32), Block((), eqns), **kwargs)
    return Program("p", params, buffers, (task,), results)


def eqn(name, *invars, out=None, blocks=(), **params) -> Eqn:
    outs = () if out is None else (out,)
    return Eqn(PRIMITIVES[name], invars, outs, params, tuple(blocks), Loc("t.py", 5))


ONE = literal(1.0, DType.f32)


def test_bound_twice():
    a = Var(F32, "a")
    text = refusal(body(eqn("neg", ONE, out=a), eqn("neg", ONE, out=a)))
    assert text.startswith("binding: `a_1` is bound twice\n  at t.py:5\n")


def test_used_before_it_is_bound():
    a, b = Var(F32, "a"), Var(F32, "b")
    text = refusal(body(eqn("neg", a, out=b), eqn("neg", ONE, out=a)))
    assert text.startswith("binding: `a_1` is not bound before\n  at t.py:5\n")
    assert "note: in `b: f32 = neg a" in text


def test_used_outside_its_block():
    a, b = Var(F32, "a"), Var(F32, "b")
    inner = Block((), (eqn("neg", ONE, out=a),))
    text = refusal(body(eqn("if", literal(True, DType.bool), blocks=(inner, Block())), eqn("neg", a, out=b)))
    assert text == (
        "binding: `a` is bound, but not in a block around this use\n  at t.py:5\n"
        "note: in `b: f32 = neg a`\nnote: in `p`"
    )


def test_one_block_in_two_equations():
    inner = Block((), (eqn("neg", ONE, out=Var(F32, "a")),))
    true = literal(True, DType.bool)
    text = refusal(body(eqn("if", true, blocks=(inner, Block())), eqn("if", true, blocks=(inner, Block()))))
    assert text.startswith("binding: `a_1` is bound twice")


def test_a_value_of_another_task():
    a = Var(F32, "a")
    first, second = body(eqn("neg", ONE, out=a)), body(eqn("neg", a, out=Var(F32, "b")))
    text = refusal(replace(first, tasks=(*first.tasks, *second.tasks)))
    assert text.startswith("binding: `a` is bound, but not in a block around this use")


def test_the_same_parameter_twice():
    x = ref_var(DType.f32, (4,), "x")
    assert refusal(Program("p", (x,), (x,), (), ())).startswith("binding: `x_1` is bound twice")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (F32, "reference: `x` needs a `ref[...]` type, got f32\nnote: in `p`"),
        (RefType(DType.f32, (), Space.LOCAL), "reference: `x` needs a `ref[...]` type, got cell[f32]\nnote: in `p`"),
        (RefType(DType.f32, (-1,)), "reference: `x` needs lengths of 0 and up, got (-1,)\nnote: in `p`"),
    ],
)
def test_buffers_are_global_arrays(kind, message):
    assert refusal(Program("p", (Var(kind, "x"),), (), (), ())) == message


def test_references_are_not_carried():
    x = ref_var(DType.f32, (4,), "x")
    carry, out = Var(x.type, "c"), Var(x.type, "o")
    inner = Block((Var(I32, "k"), carry), (), (carry,))
    bounds = (literal(0, DType.i32), literal(4, DType.i32), literal(1, DType.i32))
    text = refusal(body(eqn("for", *bounds, x, blocks=(inner,), out=out), params=(x,)))
    assert text.startswith("reference: `c` carries a reference\n  at t.py:5\nnote: in `o: ref[f32,4] = for k in ")


def test_references_do_not_leave_a_branch():
    x = ref_var(DType.f32, (4,), "x")
    both = (Block((), (), (x,)), Block((), (), (x,)))
    text = refusal(body(eqn("if", literal(True, DType.bool), blocks=both, out=Var(x.type, "o")), params=(x,)))
    assert text == ("reference: `x` leaves its block\n  at t.py:5\nnote: in `o: ref[f32,4] = if true`\nnote: in `p`")


def test_a_cell_does_not_leave_a_branch():
    cell = Var(RefType(DType.f32, (), Space.LOCAL), "c")
    make = Block((), (eqn("cell", out=cell, dtype=DType.f32, shape=()),), (cell,))
    out = Var(cell.type, "o")
    text = refusal(body(eqn("if", literal(True, DType.bool), blocks=(make, Block()), out=out)))
    assert text.startswith("reference: `c` leaves its block")


def test_results_are_parameters_or_buffers():
    x = ref_var(DType.f32, (4,), "x")
    assert refusal(Program("p", (), (), (), (x,))) == (
        "result: `x` is no parameter and no buffer of the program\nnote: in `p`"
    )


def test_initial_values():
    x, b = ref_var(DType.f32, (4,), "x"), ref_var(DType.f32, (4,), "b")
    zero = literal(0, DType.f32)
    verify_program(Program("p", (x,), (b,), (), (b,), {b: zero}))
    assert refusal(Program("p", (x,), (b,), (), (b,), {x: zero})) == (
        "initial: `x` has an initial value but is no buffer\nnote: in `p`"
    )
    assert refusal(Program("p", (x,), (b,), (), (b,), {b: literal(0, DType.f64)})) == (
        "initial: `b` needs a literal of f32, got 0.0:f64\nnote: in `p`"
    )
    assert refusal(Program("p", (x,), (b,), (), (b,), {b: x})).startswith("initial: `b` needs a literal of f32, got <x")
    wrong = Literal(np.float64(1.0), F32)
    assert refusal(Program("p", (), (b,), (), (b,), {b: wrong})).startswith("typing: the literal np.float64(1.0) is no")


def test_memory_that_is_taken_over():
    x, b, c = (ref_var(DType.f32, (4,), name) for name in "xbc")
    y = ref_var(DType.f32, (2, 2), "y")

    def marked(donated_from, results=(b, c)):
        return Program("p", (x, y), (b, c), (), results, {}, donated_from)

    verify_program(marked({b: x}))
    assert refusal(marked({c: b})).startswith("memory: `b` is no parameter of the program\n")
    assert refusal(marked({y: x})).startswith("memory: `y` is no buffer that is returned\n")
    assert refusal(marked({b: x}, (c,))).startswith("memory: `b` is no buffer that is returned\n")
    assert refusal(marked({b: y})).startswith("memory: `b` needs the type ref[f32,2x2] of `y`\n")
    assert refusal(marked({b: x, c: x})).startswith("memory: `x` is taken over twice\n")


def test_limits():
    x, y, z = ref_var(DType.i32, (4,), "x"), ref_var(DType.f32, (4,), "y"), ref_var(DType.i32, (), "z")

    def marked(limits, tasks=()):
        return Program("p", (x, y), (z,), tasks, (), limits=limits)

    what = "has limits, which a parameter of integers has, with a step for each axis\nnote: in `p`"
    verify_program(marked({x: Limits(0, 4, (2,))}))
    assert refusal(marked({x: Limits(0, 4, ())})) == f"limits: `x` {what}"
    assert refusal(marked({y: Limits(0, 4, (2,))})) == f"limits: `y` {what}"
    assert refusal(marked({z: Limits(0, 4, ())})) == f"limits: `z` {what}"
    with_store = "program p(x: ref[i32,2] in (0,4,2))\n  serial\n    store x 1:i32 0:i32"
    assert refusal(parse_program(with_store)) == "limits: `x` has limits and is written\nnote: in `p`"


def test_number_of_blocks():
    assert refusal(body(eqn("if", literal(True, DType.bool), blocks=(Block(),)))).startswith(
        "typing: `if` needs 2 blocks, got 1\n"
    )


def test_a_foreign_primitive():
    fake = Primitive("add", PRIMITIVES["add"].type_rule)
    assert refusal(body(Eqn(fake, (ONE, ONE), (Var(F32),)))).startswith("typing: `add` is no primitive of the graph")


def test_a_literal_of_the_wrong_dtype():
    wrong = Literal(np.float64(1.0), F32)
    text = refusal(body(eqn("neg", wrong, out=Var(F32, "a"))))
    assert text.startswith("typing: the literal np.float64(1.0) is no f32\n  at t.py:5\n")


@pytest.mark.parametrize(("kind", "index"), [("range_for", None), ("serial", Var(I32, "i"))])
def test_index_and_kind(kind, index):
    task = Task(kind, index, literal(0, DType.i32), literal(4, DType.i32), Block())
    text = refusal(Program("p", (), (), (task,), ()))
    assert text == "task: a range_for has an index, a serial task has none\nnote: in task 0 of `p`"


def test_unknown_kind():
    task = Task("parallel", None, literal(0, DType.i32), literal(4, DType.i32), Block())
    text = refusal(Program("p", (), (), (task,), ()))
    assert text == "task: needs the kind range_for or serial, got 'parallel'\nnote: in task 0 of `p`"


def test_what_the_builder_makes_is_accepted():
    x, i = ref_var(DType.f32, (4,), "x"), scalar_var(DType.i32, "i")
    b = Builder()
    with b.block() as opened:
        a = b.load(x, i)
        positive = b("gt", a, literal(0, DType.f32))
        assert positive.type == BOOL
        with b.block() as then:
            b.store(x, b("sqrt", a), i)
        b.emit("if", positive, blocks=(then.close(), Block()))
    task = Task("range_for", i, literal(0, DType.i32), literal(4, DType.i32), opened.close())
    verify_program(Program("p", (x,), (), (task,), (x,)))
