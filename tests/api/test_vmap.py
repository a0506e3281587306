"""`qd.vmap` against `jax.vmap`: the same function of one element, the same arguments and axes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

RNG = np.random.default_rng(1)
F = RNG.normal(size=37).astype(np.float32)
POSITIVE = np.abs(F) + np.float32(0.1)
INTS = RNG.integers(0, 100, 37).astype(np.int32)
ROWS = RNG.normal(size=(37, 3)).astype(np.float32)
MATRICES = (RNG.normal(size=(37, 3, 3)) + 3 * np.eye(3)).astype(np.float32)


class Pair(NamedTuple):
    a: Any
    b: Any


def newton(a):
    return lax.while_loop(lambda s: jnp.abs(s * s - a) > 1e-5 * a, lambda s: 0.5 * (s + a / s), a)


def collatz(n):
    def step(c):
        k, steps = c
        return jnp.where(k % 2 == 0, k // 2, 3 * k + 1), steps + 1

    return lax.while_loop(lambda c: c[0] > 1, step, (n, 0))[1]


def walk(x):
    def step(c, k):
        c = c * 0.5 + k
        return c, (c, k * 2)

    return lax.scan(step, x, jnp.arange(5.0))


def branch(k, x):
    return lax.switch(k % 3, [jnp.sin, lambda x: x * x, lambda x: -x], x)


def nested(x):
    inner = lambda y: lax.cond(y > 0, lambda y: y + 1, lambda y: y - 1, y)  # noqa: E731
    return lax.cond(jnp.abs(x) > 1, lambda x: lax.fori_loop(0, 3, lambda _, y: inner(y), x), jnp.negative, x)


def orbit(z):
    def step(c):
        z, k = c
        return z * z + 0.25j, k + 1

    return lax.while_loop(lambda c: (jnp.abs(c[0]) < 2) & (c[1] < 20), step, (z, 0))


EXACT = {
    "identity": (lambda x: x, (F,)),
    "constant": (lambda x: 3, (F,)),
    "two results": (lambda x: (x, -x), (F,)),
    "dictionary": (lambda d: {"s": d["a"] + d["b"], "n": None}, ({"a": F, "b": 2 * F},)),
    "named tuple": (lambda p: Pair(p.b, p.a[0]), (Pair(ROWS, F),)),
    "collatz": (collatz, (INTS,)),
    "integer division": (lambda a, b: (a // (b + 1), a % (b + 1), a & b, a << (b % 5)), (INTS, INTS[::-1].copy())),
    "condition": (nested, (F,)),
    "sort": (jnp.sort, (ROWS,)),
    "argsort": (jnp.argsort, (ROWS,)),
    "argmax": (lambda r: (jnp.argmax(r), jnp.max(r), jnp.min(r)), (ROWS,)),
    "reverse": (lambda r: r[::-1], (ROWS,)),
    "concatenate": (lambda r, s: jnp.concatenate([r, s[None]]), (ROWS, F)),
    "dynamic index": (lambda r, k: r[k % 3], (ROWS, INTS)),
    "update": (lambda r, k: r.at[k % 3].set(0), (ROWS, INTS)),
    "outer": (lambda r: jnp.outer(r, jnp.arange(2.0)), (ROWS,)),
    "clip": (lambda x: jnp.clip(x, -0.5, 0.5), (F,)),
    "random": (lambda k: jax.random.uniform(jax.random.fold_in(jax.random.key(0), k), (2,)), (INTS,)),
    "random bits": (lambda k: jax.random.bits(jax.random.key(k)), (INTS,)),
    "inner vmap": (lambda r: jax.vmap(lambda x: jnp.where(x > 0, x, 0))(r), (ROWS,)),
    "bool": (lambda x, k: (x > 0) & (k % 2 == 0), (F, INTS)),
    "complex order": (jnp.sort, ((INTS.reshape(37, 1) % [2, 3, 5, 7] + 1j * ROWS[:, :1]).astype(np.complex64),)),
    "column order": (lambda r: jnp.outer(r, r).reshape(-1, order="F")[:4], (ROWS.astype(np.int32),)),
    "platform": (lambda x: lax.platform_dependent(x, cpu=lambda y: y * 2, default=lambda y: y * 3), (F,)),
    "applied": (lambda r, k: r.at[k % 3].apply(lambda v: 2 * v), (ROWS, INTS)),
    "upper half": (lambda a, b: lax.mulhi(a * 2**20, b * 2**20), (INTS, INTS[::-1].copy())),
    "types": (lambda x: (x.astype(jnp.int8), x.astype(jnp.bfloat16), x.astype(jnp.float16)), (F,)),
}
# rounding: other vector maths, fused multiply-adds, another order of sums
CLOSE = {
    "elementary": (lambda x: jnp.sin(x) * jnp.exp(-x) + jnp.log1p(x * x), (F,)),
    "power": (lambda x: x**2.5 + jnp.sqrt(x), (POSITIVE,)),
    "newton": (newton, (POSITIVE,)),
    "scan": (walk, (F,)),
    "switch": (branch, (INTS, F)),
    "norm": (jnp.linalg.norm, (ROWS,)),
    "dot": (lambda m, r: m @ r, (MATRICES, ROWS)),
    "inverse": (jnp.linalg.inv, (MATRICES,)),
    "solve": (jnp.linalg.solve, (MATRICES, ROWS)),
    "determinant": (jnp.linalg.det, (MATRICES,)),
    "gradient": (jax.grad(lambda x: jnp.sin(x) * x**3), (F,)),
    "hessian": (jax.hessian(lambda r: jnp.sum(r**4) * r[0]), (ROWS,)),
    "normal": (lambda k: jax.random.normal(jax.random.key(k), (3,)), (INTS,)),
    "softmax": (jax.nn.softmax, (ROWS,)),
    "bessel": (lambda x: lax.bessel_i0e(x) * jnp.sqrt(x) + lax.bessel_i1e(x) * jnp.sqrt(x), (10 ** (POSITIVE * 12),)),
    "indefinite": (jnp.linalg.cholesky, (MATRICES * np.sign(F)[:, None, None],)),
    "complex constants": (lambda x: jnp.exp(jnp.arange(4) * 2j * x) * jnp.array([1j, 2.0, 1 - 1j, 0]) + 1j, (F,)),
    "branch gradient": (jax.grad(lambda x: lax.cond(x > 0, jnp.sin, lambda v: v**3, x)), (F,)),
    "complex": (orbit, ((F * 0.5 + 0.3j).astype(np.complex64),)),
}


def same(got: Any, want: Any, compare: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        compare(np.asarray(g, g.dtype), np.asarray(w, w.dtype))


@pytest.mark.sample(full=3)
@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str) -> None:
    f, args = EXACT[name]
    same(qd.vmap(f)(*args), jax.vmap(f)(*args), np.testing.assert_array_equal)


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("name", CLOSE)
def test_close(name: str) -> None:
    f, args = CLOSE[name]
    # a few roundings of f32; inverses amplify them by the condition number, below 100 here
    same(qd.vmap(f)(*args), jax.vmap(f)(*args), lambda g, w: np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5))


AXES = [
    (0, 0, (37, 3), (37, 3)),
    ((0, None), 0, (37, 3), (3,)),
    ((None, 0), 0, (3,), (37, 3)),
    ((1, 0), 0, (3, 37), (37, 3)),
    ((-1, 0), 1, (3, 37), (37, 3)),
    ([0, 1], -1, (37, 3), (3, 37)),
    ((1, 1), (1, 0), (3, 37), (3, 37)),
    (0, [0, -1], (37, 3), (37, 3)),
]


@pytest.mark.full
@pytest.mark.parametrize(("in_axes", "out_axes", "first", "second"), AXES)
def test_axes(in_axes: Any, out_axes: Any, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    def f(a, b):
        return [a * 2 + b, jnp.stack([a, b])] if isinstance(out_axes, list) else (a * 2 + b, jnp.stack([a, b]))

    a, b = RNG.integers(0, 9, first).astype(np.float32), RNG.integers(0, 9, second).astype(np.float32)
    got = qd.vmap(f, in_axes, out_axes)(a, b)
    same(got, jax.vmap(f, in_axes, out_axes)(a, b), np.testing.assert_array_equal)


@pytest.mark.full
def test_keywords_and_keys() -> None:
    f = lambda a, *, b, k: a + 2 * b + jax.random.uniform(k)  # noqa: E731
    keys = jax.random.split(jax.random.key(0), 37)
    same(qd.vmap(f)(INTS, b=INTS, k=keys), jax.vmap(f)(INTS, b=INTS, k=keys), np.testing.assert_array_equal)
    own = qd.vmap(jax.random.split)(keys)
    assert own.shape == (37, 2)
    assert jnp.all(own == jax.vmap(jax.random.split)(keys))


@pytest.mark.full
def test_axes_of_trees() -> None:
    def f(d, s):
        return {"x": d["a"] + s, "y": d["b"][0] * s}

    args = ({"a": ROWS, "b": ROWS.T.copy()}, np.float32(2))
    for in_axes in (({"a": 0, "b": 1}, None),):
        for out_axes in (0, {"x": 1, "y": 0}):
            got = qd.vmap(f, in_axes, out_axes)(*args)
            same(got, jax.vmap(f, in_axes, out_axes)(*args), np.testing.assert_array_equal)


@pytest.mark.full
def test_nested_and_inside_other_functions() -> None:
    f = lambda a, b: a * b + 1  # noqa: E731
    rows = INTS[:5, None] + 0 * INTS
    np.testing.assert_array_equal(jax.vmap(qd.vmap(f), (None, 0))(INTS, rows), rows * INTS + 1)
    np.testing.assert_array_equal(jax.jit(lambda a: qd.vmap(jnp.square)(a) + 1)(INTS), INTS * INTS + 1)

    @qd.jit
    def g(x):
        y = qd.vmap(lambda v: v + 1)(x)
        for i in qd.range(x.shape[0]):
            x[i] += y[i]
        return x

    np.testing.assert_array_equal(g(INTS), 2 * INTS + 1)


def test_lanes_stop_by_themselves() -> None:
    trips = qd.vmap(lambda n: lax.while_loop(lambda k: k < n, lambda k: k + 1, 0))(INTS)
    np.testing.assert_array_equal(trips, INTS)


@pytest.mark.parametrize("n", [0, 1, 16, 17])
def test_batch_sizes(n: int) -> None:
    got = qd.vmap(lambda r: (jnp.sort(r), r.sum()))(ROWS[:n])
    assert got[0].shape == (n, 3)
    np.testing.assert_array_equal(got[0], np.sort(ROWS[:n], 1))


def test_is_one_task() -> None:
    lowered = qd.vmap(newton).jitted.lower(POSITIVE)
    assert len(lowered.tasks) == 1
    assert lowered.name == "newton"


def test_traced_once() -> None:
    traces = []

    def f(x):
        traces.append(1)
        return x + 1

    g = qd.vmap(f)
    g(F)
    first = len(traces)
    g(F + 1)
    assert len(traces) == first


def text(rule: str, line: str, fix: str = "") -> str:
    return f"{rule}\n  at FILE in LINE\n      {line}" + (f"\nhelp: {fix}" if fix else "")


RANK = (
    "give in_axes an entry for each argument, None for one that all elements share; make an array of a list: "
    "`jnp.array(values)`"
)
SIZES = "give arguments of equal length along the mapped axes, or in_axes=None for one that all share"
REFUSED = {
    "qd.vmap(add, None)(F, F)": (
        "qd.vmap needs at least one mapped argument, got in_axes=None for all",
        "give an axis to one argument, or the size by axis_size=n, or call the function without qd.vmap",
    ),
    "qd.vmap(add)(F, F[:5])": ("qd.vmap needs one batch size, got 37, 5", SIZES),
    "qd.vmap(add, 1)(F, F)": ("qd.vmap needs an axis within the rank of the argument, got axis 1 of shape (37,)", RANK),
    "qd.vmap(add)(F, 1.0)": ("qd.vmap needs an axis within the rank of the argument, got axis 0 of shape ()", RANK),
    "qd.vmap(add, (0, 0, 0))(F, F)": (
        "qd.vmap needs in_axes to be an int, None or a prefix of the arguments' pytree, got (0, 0, 0)",
        "give one entry for each of the arguments: `in_axes=(0, None)` for two",
    ),
    "qd.vmap(add, out_axes=(0, 1))(F, F)": (
        "qd.vmap needs out_axes to be an int, None or a prefix of the results' pytree, got (0, 1)",
        "give one entry for each of the results: `out_axes=(0, None)` for two",
    ),
    "qd.vmap(add, out_axes=1)(F, F)": (
        "qd.vmap needs an axis within the rank of the result, got out_axes=1 for shape (37,)",
        "with the mapped axis the result has rank 1: write an axis below that",
    ),
    "qd.vmap(add, in_axes='a')(F, F)": (
        "qd.vmap needs in_axes to be an int, None or a prefix of the arguments' pytree, got 'a'",
        "give one entry for each of the arguments: `in_axes=(0, None)` for two",
    ),
    "qd.vmap(add, out_axes=None)(F, F)": (
        "qd.vmap: a result with out_axes=None depends on a mapped argument",
        "give the result an axis, as in out_axes=0",
    ),
    "qd.vmap(lambda x: 'text')(F)": (
        "qd.vmap needs a function that gives arrays, numbers or pytrees of them, got str",
        "return the parts that are arrays",
    ),
    "qd.vmap(qd.vmap(add))(F, F)": (
        "qd.vmap needs an axis within the rank of the argument, got axis 0 of shape ()",
        RANK,
    ),
    "qd.vmap(qd.vmap(add), (0, None))(ROWS, ROWS)": ("qd.vmap needs one batch size, got 3, 37", SIZES),
    "qd.vmap(qd.vmap(add, out_axes=None))(ROWS, ROWS)": (
        "qd.vmap: a result with out_axes=None depends on a mapped argument",
        "give the result an axis, as in out_axes=0",
    ),
    "qd.vmap(lambda r: qd.vmap(add)(r, F))(ROWS)": ("qd.vmap needs one batch size, got 3, 37", SIZES),
}


def add(a, b):
    return a + b


@pytest.mark.parametrize("line", REFUSED)
def test_refusals(line: str, tmp_path: Any) -> None:
    """Every message points to the line that calls; none into the package."""
    file = tmp_path / "program.py"
    file.write_text(f"import qdtrace as qd\n{line}\n")
    rule, fix = REFUSED[line]
    with pytest.raises(qd.QdError) as caught:
        exec(compile(file.read_text(), str(file), "exec"), {"add": add, "F": F, "ROWS": ROWS})
    got = str(caught.value).replace(f"{file}:2", "FILE").replace("FILE in <lambda>", "FILE")
    assert got == text(rule, line, fix).replace("FILE in LINE", "FILE")


def test_faults_of_the_function_are_told_with_its_line() -> None:
    def wrong(v):
        return v @ jnp.ones(4)

    for f in (qd.vmap(wrong), qd.vmap(lambda r: qd.vmap(wrong)(r[None])), lambda r: qd.vmap(qd.vmap(wrong))(r[None])):
        with pytest.raises(qd.TraceTypeError) as caught:
            f(ROWS)
        assert caught.value.loc is not None
        assert caught.value.loc.function.endswith("wrong")
