"""The trace cache: whatever is changed, a function gives what it would give if it were traced."""

from __future__ import annotations

import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compose.traces import BASE, FILE, LOOP, SMALL, X, is_found, module, plain, reasons, run, same

CHANGES = {
    "global": ("SCALE = 2.0", "SCALE = 3.0"),
    "type of a global": ("SCALE = 2.0", "SCALE = 2   "),
    "helper two calls away": ("v * 1.5 + by", "v * 1.25 + by"),
    "operation of a helper": ("v * 1.5 + by", "v / 1.5 + by"),
    "default": ("by=3.0, *", "by=4.0, *"),
    "keyword default": ("more=0.5", "more=0.7"),
    "closure cell": ("made(4.0)", "made(5.0)"),
    "partial": ("by=7.0", "by=8.0"),
    "decorator": ("g(v) + 0.25", "g(v) + 0.75"),
    "decorated": ("return v * 2\ndef", "return v * 3\ndef"),
    "nonlocal": ("n = n + 1.0", "n = n + 2.0"),
    "captured NumPy array": ("[1.0, 2.0, 3.0], np.float32", "[1.0, 9.0, 3.0], np.float32"),
    "dtype of a captured array": ("3.0], np.float32", "3.0], np.float16"),
    "captured JAX array": ("jnp.array([1.0, 2.0", "jnp.array([1.0, 5.0"),
    "element of a list in a dictionary": ("[1.0, 2.0]}", "[1.0, 6.0]}"),
    "lambda in a dictionary": ("lambda v: v + 1,", "lambda v: v + 3,"),
    "lambda in a helper": ("u * 0.5", "u * 0.25"),
    "another entry": ('OPERATIONS["first"]', 'OPERATIONS["second"]'),
    "library function": ("operator.add(v", "operator.mul(v"),
    "reduction": ("jnp.sum(CONST", "jnp.max(CONST"),
    "dtype by name": ("DTYPE = jnp.float32", "DTYPE = jnp.float16"),
    "order of a dictionary": ('{"one": 1.0, "two": 2.0}', '{"two": 2.0, "one": 1.0}'),
    "sign of zero": ("ZERO = 0.0", "ZERO = -0.0"),
    "one list for two": ("OTHER = [3.0]", "OTHER = LIST  "),
    "rebound library name": ("def inner", "jnp.sum = jnp.sum\ndef inner"),
}


def test_base_is_found(kept_traces):
    first, work = run(module(BASE).f, X)
    assert reasons(work) == {"not there"}
    again, work = run(module(BASE).f, X)
    assert is_found(work)
    assert same(first, again)
    assert same(again, plain(module(BASE).f, X))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_source_is_another_program(kept_traces, change):
    old, new = CHANGES[change]
    assert BASE.count(old) == 1
    run(module(BASE).f, X)
    other = BASE.replace(old, new)
    result, work = run(module(other).f, X)
    assert (work.traces, reasons(work)) == (1, {"not there"})
    expected = plain(module(other).f, X)
    assert same(result, expected)
    again, work = run(module(other).f, X)
    assert is_found(work)
    assert same(again, expected)
    base, work = run(module(BASE).f, X)
    assert is_found(work)
    assert same(base, plain(module(BASE).f, X))


def _scale(m):
    m.SCALE = 11.0


def _delete_global(m):
    m.inner = lambda v: v - 4


def _array_in_place(m):
    m.WEIGHTS[1] = 13.0


def _list_in_place(m):
    m.TABLE["b"][1] = 17.0


def _default(m):
    m.inner.__defaults__ = (19.0,)


def _keyword_default(m):
    m.inner.__kwdefaults__["more"] = 23.0


def _code(m):
    m.inner.__code__ = (lambda v, by=1.0, *, more=1.0: v - by - more).__code__


def _cell(m):
    m.scaled.__closure__[0].cell_contents = 29.0


def _partial(m):
    m.partly = functools.partial(m.inner, by=31.0)


def _lambda(m):
    m.OPERATIONS["first"] = lambda v: v * 37


def _array_of_jax(m):
    m.CONSTANTS = m.CONSTANTS.at[0].set(41.0)


def _shape_of_captured(m):
    m.CONSTANTS = jnp.ones(5)


def _shadowed_builtin(m):
    m.functools = None
    m.SCALE = True


def _module_replaced(m):
    m.operator = types.SimpleNamespace(add=lambda a, b: a * b)


STATES = [
    _scale, _delete_global, _array_in_place, _list_in_place, _default, _keyword_default, _code, _cell, _partial,
    _lambda, _array_of_jax, _shape_of_captured, _shadowed_builtin, _module_replaced,
]  # fmt: skip


@pytest.mark.parametrize("change", STATES, ids=lambda c: c.__name__.strip("_"))
def test_a_change_while_the_process_runs_is_another_program(kept_traces, change):
    m = module(BASE)
    first, _ = run(m.f, X)
    change(m)
    result, work = run(m.f, X)
    assert work.traces == 1
    assert same(result, plain(m.f, X))
    assert not same(result, first)


def test_all_pairs_of_changes(kept_traces):
    """Whatever was kept before: programs that differ in one or two places, in an order that comes back to each."""
    names = ["global", "default", "closure cell", "lambda in a dictionary", "captured NumPy array"]
    chosen = [(), *itertools.combinations(names, 1), *itertools.combinations(names, 2)]
    for _ in range(2):
        for changes in chosen:
            text = functools.reduce(lambda t, c: t.replace(*CHANGES[c]), changes, BASE)
            result, _ = run(module(text).f, X)
            assert same(result, plain(module(text).f, X)), changes


def test_monkeypatched_attribute_of_a_library(kept_traces, monkeypatch):
    text = BASE.replace("jnp.sum(CONSTANTS)", "jnp.cos(CONSTANTS[1])")
    first, _ = run(module(text).f, X)
    monkeypatch.setattr(jnp, "cos", jnp.sin)
    result, work = run(module(text).f, X)
    assert work.traces == 1
    assert same(result, plain(module(text).f, X))
    assert not same(result, first)
    monkeypatch.setattr(jnp, "cos", lambda v: v * 100)
    result, work = run(module(text).f, X)
    assert work.traces == 1
    assert same(result, plain(module(text).f, X))


def test_monkeypatched_attribute_of_a_module_of_the_user(kept_traces):
    lib = types.ModuleType("lib")
    exec(compile("def g(v):\n    return v * 2", "/somewhere/lib.py", "exec"), vars(lib))
    text = "import qdtrace as qd\ndef f(x):\n" + LOOP + "x[i] = lib.g(x[i])\n    return x"
    run(module(text, lib=lib).f, X)
    _, work = run(module(text, lib=lib).f, X)
    assert is_found(work)
    lib.g = module("def g(v):\n    return v * 3").g
    result, work = run(module(text, lib=lib).f, X)
    assert work.traces == 1
    assert same(result, 3 * np.asarray(X))


def test_same_name_in_another_file_or_line_is_another_key(kept_traces):
    run(module(SMALL).f, X)
    for text, file in [(SMALL, "/elsewhere/program.py"), ("\n" + SMALL, FILE)]:
        _, work = run(module(text, file).f, X)
        assert (work.traces, reasons(work)) == (1, {"not there"})


@pytest.mark.parametrize(
    "other",
    [jnp.arange(7), X[:5], X[None].repeat(2, 0), X.astype(jnp.float16), (X,), [X], {"a": X}],
    ids=["dtype", "shape", "rank", "half", "tuple", "list", "dict"],
)
def test_other_arguments_are_another_key(kept_traces, other):
    text = SMALL.replace("f(x, n=2):", "f(x, n=2):\n    x = first(x)") + (
        "def first(x):\n    if isinstance(x, (tuple, list)):\n        return x[0]\n"
        "    return x['a'] if isinstance(x, dict) else x\n"
    )
    run(module(text).f, X)
    result, work = run(module(text).f, other)
    assert (work.traces, reasons(work)) == (1, {"not there"})
    assert same(result, plain(module(text).f, other))


def test_weak_types_are_another_key(kept_traces):
    text = "def f(x, s):\n" + LOOP + "x[i] = x[i] * s\n    return x"
    half = X.astype(jnp.float16)
    f = lambda: module("import qdtrace as qd\n" + text.replace("x[i] * s", "(x[i] * s).astype(x.dtype)")).f  # noqa: E731
    for scalar in (1.00048828125, jnp.float32(1.00048828125), np.float16(1.0)):
        result, work = run(f(), half, scalar)
        assert reasons(work) == {"not there"}
        assert same(result, plain(f(), half, scalar))


def test_static_arguments_are_part_of_the_key(kept_traces):
    for n in (2, 3, 2.0, True, (1, 2)):
        text = SMALL.replace("* n", "* (n[1] if isinstance(n, tuple) else n)")
        result, work = run(module(text).f, X, n, static_argnums=1)
        assert reasons(work) == {"not there"}
        assert same(result, plain(module(text).f, X, n, static_argnums=1))
        _, work = run(module(text).f, X, n, static_argnums=1)
        assert is_found(work)


def test_options_donations_and_limits_are_part_of_the_key(kept_traces):
    run(module(SMALL).f, X)
    _, work = run(module(SMALL).f, X, options={"fast_math": False})
    assert work.traces == 1
    _, work = run(module(SMALL).f, X + 0, donate_argnums=0)
    assert work.traces == 1
    rows = (
        "import qdtrace as qd\ndef f(x, row):\n    for i in qd.range(row.shape[0] - 1):\n        v = qd.local(x[i])\n"
    )
    rows += "        for k in qd.range(row[i], row[i + 1]):\n            v.value = v.value * x[k]\n"
    rows += "        x[i] = v.value\n    return x"
    for ends in ([0, 2, 4], [0, 1, 6]):
        _, work = run(module(rows).f, X, jnp.array(ends), bounds_from="row")
        assert work.traces == 1


@pytest.mark.parametrize(
    "setting",
    [("jax_enable_x64", True), ("jax_numpy_dtype_promotion", "strict"), ("jax_default_matmul_precision", "high")],
)
def test_settings_of_jax_are_part_of_the_key(kept_traces, setting):
    name, value = setting
    before = getattr(jax.config, name)
    run(module(SMALL).f, X)
    jax.config.update(name, value)
    try:
        _, work = run(module(SMALL).f, X)
    finally:
        jax.config.update(name, before)
    assert (work.traces, reasons(work)) == (1, {"not there"})
    with jax.numpy_rank_promotion("raise"):
        _, work = run(module(SMALL).f, X)
    assert work.traces == 1


@pytest.mark.parametrize("version", ["jax.__version__", "jaxlib.version.__version__", "numpy.__version__"])
def test_versions_are_part_of_the_key(kept_traces, monkeypatch, version):
    from qdtrace.compose import pass_cache

    run(module(SMALL).f, X)
    monkeypatch.setattr(version, "0.0")
    pass_cache._versions.cache_clear()
    try:
        _, work = run(module(SMALL).f, X)
    finally:
        monkeypatch.undo()
        pass_cache._versions.cache_clear()
    assert (work.traces, reasons(work)) == (1, {"not there"})
