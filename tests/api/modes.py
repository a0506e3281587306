"""The two ways to run a program of `two_modes`: as plain NumPy, and with the constructs of the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd

if TYPE_CHECKING:
    from tests.api.two_modes import Callee, Env

I32 = np.int32


class Jump(Exception):  # noqa: N818 - no error: how the NumPy mode leaves a body
    """A `break` or `continue` on its way to the loop."""

    def __init__(self, leaves: bool) -> None:
        self.leaves = leaves


class Plain:
    """NumPy and Python's own loops."""

    xp = np

    def const(self, c: int) -> Any:
        return I32(c)

    def index(self, k: Any, kind: str) -> Any:
        return int(k)

    def index_of(self, counter: Any) -> Any:
        return int(counter)

    def scalar(self, v: Any) -> Any:
        return I32(v)

    def whole(self, buffer: Any) -> Any:
        return np.array(buffer)

    def fresh(self, how: str, shape: tuple[int, ...], fill: Any, like: Any) -> Any:
        if how in ("copy", "copy_method"):
            return np.array(like)
        value = {"zeros": 0, "zeros_like": 0, "ones": 1}.get(how, fill)
        return np.full(shape, value, I32)

    def loop(self, low: Any, high: Any, step: int, body: Any, **_: Any) -> None:
        for i in range(int(low), int(high), step):
            body(I32(i))

    def product(self, shape: tuple[int, ...], body: Any) -> None:
        for k in np.ndindex(*shape):
            body(*map(I32, k))

    def loop_while(self, condition: Any, body: Any) -> None:
        while condition():
            try:
                body()
            except Jump as jump:
                if jump.leaves:
                    break

    def jump(self, leaves: bool, condition: Any) -> None:
        if condition:
            raise Jump(leaves)

    def when(self, condition: Any, then: Any, other: Any) -> None:
        if condition:
            then()
        elif other is not None:
            other()

    def inner(self, count: Any, jump: Any, cell: Any, body: Any) -> None:
        for j in range(int(count)):
            leaves, skips = jump(I32(j))
            if leaves:
                break
            if not skips:
                body(I32(j))

    def cell(self, value: Any) -> Any:
        return PlainCell(I32(value))

    def table(self, size: int, value: Any) -> Any:
        return np.full(size, value, I32)

    def lax_loop(self, count: int, start: Any, step: Any) -> Any:
        total = I32(start)
        for k in range(count):
            total = I32(step(I32(k), total))
        return total

    def lax_choice(self, condition: Any, then: Any, other: Any) -> Any:
        return I32(then() if condition else other())

    def accumulate(self, buffer: Any, key: Any, op: str, value: Any, way: str) -> Any:
        old = np.array(buffer[key])[()]
        combine = {"add": np.add, "min": np.minimum, "max": np.maximum, "mul": np.multiply}[op]
        buffer[key] = combine(old, value)
        return old

    def accumulate_inside(self, buffer: Any, key: Any, value: Any, first: Any) -> None:
        first()
        buffer[key] += value

    def exchange(self, buffer: Any, key: Any, value: Any) -> Any:
        old = I32(buffer[key])
        buffer[key] = value
        return old

    def whole_inplace(self, env: Env, name: str, op: str, value: Any) -> None:
        b = env.buffers[name]
        b[...] = b + value if op == "add" else b * value

    def call(self, callee: Callee, args: list[Any]) -> list[Any]:
        return [np.array(out)[()] for out in callee.run([np.array(a)[()] for a in args], self)]

    def fold(self, buffer: Any, count: int, start: Any) -> Any:
        total = I32(start)
        for k in range(count):
            total = I32(total + buffer[k])
        return total

    def branch(self, condition: Any, buffer: Any, a: int, b: int) -> Any:
        return I32(buffer[a] if condition else buffer[b])


@dataclass
class Shifted:
    """An object of the user's around a buffer: it computes the index at each access."""

    buffer: Any

    def place(self, key: Any) -> Any:
        return tuple(k + 1 - 1 for k in key) if isinstance(key, tuple) else key + 1 - 1

    def __getitem__(self, key: Any) -> Any:
        return self.buffer[self.place(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.buffer[self.place(key)] = value


@dataclass
class PlainCell:
    value: Any


class Traced:
    """The constructs of the package."""

    xp = jnp

    def const(self, c: int) -> Any:
        return c

    def index(self, k: Any, kind: str) -> Any:
        """The same number in one of the forms that an index may have."""
        return qd.local(k, I32) if kind == "cell" else k if kind == "int32" else jnp.asarray(k).astype(kind)

    def index_of(self, counter: Any) -> Any:
        """A buffer of rank 0 is an index as it is."""
        return counter

    def scalar(self, v: Any) -> Any:
        return jnp.asarray(v, I32)

    def whole(self, buffer: Any) -> Any:
        return buffer[...]

    def fresh(self, how: str, shape: tuple[int, ...], fill: Any, like: Any) -> Any:
        match how:
            case "zeros":
                return qd.zeros(shape, I32)
            case "zeros_like":
                return qd.zeros_like(like)
            case "ones":
                return qd.ones(shape, I32)
            case "copy":
                return qd.copy(like)
            case "copy_method":
                return like.copy()
            case "empty":
                buffer = qd.empty(shape, I32)
                buffer[...] = fill
                return buffer
            case _:
                return qd.full(shape, fill, I32)

    def loop(self, low: Any, high: Any, step: int, body: Any, *, serial: bool = False) -> None:
        for i in qd.range(low, high, step, serial=serial or None):
            body(i)

    def product(self, shape: tuple[int, ...], body: Any) -> None:
        for k in qd.ndrange(*shape):
            body(*k)

    def loop_while(self, condition: Any, body: Any) -> None:
        for _ in qd.while_(condition):
            body()

    def jump(self, leaves: bool, condition: Any) -> None:
        (qd.break_if if leaves else qd.continue_if)(condition)

    def when(self, condition: Any, then: Any, other: Any) -> None:
        with qd.when(condition):
            then()
        if other is not None:
            with qd.otherwise():
                other()

    def inner(self, count: Any, jump: Any, cell: Any, body: Any) -> None:
        for j in qd.range(count):
            leaves, skips = jump(j)
            qd.break_if(leaves)
            qd.continue_if(skips)
            body(j)

    def cell(self, value: Any) -> Any:
        return qd.local(value, I32)

    def table(self, size: int, value: Any) -> Any:
        return qd.local(jnp.full(size, value, I32))

    def lax_loop(self, count: int, start: Any, step: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda k, t: self.scalar(step(k, t)), self.scalar(start))

    def lax_choice(self, condition: Any, then: Any, other: Any) -> Any:
        return jax.lax.cond(condition, lambda: self.scalar(then()), lambda: self.scalar(other()))

    def accumulate(self, buffer: Any, key: Any, op: str, value: Any, way: str) -> Any:
        if way == "atomic" and op != "mul":
            return getattr(qd, f"atomic_{op}")(buffer, key, value)
        match way if op == "add" else "at":
            case "plus":
                buffer[key] += value
            case "minus":
                buffer[key] -= -value
            case "object":
                Shifted(buffer)[key] += value
            case _:
                getattr(buffer.at[key], op)(value)
        return None

    def accumulate_inside(self, buffer: Any, key: Any, value: Any, first: Any) -> None:
        def made() -> Any:
            first()
            return value

        buffer[key] += made()

    def exchange(self, buffer: Any, key: Any, value: Any) -> Any:
        return qd.atomic_exchange(buffer, key, value)

    def whole_inplace(self, env: Env, name: str, op: str, value: Any) -> None:
        b = env.buffers[name]
        if op == "add":
            b += value
        else:
            b *= value

    def call(self, callee: Callee, args: list[Any]) -> list[Any]:
        return callee.traced(*args)

    def fold(self, buffer: Any, count: int, start: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda k, t: t + buffer[k], jnp.asarray(start, I32))

    def branch(self, condition: Any, buffer: Any, a: int, b: int) -> Any:
        return jax.lax.cond(condition, lambda: buffer[a], lambda: buffer[b])
