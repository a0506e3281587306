"""Random loops with prints: what machine code tells, with loops that run twice, is what the interpreter tells."""

import contextlib
import io
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.selection import drawn

CONDITIONS = {
    "gt": lambda a, i, k, v, x: v > a,
    "swapped": lambda a, i, k, v, x: a > v,
    "ge": lambda a, i, k, v, x: v >= 0.5,
    "le": lambda a, i, k, v, x: v <= -1.5,
    "lt": lambda a, i, k, v, x: v < x[i],
    "nan": lambda a, i, k, v, x: jnp.isnan(v),
    "infinite": lambda a, i, k, v, x: ~jnp.isfinite(v),
    "and_fixed": lambda a, i, k, v, x: (v > 2) & (a > 0),
    "and": lambda a, i, k, v, x: (v > 1) & (k % 2 == 1),
    "or": lambda a, i, k, v, x: (v > 2.5) | (v < -3) | jnp.isnan(v),
    "equal": lambda a, i, k, v, x: k == 2,
    "not": lambda a, i, k, v, x: ~(v > 0.25),
    "fixed": lambda a, i, k, v, x: x[i] > a,
    "integer": lambda a, i, k, v, x: k * 3 - i > 2,
    "least": lambda a, i, k, v, x: i - k * 5 <= -7,
    "never": lambda a, i, k, v, x: v > 1e30,
}


def tree(seed):
    """What a body does: statements, some with bodies."""
    draw, number = random.Random(seed), itertools.count()

    def tell():
        return "tell", next(number), draw.choice([*CONDITIONS])

    def body(depth):
        made = []
        for _ in range(draw.randint(1, 3)):
            kinds = ["tell", "tell", "change", "when", "store"] + ["for", "while", "cell"] * (depth < 3)
            kind = draw.choice(kinds)
            if kind == "tell":
                made.append(tell())
            elif kind == "change":
                made.append((kind, draw.choice([0.5, 1.7, -1.1]), draw.choice([0.25, None])))
            elif kind == "when":
                made.append((kind, draw.choice([*CONDITIONS]), body(depth + 1), draw.choice([[], [tell()]])))
            elif kind == "store":
                made.append((kind,))
            else:
                made.append((kind, draw.choice([1, 3, 5, "n", "i"]), body(depth + 1), draw.random() < 0.3, tell()))
        return made

    return body(0)


def program(seed, **options):
    """The function of a tree."""
    statements = tree(seed)

    def run(body, out, x, a, n, i, ks, v):
        k = ks[-1] if ks else i
        for kind, *rest in body:
            if kind == "tell":
                twice = v.value * 2 + 1
                with qd.when(CONDITIONS[rest[1]](a, i, k, v.value, x)):
                    jax.debug.print(f"p{rest[0]} {{}} {{}} {{}} {{}}", i, [*ks], v.value, twice)
            elif kind == "change":
                v.value = v.value * rest[0] + (rest[1] or x[i] * 0.5)
            elif kind == "when":
                with qd.when(CONDITIONS[rest[0]](a, i, k, v.value, x)):
                    v.value = v.value - 0.75
                    run(rest[1], out, x, a, n, i, ks, v)
                with qd.otherwise():
                    run(rest[2], out, x, a, n, i, ks, v)
            elif kind == "store":
                out[i] = out[i] + v.value
            else:
                loop(kind, rest, out, x, a, n, i, ks, v)

    def loop(kind, rest, out, x, a, n, i, ks, v):
        stop = {"n": n, "i": i % 4}.get(rest[0], rest[0])
        if kind == "while":
            count = qd.local(0)
            for _ in qd.while_(lambda count=count: count.value < stop):
                count += 1
                v.value = v.value * 0.8 + 0.3
                run([*rest[1], rest[3]], out, x, a, n, i, (*ks, count.value), v)
            return
        w = qd.local(v.value) if kind == "cell" else v
        for k in qd.range(stop):
            w.value = w.value * 1.25 + 0.1
            if rest[2]:
                qd.break_if(w.value > 4)
            run([*rest[1], rest[3]], out, x, a, n, i, (*ks, k), w)

    def f(x, a, n):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            v = qd.local(x[i])
            run(statements, out, x, a, n, i, (), v)
            out[i] = out[i] + v.value
        return out

    return qd.jit(f, options={"fast_math": False, "print_lines": 1 << 16, **options})


def told(f, *args):
    """Results, and lines."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        results = jax.block_until_ready(f(*args))
        jax.effects_barrier()
    return np.asarray(results), shown.getvalue().splitlines()


def check(seed):
    """Compares; the number of lines."""
    draw = np.random.default_rng(seed)
    x = draw.uniform(-3, 3, draw.integers(1, 40)).astype(np.float32)
    for special, every in ((np.nan, 3), (np.inf, 4), (-np.inf, 5)):
        if seed % every == 0:
            x[draw.integers(0, len(x))] = special
    args = x, np.float32(draw.uniform(-1, 1)), np.int32(draw.integers(0, 5))
    (results, lines), (expected, wanted) = (told(program(seed, debug=d), *args) for d in (False, True))
    np.testing.assert_array_equal(results, expected)
    assert lines == wanted
    return len(lines)


@pytest.mark.full
@pytest.mark.sample(3)
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_random_loops_tell_what_the_interpreter_tells(first):
    assert sum(check(seed) for seed in range(first, first + drawn(10)))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(30, 430, 20))
def test_more_random_loops(first):
    assert sum(check(seed) for seed in range(first, first + 20))
