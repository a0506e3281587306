"""Pure functions found on disk do what traced ones do: results, errors, derivatives, transformations of JAX."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.compose.traces import BASE, FILE, HEAD, LOOP, SMALL, X, is_found, module, plain, reasons, run, same

ROOT = Path(__file__).parents[2]

RESULTS = {
    "argument as it is": "    return {'x': x, 'y': (y, None)}",
    "buffer twice": "    return [y, y]",
    "nothing else": "    return y",
    "tuple": "    return (y,)",
}


@pytest.mark.parametrize("returned", RESULTS)
def test_results_have_their_tree(pure, returned):
    text = HEAD + "def f(x, z):\n    y = qd.zeros(x.shape[0], x.dtype)\n" + LOOP + "y[i] = x[i] + z[i]\n"
    text += RESULTS[returned]
    expected = plain(module(text).f, X, X * 2)
    for k in range(2):
        result, work = run(module(text).f, X, X * 2)
        assert same(result, expected)
        assert is_found(work) == bool(k)


LANGUAGE = {
    "comprehensions": "c = [k * 0.5 for k in range(4)]\n    d = {k: k + 1.0 for k in c}\n    s = sum(c) + d[0.5]",
    "unpacking": "(a, *b), c = (1, 2, 3), [4.0]\n    s = a + b[1] + c[0]",
    "star arguments": "g = lambda *a, k=1.0, **n: a[0] * k + n['m']\n    s = g(*[2.0], **{'k': 3.0, 'm': 1})",
    "exceptions": "try:\n        s = [1.0][2]\n    except IndexError as e:\n        s = 2\n    else:\n        s += 1",
    "generator": "def g(n):\n        for k in range(n):\n            yield k * 1.5\n    s = sum(g(4))",
    "nested functions": "n = 1\n    def g():\n        nonlocal n\n        n += 1\n        return n\n    s = g() + g()",
    "slices": "c = [1.0, 2.0, 3.0]\n    c[0:2] = [5.0]\n    del c[0]\n    s = c[-1] + len(c[::2])",
    "text": "name = f'{x.ndim:03d}{x.shape!r}'\n    s = len(name) + ('a' in name)",
    "conditions": "s = 1.0 if x.ndim == 1 and x.shape[0] in (3, 7) and x is not None else 2.0",
    "loops": "s = 0\n    while s < 4:\n        s += 1\n        if s > 2:\n            break\n    else:\n        s = 9",
    "match": "match x.shape:\n        case (n,):\n            s = n * 1.0\n        case _:\n            s = 0.0",
    "walrus": "s = (n := x.shape[0]) * 2.0 + n",
    "assertions": "assert x.ndim == 1, 'a vector'\n    s = 2.0",
    "recursion": "def g(n):\n        return 1.0 if n == 0 else g(n - 1) * 1.5\n    s = g(3)",
    "numpy": "a = np.arange(3.0)\n    a[1] = 7\n    s = float(a.sum()) + np.float32(2) + math.pi",
    "reduce": "s = functools.reduce(operator.add, map(lambda k: k * 2.0, itertools.chain([1], (2, 3))))",
}


@pytest.mark.parametrize("form", LANGUAGE)
def test_python_before_a_loop_is_known(pure, form):
    head = "import functools, itertools, math, operator\nimport numpy as np\nimport qdtrace as qd\n"
    text = head + f"def f(x):\n    {LANGUAGE[form]}\n" + LOOP + "x[i] = x[i] * s\n    return x\n"
    expected = plain(module(text).f, X)
    for k in range(2):
        result, work = run(module(text).f, X)
        assert same(result, expected)
        assert is_found(work) == bool(k), work.misses


def test_a_donated_argument_is_overwritten(pure):
    text = HEAD + "def f(x):\n    y = qd.empty(x.shape, x.dtype)\n" + LOOP + "y[i] = x[i] * 2\n    return y"
    for k in range(2):
        given = X + 0
        result, work = run(module(text).f, given, donate_argnums=0)
        assert same(result, 2 * np.asarray(X))
        assert given.is_deleted()
        assert is_found(work) == bool(k)


@pytest.mark.full
def test_limits_of_arguments_are_those_of_the_call(pure):
    text = HEAD + "def f(x, row):\n" + LOOP.replace("x.shape[0]", "2") + "v = qd.local(x[i])\n"
    text += "        for k in qd.range(row[i], row[i + 1]):\n            v.value = jnp.sin(v.value) * x[k]\n"
    text += "        x[i] = v.value\n    return x"
    grad = jax.grad(lambda x, f, row: qd.jit(f, bounds_from="row")(x, row)[0])
    for ends in ([0, 2, 5], [0, 1, 7], [0, 2, 5], [0, 1, 7]):
        row = jnp.array(ends)
        with qd.options(offline_cache=False):
            expected = grad(X, module(text).f, row)
        assert np.allclose(grad(X, module(text).f, row), expected, rtol=1e-6)


@pytest.mark.full
def test_limits_are_those_of_one_argument_of_two_of_a_type(pure):
    """JAX has one object for both types."""
    text = HEAD + "def f(x, row, ends):\n" + LOOP.replace("x.shape[0]", "2") + "v = qd.local(x[i])\n"
    text += "        for k in qd.range(row[i], row[i + 1]):\n            v.value = jnp.sin(v.value) * x[k]\n"
    text += "        for k in qd.range(ends[i], ends[i + 1]):\n            v.value = jnp.sin(v.value) + x[k % 7]\n"
    text += "        x[i] = v.value\n    return x"
    row, ends = jnp.array([0, 2, 4]), jnp.array([0, 40, 100])
    grad = jax.grad(lambda x, f: qd.jit(f, bounds_from="row")(x, row, ends)[0])
    with qd.options(offline_cache=False):
        expected = grad(X, module(text).f)
    for k in range(2):
        _, work = run(module(text).f, X, row, ends, bounds_from="row")
        assert is_found(work) == bool(k)
    for _ in range(2):
        assert np.allclose(grad(X, module(text).f), expected, rtol=1e-6)


@pytest.mark.full
def test_arguments_by_name(pure):
    text = HEAD + "def f(x, *, n, y=None):\n" + LOOP + "x[i] = x[i] * n + (0 if y is None else y[i])\n    return x"
    calls = [{"n": 2}, {"n": 3}, {"n": 2, "y": X}, {"n": 2}]
    for k, kwargs in enumerate([*calls, *calls]):
        before = qd.stats()
        result = np.asarray(qd.jit(module(text).f, static_argnames="n")(X, **kwargs))
        assert np.array_equal(result, np.asarray(X) * kwargs["n"] + (0 if "y" not in kwargs else np.asarray(X)))
        assert is_found(qd.stats() - before) == (k >= 3)


@pytest.mark.full
def test_captured_arrays_come_back(pure):
    text = HEAD + "a = jnp.arange(500.0)\ndef f(x):\n" + LOOP + "x[i] = x[i] + a[70 * i]\n    return x"
    expected = plain(module(text).f, X)
    for k in range(2):
        result, work = run(module(text).f, X)
        assert same(result, expected)
        assert is_found(work) == bool(k)


def test_a_check_that_fails_names_its_line(pure):
    text = HEAD + "def f(x, k):\n" + LOOP + "x[i] = x[i + k]\n    return x"
    run(module(text).f, X, 0)
    _, work = run(module(text).f, X, 0)
    assert is_found(work)
    told = []
    for on in (True, False):
        with qd.options(offline_cache=on), pytest.raises(qd.BoundsError, match=f"{FILE}:7 in f") as error:
            qd.jit(module(text).f)(X, 3)
        told.append(str(error.value))
    assert told[0] == told[1]


WAVES = (
    HEAD
    + """
def f(x):
    y = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        y[i] = jnp.sin(x[i]) * x[i] + a
    z = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        z[i] = y[i] * y[(i + 1) % x.shape[0]]
    return z
"""
)


def exported(g):
    allowed = [jax.export.DisabledSafetyCheck.custom_call("qdtrace_program")]
    return jax.export.deserialize(jax.export.export(jax.jit(g), disabled_checks=allowed)(X).serialize())


TRANSFORMED = {
    "grad": lambda g: jax.grad(lambda x: g(x).sum())(X),
    "jit of grad": lambda g: jax.jit(jax.grad(lambda x: g(x).sum()))(X),
    "grad of grad": lambda g: jax.grad(lambda x: jax.grad(lambda x: g(x).sum())(x).sum())(X),
    "jvp": lambda g: jax.jvp(g, (X,), (jnp.ones_like(X),))[1],
    "vmap": lambda g: jax.vmap(g)(jnp.stack([X, 2 * X])),
    "grad of vmap": lambda g: jax.grad(lambda x: jax.vmap(g)(x).sum())(jnp.stack([X, 2 * X])),
    "vmap of grad": lambda g: jax.vmap(jax.grad(lambda x: g(x).sum()))(jnp.stack([X, 2 * X])),
    "linearize": lambda g: jax.linearize(g, X)[1](X),
    "scan": lambda g: jax.lax.scan(lambda c, _: (g(c), c.sum()), X, None, 3)[1],
    "checkpoint": lambda g: jax.grad(lambda x: jax.checkpoint(g)(x).sum())(X),
    "export": lambda g: exported(g).call(X),
    "lower": lambda g: (g.lower(X).graph("trace"), g.lower(X).graph())[0] and X,
}


@pytest.mark.full
@pytest.mark.parametrize("kind", TRANSFORMED)
def test_transformations_of_a_found_program(pure, kind):
    """In a process where derivatives are not on disk, and in one where they are."""
    transformed = TRANSFORMED[kind]
    with qd.options(offline_cache=False):
        expected = np.asarray(transformed(qd.jit(module(WAVES, a=1.0).f)))
    run(module(WAVES, a=1.0).f, X)
    for k in range(3):
        before = qd.stats()
        result = np.asarray(transformed(qd.jit(module(WAVES, a=1.0).f)))
        work = qd.stats() - before
        assert np.allclose(result, expected, rtol=1e-6)
        assert work.hits["pure"] >= 1
        assert not k or work.derivations == 0


def test_gradients_of_a_found_program_have_lines(pure):
    run(module(WAVES, a=1.0).f, X)
    graph = qd.jit(jax.grad(lambda x: qd.jit(module(WAVES, a=1.0).f)(x).sum())).lower(X).graph()
    expected = qd.jit(jax.grad(lambda x: qd.jit(module(WAVES, a=1.0).f)(x).sum()))
    with qd.options(offline_cache=False):
        assert graph == expected.lower(X).graph()


def broken():
    """A function that is found, and the module that its promise is broken in."""
    run(module(WAVES, a=1.0).f, X)
    m = module(WAVES, a=1.0)
    g = qd.jit(m.f)
    g(X)
    return m, g


def test_a_derivative_of_another_program_is_refused(pure):
    m, g = broken()
    m.a = 2.0
    with pytest.raises(qd.TraceValueError) as error:
        jax.grad(lambda x: g(x).sum())(X)
    assert str(error.value) == (
        "f: said to be pure, but another program now than the one on disk\n"
        "note: it has `v8: f32 = add v7 2.0:f32` where there was `v8: f32 = add v7 1.0:f32`\n"
        "help: leave `pure` out, or pass what changes as an argument (docs/saving.md)"
    )


CHANGES = {
    "environment": ("    s = float(os.environ['RATE'])\n", "x[i] = x[i] * s", "return x"),
    "operand": ("    s = jnp.array([float(os.environ['RATE'])] * 3)\n", "x[i] = x[i] * s[i % 3]", "return x"),
    "results": ("    s = os.environ['RATE'] == '2'\n", "x[i] = x[i] * 2", "return (x, z) if s else (z, x)"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_check_traces_beside_what_was_found(pure, what, monkeypatch):
    head, body, returned = CHANGES[what]
    text = HEAD + "def f(x, z):\n" + head + LOOP + f"{body}\n    {returned}"
    monkeypatch.setenv("RATE", "2")
    expected, _ = run(module(text).f, X, X + 1)
    for check in (False, True):
        with qd.options(pure_check=check):
            result, work = run(module(text).f, X, X + 1)
        assert same(result, expected)
        assert (work.hits.get("pure"), work.traces) == (1, int(check))
    monkeypatch.setenv("RATE", "3")
    with qd.options(pure_check=True), pytest.raises(qd.TraceValueError, match="said to be pure, but another program"):
        run(module(text).f, X, X + 1)
    assert same(run(module(text).f, X, X + 1)[0], expected)  # the word was given


def test_the_word_is_given_to_a_function_or_a_map(pure):
    with qd.options(pure=False):
        for k in range(2):
            f, g = module(SMALL).f, module(SMALL.replace("def f", "def g(v): return v * 2\ndef f")).g
            assert is_found(run(f, X, pure=True)[1]) == bool(k)
            before = qd.stats()
            assert qd.vmap(g, pure=True)(X).tolist() == (2 * X).tolist()
            assert is_found(qd.stats() - before) == bool(k)
            assert run(module(SMALL).f, X)[1].traces == 1
    assert run(module(SMALL).f, X, pure=False)[1].traces == 1
    assert is_found(run(module(SMALL).f, X)[1])


class OwnPickle:
    def __getstate__(self):
        return {}


PUSHED = """
def pushed(x):
    out = qd.append(99, like=0.0)
    for i in qd.range(x.shape[0]):
        with qd.when(x[i] > 1):
            out.push(x[i])
    return out.count
"""
NO_KEY = {
    "lock": ("import threading\ns = threading.Lock()\n", "s and 2", "cannot pickle '_thread.lock' object"),
    "generator": ("s = iter(k for k in [2])\n", "s and 2", "cannot pickle 'generator' object"),
    "large array": ("s = np.ones(1 << 20)\n", "s[0]", "large array"),
    "objects": ("s = np.array([None])\n", "len(s)", "array of objects"),
    "a pickle of its own": ("", "s and 2", "object of OwnPickle, which says how it is pickled"),
    "import": ("def s():\n    import not_yet\n", "s and 2", "import of not_yet"),
    "floats that decide pushes": (PUSHED, "pushed(x)", "options that the trace has changed"),
    "array code": ("s = 2.0\n", "jnp.sort(x[...])[0]", "array code around the program"),
}


@pytest.mark.parametrize("what", NO_KEY)
def test_what_has_no_key_is_traced_and_counted(pure, what):
    head, value, reason = NO_KEY[what]
    text = HEAD + head + f"def f(x):\n    k = {value}\n" + LOOP + "x[i] = x[i] * k\n    return x"
    for _ in range(2):
        _, work = run(module(text, **({"s": OwnPickle()} if not head else {})).f, X)
        assert work.traces == 1
        assert reason in reasons(work)


@pytest.mark.parametrize("options", [{"debug": True}, {"verify": True}, {"offline_cache": False}])
def test_what_writes_no_graph_is_traced(pure, options):
    run(module(SMALL).f, X)
    with qd.options(**options):
        _, work = run(module(SMALL).f, X)
    assert (work.traces, len(reasons(work))) == (1, 1)


def test_a_line_above_moves_the_lines_of_errors(pure):
    text = HEAD + "def f(x):\n" + LOOP + "x[i] = x[i + K]\n    return x"
    text = text.replace("K", "x.shape[0]")
    for lines in (0, 0, 3, 3):
        with pytest.raises(qd.BoundsError, match=f"{FILE}:{7 + lines} in f"):
            run(module("\n" * lines + text).f, X)


def test_damaged_files_are_traced_anew(pure):
    first, _ = run(module(SMALL).f, X)
    for path in pure.iterdir():
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    result, work = run(module(SMALL).f, X)
    assert reasons(work) == {"damaged"}
    assert same(result, first)
    assert is_found(run(module(SMALL).f, X)[1])


@pytest.mark.full
def test_equal_programs_with_other_derivatives(pure):
    """The graph of both is the same; a rule of JAX makes the difference."""
    text = HEAD + "def f(x):\n" + LOOP + "x[i] = HOW(x[i]) * x[i]\n    return x"
    stopped, plain_one = text.replace("HOW", "jax.lax.stop_gradient"), text.replace("HOW", "")
    for one in (stopped, plain_one):
        run(module(one).f, X)
    for _ in range(2):
        grads = [np.asarray(jax.grad(lambda x, t=t: qd.jit(module(t).f)(x).sum())(X)) for t in (stopped, plain_one)]
        assert np.array_equal(grads[0], X)
        assert np.array_equal(grads[1], 2 * X)


@pytest.mark.full
def test_another_process_finds_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        BASE + "import sys\nx = jnp.linspace(0.5, 2, 7)\ng = qd.jit(f)\nprint(g(x).sum())\n"
        "print(jax.grad(lambda x: g(x).sum())(x).sum())\ns = qd.stats()\n"
        "print(s.traces, s.hits.get('pure', 0))\n"
        "names = 'trace.trace', 'passes.pipelines', 'autodiff.transpose'\n"
        "print(*[f'qdtrace.{name}' in sys.modules for name in names])\n"
    )
    env = {
        **os.environ,
        "QD_OFFLINE_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
    }
    env |= {"QD_OFFLINE_CACHE": "1", "QD_OFFLINE_CACHE_PASSES": "1", "QD_PURE": "1", "PYTHONHASHSEED": "random"}

    def told():
        return subprocess.run(
            [sys.executable, program], env=env, check=True, capture_output=True, text=True
        ).stdout.split()

    first, second = told(), told()
    assert first[2:] == ["1", "0", "True", "True", "True"]
    assert second == [*first[:2], "0", "1", "False", "False", "False"]


def test_lengths_that_are_not_on_disk(pure):
    text = HEAD + "def f(x, y):\n    n = x.shape[0]\n" + LOOP + "x[i] = x[i] * n + y[i % y.shape[0]]\n    return x\n"
    for lengths in ((20, 31, 42, 50, 60, 70, 80, 90), (60, 20, 50, 42, 31, 91, 61, 62, 63, 64, 65, 1)):
        f, work = qd.jit(module(text).f, sizes="any"), []
        for n in lengths:
            before = qd.stats()
            assert (f(2 * jnp.ones(n), jnp.ones(3)) == 2 * n + 1).all()
            work.append((qd.stats() - before).traces)
        assert work[-2:] == [0, 0]
    assert not any(work[1:5])
