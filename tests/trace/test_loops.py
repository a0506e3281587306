# ruff: noqa: B023
"""Loops and conditions: the markers they bind, the regions they make, bounds and hints."""

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace import markers
from qdtrace.trace.compat import Literal
from qdtrace.trace.trace import trace_function
from qdtrace.trace.tree import body_of, bounds_of, hints_of, inner_equations, loc_of
from tests.trace.text import clean, first

X = np.ones(8, np.float32)
M = np.ones((4, 3), np.float32)
K = np.arange(4, dtype=np.int32)


def operands(region):
    return [int(a.val) if isinstance(a, Literal) else str(a.aval.dtype) for a in bounds_of(region)]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [((5,), [0, 5, 1]), ((2, 5), [2, 5, 1]), ((9, 1, -2), [9, 1, -2]), ((np.int64(4),), [0, 4, 1])],
)
def test_range_bounds(bounds, expected) -> None:
    def body(x):
        for i in qd.range(*bounds):
            x[i] = 1
        return x

    traced = trace_function(body, (X,))
    begin = first(traced, markers.for_p)
    assert operands(begin) == expected
    assert body_of(begin).invars[0].aval.dtype == np.int32


def test_traced_bounds_of_any_integer_type() -> None:
    def body(x, n, k):
        for i in qd.range(n, k[1], jnp.int8(1)):
            x[i] = 1
        return x

    begin = first(trace_function(body, (X, np.int16(3), K)), markers.for_p)
    assert operands(begin) == ["int32", "int32", 1]


def test_hints_and_nesting(tree) -> None:
    def body(x):
        for i in qd.range(8, name="outer", block_dim=128, fuse=False, refill=True):
            for j in qd.range(3, unroll=3):
                x[i] = j
        for i in qd.range(8, serial=True):
            x[i] = 1
        return x

    root = trace_function(body, (X,)).root
    outer, serial = (item for item in root.items if item.primitive in markers.REGIONS)
    assert hints_of(outer) == {"name": "outer", "block_dim": 128, "fuse": False, "refill": True}
    assert hints_of(serial) == {"serial": True}
    (inner,) = (item for item in body_of(outer).eqns if item.primitive in markers.REGIONS)
    assert hints_of(inner) == {"unroll": 3}
    first_line = body.__code__.co_firstlineno
    assert (loc_of(outer).line, loc_of(inner).line) == (first_line + 1, first_line + 2)
    assert loc_of(outer).function == "body"
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

    traced = trace_function(body, (M,))
    (loop,) = (item for item in traced.root.items if item.primitive in markers.REGIONS)
    assert hints_of(loop) == {"name": "both", "dims": (3, 3)}
    assert operands(loop) == [0, 9, 1]
    assert [e.primitive.name for e in body_of(loop).eqns] == ["rem", "div", "add", "qd_store"]


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 5), (7,), (3, 1, 2)])
def test_ndrange_gives_every_index_once(shape) -> None:
    def body(x):
        for index in qd.ndrange(*((1, n + 1) for n in shape)):
            for k, part in enumerate(index):
                x[k] = part
        return x

    (loop,) = (i for i in trace_function(body, (np.zeros(4, np.int32),)).root.items if i.primitive in markers.REGIONS)
    seen = []
    for flat in range(int(np.prod(shape))):
        values = {body_of(loop).invars[0]: np.int32(flat)}
        index = []
        for eqn in body_of(loop).eqns:
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

    traced = trace_function(body, (M, np.int32(4), np.int32(1)))
    (loop,) = (item for item in traced.root.items if item.primitive in markers.REGIONS)
    assert hints_of(loop) == {"dims": (None, None)}
    names = [e.primitive.name for e in traced.root.items if e.primitive not in markers.REGIONS]
    difference, product = ["sub", "gt", "max", "select_n", "not", "gt", "or"], ["max", "div", "le", "mul"]
    assert names == ["qd_buffer", "max", *difference, *product, "le", "le", "or", "and", "or", "qd_read"]
    assert len(bounds_of(loop)) == 4


def test_ndrange_says_whether_its_product_fits() -> None:
    """Only where it may not: the last operand of the loop's marker is what is checked."""

    def traced(dims) -> int:
        def body(m, n):
            for _ in qd.ndrange(*dims(n[0])):
                m[0, 0] = 1.0
            return m

        return len(bounds_of(first(trace_function(body, (M, np.zeros(1, np.int32))), markers.for_p)))

    assert traced(lambda k: (3, (1, 4))) == 3
    assert traced(lambda k: (k,)) == 3
    assert traced(lambda k: ((1, k),)) == 3
    assert traced(lambda k: (k, 1)) == 3
    assert traced(lambda k: ((-1, k),)) == 4
    assert traced(lambda k: ((k, 5),)) == 4
    assert traced(lambda k: (k, 2)) == 4
    assert traced(lambda k: (k, k)) == 4


def test_while_has_its_test_apart(tree) -> None:
    def body(x):
        for i in qd.range(8):
            c = qd.local(x[i])
            for _ in qd.while_(lambda: c > 1.0):
                c *= 0.5
            x[i] = c
        return x

    traced = trace_function(body, (X,))
    loop = next(i for i in inner_equations(traced.root.items[1]) if i.primitive in markers.REGIONS)
    assert loop.primitive is markers.while_p
    _, test = loop.params["jaxprs"]
    assert [e.primitive.name for e in test.eqns] == ["qd_lget", "gt"]
    assert test.outvars == test.eqns[-1].outvars
    assert loop.invars == test.invars == body_of(loop).invars
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

    root = trace_function(body, (X,)).root
    regions = [i for i in inner_equations(root.items[1]) if i.primitive in markers.REGIONS]
    assert [operands(r) for r in regions] == [[1], [0]]


def test_continue_in_a_parallel_range(tree) -> None:
    def body(x):
        for i in qd.range(8):
            qd.continue_if(i > 3)
            x[i] = 1

    assert tree(body, X) == "buffer\nfor\n  continue\n  store"
