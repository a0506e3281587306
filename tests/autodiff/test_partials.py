"""Partial derivatives of linear operations, by the interpreter, and what is refused."""

import numpy as np
import pytest

from qdtrace.autodiff.partials import partials
from qdtrace.errors import GradientError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Block, Program, Task, literal
from qdtrace.ir.types import DType

ZERO = literal(0, DType.i32)
VALUES = {
    "add": (1.0, 1.0), "sub": (1.0, -1.0), "neg": (-1.0,), "mul": (3.0, 2.0), "div": (1 / 3.0, None),
    "fma": (3.0, 2.0, 1.0),
}  # fmt: skip


def emitted(name, tangents, zero=None):
    """The builder, and partial derivatives of an operation on 2.0, 3.0 and 4.0, of which some are tangents."""
    b = Builder()
    ref = ref_var(DType.f64, (3,), "x")
    operands = [b.load(ref, literal(k, DType.i32)) for k in range(len(tangents))]
    active = {v for v, is_tangent in zip(operands, tangents, strict=True) if is_tangent}
    b(name, *operands)
    eqn = b.current.eqns[-1]
    return b, ref, partials(b, eqn, operands, eqn.outvar, active, active if zero is None else zero)


@pytest.mark.parametrize("name", VALUES)
def test_one_operand_after_the_other(name):
    for k, want in enumerate(VALUES[name]):
        if want is None:
            continue
        b, ref, found = emitted(name, [k == j for j in range(len(VALUES[name]))])
        assert [p is not None for p in found] == [k == j for j in range(len(VALUES[name]))]
        out = ref_var(DType.f64, ())
        part = found[k]
        assert part is not None
        b.store(out, part(literal(1, DType.f64)))
        task = Task("serial", None, ZERO, ZERO, Block((), tuple(b.current.eqns)))
        (got,) = evaluate(Program("p", (ref,), (out,), (task,), (out,)), [np.array([2.0, 3.0, 4.0])])
        assert got == want


@pytest.mark.parametrize(
    ("name", "tangents"),
    [("mul", (True, True)), ("div", (False, True)), ("fma", (True, True, False)), ("exp", (True,)),
     ("max", (True, False)), ("pow", (False, True))],
)  # fmt: skip
def test_what_is_not_linear_is_refused(name, tangents):
    with pytest.raises(GradientError, match=rf"(?s)needs a linear function of tangents .* got `{name}` of one.*help:"):
        emitted(name, tangents)


def test_what_memory_holds_beside_tangents():
    """It has no derivative where an operation asks for something else than a tangent."""
    assert emitted("exp", (True,), zero=())[2] == (None,)
    _, _, (first, second) = emitted("mul", (True, True), zero=())
    assert first is not None
    assert second is not None


def test_what_is_not_chosen_adds_nothing():
    """An infinite adjoint of the side not taken is not multiplied by 0."""
    b = Builder()
    ref, out, infinite = ref_var(DType.f64, ()), ref_var(DType.f64, ()), literal(np.inf, DType.f64)
    x = b.load(ref)
    b.emit("select", literal(False, DType.bool), x, literal(2, DType.f64))
    eqn = b.current.eqns[-1]
    part = partials(b, eqn, eqn.invars, eqn.outvar, {x}, {x})[1]
    assert part is not None
    b.store(out, part(infinite))
    task = Task("serial", None, ZERO, ZERO, Block((), tuple(b.current.eqns)))
    (got,) = evaluate(Program("p", (ref,), (out,), (task,), (out,)), [np.array(1.0)])
    assert got == 0
