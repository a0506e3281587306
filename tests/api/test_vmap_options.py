"""Options of `jax.vmap` in `qd.vmap`: `axis_size`, `axis_name` with collectives, `spmd_axis_name`; memory of a lane.

Options of a `qd.jit` function hold for the mapped and compiled functions that it calls.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

X = np.arange(4, dtype=np.float32)
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def add(a, b=1.0):
    return a + b


SAME: dict[str, Callable[[Any], Any]] = {
    "axis_size": lambda vmap: vmap(add, axis_size=4)(X),
    "axis_size as a NumPy number": lambda vmap: vmap(add, axis_size=np.int64(4))(X),
    "axis_size alone": lambda vmap: vmap(add, in_axes=None, axis_size=3)(2.0),
    "axis_size without arguments": lambda vmap: vmap(lambda: jnp.float32(2), axis_size=3)(),
    "axis_size of nothing": lambda vmap: vmap(add, in_axes=None, axis_size=0)(2.0),
    "axis_size, nested": lambda vmap: vmap(vmap(add, in_axes=None, axis_size=3), axis_size=4)(X),
    "axis_name": lambda vmap: vmap(add, axis_name="i")(X),
    "a name that is no text": lambda vmap: vmap(add, axis_name=("a", 1))(X),
    "axis_size of a name": lambda vmap: vmap(lambda a: a * lax.axis_size("i"), axis_name="i")(X),
    "psum of a constant": lambda vmap: vmap(lambda a: a / lax.psum(1, "i"), axis_name="i")(X),
    "in control flow": lambda vmap: vmap(
        lambda a: lax.cond(a > 1, lambda a: a * lax.axis_size("i"), lambda a: a, a), axis_name="i"
    )(X),
    "of the outer one": lambda vmap: vmap(
        vmap(lambda a: a * lax.axis_size("o") + 10 * lax.axis_size("i"), axis_name="i"), axis_name="o"
    )(ROWS),
    "of the outer one, called": lambda vmap: vmap(
        lambda r: vmap(lambda a: a * lax.axis_size("o") + 10 * lax.axis_size("i"), axis_name="i")(r), axis_name="o"
    )(ROWS),
    "in the middle": lambda vmap: vmap(
        lambda r: vmap(lambda a: a * lax.axis_size("o"), axis_name="i")(r).sum(), axis_name="o"
    )(ROWS),
    "of an unmapped result": lambda vmap: vmap(
        lambda a, b: (a, b + lax.axis_size("i")), in_axes=(0, None), out_axes=(0, None), axis_name="i"
    )(X, 1.0),
    "spmd_axis_name": lambda vmap: vmap(add, spmd_axis_name="x")(X),
    "all": lambda vmap: vmap(add, (0, None), 0, "i", 4, "x")(X, 2.0),
}


@pytest.mark.parametrize("case", SAME)
def test_options_of_jax_vmap(case: str) -> None:
    call = SAME[case]
    jax.tree.map(np.testing.assert_array_equal, call(qd.vmap), call(jax.vmap))
    jax.tree.map(np.testing.assert_array_equal, qd.jit(lambda: call(qd.vmap))(), call(jax.vmap))


COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "psum": lambda a: lax.psum(a, "i"),
    "pmax": lambda a: lax.pmax(a, "i"),
    "pmin": lambda a: lax.pmin(a, ("i",)),
    "all_gather": lambda a: lax.all_gather(a, "i"),
    "ppermute": lambda a: lax.ppermute(a, "i", [(0, 1)]),
    "all_to_all": lambda a: lax.all_to_all(jnp.full(4, a), "i", 0, 0),
    "axis_index": lambda a: a + lax.axis_index("i"),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_are_refused_by_name(name: str) -> None:
    f = COLLECTIVES[name]
    forms = (
        f, lambda a: lax.cond(a > 1, f, lambda a: f(a) * 2, a), jax.jit(f), lambda a: lax.map(f, a[None])[0],
        lambda a: qd.vmap(f)(jnp.stack([a, a])).sum(),
    )  # fmt: skip
    for form in forms:
        with pytest.raises(qd.UnsupportedError) as caught:
            qd.vmap(form, axis_name="i")(X)
        text = str(caught.value)
        assert f"`{name}` over the axis 'i' of a qd.vmap: its elements run by themselves, in no order" in text
        assert __file__ in text
        assert "help:" in text
    with pytest.raises(qd.UnsupportedError, match=r"over the axis 'i' of a qd\.vmap"):
        qd.vmap(qd.vmap(f, axis_name="j"), axis_name="i")(np.stack([X] * 4))


def test_what_does_not_fit() -> None:
    with pytest.raises(qd.TraceValueError, match="needs one batch size, got 3, 4") as caught:
        qd.vmap(add, axis_size=3)(X)
    assert "note: axis_size=3 says one of them" in str(caught.value)
    with pytest.raises(TypeError):
        qd.vmap(add, axis_size=1.5)(X)  # type: ignore[arg-type]
    with pytest.raises(NameError, match="unbound axis name: j"):  # as of jax.vmap
        qd.vmap(lambda a: lax.psum(a, "j"), axis_name="i")(X)


# -- memory and loops of a lane


def counted(a):
    c = qd.local(0.0)
    for _ in qd.range(3):
        c += a
    return c.value


def halved(a):
    c = qd.local(a)
    with qd.when(a > 1):
        c.value = a * 10
    for _ in qd.while_(lambda: c.value > 15):
        c.value = c.value * 0.5
    return c.value


def array_of_a_lane(a):
    c = qd.local(jnp.zeros(3))
    for k in qd.range(3):
        c[k] = a + k
    return c[...]


def left_early(a):
    c = qd.local(0)
    for k in qd.range(10):
        qd.break_if(k > a)
        c += 1
    return c


LANES: dict[Callable[..., Any], list[Any]] = {
    counted: [0, 3, 6, 9], halved: [0, 1, 10, 15], left_early: [1, 2, 3, 4],
    array_of_a_lane: [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]],
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("f", LANES, ids=lambda f: f.__name__)
def test_memory_and_loops_of_a_lane(f: Callable[..., Any]) -> None:
    want = np.array(LANES[f])
    np.testing.assert_array_equal(qd.vmap(f)(X), want)
    np.testing.assert_array_equal(qd.jit(lambda x: qd.vmap(f)(x))(X), want)
    square = want.reshape(2, 2, *want.shape[1:])
    np.testing.assert_array_equal(qd.vmap(qd.vmap(f))(X.reshape(2, 2)), square)
    np.testing.assert_array_equal(jax.vmap(qd.vmap(f))(X.reshape(2, 2)), square)


@pytest.mark.full
def test_derivatives_of_loops_in_a_lane() -> None:
    assert jax.grad(lambda x: qd.vmap(counted)(x).sum())(X).tolist() == [3, 3, 3, 3]
    assert jax.grad(lambda x: qd.vmap(halved)(x).sum())(X).tolist() == [1, 1, 5, 5]


def test_advice_of_a_lane_leads_on() -> None:
    """What the refusal of a buffer names can be made there."""

    def buffer(a):
        b = qd.zeros(3)
        return b[0] + a

    with pytest.raises(qd.TraceValueError, match="makes a buffer, which needs to be done outside of loops") as caught:
        qd.vmap(buffer)(X)
    assert "qd.local(jnp.zeros(n))" in str(caught.value)
    assert qd.vmap(lambda a: qd.local(jnp.zeros(3))[0] + a)(X).tolist() == X.tolist()


@pytest.mark.parametrize("jump", [qd.break_if, qd.continue_if])
def test_a_lane_has_to_give_its_result(jump: Any) -> None:
    def f(a):
        jump(a > 1)
        return a

    with pytest.raises(qd.TraceValueError, match=rf"qd.{jump.__name__} cannot leave a lane of qd.vmap"):
        qd.vmap(f)(X)


# -- objects among the arguments


class Line:
    def __init__(self, k: float) -> None:
        self.k = k

    def __call__(self, a):
        return a * self.k


OBJECTS: dict[str, Callable[[Any], Any]] = {
    "an object": lambda vmap: vmap(lambda m, a: m(a), (None, 0))(Line(3.0), X),
    "a function": lambda vmap: vmap(lambda g, a: g(a), (None, 0))(jnp.negative, X),
    "a text": lambda vmap: vmap(lambda s, a: a + len(s), (None, 0))("abc", X),
    "a class": lambda vmap: vmap(lambda t, a: a.astype(t), (None, 0))(np.float16, X),
    "in a tree": lambda vmap: vmap(lambda t, a: a * t["k"] + len(t["s"]), (None, 0))({"s": "ab", "k": 2.0}, X),
    "beside mapped ones": lambda vmap: vmap(lambda t: t[0] * len(t[1]), ((0, None),))((X, "ab")),
    "last": lambda vmap: vmap(lambda a, m: m(a), (0, None))(X, Line(2.0)),
    "nested": lambda vmap: vmap(vmap(lambda m, a: m(a), (None, 0)), (None, 0))(Line(3.0), ROWS),
    "nested by a call": lambda vmap: vmap(lambda r: vmap(lambda m, a: m(a), (None, 0))(Line(3.0), r))(ROWS),
    "in the middle": lambda vmap: vmap(lambda r: vmap(lambda m, a: m(a), (None, 0))(Line(3.0), r).sum())(ROWS),
    "alone": lambda vmap: vmap(lambda m: m(2.0), None, axis_size=3)(Line(3.0)),
    "with a name": lambda vmap: vmap(lambda m, a: m(a) * lax.axis_size("i"), (None, 0), axis_name="i")(Line(3.0), X),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_objects_without_an_axis(case: str) -> None:
    call = OBJECTS[case]
    jax.tree.map(np.testing.assert_array_equal, call(qd.vmap), call(jax.vmap))
    jax.tree.map(np.testing.assert_array_equal, qd.jit(lambda: call(qd.vmap))(), call(jax.vmap))


@pytest.mark.full
def test_objects_are_used_as_they_are() -> None:
    line, mapped = Line(2.0), qd.vmap(lambda m, a: m(a), (None, 0))
    assert mapped(line, X).tolist() == [0, 2, 4, 6]
    line.k = 3.0
    assert mapped(line, X).tolist() == [0, 3, 6, 9]
    assert mapped(Line(4.0), X).tolist() == [0, 4, 8, 12]
    assert jax.grad(lambda x: mapped(line, x).sum())(X).tolist() == [3, 3, 3, 3]


def test_objects_with_an_axis_are_refused() -> None:
    words = "needs an array, a number or a pytree of them where it maps, got "
    with pytest.raises(qd.TraceTypeError, match=f"{words}str") as caught:
        qd.vmap(lambda s, a: a)("abc", X)
    assert "help: give it the entry None in in_axes" in str(caught.value)
    with pytest.raises(qd.TraceTypeError, match=f"{words}Line"):
        qd.vmap(lambda a, m: m(a))(X, m=Line(2.0))


# -- functions under `qd.jit`


@qd.jit
def tripled(a):
    return a * 3


@qd.jit
def summed(row):
    total = qd.local(0.0)
    for k in qd.range(row.shape[0]):
        total += row[k]
    return total.value


@qd.jit
def squares(row):
    out = qd.zeros_like(row)
    for k in qd.range(row.shape[0]):
        out[k] = row[k] * row[k]
    return out


def test_a_compiled_function_is_part_of_a_lane() -> None:
    assert qd.vmap(tripled)(X).tolist() == [0, 3, 6, 9]
    assert qd.vmap(lambda r: summed(r) + 1)(ROWS).tolist() == [4, 13]

    @qd.jit
    def loop(rows):
        out = qd.zeros(rows.shape[0])
        for i in qd.range(rows.shape[0]):
            out[i] = tripled(summed(rows[i]))
        return out

    assert loop(ROWS).tolist() == [9, 36]


def test_one_that_makes_buffers_is_refused_in_a_loop() -> None:
    @qd.jit
    def loop(rows):
        out = qd.zeros(rows.shape[0])
        for i in qd.range(rows.shape[0]):
            out[i] = squares(rows[i]).sum()
        return out

    with qd.options(array_mapping="lanes"):
        mapped = qd.jit(lambda rows: qd.vmap(squares)(rows))
        for call in (mapped, loop):
            with pytest.raises(qd.TraceValueError, match="makes a buffer, which needs to be done outside") as caught:
                call(ROWS)
            assert "here `squares` is called in a loop or lane, and is part of it" in str(caught.value)
            assert "jax.vmap(squares)(rows)" in str(caught.value)
    assert jax.vmap(squares)(ROWS).sum(1).tolist() == [5, 50]


def test_lanes_are_traced_once_more_for_each_function_that_makes_buffers() -> None:
    """Each trace may change Python state, so calls of one function are left whole together."""
    traced: list[int] = []

    def lane(row):
        traced.append(len(traced))
        return squares(squares(squares(row)))

    made = qd.vmap(lane)(ROWS)
    assert len(traced) == 2
    np.testing.assert_array_equal(made, jax.vmap(squares)(jax.vmap(squares)(jax.vmap(squares)(ROWS))))


def test_a_program_that_was_compiled_before_is_refused_in_a_loop() -> None:
    traced_before = jax.jit(squares)
    traced_before(ROWS[0])

    @qd.jit
    def loop(rows):
        out = qd.zeros(rows.shape[0])
        for i in qd.range(rows.shape[0]):
            out[i] = traced_before(jnp.stack([rows[i, 0], rows[i, 1], 1.0])).sum()
        return out

    with pytest.raises(qd.UnsupportedError, match=r"a program of its own.* is called in a loop or lane") as caught:
        loop(ROWS)
    assert "for all elements at once" in str(caught.value)


def two_factors(x):
    return x * 1.2 * 1.3


CALLS: dict[str, Callable[[Any], Any]] = {
    "mapped": lambda x: qd.vmap(two_factors)(x),
    "mapped twice": lambda x: qd.vmap(qd.vmap(two_factors))(x[None])[0],
    "compiled": lambda x: qd.jit(lambda x: qd.vmap(two_factors)(x))(x),
    "by a compiled function of another module": qd.vmap(two_factors),
}


@pytest.mark.parametrize("call", CALLS)
def test_options_of_the_caller_hold_inside(call: str) -> None:
    """Two products stay two without `fast_math`; what the callee says of itself is nearer."""
    x = jnp.ones(8)

    def products(options: dict[str, Any] | None, f: Callable[[Any], Any] = CALLS[call]) -> int:
        return qd.jit(lambda x: f(x), options=options).lower(x).graph().count(" = mul ")

    assert (products(None), products({"fast_math": True}), products({"fast_math": False})) == (1, 1, 2)
    own = qd.jit(lambda x: CALLS[call](x), options={"fast_math": True})
    assert products({"fast_math": False}, lambda x: own(x)) == 1
    with qd.options(fast_math=False):
        assert (products(None), products({"fast_math": True})) == (2, 1)


def test_a_mapped_function_is_debugged() -> None:
    f = qd.jit(lambda x: qd.vmap(lambda x: x / x)(x), options={"debug": "nans"})
    with pytest.raises(qd.QdError, match="nan"):
        jax.block_until_ready(f(jnp.zeros(4)))


@pytest.mark.parametrize("mode", ["lanes", "batch"])
def test_who_works_on_arrays_is_said_of_a_function(mode: str) -> None:
    m = jnp.ones((4, 20, 20))
    low = qd.jit(lambda m: qd.vmap(lambda m: m @ m)(m), options={"array_mapping": mode}).lower(m)
    assert any(task.name.startswith("xla") or "XLA" in str(task) for task in low.tasks) == (mode == "batch"), low.tasks
