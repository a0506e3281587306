"""Updates of a place by a value of another dtype: exact, or refused by name."""

from collections.abc import Iterator
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.api import update_dtypes as updates

PAIRS = [
    # of a diagonal in five, each dtype is on both sides
    pytest.param(f"{into}-{of}", marks=pytest.mark.slow if (k + m) % 5 else ())
    for (k, into), (m, of) in product(enumerate(updates.DTYPES), repeat=2)
]
ACCUMULATIONS = (*updates.METHODS, *updates.STATEMENTS, *updates.ATOMICS)
pytestmark = [
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning"),  # in lanes of JAX
    pytest.mark.filterwarnings("ignore:.*(divide by zero|invalid value|overflow).*:RuntimeWarning"),  # NumPy's
]


@pytest.fixture
def operands(pair: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    into, of = pair.split("-")
    with jax.enable_x64("64" in pair.replace("complex64", "") or "complex128" in pair):
        yield updates.pairs(into, of)


def wrong(op, x, v, got, want):
    bad = np.flatnonzero(~updates.is_equal(op, np.asarray(got), want))
    return [(op, x[k], v[k], got[k], want[k]) for k in bad[:4]]


@pytest.mark.full
@pytest.mark.sample(5, full=2)
@pytest.mark.parametrize("pair", PAIRS)
def test_accumulations(pair, operands):
    x, v = operands
    for where in ("loop", "places", "slice"):
        ops = [op for op in ACCUMULATIONS if not updates.is_refused(op, x.dtype, v.dtype)]
        if where != "loop":
            ops = [op for op in ops if op not in updates.ATOMICS]
        if where == "places":  # one by one, which makes a task of each
            x, v, ops = x[::17], v[::17], ops[:: len(ops) // 2 or 1]
        if not ops:
            continue
        for op, got in zip(ops, updates.accumulating(ops, where)(x, v), strict=True):
            want = updates.updated(op, x, v, where)
            assert got.dtype == want.dtype
            assert not wrong(op, x, v, got, want), where


@pytest.mark.full
@pytest.mark.sample(3, full=4)
@pytest.mark.parametrize("pair", PAIRS)
def test_statements_that_load_and_store(pair, operands):
    x, v = operands
    for where, table in (("buffers", updates.LOADED), ("cells", updates.ON_CELLS)):
        wants = {}
        for op, function in table.items():
            try:
                want = function(jnp.asarray(x), jnp.asarray(v))
            except TypeError:  # no such operator of these dtypes
                continue
            if updates.fits(x.dtype, want.dtype):
                wants[op] = np.asarray(want.astype(x.dtype))
        if wants:
            results = updates.loading([*wants], where)(x, v)
            for (op, want), got in zip(wants.items(), results, strict=True):
                assert got.dtype == want.dtype
                assert not wrong(op, x, v, got, want), where


@pytest.mark.full
@pytest.mark.sample(3, full=4)
@pytest.mark.parametrize("pair", PAIRS)
def test_lanes(pair, operands):
    x, v = operands
    if not updates.fits(x.dtype, v.dtype) or x.dtype == v.dtype == np.bool_:
        pytest.skip("JAX drops the fraction with a warning, and refuses arithmetic of bools")
    rows = np.stack([x, x, x], 1)
    k = (np.arange(len(x)) % 3).astype(np.int32)
    got = qd.vmap(updates.in_lanes)(rows, v, k)
    want = jax.vmap(updates.in_lanes)(rows, v, k)
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.dtype == b.dtype
        assert updates.is_equal("/=" if n in (3, 4) else "", np.asarray(a), np.asarray(b)).all(), n


@pytest.mark.parametrize("pair", PAIRS)
def test_refusals_name_the_dtypes(pair, operands):
    x, v = operands
    refused = [op for op in ACCUMULATIONS if updates.is_refused(op, x.dtype, v.dtype)]
    for op in refused[:: 1 + len(refused) // 3]:
        with pytest.raises(qd.QdError, match=f"{x.dtype}|needs a buffer of numbers") as info:
            jax.eval_shape(updates.accumulating([op], "loop"), x, v)
        assert "apply" in str(info.value)
