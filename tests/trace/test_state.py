# ruff: noqa: UP028
"""One trace at a time and apart: threads, exceptions, nesting, caches of JAX, dead values."""

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.trace import context, markers
from qdtrace.trace.markers import REGIONS
from qdtrace.trace.trace import trace_function
from qdtrace.trace.tree import body_of, equations_in

X = np.ones(8, np.float32)


def good(x):
    for i in qd.range(8):
        x[i] += 1.0
    return x


def names(traced):
    return [e.primitive.name for e in equations_in(traced.root.items)]


GOOD = ["qd_buffer", "qd_for", "qd_accum", "qd_read"]


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda: qd.range(3), "qd.range"),
        (lambda: qd.ndrange(3), "qd.ndrange"),
        (lambda: qd.while_(lambda: True), "qd.while_"),
        (lambda: qd.when(True).__enter__(), "qd.when"),
        (lambda: qd.otherwise().__enter__(), "qd.otherwise"),
        (lambda: qd.zeros(3), "qd.zeros"),
        (lambda: qd.copy(X), "qd.copy"),
        (lambda: qd.local(0.0), "qd.local"),
        (lambda: qd.break_if(True), "qd.break_if"),
        (lambda: qd.continue_if(True), "qd.continue_if"),
        (lambda: qd.atomic_add(X, 0, 1), "qd.atomic_add"),
        (lambda: markers.store_p.bind(X, 1.0, slices=((0, 8, 1),)), "`b[i] = v`"),
    ],
)
def test_outside_of_a_trace(use, name) -> None:
    with pytest.raises(TraceValueError) as caught:
        use()
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{name} is used outside of a function decorated with qd.jit"
    assert lines[1].startswith(f"  at {__file__}:")
    assert lines[-1] == "help: move it into a function and decorate that with @qd.jit"


def test_a_buffer_kept_from_an_ended_trace() -> None:
    kept = []
    trace_function(lambda x: kept.append(x), (X,))
    with pytest.raises(TraceValueError, match=r"^b\[i\] is used outside of a function decorated with qd.jit"):
        kept[0][0]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_exception_leaves_nothing_behind(depth) -> None:
    def bad(x):
        if depth == 0:
            raise KeyError("mine")
        for i in qd.range(8):
            if depth == 1:
                raise KeyError("mine")
            with qd.when(x[i] > 0):
                for _ in qd.while_(lambda: True):
                    raise KeyError("mine")
        return x

    with pytest.raises(KeyError, match="mine"):
        trace_function(bad, (X,))
    assert context.get_current() is None
    assert names(trace_function(good, (X,))) == GOOD


def test_an_error_that_the_user_catches_still_ends_the_trace() -> None:
    def body(x):
        try:
            for i in qd.range(8):
                x[i] = 1
                break
            x[0] = 2
        except TraceValueError:
            pass
        return x

    with pytest.raises(TraceValueError, match="must run to its end"):
        trace_function(body, (X,))


def test_a_caught_refusal_outside_of_loops_does_not_matter() -> None:
    def body(x):
        try:
            x[99] = 1
        except IndexError:
            x[0] = 1
        return x

    assert names(trace_function(body, (X,))) == ["qd_buffer", "qd_store", "qd_read"]


def test_threads_trace_at_the_same_time() -> None:
    barrier = threading.Barrier(4)
    results: list[list[str]] = []
    errors: list[BaseException] = []

    def work(k: int) -> None:
        def body(x):
            barrier.wait()
            for i in qd.range(8):
                barrier.wait()
                c = qd.local(x[i])
                for j in qd.range(k + 1):
                    c += x[j]
                barrier.wait()
                x[i] = c
            return x

        try:
            for _ in range(3):
                results.append(names(trace_function(body, (X,))))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(results) == 12
    assert all(r == results[0] for r in results)


def test_another_thread_is_not_in_the_trace() -> None:
    seen = []

    def body(x):
        thread = threading.Thread(target=lambda: seen.append(context.get_current()))
        thread.start()
        thread.join()
        return x

    trace_function(body, (X,))
    assert seen == [None]


def test_traces_nest() -> None:
    seen = []

    def inner(y):
        seen.append(context.get_current())
        for i in qd.range(y.shape[0]):
            y[i] = 2
        return y

    def outer(x):
        seen.append(context.get_current())
        for i in qd.range(8):
            x[i] = 1
        assert names(trace_function(inner, (X,))) == ["qd_buffer", "qd_for", "qd_store", "qd_read"]
        seen.append(context.get_current())
        x[0] = 3
        return x

    assert names(trace_function(outer, (X,))) == ["qd_buffer", "qd_for", "qd_store", "qd_store", "qd_read"]
    first, nested, again = seen
    assert first is again
    assert nested not in (None, first)


def test_the_function_runs_at_every_trace() -> None:
    runs = []

    def body(x):
        runs.append(1)
        return x

    trace_function(body, (X,))
    trace_function(body, (X,))
    assert len(runs) == 2


# -- helpers that JAX caches -------------------------------------------------------------------------------------------

STATE = {}


@jax.jit
def through_a_global(i):
    STATE["b"][i] = 1.0
    return i


def uses_global(x):
    STATE["b"] = x
    through_a_global(0)
    return x


def test_a_cached_helper_with_a_buffer_of_an_earlier_trace() -> None:
    through_a_global.clear_cache()
    assert names(trace_function(uses_global, (X,))) == ["qd_buffer", "qd_store", "qd_read"]
    with pytest.raises(TraceValueError) as caught:
        trace_function(uses_global, (X,))
    lines = str(caught.value).splitlines()
    assert lines[0] == "a function `through_a_global` cached by jax.jit holds a buffer or value of an earlier trace"
    assert lines[-1] == "help: pass it to the function as an argument, or drop the jax.jit around the function"
    STATE.clear()


@jax.jit
def pure_through_a_global(i):
    return STATE["v"] * i


def uses_global_value(x):
    STATE["v"] = x[0]
    x[1] = pure_through_a_global(2.0)
    return x


def test_a_cached_helper_with_a_value_of_an_earlier_trace() -> None:
    pure_through_a_global.clear_cache()
    trace_function(uses_global_value, (X,))
    with pytest.raises(TraceValueError, match=r"cached by jax.jit holds a buffer or value of an earlier trace"):
        trace_function(uses_global_value, (X,))
    STATE.clear()


def test_values_of_an_enclosing_jit_are_not_dead() -> None:
    found = []

    @jax.jit
    def outer(scale):
        table = scale * jnp.arange(4.0)

        def body(x):
            for i in qd.range(8):
                x[i] = x[i] * scale + table[i % 4]
            return x

        for _ in range(2):
            traced = trace_function(body, (X,))
            found.append(len(traced.root.constants))
        return scale

    outer(2.0)
    assert found == [2, 2]


@jax.jit
def total(b):
    return jnp.sum(b[...])


@jax.jit
def fill(b):
    b[...] = 1.0
    return 0


@jax.jit
def scratch():
    b = qd.zeros(3)
    b[0] = 1.0
    return b[0]


@jax.jit
def in_cell(v):
    c = qd.local(v)
    c += 1
    return c.value


def test_a_helper_cached_outside_loops_works_in_one(tree) -> None:
    def body(x):
        a = total(x)
        fill(x)
        for i in qd.range(8):
            fill(x)
            x[i] = total(x) + a
        return x

    assert tree(body, X) == "buffer\nread\nassign\nfor\n  store\n  load\n  store\nread"


def test_helpers_cached_in_another_place_are_checked(refusal) -> None:
    def big_outside(x):
        return total(x)

    def big_inside(x):
        for i in qd.range(8):
            x[i] = total(x)

    def makes_outside(x):
        return scratch()

    def makes_inside(x):
        for i in qd.range(8):
            x[i] = scratch()

    def cell_inside(x):
        for i in qd.range(8):
            x[i] = in_cell(1.0)

    def cell_outside(x):
        return in_cell(1.0)

    big = np.ones(1000, np.float32)
    trace_function(big_outside, (big,))
    text = refusal(TraceTypeError, big_inside, big)
    assert text.splitlines()[0].startswith(
        "inside a loop at most 256 elements may be used as one value, this buffer has 1000"
    )
    trace_function(makes_outside, (X,))
    assert refusal(TraceValueError, makes_inside, X).splitlines()[0] == (
        "a buffer needs to be made outside of loops and conditions"
    )
    trace_function(cell_inside, (X,))
    assert refusal(TraceValueError, cell_outside, X).splitlines()[0] == (
        "a qd.local belongs to one iteration, it needs to be made inside a loop"
    )


@jax.jit
def stops(c):
    qd.break_if(c)
    return 0


def test_a_cached_break_is_checked(refusal) -> None:
    def serial(x):
        for i in qd.range(8, serial=True):
            stops(x[i] > 0)

    def parallel(x):
        for i in qd.range(8):
            stops(x[i] > 0)

    trace_function(serial, (X,))
    assert refusal(TraceValueError, parallel, X).splitlines()[0] == (
        "qd.break_if cannot leave an outermost qd.range, whose iterations run in parallel"
    )


def test_a_range_left_open_by_a_jitted_helper(refusal) -> None:
    held = []

    def rows():
        for i in qd.range(3):
            yield i

    @jax.jit
    def opens(b):
        held.append(rows())
        b[next(held[0])] = 1.0
        return 0

    def body(x):
        opens(x)
        return x

    text = refusal(TraceValueError, body, X).splitlines()
    assert text[0] == "the body of a qd.range must run to its end, it was left early"


# -- other tools of JAX ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("young_heap")
def test_jax_debugging_tools() -> None:
    def body(x):
        for i in qd.range(8):
            jax.debug.print("x {}", x[i])
            x[i] = 1
        return x

    with jax.checking_leaks():
        assert "debug_print" in str(names(trace_function(body, (X,)))) or "debug_callback" in str(
            names(trace_function(body, (X,)))
        )
    with jax.disable_jit():
        assert "qd_store" in names(trace_function(body, (X,)))


@pytest.mark.usefixtures("young_heap")
def test_an_ended_trace_can_be_collected() -> None:
    def body(x):
        big = jnp.ones(5)
        refs.append(weakref.ref(context.get_current()))
        for i in qd.range(8):
            x[i] = big[0]
        return x

    refs: list[weakref.ref] = []
    trace_function(body, (X,))
    gc.collect()
    assert refs[0]() is None


def test_regions_of_inner_jaxprs() -> None:
    from qdtrace.trace.regions import restructure

    def body(x):
        def step(k, c):
            for j in qd.range(3):
                x[j] += c
            return c

        for i in qd.range(8):
            jax.lax.fori_loop(0, 3, step, x[i])
        return x

    traced = trace_function(body, (X,))
    scan = next(e for e in equations_in(traced.root.items) if e.primitive.name == "scan")
    root = restructure(scan.params["jaxpr"])
    (loop,) = (item for item in root.items if item.primitive in REGIONS)
    assert [e.primitive.name for e in body_of(loop).eqns] == ["qd_accum"]


def test_dead_code_and_empty_conditions_are_pruned(tree) -> None:
    def body(x):
        for i in qd.range(8):
            unused = jnp.sin(x[i]) + 1
            with qd.when(unused > 0):
                _ = x[i] * 2
            x[i] = 1
        return x

    assert tree(body, X, full=True) == "buffer\nfor\n  store\nread"


def test_arguments_that_are_no_arrays() -> None:
    for value, kind in [("text", "str"), (np.array(["a"]), "an array of <U1"), (object(), "object")]:
        with pytest.raises(TraceTypeError) as caught:
            trace_function(lambda x, mode: x, (X, {"m": value}))
        assert str(caught.value) == (
            f"the argument `mode['m']` needs to be an array, a number or a pytree of them, got {kind}\n"
            "help: make it static: qd.jit(f, static_argnames='mode'), or register its class with qd.dataclass"
        )
