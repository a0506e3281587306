"""A terminal shows the user's frames and one message for an uncaught error."""

import subprocess
import sys

import pytest

PRELUDE = """
import sys
import jax, jax.numpy as jnp, numpy as np, qdtrace as qd
X = jnp.ones(4)

@qd.jit
def shifted(x):
    y = qd.zeros_like(x)
    for i in qd.range(4):
        y[i] = x[i + 1]
    return y

@qd.jit
def counted(x):
    for i in qd.range(4):
        x[i] = qd.atomic_add(x, 0, x[i])
    return x

def helper(v):
    return v + 1 if v > 0 else v

@qd.jit
def branches(x):
    for i in qd.range(4):
        x[i] = helper(x[i])
    return x

def collective(v):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), "float32"), v)
"""
PROGRAMS = {  # with the kind, and the lines of the traceback: two of each frame of the user, one of the head
    "tracing": ("branches(X)", "TraceTypeError", 3),
    "tracing under jax.jit": ("jax.jit(lambda x: branches(x))(X)", "TraceTypeError", 4),
    "a lane": ("qd.vmap(helper)(X)", "TraceTypeError", 2),
    "import of a lane": ("qd.vmap(collective)(X)", "UnsupportedError", 1),
    "a failing check": ("shifted(X)", "BoundsError", 1),
    "a failing check in the interpreter": ("qd.jit(shifted, options={'debug': True})(X)", "BoundsError", 1),
    "a gradient": ("jax.grad(lambda x: counted(x).sum())(X)", "GradientError", 1),
    "a gradient of ours": ("qd.grad(lambda x: counted(x).sum())(X)", "GradientError", 1),
    "an argument": ("shifted('abc')", "TraceTypeError", 1),
    "a backend": ("qd.jit(shifted, backend='nonesuch')(X)", "BackendError", 1),
    "lowering": ("shifted.lower(X, target='sm_91')", "BackendError", 1),
    "waiting": ("qd.block_until_ready(jax.jit(shifted)(X))", "JaxRuntimeError", 1),
}
SHOW = """
for program in sys.stdin.read().split("\\0"):
    try:
        exec(compile(program, "user.py", "exec"))
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next  # without the line above
        sys.__excepthook__(type(error), error, error.__traceback__)
    print("\\0", file=sys.stderr)
"""


def shown(programs: list[str], mode: str = "auto") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + f"jax.config.update('jax_traceback_filtering', {mode!r})\n" + SHOW],
        input="\0".join(programs),
        capture_output=True,
        text=True,
        check=True,
    )
    return [part.strip("\n") for part in done.stderr.split("\0\n")][: len(programs)]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return dict(zip(PROGRAMS, shown([program for program, _, _ in PROGRAMS.values()]), strict=True))


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "waiting"])
def test_one_error_and_the_frames_of_the_user(texts: dict[str, str], name: str) -> None:
    _, kind, frames = PROGRAMS[name]
    lines = texts[name].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    places = [line for line in lines if line.startswith("  File ")]
    assert [p for p in places if '"user.py"' not in p and '"<string>"' not in p] == []
    assert len(places) == frames
    assert sum(line.startswith("Traceback") for line in lines) == 1
    (head,) = (k for k, line in enumerate(lines) if line.startswith(f"qdtrace.errors.{kind}: "))
    assert all(line.startswith("  ") for line in lines[1:head])  # from Python 3.13 on a string has source lines
    assert len(lines) - head <= 6
    assert "JAX has removed" not in texts[name]


def test_a_failing_check_under_jit(texts: dict[str, str]) -> None:
    lines = texts["waiting"].splitlines()
    assert lines[2].startswith("jax.errors.JaxRuntimeError: OUT_OF_RANGE: index 4 is out of bounds for axis 0 of `x`")
    assert len(lines) <= 9


@pytest.mark.parametrize("mode", ["off", "remove_frames"])
@pytest.mark.full
def test_modes_that_show_all(mode: str) -> None:
    tracing, gradient = shown([PROGRAMS["tracing"][0], PROGRAMS["a gradient"][0]], mode)
    if mode == "off":
        assert "trace/trace.py" in tracing
        assert "TracerBoolConversionError" in tracing
        assert "derivative.py" in gradient
    else:
        assert "jax._src.traceback_util.UnfilteredStackTrace" in gradient
    for text in (tracing, gradient):
        assert text.splitlines()[-1].startswith("help: ")
