"""Buffers, cells and atomics: operands and slices of every access."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace import markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.trace import trace_function
from qdtrace.trace.tree import equations_in
from tests.trace.text import first

X = np.ones(8, np.float32)
M = np.ones((4, 3), np.float32)
K = np.arange(4, dtype=np.int32)


def operands(eqn):
    return [int(a.val) if isinstance(a, Literal) else str(a.aval.dtype) for a in eqn.invars]


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

    traced = trace_function(body, (M, X))
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

    assert operands(first(trace_function(body, (M,)), markers.load_p))[1:] == [3, 0]


def test_index_types() -> None:
    def body(x, k):
        for i in qd.range(4):
            c = qd.local(2)
            x[c] = x[k[i].astype(jnp.uint8)] + x[i.astype(jnp.int16)]

    traced = trace_function(body, (X, K))
    loads = [e for e in equations_in(traced.root.items) if e.primitive is markers.load_p]
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

    trace_function(body, (M,))


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
        (lambda: qd.zeros_like([qd.zeros((), jnp.int16)[()], 2, 3]), 1, np.int16),
    ],
)
def test_allocation(make, operand_count, dtype) -> None:
    def body():
        made = make()
        assert made.dtype == dtype
        assert made.shape == (3,)
        made[0] = 0
        return made

    eqn = [e for e in equations_in(trace_function(body, ()).root.items) if e.primitive is markers.alloc_p][-1]
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

    traced = trace_function(body, (X,))
    names = [e.primitive.name for e in equations_in(traced.root.items)]
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

    traced = trace_function(body, (K, X))
    sets = [e.params["slices"] for e in equations_in(traced.root.items) if e.primitive is markers.lset_p]
    assert sets == [(None, None), (None, (0, 2, 1)), (None, None), ((0, 2, 1), None), ((0, 3, 1), (0, 2, 1))]


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
        traced = trace_function(body, (np.ones(3), np.int64(3)))
    store = first(traced, markers.store_p)
    assert store.invars[2].aval.dtype == np.int64


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

    eqn = first(trace_function(body, (K,)), markers.atomic_p)
    assert (eqn.params["op"], eqn.params["nvalues"], eqn.params["slices"]) == (op, 1, (None,))


def test_compare_and_swap() -> None:
    def body(k):
        for i in qd.range(4):
            k[i] = qd.atomic_cas(k, (0,), 1, i)
        return k

    eqn = first(trace_function(body, (K,)), markers.atomic_p)
    assert (eqn.params["op"], eqn.params["nvalues"], len(eqn.invars)) == ("cas", 2, 4)


def test_atomic_of_a_row() -> None:
    def body(m):
        for i in qd.range(4):
            assert qd.atomic_add(m, i, jnp.ones(3)).shape == (3,)
        return m

    assert first(trace_function(body, (M,)), markers.atomic_p).params["slices"] == (None, (0, 3, 1))
