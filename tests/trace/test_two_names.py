"""Two names of one buffer where JAX has two arrays: `y = x.at[k].set(v)` and `old = x`."""

from __future__ import annotations

import linecache
import random
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.arange(4, dtype=np.float32)
METHODS = ("set", "add", "subtract", "mul", "multiply", "min", "max")


def changed(b: Any, k: Any) -> Any:
    return b.at[k].add(1.0)


def all_added(b: Any) -> None:
    for i in qd.range(4):
        b[i] += 1.0


# -- each gives what JAX gives, or is refused


def same_name(x):
    x = x.at[0].set(5.0)
    return x


def only_the_result(x):
    y = x.at[0].set(5.0)
    return y


def returned(x):
    return x.at[0].set(5.0)


def chain(x):
    x = x.at[0].set(5.0).at[1].add(2.0)
    return x


def in_a_loop(x):
    for i in qd.range(4):
        x = x.at[i].set(5.0)
    return x


def by_a_helper(x):
    for i in qd.range(4):
        x = changed(x, i)
    return x


def two_at_once(x):
    y = qd.copy(x)
    for i in qd.range(4):
        x, y = x.at[i].set(1.0), y.at[i].add(2.0)
    return x, y


def of_an_object(x):
    s = SimpleNamespace(x=x)
    for i in qd.range(4):
        s.x = s.x.at[i].set(1.0)
    return s.x


def in_a_dict(x):
    d = {"x": x}
    for i in qd.range(4):
        d["x"] = d["x"].at[i].set(1.0)
    return d


def carried_by_lax(x):
    return lax.fori_loop(0, 4, lambda i, b: b.at[i].set(1.0), x)


def a_python_loop(x):
    for k in range(3):
        x = x.at[k].add(1.0)
    return x


FUNCTIONAL = [
    same_name, only_the_result, returned, chain, in_a_loop, by_a_helper, two_at_once, of_an_object, in_a_dict,
    carried_by_lax, a_python_loop,
]  # fmt: skip


# -- in JAX these would change nothing: as statements they change the buffer


def statement(x):
    x.at[0].set(5.0)
    return x


def statement_of_two(x):
    x.at[0].set(5.0).at[1].add(2.0)
    return x


def helper_as_statement(x):
    for i in qd.range(4):
        changed(x, i)
    return x


def mapped_over_a_list(x):
    jax.tree.map(lambda b: b.at[0].set(5.0), [x], is_leaf=lambda b: not isinstance(b, list))
    return x


def dropped_by_name(x):
    _ = x.at[0].set(5.0)
    return x


STATEMENTS: dict[Callable[..., Any], list[float]] = {
    statement: [5, 1, 2, 3], statement_of_two: [5, 3, 2, 3], helper_as_statement: [1, 2, 3, 4],
    mapped_over_a_list: [5, 1, 2, 3], dropped_by_name: [5, 1, 2, 3],
}  # fmt: skip


# -- both names are used


def both_returned(x):
    y = x.at[0].set(5.0)
    return x, y


def in_one_expression(x):
    return x, x.at[0].set(5.0)


def compared(x):
    y = x.at[0].set(5.0)
    return y[...] - x[...]


def stored_into_the_old_one(x):
    y = x.at[0].set(5.0)
    for i in qd.range(4):
        x[i] = y[i]
    return x


def result_of_a_helper(x):
    y = changed(x, 0)
    return x[...] + y


def of_an_attribute(x):
    s = SimpleNamespace(x=x)
    y = s.x.at[0].set(5.0)
    return s.x - y


def unused_in_a_loop(x):
    for i in qd.range(4):
        y = x.at[i].set(5.0)  # noqa: F841
    return x


def one_of_many(x):
    ys = [x.at[k].set(5.0) for k in range(2)]
    return ys[0][...] + ys[1]


BOTH = [
    both_returned, in_one_expression, compared, stored_into_the_old_one, result_of_a_helper, of_an_attribute,
    unused_in_a_loop, one_of_many,
]  # fmt: skip


def run(function: Callable[..., Any], **options: Any) -> Any:
    return jax.tree.map(np.asarray, qd.jit(function, options=options)(X))


@pytest.mark.parametrize("function", FUNCTIONAL, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("error")
def test_the_functional_style_is_that_of_jax(function):
    def serially(x):
        held = SimpleNamespace(range=range, copy=lambda x: x)
        return type(function)(function.__code__, {**function.__globals__, "qd": held})(x)

    want = serially(jnp.asarray(X))
    jax.tree.map(np.testing.assert_array_equal, run(function), jax.tree.map(np.asarray, want))


@pytest.mark.parametrize("function", STATEMENTS, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("error")
def test_a_statement_changes_the_buffer(function):
    assert run(function).tolist() == STATEMENTS[function]


@pytest.mark.parametrize("function", BOTH, ids=lambda f: f.__name__)
def test_both_of_two_names_are_refused(function):
    with pytest.raises(qd.TraceValueError, match=r"changes x itself, and both x and y are used after it") as caught:
        run(function)
    text = str(caught.value)
    assert __file__ in text
    assert ".at[" in text.splitlines()[2]
    assert "help: go on with x alone: `x.at[k]." in text


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
        run(both_returned)
    assert (
        str(caught.value).partition("\n---")[0]
        == f"""`y = x.at[k].set(v)` changes x itself, and both x and y are used after it
  at {__file__}:{both_returned.__code__.co_firstlineno + 1} in both_returned
      y = x.at[0].set(5.0)
note: both are returned
help: go on with x alone: `x.at[k].set(v)` as a statement; or make two of it in front of the loops: `y = x.copy()`, \
then `y.at[k].set(v)`"""
    )


# -- `old = x`


def kept_before_a_loop(x):
    old = x
    for i in qd.range(4):
        x[i] = x[i] * 2  # warned
    return x[...] - old[...]


def kept_before_an_operator(x):
    old = x
    x += 1  # warned
    return x - old


def kept_before_a_helper(x):
    old = x
    all_added(x)  # warned
    return x - old


def kept_before_a_method(x):
    old = x
    x.at[0].set(1.0)  # warned
    return x - old


def kept_before_an_atomic(x):
    old = x
    for i in qd.range(4):
        qd.atomic_add(x, 0, old[3 - i])
        qd.atomic_add(x, 1, 1.0)  # warned
    return x


def kept_by_one_statement(x):
    x = old = qd.copy(x)
    for i in qd.range(4):
        x[i] = x[i] * 2  # warned
    return x[...] - old[...]


def copied(x):
    old = x.copy()
    for i in qd.range(4):
        x[i] = x[i] * 2
    return x[...] - old[...]


def another_name_for_it(x):
    out = x
    for i in qd.range(4):
        out[i] = x[i] * 2
    return out


def not_read_later(x):
    old = x
    y = old[0] + 1
    for i in qd.range(4):
        x[i] = y
    return x


def swapped(x):
    source, target = x, qd.copy(x)
    for _ in range(3):
        for i in qd.range(4):
            target[i] = source[i] * 2
        source, target = target, source
    return source


def swapped_by_a_third(x):
    a = x
    b = qd.copy(x)
    for _ in range(3):
        for i in qd.range(4):
            b[i] = a[i] * 2
        t = a
        a = b
        b = t
    return a


def into(out, a):
    for i in qd.range(4):
        out[i] = out[i] + a[i]


def two_parameters(x):
    into(x, x)
    return x


WARNED = [
    kept_before_a_loop, kept_before_an_operator, kept_before_a_helper, kept_before_a_method, kept_before_an_atomic,
    kept_by_one_statement,
]  # fmt: skip
SILENT = [copied, another_name_for_it, not_read_later, swapped, swapped_by_a_third, two_parameters]


@pytest.mark.parametrize("function", WARNED, ids=lambda f: f.__name__)
def test_an_alias_that_a_store_changes_is_warned_of(function):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(function)
    (warning,) = told
    assert issubclass(warning.category, qd.QdWarning)
    assert "`old = x` gives one buffer two names, so this store changes `old` too" in str(warning.message)
    assert "write `old = x.copy()`" in str(warning.message)
    with open(__file__) as file:
        assert file.read().splitlines()[warning.lineno - 1].endswith("# warned")


@pytest.mark.parametrize("function", SILENT, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("error")
def test_aliases_that_are_meant(function):
    run(function)


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
    names: dict[str, Any] = {"qd": qd}
    exec(text, names)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = qd.jit(names["f"])(X, X + 1)
    names["qd"] = SimpleNamespace(range=range)
    for given, wanted in zip(jax.tree.leaves(result), jax.tree.leaves(names["f"](X.copy(), X + 1)), strict=True):
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
    lines = ["def f(m, x):", "  y = qd.zeros(4)", "  for i in qd.range(1, 4):", f"    r = m[i]; {body}", "  return y"]
    file = f"{body}.py"
    linecache.cache[file] = (1, None, [line + "\n" for line in lines], file)
    names: dict[str, Any] = {"qd": qd, "jnp": jnp}
    exec(compile("\n".join(lines), file, "exec"), names)
    m = np.arange(12, dtype=np.float32).reshape(4, 3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        y = qd.jit(names["f"])(m, X)
    rows = [w for w in found if "a race" not in str(w.message)]
    assert [str(w.message).startswith("`r[") for w in rows] == [True] * OLD_ROWS[body]
    if body.endswith("y[i] = r[0]"):
        np.testing.assert_array_equal(y, [0, *m[1:, 0]])
