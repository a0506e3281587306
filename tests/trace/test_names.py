"""Buffers and cells have the names of the user's variables, in graphs and in errors; code does not depend on them."""

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.runtime.keys import task_content
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program

X = np.arange(4, dtype=np.float32)


def buffers(f: Any) -> list[str]:
    """The names in the graph as traced."""
    text = qd.jit(f).lower(X).graph("trace")
    assert print_program(parse_program(text)) == text
    return re.findall(r"buffer (\w+):", text)


def made(x: Any) -> Any:
    return qd.zeros_like(x)


class Kept:
    """Something with attributes."""


def stored(x: Any, *buffers: Any) -> Any:
    for i in qd.range(x.shape[0]):
        for b in buffers:
            b[i] = x[i]
    return buffers


def test_a_buffer_is_called_as_its_variable() -> None:
    def assigned(x: Any) -> Any:
        first = qd.empty(x.shape, x.dtype)
        second = x.copy()
        third: Any = qd.full(x.shape, 2.0)
        fourth = qd.ones(x.shape)
        fifth = made(x)
        return stored(x, first, second, third, fourth, fifth)

    # the content of a copy is a parameter
    assert buffers(assigned) == ["first", "third", "fourth", "fifth"]
    assert "program assigned(x: ref[f32,4], second: ref[f32,4])" in qd.jit(assigned).lower(X).graph("trace")


def test_buffers_of_a_tuple_are_called_as_its_variables() -> None:
    def assigned(x: Any) -> Any:
        a, b = qd.zeros_like(x), qd.ones(x.shape)
        (c, (d, e)), f, g = (made(x), [qd.empty(4), qd.zeros(4)]), qd.full(4, 1.0), 3
        first, *others = qd.zeros(4), qd.ones(4), qd.ones(4)
        return stored(x, a, b, c, d, e, f, first, *others), g

    assert buffers(assigned) == ["a", "b", "c", "d", "e", "f", "b_1", "b_2", "b_3"]


def test_what_no_variable_names_is_b() -> None:
    def unnamed(x: Any) -> Any:
        kept = Kept()
        kept.out = qd.zeros_like(x)  # type: ignore[attr-defined]
        _ = qd.zeros_like(x)
        return stored(x, *[qd.zeros_like(x) for _ in range(2)], kept.out, _)  # type: ignore[attr-defined]

    assert buffers(unnamed) == ["b", "b_1", "b_2", "b_3"]


def test_equal_names_and_words_of_the_graph_are_told_apart() -> None:
    def twice(x: Any) -> Any:
        load = qd.zeros_like(x)
        out = [load]
        for _ in range(2):
            y = made(x)
            out.append(y)
        x_1 = qd.zeros_like(x)
        größe = qd.zeros_like(x)
        return stored(x, *out, x_1, größe)

    names = buffers(twice)
    assert len(set(names)) == 5
    assert names[1:4] == ["y", "y_1", "x_1"]


def test_a_cell_is_called_as_its_variable() -> None:
    def cells(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            speed = qd.local(x[i])
            for _ in qd.while_(lambda speed=speed: speed.value > 1):
                speed.value = speed.value / 2
            x[i] = speed.value
        return x

    assert "while carry speed = " in qd.jit(cells).lower(X).graph()


def test_errors_say_the_name() -> None:
    @qd.jit
    def shifted(x: Any) -> Any:
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            out[i + 1] = x[i]
        return out

    with pytest.raises(qd.BoundsError, match="index 4 is out of bounds for axis 0 of `out` with shape"):
        shifted(X)


def test_code_does_not_depend_on_names() -> None:
    def one(x: Any, k: Any) -> Any:
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            speed = qd.local(x[k[i]])
            out[i] = speed.value
        return out

    def other(x: Any, k: Any) -> Any:
        result = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            v = qd.local(x[k[i]])
            result[i] = v.value
        return result

    keys: set[str] = set()
    for f in (one, other):
        low = qd.jit(f).lower(jnp.asarray(X), jnp.arange(4))
        (task,) = low._final(low.programs[0]).tasks
        keys.add(task_content(task, ()))
    assert len(keys) == 1
