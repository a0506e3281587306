"""Loops and conditions that are made and not used, which Python alone would drop."""

import contextlib
import warnings
from typing import Any

import numpy as np
import pytest

import qdtrace as qd
from tests.written import written

X = np.arange(4, dtype=np.float32)


def made(n: Any) -> Any:
    return qd.range(n)


def rows():
    yield from qd.range(4)


@contextlib.contextmanager
def large(x, i):
    with qd.when(x[i] > 1):
        yield


def call(body: str) -> None:
    qd.jit(written(body + "\nreturn x", made=made, rows=rows, large=large, contextlib=contextlib))(X)


REFUSED = {
    "dropped when": (
        "for i in qd.range(4):\n    qd.when(x[i] > 1)\n    x[i] = 0.0",
        "qd.when",
        "with qd.when(condition):",
    ),
    "dropped otherwise": (
        "for i in qd.range(4):\n    with qd.when(x[i] > 1):\n        x[i] = 0.0\n    qd.otherwise()\n    x[i] = 1.0",
        "qd.otherwise",
        "with qd.otherwise():",
    ),
    "dropped while": (
        "for i in qd.range(4):\n    qd.while_(lambda: x[i] < 3)\n    x[i] = 1.0",
        "qd.while_",
        "for _ in qd.while_(condition):",
    ),
    "dropped range": ("qd.range(4)", "qd.range", "for i in qd.range(n):"),
    "dropped inner range": ("for _ in qd.range(4):\n    qd.range(1, 4, 2)", "qd.range", "for i in qd.range(n):"),
    "dropped ndrange": ("qd.ndrange(2, (1, 3))", "qd.ndrange", "for i, j in qd.ndrange(n, m):"),
    "dropped by a helper": ("made(4)", "qd.range", "for i in qd.range(n):"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_statement_that_drops_it_is_refused(name):
    body, noun, statement = REFUSED[name]
    with pytest.raises(qd.TraceValueError) as caught:
        call(body)
    lines = str(caught.value).splitlines()
    word = statement.partition(" ")[0]
    assert lines[0] == f"a {noun} does nothing unless a `{word}` statement runs it"
    assert lines[1].startswith((f"  at {__file__}:", "  at " + f"{body}\nreturn x:".replace("\n", "; ")))
    assert noun in lines[2]
    assert f"help: write `{statement}` and indent what belongs to it" in lines


HELD = {
    "qd.when": "for i in qd.range(4):\n    positive = qd.when(x[i] > 1)\n    x[i] = 0.0",
    "qd.while_": "for i in qd.range(4):\n    loop = qd.while_(lambda: x[i] < 3)\n    x[i] = 1.0",
}


@pytest.mark.parametrize("noun", HELD)
def test_one_that_a_variable_held_to_its_end_is_warned_of(noun):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call(HELD[noun])
    (warning,) = told
    assert issubclass(warning.category, qd.QdWarning)
    assert str(warning.message).startswith(f"a {noun} does nothing unless a ")
    assert (warning.filename, warning.lineno) == (f"{HELD[noun]}\nreturn x".replace("\n", "; "), 3)


USED = {
    "range for later": "r = qd.range(4)\ndef body():\n    for i in r:\n        x[i] = 1.0\nbody()",
    "range for twice": "r = qd.range(4)\nfor i in r:\n    x[i] += 1.0\nfor i in r:\n    x[i] += 1.0",
    "range that a function gives": "for i in made(4):\n    x[i] = 2.0",
    "range that is not needed": "r = qd.range(4)\nif x.shape == (5,):\n    for i in r:\n        x[i] = 2.0",
    "range in a dict": (
        'loops = {"rows": qd.range(4), "columns": qd.range(2)}\nfor i in loops["rows"]:\n'
        '    for _ in loops["columns"]:\n        x[i] += 1.0'
    ),
    "when for later": (
        "for i in qd.range(4):\n    large = qd.when(x[i] > 1)\n    with large:\n        x[i] = 0.0\n"
        "    rest = qd.otherwise()\n    with rest:\n        x[i] = 3.0"
    ),
    "when on a stack": (
        "for i in qd.range(4):\n    with contextlib.ExitStack() as stack:\n"
        "        stack.enter_context(qd.when(x[i] > 1))\n        x[i] = 0.0"
    ),
    "generator closed early": "started = rows()\nstarted.close()\nfor i in rows():\n    x[i] = 2.0",
    "when of a context manager": "for i in qd.range(4):\n    with large(x, i):\n        x[i] = 0.0",
    # a `qd.vmap` makes its loop itself, whatever becomes of the result
    "called for its effect": "qd.vmap(lambda a: a + 1)(x)",
}


@pytest.mark.parametrize("name", USED)
@pytest.mark.filterwarnings("error")
def test_one_that_is_used_otherwise(name):
    call(USED[name])
