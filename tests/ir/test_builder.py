"""Loops that the builder writes."""

import numpy as np
import pytest

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, emit_loop, nest, ref_var
from qdtrace.ir.primitives import FOR
from qdtrace.ir.program import Block, Program, Task, literal
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from qdtrace.ir.walk import walk_eqns

ZERO = literal(0, DType.i32)


def run(builder: Builder, out) -> np.ndarray:
    task = Task("serial", None, ZERO, ZERO, Block((), tuple(builder.current.eqns)))
    program = Program("p", (out,), (), (task,), (out,))
    verify_program(program)
    (got,) = evaluate(program, [np.zeros(out.type.shape, out.dtype.numpy)])
    return got


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (1, 4, 1), (3, 0), (2, 1, 3)])
@pytest.mark.parametrize("unroll", [0, 1, 2, 8])
def test_a_nest_visits_every_index_once(shape: tuple[int, ...], unroll: int) -> None:
    b, out = Builder(), ref_var(DType.i32, shape)
    nest(b, shape, lambda at: b.accum(out, literal(1, DType.i32), *at), unroll=unroll)
    assert (run(b, out) == 1).all()
    loops = [e for e in walk_eqns(Block((), tuple(b.current.eqns))) if e.primitive is FOR]
    if 0 not in shape:
        assert all(e.index.hint == "k" and e.step == literal(1, DType.i32) for e in loops)
        assert {int(e.bounds[1].value) for e in loops} == {n for n in shape if n > unroll}


def test_a_nest_counts_in_the_dtype_that_it_is_given() -> None:
    b, out = Builder(), ref_var(DType.f32, (3, 2))
    nest(b, (3, 2), lambda at: b.store(out, literal(1.0, DType.f32), *at), dtype=DType.i64)
    assert all(e.index.dtype is DType.i64 for e in walk_eqns(Block((), tuple(b.current.eqns))) if e.primitive is FOR)
    assert (run(b, out) == 1).all()


def test_a_loop_hands_on_what_it_carries() -> None:
    b, out = Builder(), ref_var(DType.i32, (2,))
    bounds = [literal(k, DType.i32) for k in (7, -1, -2)]
    first = (literal(0, DType.i32), literal(1, DType.i32))
    ends = emit_loop(b, bounds, first, lambda k, c: [b("add", c[0], k), b("mul", c[1], c[1])], index="k", carry="c")
    for number, end in enumerate(ends):
        b.store(out, end, literal(number, DType.i32))
    (loop,) = [e for e in b.current.eqns if e.primitive is FOR]
    assert (loop.bounds, loop.initials, loop.control) == (tuple(bounds), first, tuple(bounds))
    assert run(b, out).tolist() == [7 + 5 + 3 + 1, 1]
