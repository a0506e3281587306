"""Ctrl-C while a kernel runs: it ends, the caller gets KeyboardInterrupt, and later calls are right."""

import ctypes
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from lowering.llvm.polls import LONG, may_run_long
from lowering.llvm.target import Target
from lowering.runtime import interrupts
from lowering.simd.emit import emit_task
from qdtrace.ir.parser import parse_program
from qdtrace.ir.walk import walk_eqns
from tests import fresh

ROOT = Path(__file__).parents[2]
INTERRUPTED = "KeyboardInterrupt"
FUNCTIONS = ("spin", "spin_loudly", "spin_serially", "count", "count_constantly", "total", "flat")


@pytest.fixture(scope="module")
def child() -> dict[str, list[object]]:
    """What the process of `interrupted` found."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.runtime.interrupted"]
    done = fresh.run(command, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.every_case
@pytest.mark.parametrize("around", ["", ", one thread"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_kernel_ends_and_the_next_call_is_right(child, name: str, around: str) -> None:
    assert child[name + around] == [INTERRUPTED, INTERRUPTED, True]


def test_programs_around_it_end(child) -> None:
    assert {*child["jax.jit"][:2]} <= {"KeyboardInterrupt", "ValueError"}
    assert child["jax.jit"][2] is True
    assert child["a loop of XLA"] == [INTERRUPTED, INTERRUPTED, True]


def test_a_call_right_behind_it_is_right(child) -> None:
    assert child["at once again"] == [2.0]


def test_other_handlers_are_left_alone(child) -> None:
    """A program that handles the signal itself, and raises nothing, keeps its kernels."""
    assert child["a handler of the program"] == [[2], True]


def test_a_handler_that_is_put_back_is_surrounded_again(child) -> None:
    assert child["a handler put back"] == INTERRUPTED


def test_other_threads_fail_or_are_right(child) -> None:
    assert child["another thread"] == ["KeyboardInterrupt", True, True]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Durations for which kernels are asked to end, while Python runs nothing that is pending; the first ends it."""
    durations: list[int] = []

    def ask(duration: int, ran: int) -> None:
        durations.append(duration)
        ctypes.c_int64.from_address(ran).value = 1

    monkeypatch.setattr(interrupts, "_ask_to_end", [ask])
    monkeypatch.setattr(ctypes.pythonapi, "Py_AddPendingCall", lambda *_: 0)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)
    return durations


def test_kernels_end_though_the_main_thread_is_at_another_place(asked: list[int]) -> None:
    """It may have gone on without a look for signals. Here it runs all the time, as it is the one that asks."""
    interrupts._interrupt()
    assert asked == [interrupts.SHORTEST]


def test_kernels_are_left_alone_once_the_signal_is_handled(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        interrupts._interrupt()
    assert asked == []
    monkeypatch.setattr(ctypes.pythonapi, "Py_AddPendingCall", lambda *_: -1)  # no room: nobody could say when to stop
    interrupts._interrupt()
    assert asked == []


def test_an_exception_of_another_kind_does_not_say_that_the_signal_is_handled(asked: list[int]) -> None:
    try:
        raise ValueError
    except ValueError:
        interrupts._interrupt()
    assert asked == [interrupts.SHORTEST]


LOOPS = """
program p(x: ref[i32,64])
  range_for i in 0:i32 : 64:i32
    n: i32 = load x i
    a: i32 = for j in 0:i32 : n : 1:i32 carry s = 0:i32
      t: i32 = add s j
      yield t
    b: i32 = for k in 0:i32 : {trips}:i32 : 1:i32 carry s1 = a
      t1: i32 = add s1 k
      yield t1
    store x b i
"""


@pytest.mark.parametrize(("trips", "expected"), [(1, False), (LONG, False), (LONG + 1, True)])
def test_loops_that_are_surely_short_do_not_look(trips: int, expected: bool) -> None:
    (task,) = parse_program(LOOPS.format(trips=trips) + "  return x\n").tasks
    loops = [e for e in walk_eqns(task.body) if e.primitive.loops]
    assert list(map(may_run_long, loops)) == [True, expected]


@pytest.mark.parametrize("target", ["avx512", "avx2", "portable", "scalar"])
def test_code_without_loops_looks_once_a_chunk(target: str) -> None:
    text = "program p(x: ref[f32,64])\n  range_for i in 0:i32 : 64:i32\n    store x 1:f32 i\n  return x\n"
    (task,) = parse_program(text).tasks
    assert emit_task(task, Target.named(target)).text.count("load atomic i64") == 1


MEMORY = """
import json, resource
import jax, jax.numpy as jnp
import qdtrace as qd

def step(b):
    for i in qd.range(b.shape[0]):
        for k in qd.range(15_000_000):
            b[i, k % 20_000] = jnp.sin(b[i, k % 20_000])
    return b

gradient = qd.jit(jax.grad(lambda b: jnp.sum(qd.jit(step)(b))))
around = jax.jit(gradient)
b = jnp.ones((2, 20_000))
want = [float(gradient(b)[0, 0]), float(around(b)[0, 0])]
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
said = []
for f in (gradient, around, gradient):
    try:
        f(b).block_until_ready()
        said.append("nothing")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
said.append(str(qd.explain(Exception(said[1]))))
print(json.dumps([said, want == [float(gradient(b)[0, 0]), float(around(b)[0, 0])]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
def test_memory_that_the_system_refuses_is_an_error_of_the_call() -> None:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = fresh.run([sys.executable, "-c", MEMORY], env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    said, right = json.loads(done.stdout)
    assert right
    (line,) = (k for k, text in enumerate(MEMORY.splitlines(), 1) if "jnp.sin(b" in text)
    for text in (said[0], said[2], f"OutOfMemoryError: {said[3]}"):
        assert text.startswith("OutOfMemoryError: task `step.0_reverse` of `step")
        assert re.search(r"; \d{5,} bytes of them an iteration are kept by the code$", text, re.MULTILINE)
        assert f":{line} in step" in text
        assert "bytes of its own in each thread that runs it, which the system refused" in text
        assert "help: use smaller private arrays or fewer threads" in text
    assert "RESOURCE_EXHAUSTED: task `step.0_reverse`" in said[1]
