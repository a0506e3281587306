"""Lengths at which a function with `sizes="any"` is not traced: what Python does with lengths stays what it is."""

import copy
import math
import operator
import pickle
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace.lengths import Length, Recording, recorded
from tests.lengths.test_any_length import EXACT, added, met, ones, same_bits
from tests.written import written

pytestmark = pytest.mark.cpu
FIRST = (20, 31, 42, 45)
OTHERS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 19, 21, 32, 33, 40, 64, 100, 1000)
TABLE = {17: 3.0, 33: 5.0}
WEIGHTS = jnp.array([0.5, 2.0])


@lru_cache
def _cached(n: int) -> int:
    return n % 5


def _of_kinds(n: Any, x: Any) -> Any:
    q, r = divmod(n, 4)
    return q * 0.5 + r + abs(-n) + pow(n, 2) + pow(n, 3, 7) + int(n) + float(n) + bool(n) + (n or 5) + 2**-n


def _of_words(n: Any, x: Any) -> Any:
    match n:
        case 16:
            return 2
        case int() if n % 2:
            return 3
        case _:
            return 4


def _of_a_buffer(n: Any, x: Any) -> Any:
    y = qd.zeros(n // 2 + 1, x.dtype)
    return y.shape[0] + qd.zeros_like(y).shape[0] * 2 + len(qd.empty((n, 2), x.dtype))


PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "branch": lambda n, x: 5 if n == 1000 else n // 3 if n > 30 else 1 - n,
    "chained": lambda n, x: 2 if 10 < n <= 33 and n != 17 else 3,
    "in table": lambda n, x: TABLE.get(n, 1.0) + (n in (8, 9)),
    "by cache": lambda n, x: _cached(n),
    "unrolled": lambda n, x: sum(range(min(n, 4))),
    "of type": lambda n, x: n if isinstance(n, int) and not isinstance(n, float) else -1,
    "of maths": lambda n, x: (
        math.sqrt(n) + math.gcd(n, 12) + math.ceil(n / 3) + math.floor(n * 0.3) + round(n / 7) + math.prod((n, 2))
    ),
    "of numpy": lambda n, x: float(np.float32(2) * n + np.arange(3)[n % 3] + np.sum(np.arange(n % 7))),
    "as text": lambda n, x: len(f"{n}") + len(str(n)) + int(f"{n:d}") % 3,
    "of bits": lambda n, x: (n & 3) + (n | 1) + (n ^ 5) + (n << 1) + (n >> 1) + ~n + n.bit_length(),
    "of kinds": _of_kinds,
    "of words": _of_words,
    "of sequences": lambda n, x: (
        len([0] * (n % 4)) + sum((1, 2, 3)[: n % 3]) + sorted((n, 17, 3))[1] + max(n, 18) + sum([n, n])
    ),
    "copied": lambda n, x: copy.copy(n) + copy.deepcopy([n])[0] + pickle.loads(pickle.dumps(n)),
}
"""Functions of a length and an array that look at nothing but the length."""
OF_ARRAYS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int], int]]] = {
    "of other ways": (
        lambda n, x: len(x) + x.size + jnp.shape(x)[0] + np.ndim(x) + jax.tree.map(lambda a: a.shape[0], x),
        lambda n: 4 * n + 1,
    ),
    "of content": (lambda n, x: 3 if jnp.asarray(x).shape[0] > 30 else 4, lambda n: 3 if n > 30 else 4),
    "of parts": (lambda n, x: x[:].shape[0] % 3 + x[n // 2 :].shape[0], lambda n: n % 3 + n - n // 2),
    "of jnp": (lambda n, x: int(np.asarray(jnp.zeros(n).shape[0])) % 7, lambda n: n % 7),
    "of a buffer": (_of_a_buffer, lambda n: 3 * (n // 2 + 1) + n),
    "kept": (lambda n, x: n, lambda n: n),
}
"""Functions of a length and an array, and what they give for a length."""


def _times(number: Any) -> Any:
    def f(x: Any) -> Any:
        out, n = qd.empty(x.shape, x.dtype), number(x.shape[0], x)
        for i in qd.range(x.shape[0]):
            out[i] = x[i] * 0.5 + n
        return out

    return f


@pytest.mark.full
@pytest.mark.sample(6, full=1)
@pytest.mark.parametrize("name", [*PLAIN, *OF_ARRAYS])
def test_numbers_that_python_computes(name: str) -> None:
    number, found = OF_ARRAYS.get(name) or (PLAIN[name], None)
    f = _times(number)
    one = met(qd.jit(f, sizes="any", options=EXACT), *((ones(n),) for n in FIRST))
    for n in OTHERS:
        x = jnp.arange(n, dtype=jnp.float32)
        got = one(x)
        if found is None:
            same_bits(got, jnp.asarray(np.asarray(x) * np.float32(0.5) + np.float32(number(n, np.asarray(x)))))
        else:
            assert (got == x * 0.5 + found(n)).all()


def test_zeros_of_both_signs() -> None:
    def f(x: Any) -> Any:
        n, low, high = x.shape[0], qd.empty(x.shape, x.dtype), qd.empty(x.shape, x.dtype)
        told = f"{(n - 13) * 0.0}"
        for i in qd.range(n):
            low[i], high[i] = x[i] * (n * -0.0), x[i] * (n * 0.0) + len(told)
        return low, high

    one = met(qd.jit(f, sizes="any", options=EXACT), *((ones(n),) for n in FIRST))
    for n in (*OTHERS, 12, 13, 14):
        low, high = one(ones(n))
        assert np.signbit(low).all()
        assert (high == len(f"{(n - 13) * 0.0}")).all()


TASKS = {
    "stored": "for i in qd.range(x.shape[0]):\n    x[i] = n",
    "added": "for i in qd.range(n):\n    x[i] += n\n    x[n - 1 - i] -= 1",
    "at the end": "for _ in qd.range(1):\n    x[-1] = x[0] + 2\n    x[n - 1] += 1\n    x[-n] += 3",
    "every second": (
        "for i in qd.range(0, n, 2):\n    x[i] = x[i] * 2\nfor i in qd.range(n - 1, -1, -1):\n    x[i] = x[i] + 1"
    ),
    "by step": "for i in qd.range(0, n, n // 3 + 1):\n    x[i] = 7",
    "of two": "for i, _ in qd.ndrange(n, 3):\n    x[i] += 1\nfor i, _ in qd.ndrange((1, n), 2):\n    x[i] += 2",
    "in lanes": (
        "for i in qd.range(n):\n    s = qd.local(n)\n    for j in qd.range(n // 2):\n"
        "        s.value = s.value + j % n\n    x[i] = jnp.minimum(x[i], n) + jnp.where(i < n - 2, s.value, n) + n / 3"
    ),
    "through functions": (
        "for i in qd.range(n):\n    v = jax.lax.fori_loop(0, 3, lambda _, v: v * 0.5 + n, x[i])\n"
        "    x[i] = jax.lax.cond(v > n, lambda v: v - n, lambda v: v + 1.0 / n, v)\n"
        "    x[i] += jax.vmap(lambda w: w * n)(WEIGHTS).sum()"
    ),
    "when": "for i in qd.range(n):\n    with qd.when(i > n // 2):\n        x[i] = n - i\n    x[i] = x[i] + n**2 % 7",
    "while": (
        "for i in qd.range(n):\n    v = qd.local(n)\n    for _ in qd.while_(lambda v=v: v > 1):\n"
        "        v.value = v.value // 2\n    x[i] += v.value"
    ),
    "filled": (
        "y, z = qd.full(n, n, x.dtype), qd.zeros((n + 1, 2), x.dtype)\nfor i in qd.range(y.shape[0]):\n"
        "    z[i + 1, 1] = y[i] + i\nfor i in qd.range(z.shape[0] - 1):\n    x[i] = z[i + 1, 1] + z.shape[0]"
    ),
    "bounded": "for i in qd.range(n if n < 50 else 50):\n    x[i] = i\nfor i in qd.range(min(n, 3)):\n    x[i] = 1",
    # proven for the lengths that are traced
    "first ones": "for i in qd.range(2 if n > 1 else 1):\n    x[i] = x[i] * 3",
    "copy": "old = x.copy()\nfor i in qd.range(1, n):\n    x[i] = old[i - 1] + old.shape[0]",
    "copy of parts": (
        "old = qd.copy(x)\nnew = old.copy()\nfor i in qd.range(new.shape[0] // 2):\n    new[i] = i + old.shape[0]\n"
        "for i in qd.range(n - 1):\n    x[i] = old[n - 1 - i] + new[i + 1]"
    ),
    "counted": (
        "old = x.copy()\n"  # what other iterations change is a race
        "for i in qd.range(n):\n    s = jax.lax.fori_loop(0, n, lambda j, s: s * 0.5 + old[j] + j, x[i])\n"
        "    x[i] = jax.lax.fori_loop(i, n - 1, lambda j, s: s + j, s) + jax.lax.fori_loop(n, 3, lambda j, s: s + j, 0)"
    ),
    "counted arrays": (
        "for i in qd.range(n):\n    pair = jax.lax.fori_loop(-n, n // 2, lambda j, s: (s[1], s[0] + j), (n, i))\n"
        "    row = jax.lax.fori_loop(0, n, lambda j, s, p=pair: s.at[j % 3].add(p[0]), jnp.zeros(3))\n"
        "    x[i] = row[1] + pair[1]"
    ),
    "counted outside": (
        "total = jax.lax.fori_loop(0, n, lambda j, s: s + jax.lax.fori_loop(j, n, lambda k, s: s + x[k], 0.0), 0.0)\n"
        "for i in qd.range(n):\n    x[i] = total - i"
    ),
    "counted by hand": (
        "for i in qd.range(n):\n"
        "    first = i, n - 2, 0\n"
        "    k, m, t = jax.lax.while_loop(lambda s: s[0] < s[1], lambda s: (s[0] + 1, s[1], s[2] + s[0]), first)\n"
        "    x[i] = k + m * 3 + t"
    ),
    "counted to the middle": (
        "for i in qd.range(n):\n"
        "    x[i] = jax.lax.while_loop(lambda s: s[0] < s[1], lambda s: (s[0] + 1, s[1] - 1), (i, n))[0]\n"
        "    x[i] += jax.lax.while_loop(lambda s: s[0] < s[1], lambda s: (s[0] + 2, s[1]), (i, n))[0]"
    ),
    "unrolled by jax": "for i in qd.range(n):\n    x[i] = jax.lax.fori_loop(0, n, lambda j, s: s + j, x[i], unroll=2)",
}
"""Statements of an array and its length."""

UNTRACED = [
    "stored", "added", "at the end", "every second", "of two", "in lanes", "when", "filled", "first ones", "copy",
    "copy of parts", "counted", "counted arrays", "counted outside", "counted by hand",
]  # fmt: skip
"""Tasks that no new length traces."""
FROM_ZERO = (
    "copy", "copy of parts", "counted", "counted arrays", "counted outside", "counted by hand",
)  # fmt: skip
"""Tasks that run without elements, too."""


def function_of(task: str) -> Any:
    return written(f"n = x.shape[0]\n{TASKS[task]}\nreturn x", WEIGHTS=WEIGHTS)


@pytest.mark.full
@pytest.mark.sample(5, full=1)
@pytest.mark.parametrize("task", TASKS)
def test_uses_in_a_program(task: str) -> None:
    f = function_of(task)
    one, each = qd.jit(f, sizes="any", options=EXACT), qd.jit(f, options=EXACT)
    met(one, *((ones(n),) for n in FIRST))
    for n in (0, 1, 2, 3, 8, 17, 33, 1000) if task in FROM_ZERO else (1, 3, 8, 17, 33, 1000):
        x = jnp.arange(n, dtype=jnp.float32)
        same_bits(one(x), each(x))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int32", "int8", "float16", "float32", "int64", "float64"])
def test_types_of_counted_loops(dtype: str) -> None:
    def f(x: Any) -> Any:
        n, y = x.shape[0], qd.copy(x)
        for i in qd.range(n):
            s = jax.lax.fori_loop(0, n, lambda j, s: s + y[j], x[i])
            x[i] = jax.lax.fori_loop(jnp.int32(0), n, lambda j, s: s * 2 + j.astype(s.dtype), s)
        return x, jax.lax.fori_loop(0, n, lambda j, s: s * 2 + y[j], x.dtype.type(1))

    with jax.enable_x64("64" in dtype):
        one, each = qd.jit(f, sizes="any", options=EXACT), qd.jit(f, options=EXACT)
        for n in (*FIRST, 1, 2, 7, 0, 33):
            x = (jnp.arange(n) % 3).astype(dtype)
            same_bits(one(x), each(x))


@pytest.mark.full
def test_gradients_of_counted_loops() -> None:
    def f(x: Any) -> Any:
        n, total = x.shape[0], qd.zeros((), x.dtype)
        for i in qd.range(n):
            total[()] += jax.lax.fori_loop(0, n, lambda j, s, i=i: s + jnp.sin(x[j]) * x[i] * j / n, x[i])
        return total

    one = jax.grad(qd.jit(f, sizes="any"))
    for n in (*FIRST, 1, 2, 7, 33, 64):
        x = jnp.linspace(-1, 1, n)
        at = jnp.arange(n)
        want = jax.grad(lambda x, at=at, n=n: x.sum() + jnp.sum(jnp.sin(x) * at / n) * x.sum())(x)
        np.testing.assert_allclose(one(x), want, rtol=2e-5, atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("task", UNTRACED)
def test_no_trace_at_a_new_length(task: str) -> None:
    one = met(qd.jit(function_of(task), sizes="any", options=EXACT), *((ones(n),) for n in FIRST))
    for n in OTHERS[5:]:
        _, work = added(one, ones(n))
        assert (work.traces, work.programs, work.compiled) == (0, 0, 0)


def _expression(rng: np.random.Generator, depth: int, n: Any, m: Any) -> Any:
    """Returns a number of two lengths by random arithmetic and decisions."""
    if depth == 0:
        return (n, m, int(rng.integers(1, 9)))[rng.integers(3)]
    a, b = (_expression(rng, depth - 1, n, m) for _ in range(2))
    made: Any = (
        lambda: a + b, lambda: a - b, lambda: a * b % 1001, lambda: a // (abs(b) + 1), lambda: a % (abs(b) + 2),
        lambda: a if a < b else b, lambda: max(a, b), lambda: -a, lambda: 3 if a == b else a, lambda: (a & 15) + b,
        lambda: a if a % 3 else b,
    )  # fmt: skip
    return made[rng.integers(len(made))]()


@pytest.mark.sample(8, full=4)
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.full
def test_random_arithmetic(seed: int) -> None:
    def f(x: Any, y: Any) -> Any:
        rng, (n, m) = np.random.default_rng(seed), (x.shape[0], y.shape[0])
        stop, size, index, value = (_expression(rng, int(rng.integers(1, 4)), n, m) for _ in range(4))
        out = qd.zeros(abs(size) % 999 + 1, jnp.int32)
        for i in qd.range(stop % 999):
            out[(i + index) % out.shape[0]] += value
        for i in qd.range(n):
            x[i] = x[i] * value + y[i % m]
        return x, out

    one, draw = qd.jit(f, sizes="any", options=EXACT), np.random.default_rng(100 + seed)
    lengths = draw.choice((*FIRST, *OTHERS[:-1]), (14, 2))
    for n, m in (*lengths, *lengths[3:9, ::-1]):
        rng, given = np.random.default_rng(seed), (int(n), int(m))
        stop, size, index, value = (_expression(rng, int(rng.integers(1, 4)), *given) for _ in range(4))
        out = np.zeros(abs(size) % 999 + 1, np.int32)
        np.add.at(out, (np.arange(stop % 999) + index) % len(out), np.int32(value))
        x, y = draw.integers(-4, 5, n).astype(np.float32), draw.integers(-4, 5, m).astype(np.float32)
        want = x * np.float32(value) + y[np.arange(n) % m]
        same_bits(one(jnp.asarray(x), jnp.asarray(y)), (jnp.asarray(want), jnp.asarray(out)))


@pytest.mark.full
def test_lengths_that_were_equal_at_all_traces() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any, y: Any, z: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + y[i] * z.shape[0]
        return x

    met(f, *((ones(n), ones(n), ones(4)) for n in FIRST))
    same_bits(f(ones(50), ones(50), ones(4)), ones(50) * 5)
    for n, m, k in ((50, 51, 4), (50, 60, 5), (7, 9, 3), (9, 9, 4)):
        same_bits(f(ones(n), ones(m), ones(k)), ones(n) * (k + 1))
    with pytest.raises(qd.BoundsError, match=r"index 7 is out of bounds .*shape \(7,\)"):
        f(ones(8), ones(7), ones(4))


@pytest.mark.full
def test_an_index_that_was_proven_at_the_lengths_of_traces() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any) -> Any:
        for i in qd.range(10):
            x[i] = x[i] + 1
        return x

    met(f, *((ones(n),) for n in FIRST))
    same_bits(f(ones(50)), ones(50).at[:10].add(1))
    with pytest.raises(qd.BoundsError, match="out of bounds"):
        f(ones(7))


@pytest.mark.full
def test_gradients() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any, k: Any) -> Any:
        total, n = qd.zeros((), x.dtype), k.shape[0]
        for i in qd.range(n):
            total[()] += x[k[i]] * x[k[n - 1 - i]] / n
        return total

    one, rng = jax.grad(f), np.random.default_rng(0)
    for at, n in enumerate((*FIRST, *OTHERS)):
        x, k = np.arange(n + 3, dtype=np.float32), rng.integers(0, n + 3, n, dtype=np.int32)
        want = np.zeros(n + 3)
        np.add.at(want, k, 2 * x[k[::-1]] / n)
        got, work = added(one, jnp.asarray(x), jnp.asarray(k))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)  # sums of f32 in another order
        assert at < len(FIRST) or work.traces == 0


@pytest.mark.full
def test_wide_numbers() -> None:
    with jax.enable_x64(True):
        for dtype, scale in ((jnp.float64, 1 / 3), (jnp.int64, 2**40), (jnp.int32, 2**20), (jnp.float32, 1 / 3)):

            @partial(qd.jit, sizes="any", options=EXACT)
            def f(x: Any, scale: Any = scale) -> Any:
                for i in qd.range(x.shape[0]):
                    x[i] = x[i] * (x.shape[0] * scale) + i
                return x

            for n in (*FIRST, 7, 50):
                want = np.ones(n, dtype) * dtype(n * scale) + np.arange(n).astype(dtype)
                same_bits(f(jnp.ones(n, dtype)), jnp.asarray(want))


@pytest.mark.full
def test_numbers_that_a_dtype_cannot_hold() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + x.shape[0]
        return x

    met(f, *((jnp.ones(n, jnp.int8),) for n in FIRST))
    same_bits(f(jnp.ones(100, jnp.int8)), jnp.full(100, 101, jnp.int8))
    same_bits(f(jnp.ones(200, jnp.int8)), jnp.full(200, -55, jnp.int8))  # as in a program of that length


def test_a_length_is_an_int_to_python() -> None:
    recording = Recording((7, 3))
    n, m = (Length(recording, k, v) for k, v in enumerate((7, 3)))
    assert isinstance(n, int)
    assert not isinstance(n, float)
    assert isinstance(n / m, float)
    assert (n + m, m - n, 2 * n, n / 2, -n, 7 // m, n % m, n**m) == (10, -4, 14, 3.5, -7, 2, 1, 343)
    assert recording.at((7, 3)) == recording.values
    assert recording.at((8, 3)) is None  # all were compared
    assert [hash(n), operator.index(m), repr(n)] == [hash(7), 3, "7"]


def test_decisions_are_guards() -> None:
    recording = Recording((7,))
    with recorded(recording):
        n = Length(recording, 0, 7)
        half = n // 2
        assert half > 2
        assert type(half) is Length
    assert recording.at((6,)) == [6, 3]
    assert recording.at((5,)) is None
    assert recording.at((100,)) == [100, 50]
    assert 1 / Length(recording, 0, 7) == pytest.approx(1 / 7)
    assert recording.at((0,)) is None
