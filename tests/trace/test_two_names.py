"""Two names of one buffer where JAX has two arrays: `y = x.at[k].set(v)` and `old = x`."""

import linecache
import random
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.written import defined, written

X = np.arange(4, dtype=np.float32)
METHODS = ("set", "add", "subtract", "mul", "multiply", "min", "max")


def changed(b: Any, k: Any) -> Any:
    return b.at[k].add(1.0)


def all_added(b: Any) -> None:
    for i in qd.range(4):
        b[i] += 1.0


def into(out, a):
    for i in qd.range(4):
        out[i] = out[i] + a[i]


FUNCTIONAL = [
    "x = x.at[0].set(5.0)\nreturn x",
    "y = x.at[0].set(5.0)\nreturn y",
    "return x.at[0].set(5.0)",
    "x = x.at[0].set(5.0).at[1].add(2.0)\nreturn x",
    "for i in qd.range(4):\n    x = x.at[i].set(5.0)\nreturn x",
    "for i in qd.range(4):\n    x = changed(x, i)\nreturn x",
    "y = qd.copy(x)\nfor i in qd.range(4):\n    x, y = x.at[i].set(1.0), y.at[i].add(2.0)\nreturn x, y",
    "s = SimpleNamespace(x=x)\nfor i in qd.range(4):\n    s.x = s.x.at[i].set(1.0)\nreturn s.x",
    'd = {"x": x}\nfor i in qd.range(4):\n    d["x"] = d["x"].at[i].set(1.0)\nreturn d',
    "return lax.fori_loop(0, 4, lambda i, b: b.at[i].set(1.0), x)",
    "for k in range(3):\n    x = x.at[k].add(1.0)\nreturn x",
    "for k in range(2):\n    x = lax.fori_loop(0, 4, lambda i, b: b.at[i].add(1.0), x)\nreturn x",
    "return lax.while_loop(lambda b: b[0] < 3, lambda b: b.at[0].add(1.0), x)",
    "x = lax.cond(x[0] < 1, lambda b: b.at[0].add(1.0), lambda b: b, x)\nreturn x",
    "x = jax.jit(lambda b: b.at[0].add(1.0))(x)\nreturn x",
    "return lax.scan(lambda b, i: (b.at[i].add(1.0), i), x, jnp.arange(4))",
    "y = x * 2\nz, y = lax.fori_loop(0, 4, lambda i, b: (b[0].at[i].add(1.0), b[1]), (x, y))\nreturn z, y",
    "y = qd.copy(x)\nz, u = lax.fori_loop(0, 4, lambda i, b: (b[0].at[i].add(b[1][i]), b[1]), (x, y))\nreturn z, u, y",
]
"""Each gives what JAX gives."""
STATEMENTS = {
    "x.at[0].set(5.0)\nreturn x": [5, 1, 2, 3],
    "x.at[0].set(5.0).at[1].add(2.0)\nreturn x": [5, 3, 2, 3],
    "for i in qd.range(4):\n    changed(x, i)\nreturn x": [1, 2, 3, 4],
    "jax.tree.map(lambda b: b.at[0].set(5.0), [x], is_leaf=lambda b: not isinstance(b, list))\nreturn x": [5, 1, 2, 3],
    "_ = x.at[0].set(5.0)\nreturn x": [5, 1, 2, 3],
}
"""In JAX these would change nothing: as statements they change the buffer."""
BOTH = [
    "y = x.at[0].set(5.0)\nreturn x, y",
    "return x, x.at[0].set(5.0)",
    "y = x.at[0].set(5.0)\nreturn y[...] - x[...]",
    "y = x.at[0].set(5.0)\nfor i in qd.range(4):\n    x[i] = y[i]\nreturn x",
    "y = changed(x, 0)\nreturn x[...] + y",
    "s = SimpleNamespace(x=x)\ny = s.x.at[0].set(5.0)\nreturn s.x - y",
    "for i in qd.range(4):\n    y = x.at[i].set(5.0)\nreturn x",
    "ys = [x.at[k].set(5.0) for k in range(2)]\nreturn ys[0][...] + ys[1]",
    "y = lax.fori_loop(0, 4, lambda i, b: b.at[i].set(1.0), x)\nreturn x, y",
    "y = lax.while_loop(lambda b: b[0] < 3, lambda b: b.at[0].add(1.0), x)\nreturn x[...] + y",
    "y = lax.cond(x[0] < 1, lambda b: b.at[0].add(1.0), lambda b: b, x)\nreturn x, y",
    "y = jax.jit(lambda b: b.at[0].add(1.0))(x)\nreturn x, y",
    "return lax.fori_loop(1, 4, lambda i, b: b.at[i].set(x[i - 1]), x)",
    "y = qd.copy(x)\nz, u = lax.fori_loop(0, 4, lambda i, b: (b[0], b[1].at[i].add(1.0)), (x, y))\nreturn u, y",
    "y = qd.copy(x)\nz, u = lax.fori_loop(0, 4, lambda i, b: (b[0].at[i].add(1.0), b[1]), (x, y))\nreturn z - x[...]",
    "for i in qd.range(4):\n    y = lax.fori_loop(0, 4, lambda k, b: b.at[k].add(1.0), x)\n    x[i] = y[0]\nreturn x",
]
"""Both names are used."""


def function(body: str, **more: Any) -> Any:
    return written(body, changed=changed, all_added=all_added, into=into, **more)


def run(made: Callable[..., Any]) -> Any:
    return jax.tree.map(np.asarray, qd.jit(made)(X))


@pytest.mark.parametrize("body", FUNCTIONAL)
@pytest.mark.filterwarnings("error")
def test_the_functional_style_is_that_of_jax(body):
    want = function(body, qd=SimpleNamespace(range=range, copy=lambda x: x))(jnp.asarray(X))
    jax.tree.map(np.testing.assert_array_equal, run(function(body)), jax.tree.map(np.asarray, want))


@pytest.mark.parametrize("body", STATEMENTS)
@pytest.mark.filterwarnings("error")
def test_a_statement_changes_the_buffer(body):
    assert run(function(body)).tolist() == STATEMENTS[body]


@pytest.mark.parametrize("body", BOTH)
def test_both_of_two_names_are_refused(body):
    with pytest.raises(qd.TraceValueError, match=r"changes x itself, and both x and y are used after it") as caught:
        run(function(body))
    text = str(caught.value)
    assert body.replace("\n", "; ") in text
    assert ".at[" in text.splitlines()[2]
    assert "help: go on with x alone: `x.at[k]." in text


KNOWN = [
    "return raised(x, 1)",
    "return jax.jit(lambda b: raised(raised(b, 0), 1))(x)",
    "return lax.cond(x[0] < 1, lambda b: raised(b, 1), lambda b: b, x)",
    "return lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, raised(c[1], c[0])), (0, x))[1]",
    "return lax.scan(lambda b, i: (raised(b, i), 0), x, np.arange(4))[0]",
    "return jax.checkpoint(lambda b: raised(b, 1))(x)",
    "return lax.fori_loop(0, 2, lambda j, c: lax.fori_loop(0, 4, lambda i, b: raised(b, i), c), x)",
    "return lax.fori_loop(0, 4, lambda i, c: (raised(c[0], i), c[1]), (x, z))[0]",
    "return lax.fori_loop(0, 4, lambda i, c: (c[0], raised(c[1], i)), (z, x))[1]",
]
"""What `raised` is for JAX is known before: its Python does not run again."""


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("body", KNOWN)
def test_functions_that_jax_has_traced_before(body, inline):
    raised = jax.jit(lambda b, i: b.at[i].add(1.0), inline=inline)
    call = defined("def f(x, z):\n    " + body, "known.py", raised=raised)

    def changed(x):
        z = qd.copy(x)
        return call(x, z)

    want = call(jnp.asarray(X), jnp.asarray(X))
    for _ in range(2):
        np.testing.assert_array_equal(run(changed), want)
        with pytest.raises(qd.TraceValueError, match=r"changes x itself, and both x and y are used after it"):
            run(lambda x: changed(x) - x[...])

    def other(x):
        z = qd.copy(x)
        y = call(x, z)
        return y + z[...]

    np.testing.assert_array_equal(run(other), want + X)


@pytest.mark.filterwarnings("error")
def test_what_python_stores_in_between_gives_no_second_array():
    """One buffer stays one for who takes its leaves and makes it of them again."""

    @qd.jit
    def f(x):
        leaves, tree = jax.tree.flatten(x)
        for i in qd.range(4):
            x[i] = 2.0 * x[i]
        y = jax.tree.unflatten(tree, leaves)
        return y[...] + x[...]

    np.testing.assert_array_equal(f(X), 4 * X)


@pytest.mark.parametrize("method", METHODS)
def test_each_method(method):
    def both(x):
        y = getattr(x.at[0], method)(5.0)
        return x, y

    def one(x):
        y = getattr(x.at[0], method)(5.0)
        return y

    called = "mul" if method == "multiply" else method
    with pytest.raises(qd.TraceValueError, match=rf"`y = x\.at\[k\]\.{called}\(v\)`"):
        run(both)
    np.testing.assert_array_equal(run(one), one(jnp.asarray(X)))


def test_the_whole_text():
    with pytest.raises(qd.TraceValueError) as caught:
        run(defined("def f(x):\n    y = x.at[0].set(5.0)\n    return x, y\n", "both.py"))
    assert (
        str(caught.value).partition("\n---")[0]
        == """`y = x.at[k].set(v)` changes x itself, and both x and y are used after it
  at both.py:2 in f
      y = x.at[0].set(5.0)
note: both are returned
help: go on with x alone: `x.at[k].set(v)` as a statement; or make two of it in front of the loops: `y = x.copy()`, \
then `y.at[k].set(v)`"""
    )


# -- `old = x`

WARNED = [
    "old = x\nfor i in qd.range(4):\n    x[i] = x[i] * 2  # warned\nreturn x[...] - old[...]",
    "old = x\nx += 1  # warned\nreturn x - old",
    "old = x\nall_added(x)  # warned\nreturn x - old",
    "old = x\nx.at[0].set(1.0)  # warned\nreturn x - old",
    (
        "old = x\nfor i in qd.range(4):\n"
        "    qd.atomic_add(x, 0, old[3 - i])\n    qd.atomic_add(x, 1, 1.0)  # warned\nreturn x"
    ),
    "x = old = qd.copy(x)\nfor i in qd.range(4):\n    x[i] = x[i] * 2  # warned\nreturn x[...] - old[...]",
]
SILENT = [
    "old = x.copy()\nfor i in qd.range(4):\n    x[i] = x[i] * 2\nreturn x[...] - old[...]",
    "out = x\nfor i in qd.range(4):\n    out[i] = x[i] * 2\nreturn out",
    "old = x\ny = old[0] + 1\nfor i in qd.range(4):\n    x[i] = y\nreturn x",
    (
        "source, target = x, qd.copy(x)\nfor _ in range(3):\n    for i in qd.range(4):\n"
        "        target[i] = source[i] * 2\n    source, target = target, source\nreturn source"
    ),
    (
        "a = x\nb = qd.copy(x)\nfor _ in range(3):\n    for i in qd.range(4):\n"
        "        b[i] = a[i] * 2\n    t = a\n    a = b\n    b = t\nreturn a"
    ),
    "into(x, x)\nreturn x",
]


@pytest.mark.parametrize("body", WARNED)
def test_an_alias_that_a_store_changes_is_warned_of(body):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(function(body))
    (warning,) = told
    assert issubclass(warning.category, qd.QdWarning)
    assert "`old = x` gives one buffer two names, so this store changes `old` too" in str(warning.message)
    assert "write `old = x.copy()`" in str(warning.message)
    assert linecache.getline(warning.filename, warning.lineno).endswith("# warned\n")


@pytest.mark.parametrize("body", SILENT)
@pytest.mark.filterwarnings("error")
def test_aliases_that_are_meant(body):
    run(function(body))


# -- one buffer in all items in the results


def _kept(seed: int) -> tuple[str, bool]:
    """A program that keeps buffers between stores, and whether all of three items of a list are one that changes."""
    draw = random.Random(seed)
    lines, kept, stored = ["a, b, some, named = x, y, [], {}"], {"some": [], "named": []}, set[str]()
    for step in range(draw.choice((2, 4, 6))):
        name = draw.choice("xy")
        match draw.choice(("store", "list", "dict", "tuple")):
            case "store":
                lines.append(f"for i in qd.range(4): {name}[i] += {step + 1}")
                stored.add(name)
            case "list":
                lines.append(f"some.append({name})")
                kept["some"].append(name)
            case "dict":
                lines.append(f"named[{step}] = {{'at': {name}}}")
                kept["named"].append(name)
            case _:
                lines.append(f"some.append((1.0, {name}))")
                kept["some"].append(name)
    is_told = len(kept["some"]) > 2 and any({*kept["some"]} == {name} for name in stored)
    return "\n".join(["def f(x, y):", *("    " + line for line in lines), "    return (some, named), x, y, x"]), is_told


@pytest.mark.parametrize("seed", range(24))
def test_a_list_of_one_buffer_is_told_and_has_one_content(seed: int) -> None:
    text, is_told = _kept(seed)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = qd.jit(defined(text, "kept.py"))(X, X + 1)
    plain = defined(text, "kept.py", qd=SimpleNamespace(range=range))(X.copy(), X + 1)
    for given, wanted in zip(jax.tree.leaves(result), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(given, wanted)
    assert [w for w in found if "in all items" in str(w.message)] == found
    assert bool(found) == is_told, text


# -- a row that was loaded before a store to one of its elements

OLD_ROWS = {
    "m[i, 0] = 5.0; y[i] = r[0]": True,
    "m[i, 0] = x[i]; m[i, 1] = 2.0; y[i] = r[1] + r[2]": True,
    "m[i, 0] = 5.0; y[i] = r[1]": False,
    "y[i] = r[0]; m[i, 0] = 5.0": False,
    "m[i, 0] = 0.0; y[i] = r[0]": False,  # is cleared
    "m[i, 0] = r[1] - r[0]; m[i, 1] = r[0] + r[1]": False,  # is turned
    "m[i, 0] = m[i, 0] + x[i]; y[i] = m[i, 0] - r[0]": False,
    "m[i, 0] = 5.0; y[i] = m[i, 0] - r[0]": False,
    "m[i - 1, 0] = 5.0; y[i] = r[0]": False,  # is told as a race
    "m[i, 0] += 5.0; y[i] = r[0]": False,
    "m[i] = 5.0 + jnp.zeros(3); y[i] = r[0]": False,  # as `(x - old) / dt`
    "r = r.copy(); m[i, 0] = 5.0; y[i] = r[0]": False,
}


@pytest.mark.parametrize("body", OLD_ROWS)
def test_a_row_that_is_read_behind_a_store_is_told_and_keeps_its_content(body: str) -> None:
    function = written(f"y = qd.zeros(4)\nfor i in qd.range(1, 4):\n    r = m[i]; {body}\nreturn y", "m, x")
    m = np.arange(12, dtype=np.float32).reshape(4, 3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        y = qd.jit(function)(m, X)
    rows = [w for w in found if "a race" not in str(w.message)]
    assert [str(w.message).startswith("`r[") for w in rows] == [True] * OLD_ROWS[body]
    if body.endswith("y[i] = r[0]"):
        np.testing.assert_array_equal(y, [0, *m[1:, 0]])
