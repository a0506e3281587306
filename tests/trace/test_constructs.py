# ruff: noqa: B023
"""Every construct: the markers it binds, the region it makes, the operands they carry."""

from __future__ import annotations

from textwrap import dedent

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from qdtrace import trace as qd
from qdtrace.trace import markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.regions import Region

X = np.ones(8, np.float32)
M = np.ones((4, 3), np.float32)
K = np.arange(4, dtype=np.int32)


def clean(text: str) -> str:
    return dedent(text).strip("\n")


def first(traced, primitive):
    return next(e for e in traced.root.walk() if e.primitive is primitive)


def operands(eqn):
    return [int(a.val) if isinstance(a, Literal) else str(a.aval.dtype) for a in eqn.invars]


# -- loops -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [((5,), [0, 5, 1]), ((2, 5), [2, 5, 1]), ((9, 1, -2), [9, 1, -2]), ((np.int64(4),), [0, 4, 1]), ((0,), [0, 0, 1])],
)
def test_range_bounds(bounds, expected) -> None:
    def body(x):
        for i in qd.range(*bounds):
            x[i] = 1
        return x

    traced = qd.trace_function(body, (X,))
    begin = first(traced, markers.loop_begin_p)
    assert operands(begin) == expected
    assert begin.outvars[0].aval.dtype == np.int32


def test_traced_bounds_of_any_integer_type() -> None:
    def body(x, n, k):
        for i in qd.range(n, k[1], jnp.int8(1)):
            x[i] = 1
        return x

    begin = first(qd.trace_function(body, (X, np.int16(3), K)), markers.loop_begin_p)
    assert operands(begin) == ["int32", "int32", 1]


def test_hints_and_nesting(tree) -> None:
    def body(x):
        for i in qd.range(8, name="outer", block_dim=128, fuse=False):
            for j in qd.range(3, unroll=3):
                x[i] = j
        for i in qd.range(8, serial=True):
            x[i] = 1
        return x

    root = qd.trace_function(body, (X,)).root
    outer, serial = (item for item in root.items if isinstance(item, Region))
    assert outer.hints == {"name": "outer", "block_dim": 128, "fuse": False}
    assert serial.hints == {"serial": True}
    (inner,) = (item for item in outer.items if isinstance(item, Region))
    assert inner.hints == {"unroll": 3}
    assert inner.parent is outer
    assert outer.parent is root
    assert (outer.loc.line, inner.loc.line) == (body.__code__.co_firstlineno + 1, body.__code__.co_firstlineno + 2)
    assert outer.loc.function == "body"
    assert tree(body, X) == clean("""
        buffer
        for
          for
            store
        for
          store
        read
    """)


def test_ndrange_decodes_the_last_index_fastest() -> None:
    def body(m):
        for i, j in qd.ndrange((1, 4), 3, name="both"):
            m[i, j] = 1.0
        return m

    traced = qd.trace_function(body, (M,))
    begin = first(traced, markers.loop_begin_p)
    assert operands(begin) == [0, 9, 1]
    (loop,) = (item for item in traced.root.items if isinstance(item, Region))
    assert loop.hints == {"name": "both", "dims": (3, 3)}
    assert [e.primitive.name for e in loop.items] == ["rem", "div", "add", "qd_store"]


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 5), (7,), (3, 1, 2)])
def test_ndrange_gives_every_index_once(shape) -> None:
    def body(x):
        for index in qd.ndrange(*((1, n + 1) for n in shape)):
            for k, part in enumerate(index):
                x[k] = part
        return x

    (loop,) = (i for i in qd.trace_function(body, (np.zeros(4, np.int32),)).root.items if isinstance(i, Region))
    seen = []
    for flat in range(int(np.prod(shape))):
        values = {loop.eqn.outvars[0]: np.int32(flat)}
        index = []
        for eqn in loop.items:
            inputs = [a.val if isinstance(a, Literal) else values.get(a) for a in eqn.invars]
            if eqn.primitive is markers.store_p:
                index.append(int(inputs[1]))
            else:
                values[eqn.outvars[0]] = eqn.primitive.bind(*inputs, **eqn.params)
        seen.append(tuple(index))
    assert seen == [tuple(k + 1 for k in index) for index in np.ndindex(*shape)]


def test_ndrange_of_traced_lengths() -> None:
    def body(m, n, low):
        for i, j in qd.ndrange(n, (low, 3)):
            m[i, j] = 1.0
        return m

    traced = qd.trace_function(body, (M, np.int32(4), np.int32(1)))
    (loop,) = (item for item in traced.root.items if isinstance(item, Region))
    assert loop.hints == {"dims": (None, None)}
    names = [e.primitive.name for e in traced.root.items if not isinstance(e, Region)]
    assert names == ["qd_buffer", "max", "sub", "max", "mul", "qd_read"]


def test_while_has_its_test_apart(tree) -> None:
    def body(x):
        for i in qd.range(8):
            c = qd.local(x[i])
            for _ in qd.while_(lambda: c > 1.0):
                c *= 0.5
            x[i] = c
        return x

    traced = qd.trace_function(body, (X,))
    loop = next(i for i in traced.root.items[1].items if isinstance(i, Region))
    assert loop.kind == "while"
    count, condition = loop.test
    assert [e.primitive.name for e in loop.items[:count]] == ["qd_lget", "gt"]
    assert condition is loop.items[count - 1].outvars[0]
    assert tree(body, X) == clean("""
        buffer
        for
          load
          local
          while
            lget
            test
            lget
            lset
          lget
          store
        read
    """)


def test_while_true_with_break(tree) -> None:
    def body(x):
        for i in qd.range(8):
            for _ in qd.while_(lambda: True):
                x[i] = x[i] - 1
                qd.break_if(x[i] < 0)
                qd.continue_if(x[i] > 5)
                x[i] = x[i] - 2
        return x

    assert tree(body, X) == clean("""
        buffer
        for
          while
            test
            load
            store
            load
            break
            load
            continue
            load
            store
        read
    """)


def test_when_and_otherwise(tree) -> None:
    def body(x):
        for i in qd.range(8):
            with qd.when(x[i] > 0):
                x[i] = 1
            with qd.otherwise():
                x[i] = 2
                with qd.when(i > 4):
                    x[i] = 3
        return x

    assert tree(body, X, full=True) == clean("""
        buffer
        for
          load
          gt
          when
            store
          not
          when
            store
            gt
            when
              store
        read
    """)


def test_static_conditions(tree) -> None:
    def body(x):
        for i in qd.range(8):
            with qd.when(X.size > 3):
                x[i] = 1
            with qd.otherwise():
                x[i] = 2

    root = qd.trace_function(body, (X,)).root
    regions = [i for i in root.items[1].items if isinstance(i, Region)]
    assert [operands(r.eqn) for r in regions] == [[1], [0]]


def test_continue_in_a_parallel_range(tree) -> None:
    def body(x):
        for i in qd.range(8):
            qd.continue_if(i > 3)
            x[i] = 1

    assert tree(body, X) == "buffer\nfor\n  continue\n  store"


# -- buffers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "slices", "shape"),
    [
        (lambda i: (i, i), (None, None), ()),
        (lambda i: i, (None, (0, 3, 1)), (3,)),
        (lambda i: (i,), (None, (0, 3, 1)), (3,)),
        (lambda i: (i, -1), (None, None), ()),
        (lambda i: (slice(1, None), i), ((1, 4, 1), None), (3,)),
        (lambda i: (i, slice(None, None, 2)), (None, (0, 3, 2)), (2,)),
        (lambda i: (i, slice(-2, None)), (None, (1, 3, 1)), (2,)),
        (lambda i: (i, slice(2, 1)), (None, (2, 2, 1)), (0,)),
        (lambda i: ..., ((0, 4, 1), (0, 3, 1)), (4, 3)),
        (lambda i: (..., i), ((0, 4, 1), None), (4,)),
        (lambda i: (i, ..., 1), (None, None), ()),
        (lambda i: (np.int64(2), i), (None, None), ()),
        (lambda i: slice(0, 2), ((0, 2, 1), (0, 3, 1)), (2, 3)),
    ],
)
def test_indices(key, slices, shape) -> None:
    def body(m, out):
        for i in qd.range(3):
            v = m[key(i)]
            assert v.shape == shape
            m[key(i)] = v + 1

    traced = qd.trace_function(body, (M, X))
    for primitive in (markers.load_p, markers.store_p):
        eqn = first(traced, primitive)
        assert eqn.params["slices"] == slices
        index = eqn.invars[1 if primitive is markers.load_p else 2 :]
        assert len(index) == slices.count(None)
        assert all(a.aval.dtype == np.int32 for a in index)


def test_negative_static_index_counts_from_the_end() -> None:
    def body(m):
        for i in qd.range(4):
            m[i, 0] = m[-1, -3]

    assert operands(first(qd.trace_function(body, (M,)), markers.load_p))[1:] == [3, 0]


def test_index_types() -> None:
    def body(x, k):
        for i in qd.range(4):
            c = qd.local(2)
            x[c] = x[k[i].astype(jnp.uint8)] + x[i.astype(jnp.int16)]

    traced = qd.trace_function(body, (X, K))
    loads = [e for e in traced.root.walk() if e.primitive is markers.load_p]
    assert {a.aval.dtype for e in loads for a in e.invars[1:]} == {np.dtype(np.int32)}


def test_attributes() -> None:
    def body(m):
        assert (m.shape, m.dtype, m.ndim, m.size, len(m)) == ((4, 3), np.float32, 2, 12, 4)
        assert repr(m) == "Buffer(float32[4, 3])"
        for _ in qd.range(1):
            c = qd.local(jnp.zeros((2, 5), jnp.int32))
            assert (c.shape, c.dtype, c.ndim, c.size, len(c)) == ((2, 5), np.int32, 2, 10, 2)
            assert repr(c) == "Cell(int32[2, 5])"
        return m

    qd.trace_function(body, (M,))


@pytest.mark.parametrize(
    ("make", "operand_count", "dtype"),
    [
        (lambda: qd.zeros(3), 1, np.float32),
        (lambda: qd.ones((3,), jnp.int32), 1, np.int32),
        (lambda: qd.full(3, 2), 1, np.int32),
        (lambda: qd.full(3, 2.5), 1, np.float32),
        (lambda: qd.full((3,), True), 1, np.bool_),
        (lambda: qd.full(3, 1, jnp.float16), 1, np.float16),
        (lambda: qd.empty([3]), 0, np.float32),
        (lambda: qd.zeros_like(np.ones(3, np.int8)), 1, np.int8),
        (lambda: qd.empty_like(qd.zeros(3, jnp.uint32)), 0, np.uint32),
    ],
)
def test_allocation(make, operand_count, dtype) -> None:
    def body():
        made = make()
        assert made.dtype == dtype
        assert made.shape == (3,)
        made[0] = 0
        return made

    eqn = [e for e in qd.trace_function(body, ()).root.walk() if e.primitive is markers.alloc_p][-1]
    assert len(eqn.invars) == operand_count
    assert (eqn.params["shape"], eqn.params["dtype"]) == ((3,), dtype)


def test_copy_reads_the_present_content(tree) -> None:
    def body(x):
        y = qd.copy(x)
        z = x.copy()
        x[0] = 1
        return y, z, qd.copy(np.ones(2, np.float32))

    assert tree(body, X) == "buffer\nread\nbuffer\nread\nbuffer\nstore\nbuffer\nread\nread\nread"


def test_each_argument_is_a_buffer_of_its_own(tree) -> None:
    def body(x, y, s):
        assert isinstance(x, qd.Buffer)
        assert not isinstance(s, qd.Buffer)
        x[0] = s
        return x, y, x

    assert tree(body, X, X, 2.0) == "buffer\nbuffer\nstore\nread\nread\nread"


# -- whole arrays outside loops ----------------------------------------------------------------------------------------


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
    traced = qd.trace_function(lambda m: use(m), (M,))
    names = [e.primitive.name for e in traced.root.walk()]
    assert "qd_read" in names
    assert "qd_load" not in names
    handles = {e.outvars[0] for e in traced.root.walk() if e.primitive in markers.MAKERS}
    for eqn in traced.root.walk():
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


# -- cells -------------------------------------------------------------------------------------------------------------


def test_cell_operations(tree) -> None:
    def body(x):
        for i in qd.range(8):
            c = qd.local(1.0)
            c.value = c.value + 1
            c += x[i]
            c *= 2
            y = jnp.sin(c) + c * 3 + 3 * c - x[i] / c + np.float32(1) * c
            with qd.when((c > y) & (c <= 3)):
                c -= 1
            x[i] = c
            x[i] += c
        return x

    traced = qd.trace_function(body, (X,))
    names = [e.primitive.name for e in traced.root.walk()]
    assert names.count("qd_lset") == 4
    assert names.count("qd_accum") == 1
    assert names.count("qd_local") == 1


def test_cell_arrays(tree) -> None:
    def body(k, x):
        for i in qd.range(4):
            c = qd.local(jnp.zeros((3, 2)))
            j = k[i]
            c[j, 0] = 1.0
            c[j] = jnp.ones(2)
            c[j, 1] += 2.0
            c[0:2, 0] = 3.0
            c[...] = c[...] * 2
            x[i] = c[j, 1] + jnp.sum(c)
        return x

    traced = qd.trace_function(body, (K, X))
    sets = [e.params["slices"] for e in traced.root.walk() if e.primitive is markers.lset_p]
    assert sets == [
        (None, None),
        (None, (0, 2, 1)),
        (None, None),
        ((0, 2, 1), None),
        ((0, 3, 1), (0, 2, 1)),
    ]


@pytest.mark.parametrize(
    ("init", "dtype", "expected"),
    [
        (0, None, "int32"),
        (0.0, None, "float32"),
        (True, None, "bool"),
        (0, jnp.float16, "float16"),
        (2.0, None, "float32"),
    ],
)
@pytest.mark.parametrize("wide", [False, True])
def test_cell_dtypes_do_not_depend_on_x64(init, dtype, expected, wide) -> None:
    def body(x):
        for i in qd.range(8):
            c = qd.local(init, dtype)
            d = qd.local(x[i] * 2)
            assert str(c.dtype) == expected
            assert str(d.dtype) == "float32"
            assert i.dtype == np.int32
            x[i] = c.value.astype(jnp.float32) + d
        assert qd.zeros(3).dtype == np.float32
        return x

    with jax.enable_x64(wide):
        qd.trace_function(body, (X,))


def test_wide_types_on_request() -> None:
    def body(x, n):
        for i in qd.range(n):
            assert i.dtype == np.int64
            c = qd.local(0.0, jnp.float64)
            assert c.dtype == np.float64
            x[i] = c
        for i in qd.range(2**31 + 5):
            assert i.dtype == np.int64
        return x

    with jax.enable_x64(True):
        traced = qd.trace_function(body, (np.ones(3), np.int64(3)))
    store = first(traced, markers.store_p)
    assert store.invars[2].aval.dtype == np.int64


# -- atomics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["add", "min", "max", "and", "or", "xor", "exchange"])
def test_atomics(op) -> None:
    function = getattr(qd, f"atomic_{op}" + ("_" if op in ("and", "or") else ""), None) or getattr(qd, f"atomic_{op}")

    def body(k):
        for i in qd.range(4):
            old = function(k, i, 3)
            assert old.shape == ()
            assert old.dtype == np.int32
            k[old] = 1
        return k

    eqn = first(qd.trace_function(body, (K,)), markers.atomic_p)
    assert (eqn.params["op"], eqn.params["nvalues"], eqn.params["slices"]) == (op, 1, (None,))


def test_compare_and_swap() -> None:
    def body(k):
        for i in qd.range(4):
            k[i] = qd.atomic_cas(k, (0,), 1, i)
        return k

    eqn = first(qd.trace_function(body, (K,)), markers.atomic_p)
    assert (eqn.params["op"], eqn.params["nvalues"], len(eqn.invars)) == ("cas", 2, 4)


def test_atomic_of_a_row() -> None:
    def body(m):
        for i in qd.range(4):
            assert qd.atomic_add(m, i, jnp.ones(3)).shape == (3,)
        return m

    assert first(qd.trace_function(body, (M,)), markers.atomic_p).params["slices"] == (None, (0, 3, 1))


# -- jax in bodies -----------------------------------------------------------------------------------------------------


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

    names = [e.primitive.name for e in qd.trace_function(body, (X,)).root.walk()]
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
    traced = qd.trace_function(body, (X,))
    bound = [v for e in traced.root.walk() for v in e.outvars]
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

    traced = qd.trace_function(body, (X, np.ones(5, np.float32)))
    stores = [e for e in traced.root.walk() if e.primitive is markers.store_p]
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

    traced = qd.trace_function(body, (X,))
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

    traced = qd.trace_function(
        body, (X, jax.random.key(0), 3), {"flip": True}, static_argnums=(2,), static_argnames=("flip",)
    )
    assert traced.names == ("x", "key")
    assert len(traced.flat_args) == 2


def test_trees_in_and_out() -> None:
    def body(state, *rest, extra):
        state["v"][0] = rest[0][0] + extra[1]
        return {"v": state["v"], "n": (1, None, np.float32(2.0)), "s": extra[0] + 1}

    traced = qd.trace_function(body, ({"v": X, "w": X}, K), {"extra": (1, 2.0)})
    assert traced.names == ("state['v']", "state['w']", "arg1", "extra[0]", "extra[1]")
    out = jax.tree.unflatten(traced.out_tree, list("abcd"))
    assert out == {"v": "d", "n": ("a", None, "b"), "s": "c"}


def test_shape_structs() -> None:
    def body(x):
        x[0] = 1
        return x

    traced = qd.trace_function(body, (jax.ShapeDtypeStruct((5,), jnp.float32),))
    assert traced.root.results[0].aval.shape == (5,)
    assert traced.name == "body"


def test_run_body_in_an_outer_jit() -> None:
    def body(x, s):
        x[0] = s
        return {"x": x}

    jaxpr = jax.make_jaxpr(lambda x, s: qd.run_body(body, (x,), {"s": s}))(X, 2.0)
    names = [e.primitive.name for e in jaxpr.jaxpr.eqns]
    assert (names[0], names[-1]) == ("qd_buffer", "qd_read")
