"""Traced indices outside of their buffer: what a user sees."""

import os
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from lowering.llvm.target import Target
from tests import fresh

CLIP = {"bounds": "clip"}
FAR = (4, -1, -4, 100, 2**31 - 1, -(2**31))
"""Outside of an axis of 4."""


def at(k: Any) -> jax.Array:
    """An index of three iterations, the second of which is k."""
    return jnp.array([0, k, 3], jnp.int32)


def load(x: Any, k: Any) -> Any:
    out = qd.zeros(3, x.dtype)
    for i in qd.range(3):
        out[i] = x[k[i]]
    return out


def store(x: Any, k: Any) -> Any:
    for i in qd.range(3):
        x[k[i]] = 9
    return x


def accumulate(x: Any, k: Any) -> Any:
    for i in qd.range(3):
        x[k[i]] += 5
    return x


def cell(x: Any, k: Any) -> Any:
    out = qd.zeros(3, x.dtype)
    for i in qd.range(3):
        c = qd.local(jnp.array([0, 1, 2, 3], x.dtype))
        c[k[i]] += 10
        out[i] = c[k[i]]
    return out


def serial(x: Any, k: Any) -> Any:
    x[k[1]] = 9
    return x


def inner_loop(x: Any, k: Any) -> Any:
    out = qd.zeros(3, x.dtype)
    for i in qd.range(3):
        for j in qd.range(k[i] * 0, k[i] * 0 + 2):
            out[i] += x[k[i]] + j.astype(x.dtype)
    return out


def head(x: Any, k: Any) -> Any:
    out = qd.zeros(4, x.dtype)
    for i in qd.range(x[k[1]] * 0 + 2):
        out[i] = 1
    return out


PROGRAMS: dict[Callable[..., Any], str] = {
    load: "x", store: "x", accumulate: "x", cell: "c", serial: "x", inner_loop: "x", head: "x",
}  # fmt: skip


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_an_index_outside_ends_the_call(f: Callable[..., Any]) -> None:
    x = jnp.arange(4)
    function, debugged = qd.jit(f), qd.jit(f, options={"debug": True})
    want = debugged(x, at(2))
    for index in FAR:
        with pytest.raises(qd.BoundsError) as caught:
            qd.block_until_ready(function(x, at(index)))
        said = f"index {index} is out of bounds for axis 0 of `{PROGRAMS[f]}` with shape (4,)"
        assert str(caught.value).startswith(said)
        assert f"in {f.__name__}\n" in str(caught.value)
        with pytest.raises(qd.BoundsError) as other:
            qd.block_until_ready(debugged(x, at(index)))
        assert str(other.value) == str(caught.value)
        assert (function(x, at(2)) == want).all()  # the next call is right


def test_the_whole_text() -> None:
    with pytest.raises(qd.BoundsError) as caught:
        qd.block_until_ready(qd.jit(store)(jnp.arange(4), at(7)))
    line = store.__code__.co_firstlineno + 2
    assert (
        str(caught.value)
        == f"""index 7 is out of bounds for axis 0 of `x` with shape (4,)
  at {__file__}:{line} in store
      x[k[i]] = 9
help: keep traced indices between 0 and the length of the axis minus 1 (negative ones do not count from the end), or \
guard the access with qd.when"""
    )


CLIPPED = {
    load: {4: [0, 3, 3], -1: [0, 0, 3]},
    store: {4: [9, 1, 2, 9], -1: [9, 1, 2, 9]},
    accumulate: {4: [5, 1, 2, 8], -1: [5, 1, 2, 8]},
    cell: {4: [10, 3, 13], -1: [10, 0, 13]},
    serial: {4: [0, 1, 2, 3], -1: [0, 1, 2, 3]},
}


@pytest.mark.parametrize("f", CLIPPED, ids=lambda f: f.__name__)
def test_clip_takes_the_nearest_and_leaves_out_the_rest(f: Callable[..., Any]) -> None:
    for index in FAR:
        got = qd.jit(f, options=CLIP)(jnp.arange(4), at(index))
        assert got.tolist() == CLIPPED[f][4 if index > 0 else -1], index


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_every_dtype_of_an_index(dtype: str) -> None:
    x = jnp.arange(5) * 2
    info = np.iinfo(dtype)

    def one(x: Any, k: Any) -> Any:
        out = qd.zeros(1, x.dtype)
        for i in qd.range(1):
            out[i] = x[k[i]]
        return out

    function, clipped = qd.jit(one), qd.jit(one, options=CLIP)
    for index in {0, 4, 5, int(info.max), int(info.min)}:
        k = jnp.array([index], dtype)
        nearest = min(max(index, 0), 4)
        assert clipped(x, k).tolist() == [2 * nearest]
        if index == nearest:
            assert function(x, k).tolist() == [2 * index]
        else:
            with pytest.raises(qd.BoundsError, match=f"^index {index} is out of bounds for axis"):
                qd.block_until_ready(function(x, k))


def told(index: int) -> int:
    """The index as an error has it: reports of a GPU have 48 bits."""
    return max(min(index, 2**47 - 1), -(2**47)) if jax.default_backend() == "gpu" else index


@pytest.mark.full
def test_an_index_that_is_in_range_modulo_two_to_the_32() -> None:
    with jax.enable_x64(True):
        for f in (load, store, accumulate, serial):
            function, clipped = qd.jit(f), qd.jit(f, options=CLIP)
            for index in (2**32, 2**32 + 2, -(2**32), 2**63 - 1, -(2**63), 2**40 + 1):
                k = jnp.array([0, index, 3], jnp.int64)
                with pytest.raises(qd.BoundsError, match=f"^index {told(index)} is out of bounds for axis 0"):
                    qd.block_until_ready(function(jnp.arange(4), k))
                got = clipped(jnp.arange(4), k)
                assert got.tolist() == CLIPPED[f][4 if index > 0 else -1]
        for index in (2**32 + 1, 2**64 - 1):
            with pytest.raises(qd.BoundsError, match=f"^index {told(index)} is out of bounds"):
                qd.block_until_ready(qd.jit(load)(jnp.arange(4), jnp.array([0, index, 3], jnp.uint64)))
            assert qd.jit(load, options=CLIP)(jnp.arange(4), jnp.array([0, index, 3], jnp.uint64)).tolist() == [0, 3, 3]


ATOMICS = {
    "add": qd.atomic_add, "min": qd.atomic_min, "max": qd.atomic_max, "and": qd.atomic_and, "or": qd.atomic_or,
    "xor": qd.atomic_xor, "exchange": qd.atomic_exchange, "cas": lambda x, k, v: qd.atomic_cas(x, k, 4, v),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", ATOMICS)
def test_every_atomic(name: str) -> None:
    def one(x: Any, k: Any) -> Any:
        out = qd.zeros(3, x.dtype)
        for i in qd.range(3):
            out[i] = ATOMICS[name](x, k[i], 6)
        return x, out

    function, clipped = qd.jit(one), qd.jit(one, options=CLIP)
    x, untouched = jnp.arange(8).reshape(2, 4)[1], function(jnp.arange(4) + 4, jnp.array([0, 1, 3]))
    for index in FAR:
        with pytest.raises(qd.BoundsError, match=f"^index {index} is out of bounds for axis 0 of `x`"):
            qd.block_until_ready(function(x, at(index)))
        after, old = clipped(x, at(index))
        assert after.tolist() == [int(untouched[0][0]), 5, 6, int(untouched[0][3])]
        # the order of the iterations says whether the nearest element is changed already
        assert int(old[1]) in ({7, int(untouched[0][3])} if index > 0 else {4, int(untouched[0][0])})


@pytest.mark.parametrize("bounds", ["raise", "clip"])
def test_axes_without_an_element(bounds: str) -> None:
    def loads(x: Any, k: Any) -> Any:
        out = qd.zeros(2)
        for i in qd.range(2):
            out[i] = x[k, i]
        return out

    def stores(x: Any, k: Any) -> Any:
        for i in qd.range(2):
            x[k, i] = 1.0
        return x

    def swaps(x: Any, k: Any) -> Any:
        out = qd.zeros(2)
        for i in qd.range(2):
            out[i] = qd.atomic_exchange(x, (k, i), 1.0)
        return out

    x = jnp.zeros((0, 3))
    for f in (loads, stores, swaps):
        function = qd.jit(f, options={"bounds": bounds})
        if bounds == "clip":
            assert not jnp.any(function(x, 0))
        else:
            with pytest.raises(
                qd.BoundsError, match=r"^index 0 is out of bounds for axis 0 of `x` with shape \(0, 3\)"
            ):
                qd.block_until_ready(function(x, 0))


@pytest.mark.full
def test_rows_and_slices_with_another_axis_traced() -> None:
    def get(x: Any, k: Any) -> Any:
        out = qd.zeros((3, 2))
        for i in qd.range(3):
            out[i] = x[1:3, k[i]]
        return out

    def put(x: Any, k: Any) -> Any:
        for i in qd.range(3):
            x[k[i], ::2] = 7.0
        return x

    x = jnp.arange(16.0).reshape(4, 4)
    gets, puts = qd.jit(get), qd.jit(put)
    clipped_gets, clipped_puts = qd.jit(get, options=CLIP), qd.jit(put, options=CLIP)
    for index in FAR:
        with pytest.raises(qd.BoundsError, match=f"^index {index} is out of bounds for axis 1 of `x`"):
            qd.block_until_ready(gets(x, at(index)))
        with pytest.raises(qd.BoundsError, match=f"^index {index} is out of bounds for axis 0 of `x`"):
            qd.block_until_ready(puts(x, at(index)))
        near = 3 if index > 0 else 0
        assert clipped_gets(x, at(index))[1].tolist() == [4.0 + near, 8.0 + near]
        assert (clipped_puts(x, at(index)) == x.at[jnp.array([0, 3]), ::2].set(7.0)).all()


# JAX around.


def test_jit_around() -> None:
    f = jax.jit(lambda x, k: qd.jit(load)(x, k) + 1)
    assert f(jnp.arange(4), at(2)).tolist() == [1, 3, 4]
    with pytest.raises(Exception, match=r"index 4 is out of bounds for axis 0 of `x` with shape \(4,\)"):
        qd.block_until_ready(f(jnp.arange(4), at(4)))
    assert f(jnp.arange(4), at(1)).tolist() == [1, 2, 4]


@pytest.mark.full
def test_loops_of_jax_around() -> None:
    function = qd.jit(load)

    def mapped(ks: Any) -> Any:
        return lax.map(lambda k: function(jnp.arange(4), k), ks)

    def scanned(ks: Any) -> Any:
        return lax.scan(lambda c, k: (c + function(jnp.arange(4), k).sum(), 0), 0, ks)[0]

    def looped(ks: Any) -> Any:
        return lax.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + function(jnp.arange(4), ks[c[0]])), (0, at(0))
        )

    good, bad = jnp.stack([at(1), at(2)]), jnp.stack([at(1), at(-2)])
    for f in (mapped, scanned, looped, jax.vmap(lambda k: function(jnp.arange(4), k))):
        jax.block_until_ready(f(good))
        with pytest.raises(Exception, match="index -2 is out of bounds for axis 0 of `x`"):
            qd.block_until_ready(f(bad))


def test_donated_arguments() -> None:
    f = qd.jit(store, donate_argnums=0)
    with pytest.raises(qd.BoundsError, match="index 4"):
        qd.block_until_ready(f(jnp.arange(4) + 0, at(4)))
    assert f(jnp.arange(4) + 0, at(1)).tolist() == [9, 9, 2, 9]


@pytest.mark.cpu
def test_an_error_in_each_of_many_threads() -> None:
    f = qd.jit(load)
    x = jnp.arange(1000)
    f(x, at(1))

    def one(number: int) -> str:
        if number % 3 == 0:
            return str(f(x, at(number)).tolist())
        try:
            f(x, at(1000 + number))
        except qd.BoundsError as error:
            return str(error).partition(" is ")[0]
        return "no error"

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(one, range(120)))
    assert got == [f"[0, {n}, 3]" if n % 3 == 0 else f"index {1000 + n}" for n in range(120)]


@pytest.mark.full
def test_many_iterations_in_many_threads_tell_one_of_the_failures() -> None:
    n = 300_000
    k = np.arange(n, dtype=np.int32)
    bad = {5, 70_000, 150_001, 299_999}
    for place in bad:
        k[place] = -place

    def f(x: Any, k: Any) -> Any:
        out = qd.zeros(n)
        total = qd.zeros(())
        for i in qd.range(n):
            out[i] = x[k[i]]
            total[()] += x[k[i]]
        return out, total

    for threads in (1, 2, 4):
        with pytest.raises(qd.BoundsError, match=r"^index -") as caught:
            qd.block_until_ready(qd.jit(f, options={"num_threads": threads})(jnp.arange(float(n)), jnp.asarray(k)))
        assert -int(str(caught.value).split()[1]) in bad


def test_a_check_of_one_array_says_nothing_of_a_longer_one_before_it_is_made() -> None:
    """The loop carries elements of `y`; what proves their index is the check of `x`, inside of the loop."""

    @qd.jit
    def f(x: Any, y: Any, idx: Any, n: Any) -> Any:
        for i in qd.range(4):
            a = idx[i]
            for k in qd.range(n):
                y[a, i] = y[a, i] + x[a] * k
        return y

    x, y = jnp.arange(8.0), jnp.zeros((16, 4))
    assert f(x, y, jnp.full(4, 3), 5)[3].tolist() == [30.0] * 4
    for index in (8, 2**29, 2**31 - 1, -(2**31)):
        with pytest.raises(qd.BoundsError, match=f"index {index} is"):
            qd.block_until_ready(f(x, y, jnp.full(4, index), 5))
        f(x, y, jnp.full(4, index), 0)  # nothing is executed


def test_sums_in_registers_of_an_index_that_a_condition_proves() -> None:
    @qd.jit
    def f(x: Any, y: Any, a: Any) -> Any:
        for i in qd.range(x.shape[0]):
            qd.check((x[i] >= 0) & (a >= 0) & (a < 8), "outside")
            y[a] += x[i]
        return y

    x, y = jnp.ones(100_000), jnp.zeros(8)
    assert f(x, y, 3).tolist() == [0, 0, 0, 100_000, 0, 0, 0, 0]
    for index in (8, 2**29, 2**31 - 1, -(2**31)):
        with pytest.raises(qd.CheckError, match=r"^check failed: outside"):
            qd.block_until_ready(f(x, y, index))


def test_sums_in_registers_of_an_index_that_is_never_met() -> None:
    """What nobody has accumulated is not combined with memory either, wherever that would be."""

    @qd.jit
    def f(x: Any, y: Any, a: Any) -> Any:
        for i in qd.range(x.shape[0]):
            with qd.when((x[i] >= 0) & (a >= 0) & (a < 8)):
                y[a, a] += x[i]
        return y

    x, y = jnp.ones(100_000), jnp.zeros((8, 9))
    assert f(x, y, 3)[3].tolist() == [0, 0, 0, 100_000, 0, 0, 0, 0, 0]
    for index in (8, 2**20, 2**29, 2**31 - 1, -1, -(2**31)):
        assert not f(x, y, index).any()


@pytest.mark.full
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [7, 1000, 1_000_000])
def test_accumulations_in_slots_in_copies_and_under_locks(size: int, threads: int) -> None:
    n = 100_000

    def f(x: Any, k: Any, v: Any) -> Any:
        for i in qd.range(n):
            x[k[i]] += v[i]
        return x

    function = qd.jit(f, options={"num_threads": threads})
    k = jnp.arange(n) % size
    want = np.bincount(np.asarray(k), minlength=size)
    for index in (size, -1, 2**31 - 1, -(2**31)):
        with pytest.raises(qd.BoundsError, match=f"^index {index} is out of bounds for axis 0 of `x`"):
            qd.block_until_ready(function(jnp.zeros(size), k.at[n - 3].set(index), jnp.ones(n)))
        assert (function(jnp.zeros(size), k, jnp.ones(n)) == want).all()


@pytest.mark.full
@pytest.mark.cpu
def test_lanes_that_take_further_elements() -> None:
    n = 5000

    def f(table: Any, k: Any) -> Any:
        out = qd.zeros(n)
        for i in qd.range(n, refill=True):
            c, total = qd.local(k[i]), qd.local(0.0)
            for _ in qd.while_(lambda: c.value > 0):  # noqa: B023
                total.value += table[c.value]
                c.value -= 1
            out[i] = total.value
        return out

    function, k = qd.jit(f), jnp.arange(n) * 7919 % 100
    table = jnp.ones(101)
    how = "lane refill" if Target.host().vector_bits >= 512 else "under masks"  # narrow vectors gain nothing by refill
    assert how in function.lower(table, k).tasks[-1].reason
    assert (function(table, k) == k).all()
    for index in (101, 2**31 - 1):
        with pytest.raises(qd.BoundsError, match=f"^index {index} is out of bounds for axis 0 of `table`"):
            qd.block_until_ready(function(table, k.at[777].set(index)))
    assert (function(table, k.at[777].set(-5)) == jnp.maximum(k.at[777].set(-5), 0)).all()


# JAX's array code in a body keeps JAX's rules, and touches nothing else either.


@pytest.mark.full
@pytest.mark.parametrize("mode", ["promise_in_bounds", "clip", "fill"])
@pytest.mark.parametrize("size", [3, 300])
def test_arrays_in_a_body(mode: str, size: int) -> None:
    def get(k: Any, scale: Any) -> Any:
        return (jnp.arange(float(size)) * scale).at[k].get(mode=mode)

    def put(k: Any, scale: Any) -> Any:
        return (jnp.arange(float(size)) * scale).at[k].set(5.0, mode=mode).sum()

    def cut(k: Any, scale: Any) -> Any:
        whole = jnp.arange(float(size)) * scale
        return lax.dynamic_slice(whole, (k,), (2,)).sum() + lax.dynamic_update_slice(whole, jnp.ones(2), (k,))[0]

    k = jnp.array([0, size - 1, size, -1, -size, 2**31 - 1, -(2**31), 10**6], jnp.int32)
    for f in (get, put, cut):
        want = jax.vmap(f, (0, None))(k, 1.0)
        assert np.allclose(qd.vmap(f, (0, None))(k, 1.0), want, equal_nan=True), f.__name__


@pytest.mark.full
def test_a_program_of_many_checks() -> None:
    def f(x: Any, k: Any) -> Any:
        out = qd.zeros(8)
        for i in qd.range(8):
            total = jnp.float32(0)
            for j in range(200):
                total += x[k[i] + j * 3]
            out[i] = total
        return out

    function = qd.jit(f)
    x, k = jnp.ones(1000), jnp.arange(8)
    assert function(x, k).tolist() == [200.0] * 8
    with pytest.raises(qd.BoundsError, match="index 1000 is"):
        qd.block_until_ready(function(x, k.at[5].set(1000 - 3 * 199)))


@pytest.mark.cpu
def test_a_new_process_with_a_warm_cache(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent("""
        import jax.numpy as jnp
        import qdtrace as qd

        @qd.jit
        def f(x, k):
            out = qd.zeros(3)
            for i in qd.range(3):
                qd.check(k[i] != 7, "seven")
                out[i] = x[k[i]]
            return out

        for bad in (1, 4, 7):
            try:
                print(f(jnp.arange(4.0), jnp.array([0, bad, 3])).tolist())
            except qd.QdError as error:
                print(type(error).__name__, str(error).splitlines()[0])
        """)
    )
    environment = {**os.environ, "QD_OFFLINE_CACHE_DIR": str(tmp_path / "cache")}
    runs = [fresh.run([sys.executable, script], env=environment, check=True).stdout for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].splitlines() == [
        "[0.0, 1.0, 3.0]",
        "BoundsError index 4 is out of bounds for axis 0 of `x` with shape (4,)",
        "CheckError check failed: seven",
    ]
