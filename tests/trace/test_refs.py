"""References of JAX (`jax.new_ref`) in lanes and bodies: what jax.vmap and jax.jit make of them, or refused by name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

SIZE = 5


class Value:
    """What a reference is in the functions that these are compared with: a place of Python that holds a value."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __getitem__(self, index: Any) -> Any:
        return self.content[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.content = self.content.at[index].set(value)


class Drawn:
    """A random function of one lane that keeps its state in two references, and may do so in loops and branches.

    `make` makes a reference, or a `Value`, which loops and branches carry.
    """

    def __init__(self, seed: int, depth: int, make: Any, has_while: bool = True) -> None:
        self.random = np.random.default_rng(seed)
        self.make = make
        self.has_while = has_while
        self.statements = self.block(depth, 6)

    def block(self, depth: int, most: int) -> list[Any]:
        return [self.statement(depth) for _ in range(self.random.integers(2, most))]

    def statement(self, depth: int) -> Any:
        kinds = ["set", "add", "slice", "moving", "number", "row"]
        kinds += ["for", "branch", "call", "local"] * (depth > 0)
        kinds += ["while"] * (depth > 0 and self.has_while)
        kind = self.random.choice(kinds)
        inner = [self.block(depth - 1, 4) for _ in range({"branch": 2}.get(kind, 1))] if kind in kinds[6:] else []
        numbers = [int(k) for k in self.random.integers(0, SIZE, 3)]
        return kind, numbers, float(np.round(self.random.uniform(0.3, 0.9), 2)), inner

    def __call__(self, x: Any) -> Any:
        row, number = self.make(jnp.sin(x)), self.make(x[0] * 0.5)
        self.run(self.statements, (row, number), x)
        return row[...], number[...]

    def inside(self, control: Any, blocks: list[Any], refs: Any, x: Any) -> None:
        """Runs blocks by `control`, which takes functions of a state, and a state: that of references is nothing."""
        if self.make is not Value:
            control([lambda s, b=b: self.run(b, refs, x) or s for b in blocks], ())
            return

        def changed(block: Any, state: Any) -> Any:
            values = [*map(Value, state)]
            self.run(block, values, x)
            return tuple(v.content for v in values)

        state = control([lambda s, b=b: changed(b, s) for b in blocks], tuple(r.content for r in refs))
        for r, content in zip(refs, state, strict=True):
            r.content = content

    def run(self, statements: list[Any], refs: Any, x: Any) -> None:
        row, number = refs
        for kind, (i, j, k), c, blocks in statements:
            if kind == "set":
                row[i] = c * row[j] + jnp.sin(row[k])
            elif kind == "add":
                row[i] += c * number[...] - row[j] * 0.1
            elif kind == "slice":
                row[1:4] = row[0:3] * c + x[1:4]
            elif kind == "moving":
                place = (jnp.abs(x[i]) * 7).astype(jnp.int32) % SIZE
                row[place] = row[(place + j) % SIZE] * c + 0.1
            elif kind == "number":
                number[...] = jnp.cos(number[...] * c + row[i])
            elif kind == "row":
                row[...] = jnp.tanh(row[...] * c + number[...])
            elif kind == "for":
                self.inside(lambda f, s, n=i: jax.lax.fori_loop(0, 1 + n, lambda _, s: f[0](s), s), blocks, refs, x)
            elif kind == "branch":
                self.inside(lambda f, s, on=row[i] > 0.2 * c: jax.lax.cond(on, *f, s), blocks, refs, x)
            elif kind == "call" and self.make is not Value:
                jax.jit(lambda *refs, x, b=blocks[0]: self.run(b, refs, x))(*refs, x=x)
            elif kind == "call":
                self.run(blocks[0], refs, x)
            elif kind == "local":
                other, counter = self.make(row[...] * c), self.make(number[...])
                self.run(blocks[0], (other, counter), x)
                row[i] = other[j] + counter[...] * 0.3
            elif kind == "while":
                steps = (jnp.abs(row[i]) * 5).astype(jnp.int32) + 1
                self.inside(lambda f, s, n=steps: repeated(n, f[0], s), blocks, refs, x)


def repeated(steps: Any, f: Any, state: Any) -> Any:
    return jax.lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, f(s[1])), (steps, state))[1]


def arguments(seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(7, SIZE)), jnp.float32)


def assert_same(ours: Any, theirs: Any) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        # at most some hundred operations of f32 on numbers near one
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def seeds(few: int, full: int, slow: int) -> list[Any]:
    marks = {few: pytest.mark.full} | {full: pytest.mark.slow}
    found, mark = [], None
    for k in range(slow):
        mark = marks.get(k, mark)
        found.append(pytest.param(k, marks=[mark] if mark else []))
    return found


@pytest.mark.full
@pytest.mark.every_case
@pytest.mark.parametrize("seed", seeds(1, 2, 60))
def test_random_functions_of_references(seed: int) -> None:
    f, same = (Drawn(seed, min(1 + seed, 2), make) for make in (jax.new_ref, Value))
    x = arguments(seed)
    tangents = (jnp.ones_like(x),)
    assert_same(jax.jvp(qd.vmap(f), (x,), tangents), jax.jvp(jax.vmap(same), (x,), tangents))


@pytest.mark.full
@pytest.mark.every_case
@pytest.mark.parametrize("seed", seeds(1, 1, 60))
def test_random_gradients_through_references(seed: int) -> None:
    f, same = (Drawn(1000 + seed, min(1 + seed, 2), make, has_while=False) for make in (jax.new_ref, Value))
    pairs = (qd.vmap(f), jax.vmap(same))
    ours, theirs = (jax.grad(lambda x, g=g: sum(jnp.sum(jnp.sin(y)) for y in g(x)))(arguments(seed)) for g in pairs)
    assert_same(ours, theirs)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.complex64])
def test_references_of_other_dtypes(dtype: Any) -> None:
    def f(x):
        u = jax.new_ref(x)
        u[1] = u[0]
        u[2:4] = u[0:2]
        return u[...], u[4]

    x = arguments(0).astype(dtype)
    assert_same(qd.vmap(f)(x), jax.vmap(f)(x))


@pytest.mark.full
def test_a_body_of_a_loop_has_references_of_its_own() -> None:
    @qd.jit
    def f(x):
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            u = jax.new_ref(jnp.zeros(3))
            u[0] = x[i]
            jax.lax.fori_loop(1, 3, lambda k, _, u=u: u.__setitem__(k, u[k - 1] * 2), None)
            with qd.when(x[i] > 0):
                out[i] = u[2]
            with qd.otherwise():
                out[i] = u[1]
        return out

    x = arguments(1)[0]
    np.testing.assert_allclose(f(x), jnp.where(x > 0, 4 * x, 2 * x))


def test_a_function_around_loops_has_references() -> None:
    @qd.jit
    def f(x):
        u = jax.new_ref(jnp.zeros(2))
        u[1] = x.sum()
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + u[1]
        u[0] = x.sum()
        return x, u[...]

    x = arguments(2)[0]
    moved, sums = f(x)
    np.testing.assert_allclose(moved, x + x.sum(), rtol=1e-5)
    np.testing.assert_allclose(sums, [moved.sum(), x.sum()], rtol=1e-5)


def test_a_reference_that_changes_in_a_loop_around_is_refused() -> None:
    @qd.jit
    def f(x):
        u = jax.new_ref(0.0)
        for i in qd.range(x.shape[0]):
            u[...] += x[i]
            x[i] = u[...]
        return x

    with pytest.raises(qd.TraceValueError, match=r"changes in a loop or condition(.|\n)*test_refs"):
        f(jnp.ones(3))


def test_a_reference_from_outside_is_refused_with_a_fix_that_works() -> None:
    ref = jax.new_ref(jnp.ones(SIZE))
    doubled = qd.vmap(lambda x: 2 * x)

    @qd.jit
    def read(x):
        for i in qd.range(x.shape[0]):
            x[i] = ref[i]
        return x

    @jax.jit
    def inside(ref):
        return qd.vmap(lambda x: x + ref[0])(jnp.ones(3))

    for call in (
        lambda: read(jnp.ones(SIZE)),
        lambda: qd.vmap(lambda x: x + ref[0])(jnp.ones(3)),
        lambda: doubled(ref),
        lambda: qd.jit(lambda ref: ref[0])(ref),
        lambda: qd.vmap(lambda ref, x: ref[0] + x, (None, 0))(ref, jnp.ones(3)),
        lambda: inside(ref),
    ):
        with pytest.raises(qd.UnsupportedError, match=r"made outside of a function(.|\n)*ref\[\.\.\.\] = f\(ref"):
            call()
    ref[...] = doubled(ref[...])
    np.testing.assert_array_equal(ref[...], 2)


@pytest.mark.full
def test_an_operation_that_jax_cannot_rid_of_references_is_refused_with_a_fix_that_works() -> None:
    def solved(x: Any, keep: Any) -> Any:
        scale = keep(x)
        return jax.lax.custom_linear_solve(lambda v: v * scale[...], x, lambda _, b: b / 2)

    for call in (qd.jit, qd.vmap):
        with pytest.raises(qd.UnsupportedError, match=r"cannot become values.*custom_linear_solve") as error:
            call(lambda x: solved(x, jax.new_ref))(jnp.ones((2, SIZE)))
        assert error.value.help == "carry the content as a value through this operation"
        halves = call(lambda x: solved(x, Value))(jnp.ones((2, SIZE)))
        np.testing.assert_array_equal(halves, np.full((2, SIZE), 0.5, np.float32))
