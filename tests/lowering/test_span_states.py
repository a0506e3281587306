"""States of walks kept at the positions of their spans: gradients of rows with a recurrence, in blocks of a GPU."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.plan.span_states import states_at_positions
from lowering.simt import emit_spans
from lowering.simt import spans as block_spans
from lowering.simt.plan import plan_task
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.primitives import CELL
from qdtrace.ir.printer import print_program, print_task
from qdtrace.ir.program import Program
from tests.lowering.guards import STRICT, guarded_memory, untouched
from tests.lowering.harness import same_bits
from tests.lowering.kernels import Kernels, host_device
from tests.lowering.test_spans import FAR, KINDS, spans

THREADS = 16

# Small whole numbers and derivatives of 1 and -1: sums have the same bits in any order.
STEPS: dict[str, Callable[..., tuple[jax.Array, ...]]] = {
    "of the state": lambda h, a: (h - jnp.abs(a),),
    "of state and position": lambda h, a: (jnp.abs(a - h),),
    "of two states": lambda h, a, b: (h - jnp.abs(b), jnp.abs(a)),
    "of none": lambda h, a: (a + h,),
    "sine": lambda h, a: (jnp.sin(a) + h,),
}


def gradient(step: str, dtype: str, n: int, m: int) -> tuple[Program, int]:
    """The reverse mode of rows with a recurrence as a GPU has it, and how many states it has."""
    advance = STEPS[step]
    count = 2 if "two" in step else 1

    @qd.jit
    def rows(first, last, col, w, x):
        out = qd.empty((n,), x.dtype)
        for i in qd.range(n):
            state = [qd.local(jnp.asarray(k + 1, x.dtype)) for k in range(count)]
            for j in qd.range(first[i], last[i]):
                new = advance(w[j] * x[col[j]], *(s.value for s in state))
                for s, value in zip(state, new, strict=True):
                    s.value = value
            out[i] = sum(s.value for s in state)
        return out

    def back(first, last, col, w, x, bar):
        return jax.vjp(lambda w, x: rows(first, last, col, w, x), w, x)[1](bar)

    shapes = ((n,), "int32"), ((n,), "int32"), ((m,), "int32"), ((m,), dtype), ((FAR,), dtype), ((n,), dtype)
    low = qd.jit(back).lower(*(jax.ShapeDtypeStruct(*s) for s in shapes), target="sm_90")
    return parse_program(low.graph()), count


def arguments(program: Program, seed: int, kind: str, n: int, mean: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    first, last, m = spans(kind, rng, n, mean)
    sizes = {v.hint: v.type for v in program.params}
    m = sizes["w"].shape[0]
    values = {"first": first, "last": last, "col": rng.integers(0, FAR, m), "w": rng.integers(-2, 3, m)}
    values |= {"x": rng.integers(-2, 3, FAR)}
    left = [v for v in program.params if v.hint not in values]
    assert len(left) == 1
    values[left[0].hint] = rng.integers(-3, 4, n)
    return [np.asarray(values[v.hint], v.type.dtype.numpy) for v in program.params]


def agree(program: Program, args: list[np.ndarray], what: object) -> None:
    (task,) = program.tasks
    assert plan_task(task, host_device(), THREADS).spans is not None
    kernels = Kernels(task, host_device(), STRICT, THREADS)
    raws, memory = guarded_memory(program, args)
    want = evaluate(program, args, fuel=1 << 30)
    kernels.run(memory)
    for raw in raws:
        untouched(raw)
    for result, expected in zip(program.results, want, strict=True):
        same_bits(memory[result], expected, what)


def of_kind(step: str, dtype: str, kind: str, n: int, mean: int) -> tuple[Program, list[np.ndarray]]:
    m = FAR + 10 if kind == "long" else FAR
    program, _ = gradient(step, dtype, n, m)
    return program, arguments(program, 5, kind, n, mean)


RIGHT = [kind for kind in KINDS if kind not in ("outside", "wrong")]


@pytest.mark.parametrize("kind", RIGHT)
def test_any_spans(kind: str) -> None:
    agree(*of_kind("of the state", "float32", kind, 50, 7), kind)


@pytest.mark.parametrize("step", ["of the state", "of state and position", "of two states"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_recurrence(step: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the spans of a block do not fit its memory together."""
    for name in ("POSITIONS", "SLOW_POSITIONS"):
        monkeypatch.setattr(block_spans, name, 9)
    with jax.enable_x64(dtype == "float64"):
        agree(*of_kind(step, dtype, "neighbours", 40, 11), step)


def test_which_blocks_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the code for the others the results are right for neighbours only."""
    monkeypatch.setattr(emit_spans._Written, "_once", lambda self: None)
    agree(*of_kind("of the state", "float32", "neighbours", 50, 7), "neighbours")
    for kind in ("overlapping", "gaps", "turned", "shuffled", "long"):
        with pytest.raises(AssertionError):
            agree(*of_kind("of the state", "float32", kind, 100, 7), kind)


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        ("sine", ["f32", "f32"]),
        ("of the state", ["f32", "f32", "bool"]),
        ("of two states", ["f32", "f32", "bool", "bool"]),
    ],
)
def test_values_of_a_position_share_memory(step: str, kept: list[str]) -> None:
    """The product gives its place to what the state determines, and that to the adjoint. Loaded `x` stays."""
    program, _ = gradient(step, "float32", 40, FAR)
    spans = plan_task(program.tasks[0], host_device(), THREADS).spans
    assert spans is not None
    assert [v.dtype.name for v in spans.parts.kept] == kept
    assert not any(e.primitive is CELL for e in spans.rows.task.all_eqns)
    text = print_task(spans.rows.task)
    assert text.count(" cos ") == (step == "sine")
    assert step != "sine" or text.index(" cos ") < text.index("store kept")


def test_states_are_stored_in_order() -> None:
    """Always the same text, so that its code is found again."""
    program, _ = gradient("of two states", "float32", 40, FAR)
    texts: set[str] = set()
    for _ in range(6):
        spans = plan_task(parse_program(print_program(program)).tasks[0], host_device(), THREADS).spans
        assert spans is not None
        texts.add(print_task(spans.rows.task))
    assert len(texts) == 1


def test_fewer_segments_give_the_same() -> None:
    """`at_most` may be 0, if arrays have room for all iterations."""
    program, _ = gradient("of state and position", "float32", 30, FAR)
    text = print_program(program)
    assert "at_most" in text
    text = re.sub(r"at_most (v\d+)", r"mul \1 0:i32", text)
    text = text.replace("cell[f32,7] = cell[dtype=f32, shape=(7)]", "cell[f32,99] = cell[dtype=f32, shape=(99)]")
    args = arguments(program, 3, "neighbours", 30, 9)
    for found, want in zip(evaluate(parse_program(text), args), evaluate(program, args), strict=True):
        same_bits(found, want, "segments")


def nested(ptr, w):
    out = qd.empty((40,), w.dtype)
    for i in qd.range(40):
        acc = qd.local(0.5)
        for j in qd.range(ptr[i], ptr[i + 1]):
            for _ in qd.range(ptr[j % 40]):
                acc.value = jnp.sin(acc.value) * w[j]
        out[i] = acc.value
    return out


def of_arrays(ptr, w):
    out = qd.empty((40,), w.dtype)
    for i in qd.range(40):
        held = qd.local(jnp.ones(3))
        for j in qd.range(ptr[i], ptr[i + 1]):
            held[j % 3] = jnp.sin(held[(j + 1) % 3]) * w[j]
        out[i] = held[0]
    return out


def two_loops(ptr, w):
    out = qd.empty((40,), w.dtype)
    for i in qd.range(40):
        acc = qd.local(0.5)
        for j in qd.range(ptr[i], ptr[i + 1]):
            acc.value = jnp.sin(acc.value) * w[j]
        for _ in qd.range(ptr[i]):
            acc.value = jnp.sin(acc.value)
        out[i] = acc.value
    return out


@pytest.mark.parametrize("function", [nested, of_arrays, two_loops])
def test_other_loops_keep_their_stacks(function: Callable[..., object]) -> None:
    """A loop inside of another, a state that is an array, a loop over other numbers: no states at positions."""

    def back(ptr, w, bar):
        return jax.vjp(lambda w: qd.jit(function)(ptr, w), w)[1](bar)

    shapes = ((41,), "int32"), ((FAR,), "float32"), ((40,), "float32")
    low = qd.jit(back).lower(*(jax.ShapeDtypeStruct(*s) for s in shapes), target="sm_90")
    for task in parse_program(low.graph()).tasks:
        assert states_at_positions(task) is None
