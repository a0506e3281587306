"""Functions that are traced though the trace cache is on, and the reasons that are counted."""

from __future__ import annotations

import sys
import warnings

import pytest

import qdtrace as qd
from qdtrace.compose.noted_warnings import noted_warnings
from qdtrace.errors import warn
from qdtrace.trace.importer import registry
from tests.compose.traces import FILE, HEAD, LOOP, SMALL, X, is_found, module, reasons, run, same

BODY = "    for i in qd.range(x.shape[0]):\n        x[i] = x[i] * s\n    return x\n"
TRACED = {
    "env": ("def f(x):\n    s = float(os.environ.get('QD_NO_SUCH', '2'))\n", "object of _Environ"),
    "random": ("def f(x):\n    s = random.random()\n", "builtin Random.random"),
    "random of NumPy": ("def f(x):\n    s = np.random.rand()\n", None),
    "time": ("def f(x):\n    s = time.time()\n", "builtin time.time"),
    "file": ("def f(x):\n    with open(os.devnull) as file:\n        s = len(file.read()) + 2\n", None),
    "print": ("def f(x):\n    s = 2\n    print('tracing')\n", "builtin print"),
    "import": ("def f(x):\n    import math\n    s = math.pi\n", "instruction IMPORT_NAME"),
    "global": ("def f(x):\n    global s\n    s = 2\n", "instruction STORE_GLOBAL"),
    "class": ("class C:\n    k = 2\ndef f(x):\n    s = C.k\n", "class program.C"),
    "object": ("class C:\n    k = 2\nc = C()\ndef f(x):\n    s = c.k\n", "object of C"),
    "method": (
        "class C:\n    def g(self):\n        return 2\nc = C()\ng = c.g\ndef f(x):\n    s = g()\n",
        "object of C",
    ),
    "inner class": ("def f(x):\n    class C:\n        k = 2\n    s = C.k\n", "instruction LOAD_BUILD_CLASS"),
    "getattr": ("def f(x):\n    s = getattr(x, 'ndim')\n", "builtin getattr"),
    "eval": ("def f(x):\n    s = eval('2')\n", "builtin eval"),
    "set": ("def f(x):\n    s = 0\n    for k in {'a', 'b'}:\n        s = s * 2 + len(k)\n", "set"),
    "built set": ("def f(x):\n    s = len({x.ndim, 2})\n", "instruction BUILD_SET"),
    "id": ("def f(x):\n    s = id(x) * 0 + 2\n", "builtin id"),
    "identity": ("s0 = (1,)\ndef f(x):\n    s = 2 if s0 is s0 else 3\n", "`is`"),
    "jax.jit": ("@jax.jit\ndef g(v):\n    return v * 2\ndef f(x):\n    s = g(1.0)\n", "PjitFunction program.g"),
    "qd.jit": ("g = qd.jit(lambda v: v * 2)\ndef f(x):\n    s = g(1.0)\n", None),
    "scan": (
        "def g(c, _):\n    return c * 2, None\ndef f(x):\n    s = jax.lax.scan(g, 1.0, None, 2)[0]\n",
        "function jax._src.lax.control_flow.loops.scan",
    ),
    "cached": (
        "@functools.cache\ndef g(v):\n    return v * 2\ndef f(x):\n    s = g(1)\n",
        "_lru_cache_wrapper program.g",
    ),
    "generator": ("g = iter([2, 3])\ndef f(x):\n    s = next(g)\n", "object of list_iterator"),
    "module as a value": ("def f(x):\n    m = np\n    s = m.float32(2)\n", "module as a value"),
    "counter": ("seen = []\ndef f(x):\n    seen.append(1)\n    s = len(seen)\n", "changes what it looks at"),
    "counter in a default": ("def f(x, seen=[]):\n    seen.append(1)\n    s = len(seen)\n", "changes what it looks at"),
    "attribute of a function": ("def f(x):\n    f.value = 2\n    s = f.value\n", "changes what it looks at"),
    "array changed in place": (
        "a = np.ones(2)\ndef f(x):\n    a[0] = a[0] + 1\n    s = a[0]\n",
        "changes what it looks at",
    ),
    "uninitialised": ("def f(x):\n    s = np.empty(1)[0] * 0 + 2\n", "builtin numpy.empty"),
    "array written to a file": ("a = np.ones(2)\ndef f(x):\n    a.tofile(os.devnull)\n    s = 2\n", "attribute tofile"),
    "debug print": ("def f(x):\n    s = 2\n    jax.debug.print('{}', x[0])\n", None),
    "callback": ("def f(x):\n    s = jax.pure_callback(lambda: 2.0, jax.ShapeDtypeStruct((), 'float32'))\n", None),
    "config": ("def f(x):\n    s = 2 if jax.config.jax_enable_x64 else 3\n", "object of Config"),
    "large array": ("a = np.ones(1 << 20)\ndef f(x):\n    s = a[0]\n", "large array"),
    "object array": ("a = np.array([None])\ndef f(x):\n    s = a.size + 1\n", "array of objects"),
    "subclass of an array": (
        "class A(np.ndarray): pass\na = np.ones(2).view(A)\ndef f(x):\n    s = a.size\n",
        "object of A",
    ),
    "captured variable that is set": (
        "def made():\n    n = 1\n    def f(x):\n        nonlocal n\n        n = n + 1\n        s = n\n"
        + BODY.replace("    ", "        ", 1).replace("\n    ", "\n        ")
        + "    return f\nf = made()\ndef unused(x):\n    s = 1\n",
        "store into a variable around the function",
    ),
}


@pytest.mark.parametrize("program", TRACED)
def test_what_is_not_known_is_traced(kept_traces, program):
    head, reason = TRACED[program]
    for _ in range(2):
        _, work = run(module(HEAD + head + BODY).f, X)
        assert "traces" not in work.hits
        assert work.traces >= 1
        told = reasons(work) - {"not there"}
        assert told == {reason} or (reason is None and told)


def test_more_than_one_program_is_traced(kept_traces):
    text = HEAD + "def f(x):\n    s = 2\n" + BODY.replace("return x", "return jnp.sort(x) + 1")
    for _ in range(2):
        _, work = run(module(text).f, X)
        assert reasons(work) == {"array code around the program", "not there"}


def test_warnings_of_a_trace_are_given_by_each_process(kept_traces):
    text = HEAD + "def f(x):\n" + LOOP + "x[i] = x[i] + jnp.float32(x[i].astype('float64'))\n    return x"
    for _ in range(2):
        with pytest.warns(UserWarning, match="float64"):
            _, work = run(module(text).f, X)
        assert reasons(work) == {"not there", "gives a warning"}


def test_own_warnings_count_even_if_nobody_sees_them(kept_traces):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with noted_warnings() as outer:
            with noted_warnings() as inner:
                warn("one", None)
            warn("two", None)
        warn("three", None)
    assert (inner, outer) == (["one"], ["one", "two"])


def test_import_rules_of_the_user(kept_traces, monkeypatch):
    run(module(SMALL).f, X)
    monkeypatch.setitem(registry.TAUGHT, "sin", lambda v: v)
    _, work = run(module(SMALL).f, X)
    assert reasons(work) == {"import rule of the user"}


def test_who_watches_sees_the_function_run(kept_traces):
    run(module(SMALL).f, X)
    seen = []

    def note(frame, *_):
        seen.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        _, work = run(module(SMALL).f, X)
    finally:
        sys.setprofile(None)
    assert reasons(work) == {"Python is watched"}
    assert FILE in seen


@pytest.mark.parametrize("option", ["offline_cache", "offline_cache_passes", "offline_cache_traces"])
def test_off(kept_traces, option):
    run(module(SMALL).f, X)
    with qd.options(**{option: False}):
        _, work = run(module(SMALL).f, X)
    assert work.traces == 1
    assert reasons(work) == set()


def test_damaged_files_are_traced_anew(kept_traces):
    first, _ = run(module(SMALL).f, X)
    for path in kept_traces.iterdir():
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    result, work = run(module(SMALL).f, X)
    assert reasons(work) == {"damaged"}
    assert same(result, first)
    _, work = run(module(SMALL).f, X)
    assert is_found(work)
