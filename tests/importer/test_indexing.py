"""Traced indices against JAX: every bounds mode, out of bounds on both sides, as scalars and in private memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.importer.harness import check, imported

RNG = np.random.default_rng(3)
INDEX = np.array([-9, -6, -5, -1, 0, 1, 3, 4, 5, 7, 100], np.int32)
N = len(INDEX)
V = RNG.normal(size=(N, 5)).astype(np.float32)
M = RNG.normal(size=(N, 4, 5)).astype(np.float32)
LONG = RNG.normal(size=(N, 40)).astype(np.float32)
TABLE = RNG.normal(size=(300,)).astype(np.float32)

READS = {
    "scalar": lambda v, m, i: v[i],
    "row": lambda v, m, i: m[i],
    "column": lambda v, m, i: m[:, i],
    "both": lambda v, m, i: m[i, i + 1],
    "several": lambda v, m, i: m[jnp.array([0, 2]), jnp.stack([i, i + 1])],
    "list": lambda v, m, i: v[jnp.stack([i, -i, i + 3])],
    "take": lambda v, m, i: jnp.take(m, i, axis=1, mode="clip"),
    "wrapped": lambda v, m, i: jnp.take(v, i, mode="wrap"),
    "window": lambda v, m, i: lax.dynamic_slice(m, (i, 1), (2, 3)),
    "dynamic index": lambda v, m, i: lax.dynamic_index_in_dim(m, i, 0),
    "along axis": lambda v, m, i: jnp.take_along_axis(m, jnp.argsort(m, axis=1), axis=1),
    "vmapped": lambda v, m, i: jax.vmap(lambda row, k: row[k])(m, i + jnp.arange(4)),
}


@pytest.mark.parametrize("budget", [16, 256])
@pytest.mark.parametrize("name", READS)
def test_reads(name, budget):
    check(READS[name], V, M, INDEX, exact=True, budget=budget)


MODES = ["clip", "fill", "promise_in_bounds"]


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("mode", MODES)
def test_modes_of_reads(mode, dtype):
    values = (V * 20).astype(dtype)
    index = np.clip(INDEX, 0, 4) if mode == "promise_in_bounds" else INDEX
    check(lambda v, i: (v.at[i].get(mode=mode), v.at[jnp.stack([i, i + 1])].get(mode=mode)), values, index, exact=True)


@pytest.mark.parametrize("budget", [4, 256])
@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("op", ["set", "add", "multiply", "min", "max"])
def test_modes_of_writes(op, mode, budget):
    def f(v, m, i):
        one = getattr(v.at[i], op)(2.0, mode=mode)
        row = getattr(m.at[i], op)(v, mode=mode)
        several = getattr(v.at[jnp.stack([i, i + 1, i])], op)(jnp.array([2.0, 3.0, 0.5]), mode=mode)
        return one, row, several if op != "set" else one

    check(f, V, M, INDEX, budget=budget)


@pytest.mark.parametrize("budget", [16, 256])
def test_update_slices(budget):
    def f(v, m, i):
        return lax.dynamic_update_slice(m, v[None, :2], (i, i)), lax.dynamic_update_index_in_dim(m, v, i, 0)

    check(f, V, M, INDEX, exact=True, budget=budget)


def test_a_long_array_is_spilled_once():
    program = check(lambda v, i: v[i] + v[i + 1] * v[2], LONG, np.clip(INDEX, 0, 38))
    assert program.count("cell") == 1
    assert program.count("select") <= 2  # only those of negative indices


def test_a_spill_moves_out_of_the_loop_that_reads_it():
    def f(v):
        return lax.fori_loop(0, 40, lambda k, s: s + v[(k * 7) % 40], 0.0)

    program = check(f, LONG)
    (body,) = [e.blocks[0] for e in program.program.tasks[0].body.eqns if e.primitive.name == "for"]
    assert not any(e.primitive.name in ("cell", "store") for e in body.eqns)


def test_a_short_array_needs_no_memory():
    assert check(lambda v, i: v[i], V, INDEX, exact=True).count("cell") == 0


def test_a_long_constant_is_hoisted():
    program = check(lambda i: jnp.asarray(TABLE)[i + 100], INDEX, exact=True)
    assert [h.shape for h in program.hoisted] == [(300,)]
    assert program.count("cell") == 0


def test_a_long_constant_without_hoisting_is_private():
    program = imported(lambda i: jnp.asarray(TABLE)[i + 100], INDEX, hoist=False)
    np.testing.assert_array_equal(program(INDEX)[0], TABLE[INDEX + 100])
    assert program.count("cell") == 1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int32])
def test_dtypes_of_indices(dtype):
    index = np.array([0, 1, 4, 5, 77, 100], np.int64).astype(dtype)
    check(lambda v, i: (v[i], v.at[i].set(1.0)), V[:6], index, exact=True)


def test_int64_indices():
    with jax.enable_x64(True):
        index = np.array([0, -1, 2**40, -(2**40), 3, 9], np.int64)
        check(lambda v, i: (v[i], v.at[i].set(1.0), lax.dynamic_slice(v, (i,), (2,))), V[:6], index, exact=True)


def test_updates_in_a_loop_happen_in_place():
    def f(v):
        return lax.fori_loop(1, 40, lambda k, v: v.at[k].set(v[k] + v[k - 1]), v)

    program = check(f, LONG)
    assert program.count("cell") == 1
    (loop,) = [e for e in program.program.tasks[0].body.eqns if e.primitive.name == "for" and len(e.blocks[0].eqns) > 3]
    assert not any(e.primitive.name == "for" for e in loop.blocks[0].eqns)  # nothing is copied


@pytest.mark.full
def test_an_old_content_that_is_still_needed_is_copied():
    def f(v):
        def body(k, state):
            v, total = state
            new = v.at[k].set(v[k] * 2)
            return new, total + v[k]  # reads the old content after the update

        return lax.fori_loop(0, 40, body, (v, 0.0))

    check(f, LONG)


@pytest.mark.full
def test_swapped_carries():
    def f(v):
        def body(k, state):
            a, b = state
            return b.at[k].add(1.0), a.at[k].mul(2.0)

        return lax.fori_loop(0, 21, body, (v, v + 1))

    check(f, LONG)


def test_rolled_history():
    def f(v):
        return lax.fori_loop(0, 5, lambda k, v: jnp.roll(v, 1).at[0].set(v[-1] + k), v)

    check(f, LONG)


TABLES = {
    "same": np.arange(7), "steps": np.arange(10) * 3 - 8, "down": np.arange(9)[::-1].copy(), "still": np.full(5, 3),
    "short": np.array([4, 5]), "uneven": np.array([0, 1, 2, 4]), "wide": np.array([-(2**31), 0, 2**31 - 1]),
    "matrix": np.arange(12).reshape(4, 3) * 2,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8", "uint32", "float32"])
@pytest.mark.parametrize("name", TABLES)
def test_tables_with_equal_steps_are_arithmetic(name, dtype):
    table = TABLES[name].astype(dtype)
    program = check(lambda k: jnp.asarray(table)[k], np.arange(-3, 14, dtype=np.int32))
    steps = np.diff(table.astype(np.int64), axis=0)
    even = (table.dtype.kind != "f" and len(table) > 2 and (steps == steps[0]).all()) or not steps.any()
    clamps = program.count("select") - (len(table) - 1) * (table.size // len(table))
    assert (clamps < 0) == bool(even)
