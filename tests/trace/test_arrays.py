# ruff: noqa: B023
"""Whole-array code outside loops, and JAX transformations, control flow and trees in and around bodies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.trace import markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.trace import trace_function
from qdtrace.trace.tree import equations_in
from tests.trace.text import clean, first

X = np.ones(8, np.float32)
M = np.ones((4, 3), np.float32)
K = np.arange(4, dtype=np.int32)


def operands(eqn):
    return [int(a.val) if isinstance(a, Literal) else str(a.aval.dtype) for a in eqn.invars]


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m + 1,
        lambda m: 1 + m,
        lambda m: m @ m.T,
        lambda m: jnp.ones((4, 3)) * m,
        lambda m: np.ones((4, 3), np.float32) - m,
        lambda m: np.float32(2) * m,
        lambda m: m > 0,
        lambda m: -m,
        lambda m: abs(m),
        lambda m: m.sum(),
        lambda m: m.astype(jnp.int32),
        lambda m: jnp.sum(m),
        lambda m: jnp.where(m > 0, m, 0),
        lambda m: jnp.linalg.norm(m),
        lambda m: jax.nn.relu(m),
        lambda m: jnp.einsum("ij,ij->", m, m),
        lambda m: jnp.asarray(m),
        lambda m: m[...],
        lambda m: m[1:3],
        lambda m: m[jnp.array([0, 2])],
        lambda m: m[:, None],
        lambda m: m[m[:, 0] > 0, :] if False else m[:],
        lambda m: jax.tree.map(lambda a: a * 2, m[...]),
        lambda m: jax.grad(lambda a: jnp.sum(a**2))(m[...]),
        lambda m: jax.tree.map(lambda a: a * 2, [m])[0],
        lambda m: jax.jit(lambda a: a * 2)(m),
        lambda m: lax.fori_loop(0, 3, lambda k, c: c + m[...], m[...]),
    ],
)
def test_use_as_an_array_reads_the_buffer(use) -> None:
    traced = trace_function(lambda m: use(m), (M,))
    names = [e.primitive.name for e in equations_in(traced.root.items)]
    assert "qd_read" in names
    assert "qd_load" not in names
    handles = {e.outvars[0] for e in equations_in(traced.root.items) if e.primitive in markers.MAKERS}
    for eqn in equations_in(traced.root.items):
        if eqn.primitive not in markers.MARKERS and eqn.primitive.name != "scan":
            assert not handles.intersection(a for a in eqn.invars if not isinstance(a, Literal))


def test_whole_stores_outside_loops(tree) -> None:
    def body(m):
        m[...] = 0.0
        m[1:] = 2.0
        m[:, 0] = jnp.ones(4)
        m[jnp.array([0, 1])] = 1
        m += 1
        m *= m
        m.at[jnp.array([0, 1])].add(1.0)
        return m

    assert tree(body, M).split() == [
        "buffer",
        "assign",
        *["read", "assign"],  # m[1:]
        "store",  # m[:, 0]: few elements
        *["read", "assign"],  # m[array]
        *["read", "assign"],  # m += 1
        *["read", "read", "assign"],  # m *= m
        *["read", "assign"],  # .at[array].add
        "read",
    ]


def test_small_accesses_outside_loops_stay_markers(tree) -> None:
    def body(m, s):
        m[0, 1] = m[1, 2] + s[()]
        m[1] = m[2]
        s[()] += 1.0
        return m[0, 0], s

    def start(m):
        return body(m, qd.zeros(()))

    assert tree(start, M) == "buffer\nalloc\nload\nload\nstore\nload\nstore\naccum add\nload\nread"


def test_small_buffers_are_values_in_a_loop(tree) -> None:
    def body(m, x):
        for i in qd.range(8):
            x[i] = jnp.sum(m) + (m @ jnp.ones(3))[0] + m[...][0, 0]
        return x

    assert tree(body, M, X) == "buffer\nbuffer\nfor\n  load\n  load\n  load\n  store\nread"


def test_arrays_in_a_while_around_ranges(tree) -> None:
    def body(x):
        n = qd.zeros((), jnp.int32)
        for _ in qd.while_(lambda: n[()] < 3):
            for i in qd.range(1000):
                x[i] = x[i] + 1
            x[...] = jnp.cumsum(x)
            n[()] += 1
        return x

    assert tree(body, np.ones(1000, np.float32)) == clean("""
        buffer
        alloc
        while
          load
          test
          for
            load
            store
          read
          assign
          accum add
        read
    """)


def test_control_flow_of_jax_with_effects(tree) -> None:
    def body(x):
        for i in qd.range(8):

            def store(k, c):
                x[k] = c
                return c + 1

            a = lax.fori_loop(0, 3, store, x[i])
            b = lax.cond(a > 0, lambda: x[0], lambda: x[1])
            c, _ = lax.scan(lambda c, v: (c + x[v], None), b, jnp.arange(3))
            d = lax.while_loop(lambda s: s < 5, lambda s: s + x[0], c)
            x[i] = lax.switch(i, [lambda: d, lambda: d + x[2]])
        return x

    names = [e.primitive.name for e in equations_in(trace_function(body, (X,)).root.items)]
    assert [n for n in names if n in ("while", "cond", "scan")][-3:] == ["scan", "while", "cond"]


def test_jit_helpers_are_inlined_every_time(tree) -> None:
    @jax.jit
    def helper(b, i, v):
        b[i] = v
        for j in qd.range(2):
            b[j] += v
        return v * 2

    def body(x):
        for i in qd.range(8):
            a = helper(x, i, 1.0)
            b = helper(x, i, a)
            x[i] = a + b
        return x

    expected = clean("""
        buffer
        for
          store
          for
            accum add
          store
          for
            accum add
          store
        read
    """)
    assert tree(body, X) == expected
    assert tree(body, X) == expected  # the helper is cached now
    traced = trace_function(body, (X,))
    bound = [v for e in equations_in(traced.root.items) for v in e.outvars]
    assert len(bound) == len(set(bound))


def test_a_helper_may_return_its_handle(tree) -> None:
    @jax.jit
    def helper(b, c):
        b[0] = 1.0
        return c, b

    def body(x, y):
        y, x = helper(x, y)
        x[1] = 2.0
        return x, y

    traced = trace_function(body, (X, np.ones(5, np.float32)))
    stores = [e for e in equations_in(traced.root.items) if e.primitive is markers.store_p]
    assert stores[0].invars[0] is stores[1].invars[0]
    assert [r.aval.shape for r in traced.root.results] == [(8,), (5,)]


def test_a_handle_may_pass_through_a_loop_carry(tree) -> None:
    def body(x):
        def step(k, carry):
            b, n = carry
            b[k] = 1.0
            return b, n + 1

        b, n = lax.fori_loop(0, 3, step, (x, 0))
        b[n] = 2.0
        x[0] = 3.0
        return b

    traced = trace_function(body, (X,))
    stores = [e for e in traced.root.items if e.primitive is markers.store_p]
    assert stores[0].invars[0] is stores[1].invars[0]


def test_vmap_over_the_index_of_a_load(tree) -> None:
    def body(x):
        for i in qd.range(4):
            x[i] = jnp.sum(jax.vmap(lambda k: x[i + k])(jnp.arange(3)))
        return x

    assert tree(body, X) == "buffer\nfor\n  load\n  load\n  load\n  store\nread"


def test_grad_of_a_pure_function_that_loads(tree) -> None:
    def body(x, k):
        for i in qd.range(4):
            x[i] = jax.grad(lambda t: t**2 * x[i] + x[k[i]])(x[0])
        return x

    assert "store" in tree(body, X, K)


def test_keys_and_static_arguments() -> None:
    def body(x, key, scale, *, flip):
        for i in qd.range(8):
            x[i] = jax.random.uniform(jax.random.fold_in(key, i)) * (scale if flip else 1)
        return x

    traced = trace_function(
        body, (X, jax.random.key(0), 3), {"flip": True}, static_argnums=(2,), static_argnames=("flip",)
    )
    assert traced.names == ("x", "key")
    assert len(traced.root.params) == 2


def test_trees_in_and_out() -> None:
    def body(state, *rest, extra):
        state["v"][0] = rest[0][0] + extra[1]
        return {"v": state["v"], "n": (1, None, np.float32(2.0)), "s": extra[0] + 1}

    traced = trace_function(body, ({"v": X, "w": X}, K), {"extra": (1, 2.0)})
    assert traced.names == ("state['v']", "state['w']", "arg1", "extra[0]", "extra[1]")
    out = jax.tree.unflatten(traced.out_tree, list("abcd"))
    assert out == {"v": "d", "n": ("a", None, "b"), "s": "c"}


def test_shape_structs() -> None:
    def body(x):
        x[0] = 1
        return x

    traced = trace_function(body, (jax.ShapeDtypeStruct((5,), jnp.float32),))
    assert traced.root.results[0].aval.shape == (5,)


def test_cells_and_breaks_inside_of_lax_control_flow() -> None:
    def body(x):
        def step(k, c):
            cell = qd.local(c)
            for j in qd.range(8):
                qd.break_if(x[j] > cell)
                cell += 1
            return cell.value

        for i in qd.range(8):
            x[i] = lax.fori_loop(0, 3, step, x[i])
        return x

    assert first(trace_function(body, (X,)), markers.store_p)
