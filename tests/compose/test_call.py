"""Programs as parameters of a JAX primitive: when two count as the same."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

import qdtrace as qd
from qdtrace.compose.call import StagedProgram, compiled_for
from qdtrace.config import Options

if TYPE_CHECKING:
    from qdtrace.ir.program import Program


def _scaled(factor: float, operation: Any = operator.mul) -> Program:
    def scale(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = operation(x[i], factor)
        return x

    return qd.make_graph(scale)(jnp.ones(8, jnp.float32)).programs[0]


def test_programs_traced_apart_are_equal_and_compiled_once() -> None:
    a, b = StagedProgram(_scaled(2.0), Options()), StagedProgram(_scaled(2.0), Options())
    assert a.program is not b.program
    assert a == b
    assert hash(a) == hash(b)
    assert compiled_for(a, "cpu") is compiled_for(b, "cpu")


def test_another_body_or_other_options_make_another_program() -> None:
    a = StagedProgram(_scaled(2.0), Options())
    other = StagedProgram(_scaled(2.0, operator.add), Options())
    assert hash(a) == hash(other)  # the body is looked at only when the rest is equal
    assert a != other
    assert a != StagedProgram(_scaled(3.0), Options())
    assert a != StagedProgram(a.program, Options(num_threads=1))
    assert a != a.program


def test_programs_that_differ_in_constants_are_not_printed_to_tell_them_apart() -> None:
    programs = [StagedProgram(_scaled(k / 2), Options()) for k in range(1, 9)]
    assert len(set(map(hash, programs))) == len(set(programs)) == 8
    assert not any("text" in vars(p) for p in programs)


def test_a_program_that_meets_no_other_is_never_printed() -> None:
    a = StagedProgram(_scaled(2.5), Options())
    assert {a: 1}[a] == 1
    assert "text" not in vars(a)
