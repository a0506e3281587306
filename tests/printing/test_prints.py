"""`jax.debug.print` and `jax.debug.callback` in loops and lanes: what is told, in which order, how often."""

import contextlib
import io
import os
import re
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import QdWarning
from tests import fresh

MODES = pytest.mark.parametrize("debug", [False, True], ids=["native", "debug"])


def told(capsys, function, *args):
    """The lines that a call prints."""
    capsys.readouterr()
    jax.block_until_ready(function(*args))
    jax.effects_barrier()
    return capsys.readouterr().out.splitlines()


@MODES
def test_a_loop_tells_in_the_order_of_its_iterations(capsys, debug):
    @qd.jit(options={"debug": debug})
    def f(x):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = 2 * x[i]
            with qd.when(x[i] > 94):
                jax.debug.print("i={} x={value:.2f}", i, value=x[i])
        return out

    x = jnp.arange(100.0)
    assert told(capsys, f, x) == [f"i={k} x={k}.00" for k in range(95, 100)]
    np.testing.assert_array_equal(f(x), 2 * x)


@pytest.mark.full
@MODES
def test_a_function_that_only_prints_runs(capsys, debug):
    @qd.jit(options={"debug": debug})
    def f(x):
        for i in qd.range(x.shape[0]):
            jax.debug.print("{}", x[i])

    assert told(capsys, f, jnp.arange(3)) == ["0", "1", "2"]
    assert told(capsys, f, jnp.zeros(0, jnp.int32)) == []
    assert told(capsys, jax.jit(lambda x: (f(x), f(x))), jnp.arange(1)) == ["0", "0"]


@pytest.mark.full
@MODES
def test_tasks_between_loops_and_inner_loops(capsys, debug):
    @qd.jit(options={"debug": debug})
    def f(x):
        jax.debug.print("before {}", x[0])
        out = qd.zeros_like(x)
        for i in qd.range(2):
            jax.debug.print("a{}", i)
            for k in qd.range(2):
                jax.debug.print("a{} {}", i, k)
            out[i] = x[i]
        total = jnp.sum(out[...])
        jax.debug.print("between {}", total)
        for i in qd.range(3, 0, -1):
            n = qd.local(0)
            for _ in qd.while_(lambda n=n: n.value < 9):
                qd.break_if(n.value >= 1)
                jax.debug.print("b{} {}", i, n.value)
                n += 1
            jax.debug.print("b{} end", i)
            jax.debug.print("b{} end", i)
        for i in qd.range(2, serial=True):
            jax.debug.print("c{}", i)
        return out

    lines = ["before 1", "a0", "a0 0", "a0 1", "a1", "a1 0", "a1 1", "between 5"]
    lines += [line for i in (1, 2, 3) for line in (f"b{i} 0", f"b{i} end", f"b{i} end")]
    assert told(capsys, f, jnp.array([1, 4])) == [*lines, "c0", "c1"]


@pytest.mark.full
@MODES
def test_dtypes(capsys, debug):
    values = {
        "b": jnp.array([True, False]),
        **{f"{k}{n}": jnp.array([-3 if k == "i" else 250, 7], f"{k}{n}") for k in "iu" for n in ("1", "2", "4")},
        "f2": jnp.array([0.5, 65504], jnp.float16),
        "bf": jnp.array([0.5, 3], jnp.bfloat16),
        "f4": jnp.array([0.1, jnp.nan], jnp.float32),
        "c8": jnp.array([1 - 2j, 0], jnp.complex64),
    }

    @qd.jit(options={"debug": debug})
    def f(values):
        for i in qd.range(2):
            jax.debug.print("{}", [values[name][i] for name in sorted(values)])
            jax.debug.print("{a}", a=jnp.stack([values["f4"][i], 2.5]))

    expected = [line for i in range(2) for line in (
        str([values[name][i] for name in sorted(values)]), str(np.array([values["f4"][i], 2.5], np.float32))
    )]  # fmt: skip
    assert told(capsys, f, values) == expected


@pytest.mark.full
@MODES
def test_wide_dtypes(capsys, debug):
    with jax.enable_x64(True):

        @qd.jit(options={"debug": debug})
        def f(i, u, d, c):
            for k in qd.range(2):
                jax.debug.print("{} {} {} {}", i[k], u[k], d[k], c[k])

        big = [-(2**62) - 3, 5], [2**64 - 1, 2**33], [1e300, 0.1], [1e300 - 2j, 0.1j]
        args = [jnp.array(v, t) for v, t in zip(big, ("int64", "uint64", "float64", "complex128"), strict=True)]
        expected = [" ".join(str(np.asarray(a[k])) for a in args) for k in range(2)]
        assert told(capsys, f, *args) == expected


@pytest.mark.full
def test_keys_and_nothing(capsys):
    @qd.jit
    def f(keys):
        for i in qd.range(2):
            jax.debug.print("key {}", keys[i])
            jax.debug.print("nothing")

    keys = jax.random.split(jax.random.key(0), 2)
    wanted = [line for k in keys for line in (*f"key {k}".splitlines(), "nothing")]
    assert told(capsys, f, keys) == wanted


def test_control_flow_of_lax(capsys):
    def body(x):
        def step(carry, k):
            jax.debug.print("scan {} {}", k, carry)
            return carry + k, None

        total, _ = jax.lax.scan(step, 0, jnp.arange(2))
        jax.lax.cond(x > 1, lambda: jax.debug.print("big {}", x), lambda: jax.debug.print("small {}", x))
        return jax.lax.while_loop(lambda v: v < 3, lambda v: (jax.debug.print("while {}", v), v + 1)[1], x + total)

    def by(mapped):
        return mapped(body)

    x = jnp.array([0, 2, 9])
    lines = [line for v in (0, 2, 9) for line in (
        "scan 0 0", "scan 1 0", f"{'big' if v > 1 else 'small'} {v}", *[f"while {k}" for k in range(v + 1, 3)]
    )]  # fmt: skip
    assert told(capsys, by(qd.vmap), x) == lines


@pytest.mark.full
def test_lanes_that_have_ended_print_nothing(capsys):
    def lane(n):
        return jax.lax.while_loop(lambda k: k < n, lambda k: (jax.debug.print("{} {}", n, k), k + 1)[1], 0)

    counts = np.random.default_rng(0).integers(0, 4, 37)
    assert told(capsys, qd.vmap(lane), counts) == [f"{n} {k}" for n in counts for k in range(n)]
    nested = qd.vmap(lambda row: qd.vmap(lane)(row))
    assert sorted(told(capsys, nested, counts[:36].reshape(6, 6))) == sorted(
        f"{n} {k}" for n in counts[:36] for k in range(n)
    )


@pytest.mark.full
@pytest.mark.parametrize("refill", [True, False])
def test_lanes_that_take_further_elements_tell_of_their_own(capsys, refill):
    counts = np.random.default_rng(0).geometric(0.1, 500).astype(np.int32)

    @qd.jit
    def f(n):
        out = qd.zeros_like(n)
        for i in qd.range(n.shape[0], refill=refill):
            k, v = qd.local(0), qd.local(1.0)
            for _ in qd.while_(lambda k=k, i=i: k.value < n[i]):
                k += 1
                v.value = v.value * 1.5
                with qd.when(v.value > 1e6):
                    jax.debug.print("{} {}", i, k.value)
            out[i] = k
        return out

    lines = [f"{i} {k}" for i, n in enumerate(counts) for k in range(1, n + 1) if 1.5**k > 1e6]
    assert len(lines) > 5
    assert told(capsys, f, counts) == lines
    np.testing.assert_array_equal(f(counts), counts)


def test_a_helper_called_twice_prints_twice(capsys):
    @jax.jit
    def helper(v):
        jax.debug.print("helper {}", v)
        return v * 2

    @qd.jit
    def f(x):
        out = qd.zeros_like(x)
        for i in qd.range(2):
            out[i] = helper(x[i]) + helper(x[i])
        return out

    assert told(capsys, f, jnp.arange(2)) == ["helper 0", "helper 0", "helper 1", "helper 1"]


@MODES
def test_a_condition_around_loops_holds_for_prints(capsys, debug):
    @qd.jit(options={"debug": debug})
    def f(x, wanted):
        with qd.when(wanted):
            jax.debug.print("asked")
            for i in qd.range(2):
                x[i] = x[i] + 1
                jax.debug.print("{}", x[i])
        return x

    assert told(capsys, f, jnp.zeros(2, int), jnp.bool_(True)) == ["asked", "1", "1"]
    assert told(capsys, f, jnp.zeros(2, int), jnp.bool_(False)) == []


def test_a_loop_around_tasks(capsys):
    @qd.jit
    def f(x):
        steps = qd.zeros((), jnp.int32)
        for _ in qd.while_(lambda: steps[()] < 2):
            for i in qd.range(2):
                x[i] = x[i] + 1
                jax.debug.print("{} {}", i, x[i])
            steps[()] += 1
        return x

    assert told(capsys, f, jnp.zeros(2, int)) == ["0 1", "1 1", "0 2", "1 2"]


# -- transformations ---------------------------------------------------------------------------------------------------


@qd.jit
def squares(x):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        jax.debug.print("{}", x[i])
        out[i] = x[i] * x[i]
    return out


X = jnp.arange(3.0)
ONCE = ["0.0", "1.0", "2.0"]


@pytest.mark.full
@pytest.mark.parametrize("outer", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_derivatives_print_what_the_function_prints_once(capsys, outer):
    loss = lambda x: squares(x).sum()  # noqa: E731
    assert told(capsys, outer(jax.grad(loss)), X) == ONCE
    assert told(capsys, outer(lambda x: jax.jvp(squares, (x,), (x,))), X) == ONCE
    assert told(capsys, outer(jax.value_and_grad(loss)), X) == ONCE
    np.testing.assert_array_equal(outer(jax.grad(loss))(X), 2 * X)


def test_derivatives_of_lanes_and_rules(capsys):
    @jax.custom_vjp
    def ruled(v):
        jax.debug.print("value {}", v)
        return v * v

    ruled.defvjp(lambda v: (ruled(v), v), lambda v, c: (2 * v * c,))
    found = told(capsys, jax.grad(lambda x: qd.vmap(ruled)(x).sum()), X)
    assert found == [f"value {v}" for v in ONCE]


def test_a_backward_rule_that_prints_is_warned_of():
    @jax.custom_vjp
    def ruled(v):
        return v * v

    def backward(v, c):
        jax.debug.print("backward {}", v)
        return (2 * v * c,)

    ruled.defvjp(lambda v: (ruled(v), v), backward)
    with pytest.warns(QdWarning, match="in a derivative rule of a function in a loop are left out"):
        found = jax.grad(lambda x: qd.vmap(ruled)(x).sum())(X)
    np.testing.assert_array_equal(found, 2 * X)


def test_batches_print_element_by_element(capsys):
    x = jnp.arange(6.0).reshape(2, 3)
    assert told(capsys, jax.vmap(squares), x) == [str(float(k)) for k in range(6)]
    assert told(capsys, jax.jit(jax.vmap(jax.vmap(squares))), x[None]) == [str(float(k)) for k in range(6)]


def test_a_loop_of_jax_around_calls(capsys):
    def run(x):
        return jax.lax.fori_loop(0, 2, lambda _, x: squares(x), x)

    assert told(capsys, jax.jit(run), X) == [*ONCE, "0.0", "1.0", "4.0"]


def test_donated_arguments(capsys):
    f = jax.jit(lambda x: squares(x), donate_argnums=0)
    assert told(capsys, f, jnp.arange(3.0)) == ONCE


# -- how many ----------------------------------------------------------------------------------------------------------


def test_lines_that_are_left_out_are_counted(capsys):
    with qd.options(print_lines=5):
        lines = told(capsys, squares, jnp.arange(1000.0))
    assert lines[-1] == "995 more lines of `squares` were left out (option print_lines=5)"
    numbers = [float(v) for v in lines[:-1]]
    assert len(numbers) == 5
    assert numbers == sorted(numbers)
    with qd.options(print_lines=0):
        assert told(capsys, squares, X) == ["3 more lines of `squares` were left out (option print_lines=0)"]


def test_the_limit_is_that_of_a_call(capsys):
    @qd.jit(options={"print_lines": 4})
    def f(x):
        for name in "ab":
            for i in qd.range(3):
                jax.debug.print(name + "{}", i)

    lines = ["a0", "a1", "a2", "b0", "2 more lines of `f` were left out (option print_lines=4)"]
    assert told(capsys, f, X) == lines


@pytest.mark.full
def test_a_million_records(capsys):
    n = 1_000_000

    @qd.jit
    def f(x):
        for i in qd.range(n):
            jax.debug.print("{}", i)

    lines = told(capsys, f, X)
    assert len(lines) == 1001
    assert lines[-1].startswith("999000 more lines")


@pytest.mark.full
def test_two_threads(capsys):
    @qd.jit
    def f(x, name):
        for i in qd.range(100):
            jax.debug.print("{} {}", name, i)
        return x + name

    f(X, 0).block_until_ready()
    jax.effects_barrier()
    capsys.readouterr()
    threads = [threading.Thread(target=lambda k=k: f(X, k).block_until_ready()) for k in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    jax.effects_barrier()
    lines = capsys.readouterr().out.splitlines()
    for k in (1, 2):
        assert [line for line in lines if line.startswith(f"{k} ")] == [f"{k} {i}" for i in range(100)]


# -- callbacks ---------------------------------------------------------------------------------------------------------


@MODES
def test_callbacks_get_values(debug):
    seen = []

    @qd.jit(options={"debug": debug})
    def f(x):
        for i in qd.range(x.shape[0]):
            jax.debug.callback(lambda i, *, v: seen.append((int(i), float(v))), i, v=x[i], ordered=True)

    f(X)
    jax.effects_barrier()
    assert seen == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_callbacks_that_are_left_out_are_warned_of():
    seen = []

    def note(i):
        seen.append(int(i))
        time.sleep(0)

    @qd.jit(options={"print_lines": 2})
    def f(x):
        for i in qd.range(3):
            jax.debug.callback(note, i)

    with pytest.warns(QdWarning, match=re.escape("1 records of `f` were left out, callbacks among them")):
        jax.block_until_ready((f(X), jax.effects_barrier()))
    assert seen == [0, 1]


@MODES
def test_a_callback_that_raises_fails_the_call(debug):
    @qd.jit(options={"debug": debug})
    def f(x):
        out = qd.zeros_like(x)
        for i in qd.range(3):
            jax.debug.callback(_refuse, i)
            out[i] = x[i]
        return out

    with pytest.raises(Exception, match="no such thing"):
        jax.block_until_ready(f(X))
    with contextlib.suppress(Exception):  # JAX may tell it again
        jax.effects_barrier()
    assert squares(X).tolist() == [0, 1, 4]


def _refuse(i):
    raise ValueError("no such thing")


def test_arrays_of_many_elements_are_refused():
    @qd.jit
    def f(x):
        for i in qd.range(2):
            jax.debug.print("{}", jnp.sum(x[...]) + jnp.arange(300.0) * i)

    with pytest.raises(qd.UnsupportedError, match=r"`jax.debug.print` needs an array of at most 256 elements"):
        f(X)


# -- jax.debug.breakpoint ----------------------------------------------------------------------------------------------


def _stopped(answers, shown, debug):
    @qd.jit(options={"debug": debug})
    def f(x):
        for i in qd.range(x.shape[0]):
            other = x[i]
            x[i] = other
        for j in qd.range(x.shape[0]):
            v = qd.local(x[j] * 10)
            with qd.when(v.value > 15):
                jax.debug.breakpoint(stdin=io.StringIO(answers), stdout=shown)
            x[j] = v
        return x

    return f(X)


@pytest.mark.full
def test_a_breakpoint_shows_the_values_of_the_iteration():
    shown = io.StringIO()
    assert _stopped("p j\np v\np other\np x\nc\n", shown, True).tolist() == [0, 10, 20]
    jax.effects_barrier()
    answers = [line.removeprefix("(jdb) ") for line in shown.getvalue().splitlines() if line.startswith("(jdb) ")]
    unseen = "<not known at this breakpoint: a value of another loop, a buffer, or an array of many elements>"
    assert answers[:4] == ["Array(2, dtype=int32)", "Array(20., dtype=float32)", unseen, unseen]


def test_a_breakpoint_looks_at_variables_that_hold_themselves():
    shown, ring = io.StringIO(), []
    ring.append({"ring": ring})

    def f(x):
        for j in qd.range(x.shape[0]):
            inside = ring  # noqa: F841 - a variable of the frame
            with qd.when(x[j] > 1):
                jax.debug.breakpoint(stdin=io.StringIO("p j\np inside\nc\n"), stdout=shown)
        return x

    qd.jit(f, options={"debug": True})(X)
    jax.effects_barrier()
    answers = [line.removeprefix("(jdb) ") for line in shown.getvalue().splitlines() if line.startswith("(jdb) ")]
    assert answers[0] == "Array(2, dtype=int32)"
    assert "inside" in answers[1]  # an error: it is not shown


def test_a_breakpoint_needs_the_interpreter():
    with pytest.raises(qd.UnsupportedError) as caught:
        _stopped("", io.StringIO(), False)
    text = str(caught.value)
    assert text.startswith("jax.debug.breakpoint needs a program that runs step by step, got machine code\n")
    assert 'options={"debug": True}' in text
    assert "jax.debug.breakpoint(stdin" in text


# -- other processes and devices ---------------------------------------------------------------------------------------


def test_a_cached_artifact_of_another_process(tmp_path):
    program = """
import sys, jax, jax.numpy as jnp, qdtrace as qd
from qdtrace.stats import stats

@qd.jit
def f(x):
    for i in qd.range(x.shape[0]):
        jax.debug.callback(lambda v: print(sys.argv[1], float(v)), x[i])

f(jnp.arange(2.0))
jax.effects_barrier()
print(stats().compiled)
"""
    file = tmp_path / "program.py"
    file.write_text(program)
    env = {**os.environ, "QD_OFFLINE_CACHE": "1", "QD_OFFLINE_CACHE_DIR": str(tmp_path / "cache")}
    env["PYTHONPATH"] = str(Path(qd.__file__).parent.parent)
    found = [fresh.run([sys.executable, str(file), name], env=env, check=True).stdout for name in ("first", "second")]
    assert found[0].splitlines()[:2] == ["first 0.0", "first 1.0"]
    assert found[1].splitlines() == ["second 0.0", "second 1.0", "0"]
