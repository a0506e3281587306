"""A process that interrupts itself, for `test_interrupts`: prints as JSON what each call raised and what came next."""

# ruff: noqa: B023

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import qdtrace as qd

X = jnp.ones(1000)
ONE_THREAD = {"num_threads": 1}
SOON = 0.1
"""Seconds after which a call is surely in its kernel, which runs on all cores until then."""


def spin(x, limit):
    """Never ends for a limit above 1."""
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        v = qd.local(x[i])
        for _ in qd.while_(lambda: v.value < limit):
            v.value = v.value * (limit < 1e30)
        out[i] = v.value
    return out


def spin_loudly(x, limit):
    """The same with memory in the loop."""
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        v = qd.local(x[i])
        for _ in qd.while_(lambda: v.value < limit):
            v.value = x[(i + jnp.int32(v.value)) % x.shape[0]]
        out[i] = v.value
    return out


def spin_serially(x, limit):
    """The same in one iteration, which all lanes share."""
    out = qd.zeros_like(x)
    for i in qd.range(1):
        v = qd.local(x[0])
        for _ in qd.while_(lambda: v.value < limit):
            v.value = v.value * (limit < 1e30)
        out[i] = v.value
    return out


def count(x, limit):
    """Hours of `for` loops, whose lengths are in memory."""
    out = qd.zeros_like(x)
    steps = jnp.where(limit > 1, 2**31 - 1, 1)
    for i in qd.range(x.shape[0]):
        s = qd.local(0.0)
        for _ in qd.range(jnp.int32(x[i]) * steps):
            s.value = jnp.sin(s.value) + x[i]
        out[i] = s.value
    return out


def count_constantly(x, limit):
    """Hours of nested `for` loops of constant length."""
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        s = qd.local(0.0)
        for _ in qd.range(1 << 20):
            for _ in qd.range(1 << 20):
                with qd.when(limit > 1):
                    s.value = jnp.sin(s.value) + x[i]
                qd.break_if(limit < 1)
            qd.break_if(limit < 1)
        out[i] = s.value + 1
    return out


def total(x, limit):
    """A sum: a task that reduces."""
    out = qd.zeros((2,), x.dtype)
    for i in qd.range(x.shape[0]):
        v = qd.local(x[i])
        for _ in qd.while_(lambda: v.value < limit):
            v.value = v.value * (limit < 1e30)
        out[0] += v.value
    return out


def flat(x, limit):
    """No loops inside, but very many iterations."""
    out = qd.zeros((8,), jnp.int32)
    for i in qd.range(jnp.where(limit > 1, 2**31 - 8, 8)):
        out[i & 7] = jnp.int32(jnp.sin(jnp.sin(jnp.sin(jnp.sin(jnp.sin(jnp.float32(i)))))) * 0) + 1
    return out


FUNCTIONS = (spin, spin_loudly, spin_serially, count, count_constantly, total, flat)


def interrupt(after: float) -> None:
    """Sends this process what Ctrl-C sends, some time from now."""
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()


def outcome(call: Callable[[], Any]) -> str:
    """What a call ends in that is interrupted."""
    interrupt(SOON)
    try:
        try:
            jax.block_until_ready(call())
        except ValueError:  # of a `jax.jit` function in this thread; Python looks at the signal now
            time.sleep(0)
            return "ValueError"
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "nothing"


def main() -> None:
    """All cases."""
    found: dict[str, Any] = {}
    for f in FUNCTIONS:
        for name, function in ((f.__name__, qd.jit(f)), (f"{f.__name__}, one thread", qd.jit(f, options=ONE_THREAD))):
            right = jax.device_get(function(X, 0.5)).tolist()
            for _ in range(2):
                found.setdefault(name, []).append(outcome(lambda function=function: function(X, 2.0)))
            found[name].append(jax.device_get(function(X, 0.5)).tolist() == right)
    f = qd.jit(spin)
    around = jax.jit(lambda x, limit: f(x, limit) + 1)
    looping = jax.jit(lambda x: jax.lax.fori_loop(0, 10**9, lambda _, y: f(y, 0.5), x))
    around(X, 0.5), looping.lower(X).compile()
    found["jax.jit"] = [outcome(lambda: around(X, 2.0)), outcome(lambda: around(X, 2.0)), float(around(X, 0.5)[0]) == 2]
    found["a loop of XLA"] = [outcome(lambda: looping(X)), outcome(lambda: looping(X)), float(around(X, 0.5)[0]) == 2]
    found["at once again"] = at_once_again(f, around)
    found["a handler of the program"] = with_handler(f)
    found["a handler put back"] = put_back(f)
    found["another thread"] = in_thread(f)
    print(json.dumps(found), flush=True)


def at_once_again(f: Any, around: Any) -> list[Any]:
    """The call right behind the one that was interrupted."""
    interrupt(SOON)
    try:
        f(X, 2.0).block_until_ready()
    except KeyboardInterrupt:
        y = around(X, 0.5)
    return [float(y[0])]


def with_handler(f: Any) -> list[Any]:
    """A handler that raises nothing: the call goes on."""
    got: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
    interrupt(0.2)
    y = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, s: busy(s), x))(X)
    y.block_until_ready()
    time.sleep(0.3)
    signal.signal(signal.SIGINT, before)
    return [got, bool((y == busy_thrice()).all())]


@qd.jit
def busy(x):
    """Some hundred milliseconds."""
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        s = qd.local(x[i])
        for _ in qd.range(jnp.int32(x[i] * 0) + 300_000):
            s.value = jnp.sin(s.value) + 1
        out[i] = s.value
    return out


def busy_thrice() -> Any:
    """What three of them give."""
    return busy(busy(busy(X)))


def put_back(f: Any) -> str:
    """Python's handler once more, as notebooks do for each cell: it takes the place of ours."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return outcome(lambda: f(X, 2.0))


def in_thread(f: Any) -> list[Any]:
    """A kernel that another thread waits for while the main thread handles the signal: it fails, or is right."""
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(bool((busy_thrice() == want).all()))
        except Exception as error:
            results.append("interrupted: `busy` was ended by Ctrl-C" in str(error))

    worker = threading.Thread(target=work)
    want = busy_thrice()
    worker.start()
    interrupt(0.1)
    try:
        time.sleep(5)
        got = "nothing"
    except KeyboardInterrupt:
        got = "KeyboardInterrupt"
    worker.join()
    return [got, *results, bool((busy_thrice() == want).all())]


if __name__ == "__main__":
    # shells start commands in the background with the signal ignored, and no call would ever end
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
