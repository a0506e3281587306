"""Programs as parameters of a JAX primitive: when two count as the same."""

import functools
import importlib.metadata
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.analysis.machine import CPU, CopyLimit, Machine
from qdtrace.backend import backend
from qdtrace.compose.call import compiled_for
from qdtrace.compose.linearised import Linearised
from qdtrace.compose.staged_program import StagedProgram
from qdtrace.config import Options
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
    assert not any("key" in vars(p) for p in programs)


def test_a_program_that_meets_no_other_is_never_printed() -> None:
    a = StagedProgram(_scaled(2.5), Options())
    assert {a: 1}[a] == 1
    assert "key" not in vars(a)


def test_a_graph_is_optimised_for_the_machine_that_it_is_for() -> None:
    def sums(x: Any) -> Any:
        for i in qd.range(2):
            x[i + 6] = sum_of(x, i)
        return x

    def sum_of(x: Any, i: Any) -> Any:
        total = qd.local(0.0)
        for k in qd.range(4):
            total.value = total.value + x[i + k]
        return total.value

    staged = StagedProgram(qd.make_graph(sums)(jnp.ones(8, jnp.float32)).programs[0], Options())
    rolled = Machine(unrolled=CopyLimit(0, 0))
    loops = [sum(e.primitive.name == "for" for e in staged.optimised_for(m).all_eqns) for m in (CPU, rolled)]
    assert loops == [0, 1]
    assert staged.optimised_for(rolled) is staged.optimised_for(Machine(unrolled=CopyLimit(0, 0)))


def test_a_backend_says_what_it_makes() -> None:
    cpu = backend("cpu")
    (task,) = StagedProgram(_scaled(2.0), Options()).optimised_for(cpu.machine).tasks
    made = cpu.describe(task, Options())
    assert made.codegen in cpu.dialects
    assert all(cpu.text(task, Options(), dialect) for dialect in cpu.dialects)
    with pytest.raises(qd.BackendError, match="needs a backend for 'abacus', found"):
        backend("abacus")


def test_without_the_package_s_metadata_the_fix_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("distribution", "entry_points"):
        monkeypatch.setattr(f"qdtrace.backend.{name}", lambda *_, **__: importlib.metadata.EntryPoints())
    monkeypatch.setattr(importlib.metadata.EntryPoints, "entry_points", importlib.metadata.EntryPoints(), raising=False)
    with pytest.raises(qd.BackendError, match="needs a backend for 'cpu', found none") as caught:
        backend.__wrapped__("cpu")
    assert caught.value.help == "install the package, which names them: `pip install .`"


@pytest.mark.full
def test_tangents_of_a_gradient_are_made_once(monkeypatch):
    made = []
    make = Linearised.__dict__["staged"].func
    staged = functools.cached_property(lambda self: made.append(self) or make(self))
    staged.__set_name__(Linearised, "staged")
    monkeypatch.setattr(Linearised, "staged", staged)
    x = jnp.linspace(0.5, 2, 7)
    found = jax.jit(jax.grad(lambda x: qd.vmap(lambda a: jnp.sin(a) * a)(x).sum()))(x)
    np.testing.assert_allclose(found, jnp.cos(x) * x + jnp.sin(x), rtol=1e-6)
    assert len(made) == 1
