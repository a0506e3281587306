"""Errors that a user causes show the user's frames alone, whatever transformation the call stands in."""

import linecache
import re
import subprocess
import sys
import traceback
from pathlib import Path

import jax
import pytest

import qdtrace as qd

HEAD = """\
import functools
import jax, jax.numpy as jnp, numpy as np, qdtrace as qd
from jax import lax
KNOWN = {"a": 1.0}

def lookup(v):
    return KNOWN["b"] * v

class Body:
    def __call__(self, s, v):
        raise RuntimeError("in a body")

@jax.custom_jvp
def ruled(v):
    return v

@ruled.defjvp
def rule(primals, tangents):
    raise LookupError("in a rule")

"""
FUNCTIONS = {
    "TraceTypeError": ("", "if x[i] > 0:\n    x[i] = 0.0"),
    "TraceTypeError of a store": ("table = jnp.zeros(4)", "table[i] = x[i]"),
    "TraceTypeError of NumPy": ("", "x[i] = np.sin(x[i])"),
    "TraceValueError": ("qd.local(0.0)", "x[i] = 2 * x[i]"),
    "TraceValueError of a loop": ("s = 0.0", "s = s + x[i]"),
    "TraceIndexError": ("", "x[99] = 1.0"),
    "TraceAttributeError": ("x.shpae", "x[i] = 2 * x[i]"),
    "TraceAttributeError of the package": ("", "x[i] = qd.sin(x[i])"),
    "UnsupportedError": ("", "x[i] = jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x[i])"),
    "TraceTypeError of lax": ("lax.fori_loop(0, 3, lambda _, y: twice(y), x[...])", "x[i] = 2 * x[i]"),
    "GradientError": ("", "x[i] = qd.atomic_add(x, i, 1.0)"),
    "CheckError": ("", "qd.check(x[i] > 2, 'small')\nx[i] = 2 * x[i]"),
    "BoundsError": ("y = qd.copy(x)", "x[i] = y[i + 1]"),
    "KeyError of a helper": ("", "x[i] = lookup(x[i])"),
    "KeyError outside of loops": ("lookup(x)", "x[i] = 2 * x[i]"),
    "ValueError with a cause": ("", "try:\n    lookup(1)\nexcept KeyError as e:\n    raise ValueError('that') from e"),
    "ValueError while another is handled": ("", "try:\n    lookup(1)\nexcept KeyError:\n    raise ValueError('then')"),
    "AssertionError": ("", "assert i is None"),
    "TypeError of a call": ("", "with qd.when(x[i] > 0, 1):\n    x[i] = 0.0"),
    "TypeError of an object": ("", "x[i] = Body()[0]"),
    "RuntimeError in scan": ("", "x[i] = lax.scan(Body(), x[i], jnp.arange(3))[0]"),
    "RuntimeError in a lane": ("qd.vmap(functools.partial(Body(), 1))(x[...])", "x[i] = 2 * x[i]"),
    "RuntimeError in a condition": ("", "for _ in qd.while_(lambda: Body()(0, 0)):\n    x[i] = 1.0"),
    "LookupError in a rule": ("", "x[i] = ruled(x[i])"),
}
"""Class of an error with the code in front of the loop, and that of its body, that raise it."""
CALLS = {
    "eager": "f(X)",
    "jit": "jax.jit(f)(X).block_until_ready()",
    "grad": "jax.grad(lambda x: f(x).sum())(X)",
    "qd.grad": "qd.grad(lambda x: f(x).sum())(X)",
    "jvp": "jax.jvp(f, (X,), (X,))",
    "vmap": "jax.vmap(f)(jnp.stack([X, X])).block_until_ready()",
    "jit of grad": "jax.jit(jax.grad(lambda x: f(x).sum()))(X).block_until_ready()",
    "lower": "f.lower(X)",
    "debug": "qd.jit(f.__wrapped__, options={'debug': True})(X)",
    "profile": "qd.profile(f)(X)",
}


def program(front: str, body: str, printing: bool) -> str:
    """A function with a loop; where it prints, no cache of traces knows it."""
    lines = [*(["jax.debug.print('{}', x[0])"] if printing else []), *filter(None, [front]), "for i in qd.range(4):"]
    lines += ["    " + line for line in body.splitlines()] + ["return x"]
    function = "".join(f"    {line}\n" for line in lines)
    twice = "def twice(y):\n    for i in qd.range(4):\n        y[i] = 2 * y[i]\n    return y\n\n"
    return HEAD + twice + f"@qd.jit\ndef f(x):\n{function}\nX = jnp.ones(4)\n"


def raised(text: str) -> BaseException | None:
    """The error of a program that runs as `user.py`."""
    linecache.cache["user.py"] = (len(text), None, text.splitlines(keepends=True), "user.py")
    try:
        exec(compile(text, "user.py", "exec"), {"__name__": "user"})
    except Exception as error:
        return error
    return None


@pytest.mark.every_case
@pytest.mark.parametrize(("k", "name"), list(enumerate(FUNCTIONS)), ids=FUNCTIONS)
def test_frames_are_the_users(k: int, name: str) -> None:
    check_frames(name, list(CALLS)[k % len(CALLS)], k % 3 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("printing", [False, True], ids=["", "printing"])
def test_frames_are_the_users_in_each_call(name: str, call: str, printing: bool) -> None:
    check_frames(name, call, printing)


def check_frames(name: str, call: str, printing: bool) -> None:
    """Raises AssertionError unless the error of a call is of its class and shows the user's frames alone."""
    error = raised(program(*FUNCTIONS[name], printing) + CALLS[call] + "\n")
    needs_derivative = "grad" in call or call == "jvp"
    kind = name.partition(" ")[0]
    if kind in ("GradientError", "LookupError") and not needs_derivative:
        assert error is None or call == "profile", error  # of what copies nothing no task runs
        return
    if kind in ("CheckError", "BoundsError") and call == "lower":
        return
    assert error is not None
    text = "".join(traceback.format_exception(error))
    assert "During handling" not in text or name == "ValueError while another is handled"
    assert "UnknownError" not in text
    files = [file for file in re.findall(r'^\s+File "(.*?)"', text, re.MULTILINE) if file != __file__]
    assert set(files) <= {"user.py"}, text
    if kind not in ("CheckError", "BoundsError"):  # under jax.jit those are XLA's, `qd.explain` has them
        assert type(error).__name__ == kind, text


OUTSIDE = (
    "qd.range(3)", "qd.while_(lambda: True)", "qd.ndrange(2, 2)", "qd.when(True)", "qd.otherwise()", "qd.local(0.0)",
    "qd.zeros(3)", "qd.full(3, 0.0)", "qd.copy(X)", "qd.atomic_add(X, 0, 1.0)", "qd.break_if(True)", "qd.check(X)",
    "qd.options(none=1)", "qd.config.bounds = 'none'", "qd.config.none = 1", "qd.jit(3)", "qd.vmap(3)(X)", "qd.grad(3)",
    "qd.jit(f, options={'none': 1})", "qd.vmap(lambda x: x, in_axes='a')(X)", "qd.sort(3)", "qd.grad(lambda x: x)(X)",
    "qd.profile(3)", "qd.make_graph(3)", "qd.sinn", "qd.check_grads(3, 3)", "f.lower(X).graph('none')",
    "f.lower(X).as_text('none')", "f.lower(X).traffic('none')", "f.lower()",
)  # fmt: skip


@pytest.mark.parametrize("call", [*OUTSIDE, *(f"qd.{name}()" for name in qd.__all__ if name.islower())])
def test_frames_of_calls_outside_of_a_trace(call: str) -> None:
    error = raised(program("", "x[i] = 2 * x[i]", False) + f"{call}\n")
    text = "".join(traceback.format_exception(error)) if error is not None else ""
    assert text or call in ("qd.block_until_ready()", "qd.stats()", "qd.options()", "qd.dataclass()", "qd.jit()")
    assert {file for file in re.findall(r'^\s+File "(.*?)"', text, re.MULTILINE) if file != __file__} <= {"user.py"}


def test_the_table_has_every_class() -> None:
    classes = {name for name in qd.__all__ if name.endswith("Error") and name != "QdError"}
    elsewhere = {"BackendError", "InterpreterError", "OutOfMemoryError", "VerifyError"}  # test_stderr, docs/errors.md
    assert classes - elsewhere == classes & {name.partition(" ")[0] for name in FUNCTIONS}


def test_all_frames_are_there_if_asked_for() -> None:
    jax.config.update("jax_traceback_filtering", "off")
    try:
        error = raised(program(*FUNCTIONS["KeyError of a helper"], False) + "f(X)\n")
    finally:
        jax.config.update("jax_traceback_filtering", "auto")
    assert error is not None
    assert any("trace.py" in line for line in traceback.format_exception(error))


@pytest.mark.parametrize("block", ["with qd.when(x[i] < 0):", "with qd.otherwise():"])
def test_a_raise_in_a_block_is_told_why(block: str) -> None:
    front = "with qd.when(x[i] > 3):\n    x[i] = 3.0\n" if "otherwise" in block else ""
    error = raised(program("", f"{front}{block}\n    raise ValueError('negative')", False) + "f(X)\n")
    (note,) = (n for n in getattr(error, "__notes__", []) if "JAX" not in n)
    held = "condition" if front else "~(x[i] < 0)"
    name = block.split("(")[0].removeprefix("with ")
    told = f"note: the body of a {name} is traced whatever its condition, so this `raise` always raises"
    assert note.startswith(told)
    assert f"help: write `qd.check({held}, 'negative')`" in note


def test_a_raise_of_a_helper_or_a_loop_gets_no_note() -> None:
    for body in ("raise ValueError('always')", "with qd.when(x[i] > 0):\n    lookup(x[i])"):
        error = raised(program("", body, False) + "f(X)\n")
        assert not [n for n in getattr(error, "__notes__", []) if "qd.check" in n]


@pytest.mark.full
def test_frames_in_pytest(tmp_path: Path) -> None:
    text = program(*FUNCTIONS["KeyError of a helper"], True) + "\ndef test_it():\n    jax.jit(f)(X)\n"
    (tmp_path / "test_user.py").write_text(text)
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    shown = subprocess.run([sys.executable, "-m", "pytest", *options], capture_output=True, text=True).stdout
    assert "KeyError" in shown
    assert "qdtrace/" not in shown
    assert "During handling" not in shown
