"""`qd.jit(sizes="any")`: one program for all lengths, equal to the programs of each length bit by bit."""

import ctypes
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

import qdtrace as qd
from lowering.backend import CpuBackend
from qdtrace.compose.staged_program import StagedProgram
from qdtrace.config import options_from
from qdtrace.ir.parser import parse_program
from qdtrace.lengths import calls
from qdtrace.lengths.memory import Form, on_host
from tests.lengths.programs import arguments, function_of

pytestmark = pytest.mark.cpu
EXACT = {"fast_math": False}
FIRST = ((11, 5), (12, 6), (14, 8))
LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 33, 1000)


def scaled(x: Any, factor: Any) -> Any:
    out = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        out[i] = x[i] * factor / x.shape[0]
    return out


def ones(n: int) -> jax.Array:
    return jnp.ones(n, jnp.float32)


def met(f: Any, *calls: tuple[Any, ...]) -> Any:
    """The function after calls, which it is compiled for."""
    for args in calls:
        f(*args)
    return f


def added(f: Any, *args: Any) -> tuple[Any, qd.Stats]:
    """The result of a call, and the work that it took."""
    before = qd.stats()
    return f(*args), qd.stats() - before


def same_bits(got: Any, want: Any) -> None:
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (g.shape, g.dtype, g.weak_type) == (w.shape, w.dtype, w.weak_type)
        assert np.asarray(g).tobytes() == np.asarray(w).tobytes()


@pytest.mark.full
def test_a_new_length_is_neither_traced_nor_compiled() -> None:
    f = met(qd.jit(scaled, sizes="any", options=EXACT), *((ones(n), 2.0) for n in (5, 6, 8, 9, 1, 2, 32, 64)))
    for n in LENGTHS:
        x = jnp.arange(n, dtype=jnp.float32)
        got, work = added(f, x, 3.0)
        assert (work.traces, work.programs, work.compiled, work.linked) == (0, 0, 0, 0)
        same_bits(got, jnp.asarray(np.asarray(x) * np.float32(3) / np.float32(n)))
        again, work = added(f, x, 3.0)
        assert work.traces == 0
        same_bits(again, got)


@pytest.mark.sample(6, full=3)
@pytest.mark.parametrize("seed", range(12))
def test_random_functions(seed: int) -> None:
    f = function_of(seed)
    one, each = qd.jit(f, sizes="any", options=EXACT), qd.jit(f, options=EXACT)
    met(one, *(arguments(n, m) for n, m in FIRST))
    rng, shared = np.random.default_rng(seed), 0
    for n, m in zip(rng.choice(LENGTHS, 3), rng.choice(LENGTHS[:-1], 3), strict=True):
        got, work = added(one, *arguments(n, m))
        shared += work.programs == 0
        same_bits(got, each(*arguments(n, m)))
    assert shared  # at length 1 some loops are gone, which is another program


@pytest.mark.full
@pytest.mark.parametrize("width", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_every_width_that_are_added_together(width: int, dtype: Any) -> None:
    def f(x: Any, to: Any) -> Any:
        out = qd.zeros(x.shape, x.dtype)
        for k in qd.range(to.shape[0]):
            out[to[k]] += x[k]
        return out

    def rows(n: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(n)
        x = jnp.asarray(rng.integers(-9, 9, (n, width)), dtype)  # integers: sums are exact in any order
        return x, jnp.asarray(rng.integers(0, n, n), jnp.int32)

    with jax.enable_x64(dtype is np.float64):
        one = met(qd.jit(f, sizes="any"), *(rows(n) for n in (5, 6, 8)))
        for n in (1, 9, 40):
            got, work = added(one, *rows(n))
            assert work.programs == 0
            x, to = rows(n)
            same_bits(got, jnp.zeros_like(x).at[to].add(x))


@pytest.mark.full
def test_lengths_that_were_equal_by_chance() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any, y: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + y[0] * y.shape[0]
        return x

    met(f, *((ones(n), ones(n)) for n in (4, 5, 7)))
    for n, m in ((6, 6), (6, 9), (9, 3), (3, 9)):
        same_bits(f(ones(n), ones(m)), ones(n) + m)


@pytest.mark.full
@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("around", [lambda f: f, jax.grad])
def test_traces_are_not_kept(around: Any) -> None:
    def sines(x: Any) -> Any:
        total = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            total[()] += jnp.sin(x[i])
        return total

    def alive() -> list[StagedProgram]:
        gc.collect()
        return [x for x in gc.get_objects() if type(x) is StagedProgram]

    f = met(around(qd.jit(sines, sizes="any")), *((ones(n),) for n in (4, 5, 7, 8)))
    before = alive()  # others may go meanwhile
    for n in range(20, 24):
        f(ones(n))
    assert {id(x) for x in alive()} <= {id(x) for x in before}


@pytest.mark.cpu
def test_an_operand_that_is_given_away_stays_while_it_is_used() -> None:
    """As by another thread, which donates an array during a call that reads it."""
    n = 1 << 16
    x = jnp.arange(n, dtype=jnp.float32) * 1.0
    held, address = on_host(x, np.dtype(np.float32))
    given = jax.jit(lambda v: v * 0 + 7, donate_argnums=0)(x).block_until_ready()
    np.testing.assert_array_equal(np.ctypeslib.as_array((ctypes.c_float * n).from_address(address)), np.arange(n))
    assert held is not None
    assert given[0] == 7


@pytest.mark.full
def test_operands_in_memory_of_any_kind() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any, k: Any, a: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = x[i] * k + a[i, 1]
        return x

    met(f, *((ones(n), 2, jnp.ones((n, 2))) for n in (4, 5, 7)))
    for n in (6, 9):
        x, a = np.arange(n, dtype=np.float32), np.arange(2 * n, dtype=np.float32).reshape(n, 2)
        shifted = np.arange(n + 1, dtype=np.float32)[1:]  # begins in the middle of a line of the cache
        columns = jax.device_put(a, Format(Layout((1, 0)), SingleDeviceSharding(jax.devices("cpu")[0])))
        for given in (jnp.asarray(x), x, shifted):
            for rows in (jnp.asarray(a), a, np.asfortranarray(a), columns):
                for k in (3, np.float32(3), jnp.float32(3)):
                    same_bits(f(given, k, rows), jnp.asarray(np.asarray(given) * 3 + a[:, 1]))
        assert (shifted == np.arange(1, n + 1)).all()


@pytest.mark.full
def test_a_number_that_its_type_cannot_hold() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any, k: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + k
        return x

    met(f, *((jnp.arange(n), 2) for n in (4, 5, 7, 8)))
    with pytest.raises(OverflowError):
        f(jnp.arange(8), 1 << 40)


@pytest.mark.full
def test_functions_that_look_at_the_length() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any) -> Any:
        factor = 5 if x.shape[0] == 1000 else 2
        for i in qd.range(x.shape[0] if x.shape[0] < 50 else 50):
            x[i] = x[i] * factor + (i if x.shape[0] % 16 == 0 else 0)
        return x

    met(f, *((ones(n),) for n in (5, 6, 7)))
    for n in (8, 49, 50, 51, 1000, 16, 64):
        want = np.ones(n, np.float32)
        want[:50] *= 5 if n == 1000 else 2
        want[:50] += np.arange(min(n, 50)) if n % 16 == 0 else 0
        same_bits(f(ones(n)), jnp.asarray(want))


@pytest.mark.full
def test_constant_indices_that_short_arrays_do_not_have() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any) -> Any:
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            out[i] = x[i] + x[4]
        return out

    met(f, *((ones(n),) for n in (5, 6, 8)))
    with pytest.warns(qd.QdWarning, match="its code depends on the length"):
        same_bits(f(ones(9)), 2 * ones(9))
    with pytest.raises(qd.QdError, match="index 4 is out of bounds"):
        f(ones(3))


@pytest.mark.full
def test_an_index_outside_of_its_array_is_the_error_of_its_length() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any, k: Any) -> Any:
        for i in qd.range(k.shape[0]):
            x[k[i]] += 1.0
        return x

    met(f, *((ones(n), jnp.arange(n)) for n in (4, 5, 7)))
    same_bits(f(ones(9), jnp.arange(8)), ones(9).at[:8].add(1.0))
    for wrong in (9, -1, 2**30):
        with pytest.raises(qd.BoundsError, match=rf"index {wrong} is out of bounds .* with shape \(9,\)"):
            f(ones(9), jnp.array([1, wrong, 2]))
    same_bits(f(ones(9), jnp.arange(8)), ones(9).at[:8].add(1.0))


@pytest.mark.full
def test_checks_of_the_user() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            qd.check(x[i] > 0, "needs positive numbers")
            x[i] = jnp.sqrt(x[i])
        return x

    met(f, *((ones(n),) for n in (4, 5, 7)))
    same_bits(f(ones(10)), ones(10))
    with pytest.raises(qd.CheckError, match="needs positive numbers"):
        f(ones(10).at[7].set(-1.0))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint32, np.float16, ml_dtypes.bfloat16])
def test_dtypes(dtype: Any) -> None:
    @partial(qd.jit, sizes="any")
    def backward(x: Any) -> Any:
        out = qd.full(x.shape, 1, x.dtype)
        for i in qd.range(x.shape[0] - 1):
            out[i] = x[x.shape[0] - 1 - i]
        return out

    for n in (4, 5, 7, 12, 1000):
        x = np.arange(n).astype(dtype)
        want = np.append(x[:0:-1], np.ones(1, dtype))
        got = backward(x)
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.full
def test_arguments_of_many_kinds() -> None:
    weights = jnp.array([0.5, 2.0])

    @partial(qd.jit, sizes="any")
    def f(state: dict[str, Any], scale: Any, *, offset: Any) -> Any:
        x = state["x"]
        for i in qd.range(x.shape[0]):
            x[i] = x[i] * scale * weights[1] + offset
        return {"x": x, "y": state["y"], "n": x.shape[0]}

    for n in (4, 5, 7, 9, 30):
        x, y = np.ones(3 * n, np.float32)[1 : n + 1], np.arange(n, dtype=np.int32)
        got = f({"x": x, "y": y}, 2, offset=np.float32(1))
        y[:] = 0
        same_bits(got["x"], 5 * ones(n))
        assert got["n"] == n
        assert (x == 1).all()
        np.testing.assert_array_equal(got["y"], np.arange(n))


@pytest.mark.full
def test_calls_of_one_length_with_other_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "KEPT", 2)  # so some are traced again
    one, each = qd.jit(scaled, sizes="any", options=EXACT), qd.jit(scaled, options=EXACT)
    whole = np.arange(9)
    xs = (jnp.asarray(whole, jnp.float32), whole.astype(np.float32)[::-1], jnp.asarray(whole, jnp.float16))
    for x, n in product(xs, (5, 6, 8)):
        one(x[:n], 0.5)
    for x, factor in product((*xs, *xs[::-1]), (0.5, 2, jnp.full((), 2.0))):
        same_bits(one(x, factor), each(x, factor))


@pytest.mark.full
def test_lengths_that_do_not_come_back_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        gc.collect()
        return sum(isinstance(x, Form) for x in gc.get_objects())

    monkeypatch.setattr(calls, "KEPT", 8)
    one, before = qd.jit(scaled, sizes="any"), count()
    for n in range(20, 60):
        one(ones(n), 0.5)
    assert count() - before == 8


@pytest.mark.full
def test_results_are_memory_of_their_own() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + 1
        return x, x

    met(f, *((ones(n),) for n in (5, 6, 8, 9)))
    x = ones(9)
    first, again = f(x), f(x)
    same_bits(jax.jit(lambda v: v * 3, donate_argnums=0)(first[0]), 6 * x)
    same_bits((first[1], again[0], again[1], x), (2 * x, 2 * x, 2 * x, ones(9)))


@pytest.mark.full
def test_arguments_of_weak_types() -> None:
    f = met(qd.jit(scaled, sizes="any", options=EXACT), *((jnp.full(n, 2.0), 2.0) for n in (5, 6, 7, 9)))
    assert jnp.full(9, 2.0).weak_type
    got, work = added(f, jnp.full(10, 2.0), 5.0)
    assert (work.programs, work.compiled) == (0, 0)
    same_bits(got, ones(10))


@pytest.mark.full
def test_results_that_no_iteration_writes() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any, y: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + 1
        for i in qd.range(0):
            y[i] = x[i]
        return x, y

    met(f, *((ones(n), ones(n)) for n in (5, 6, 8)))
    got, work = added(f, ones(9), 2 * ones(9))
    assert work.programs == 0
    same_bits(got, (2 * ones(9), 2 * ones(9)))


@pytest.mark.full
def test_no_elements() -> None:
    f = met(qd.jit(scaled, sizes="any"), *((ones(n), 2.0) for n in (5, 6, 8)))
    assert f(ones(0), 2.0).shape == (0,)


@pytest.mark.full
def test_inside_of_transformations() -> None:
    f = met(qd.jit(scaled, sizes="any"), *((ones(n), 2.0) for n in (5, 6, 8)))
    np.testing.assert_allclose(jax.jit(f)(ones(10), 2.0), 0.2, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(f, (0, None))(jnp.ones((3, 11)), 2.0), 2 / 11, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: f(x, 2.0).sum())(ones(12)), 2 / 12, rtol=1e-6)
    assert (qd.jit(lambda x: f(x, 2.0))(ones(4)) == 0.5).all()


@pytest.mark.full
def test_calls_of_other_functions_that_are_one_program() -> None:
    @partial(qd.jit, options=EXACT)
    def energy(x: Any) -> Any:
        total = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            v = qd.local(x[i])
            for _ in qd.while_(lambda v=v: v.value > 0.1):
                v.value = v.value * 0.5
            total[()] += v.value * v.value
        return total

    wholes = {
        "called": lambda x: energy(x),
        "mapped": lambda x: qd.vmap(lambda v: jax.lax.fori_loop(0, 3, lambda k, s: s * v + k, v))(x),
    }
    for whole in wholes.values():
        one, each = qd.jit(whole, sizes="any", options=EXACT), qd.jit(whole, options=EXACT)
        met(one, *((jnp.linspace(1, 2, n),) for n in (5, 6, 7)))
        for n in (1, 9, 33, 1000):
            x = jnp.linspace(1, 2, n)
            got, work = added(one, x)
            assert n == 1 or work.programs == 0
            same_bits(got, each(x))


@pytest.mark.full
def test_loads_that_no_other_length_has_are_not_executed_early() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any) -> Any:
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            s = qd.local(jnp.float32(0))
            for j in qd.range(100):  # with `x` longer than that, the branch would not be needed
                with qd.when(j < x.shape[0]):
                    s.value = s.value + x[j]
            out[i] = s.value
        return out

    met(f, *((ones(n),) for n in (5, 6, 7)))
    for n in (9, 120, 1, 8):
        same_bits(f(ones(n)), min(n, 100) * ones(n))


@pytest.mark.full
def test_what_is_compiled_for_each_length_is_told_once() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any) -> Any:
        least = jnp.sort(jnp.asarray(x))[0]
        for i in qd.range(x.shape[0]):
            x[i] = x[i] - least
        return x

    met(f, *((ones(n),) for n in (4, 5, 7)))
    why = r"`f` is compiled for each length.*: `sort` runs outside of its loops\n  at .*test_any_length.py:\d+"
    with pytest.warns(qd.QdWarning, match=why):
        f(ones(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same_bits(f(ones(9)), 0 * ones(9))


@pytest.mark.full
def test_settings_by_which_jax_looks_at_calls() -> None:
    f = met(qd.jit(scaled, sizes="any"), *((ones(n), 2.0) for n in (5, 6, 7)))
    for n, setting in ((9, jax.debug_nans(True)), (10, jax.disable_jit()), (11, jax.transfer_guard("disallow"))):
        x, factor = ones(n), jnp.float32(n)
        with setting:
            got, work = added(f, x, factor)
        assert work.programs == 1
        np.testing.assert_allclose(np.asarray(got), 1, rtol=1e-6)


@pytest.mark.full
def test_messages_that_tell_the_length_are_those_of_the_call() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            qd.check(x[i] > 0, f"needs {x.shape[0]} positive numbers")
            x[i] = x[i] + 1
        return x

    met(f, *((ones(n),) for n in (4, 5, 7)))
    _, work = added(f, ones(10))
    assert work.programs == 0
    with pytest.raises(qd.CheckError, match="needs 10 positive numbers"):
        f(-ones(10))


@pytest.mark.full
def test_its_launches_are_profiled() -> None:
    f = met(qd.jit(scaled, sizes="any"), *((ones(n), 2.0) for n in (5, 6, 7, 9)))
    profile = qd.profile(f)(ones(10), 2.0)
    (row,) = profile.rows
    assert (row.iterations, row.exact) == (10, False)  # its bytes are a bound


@pytest.mark.parametrize("option", ["debug", "deterministic"])
def test_options_that_ask_for_a_program_of_each_length(option: str) -> None:
    f = met(qd.jit(scaled, sizes="any", options={option: True}), *((ones(n), 2.0) for n in (5, 6, 7)))
    got, work = added(f, ones(9), 9.0)
    assert work.traces == 1
    np.testing.assert_allclose(got, 1, rtol=1e-6)


def test_sizes_are_any() -> None:
    with pytest.raises(qd.QdError, match="sizes needs to be 'any' or None, got 'all'"):
        qd.jit(scaled, sizes="all")  # type: ignore[call-overload]


@pytest.mark.full
def test_threads() -> None:
    f = met(qd.jit(scaled, sizes="any"), *((ones(n), 2.0) for n in (5, 6, 8)))
    with ThreadPoolExecutor(4) as pool:
        for n, got in zip(range(9, 25), pool.map(lambda n: f(ones(n), float(n)), range(9, 25)), strict=True):
            same_bits(got, ones(n))


def test_what_jax_refuses_is_refused_at_any_length() -> None:
    f = met(qd.jit(scaled, sizes="any"), *((ones(n), 2.0) for n in (5, 6, 8)))
    with pytest.raises(ValueError, match="masked arrays are not supported"):
        f(np.ma.masked_array(np.ones(9, np.float32), np.arange(9) > 4), 2.0)


def test_code_that_knows_a_length_is_refused() -> None:
    text = """program f(x: ref[f32,{n}])
  range_for i in 0:i32 : {stop}:i32 @"f.0"
    store x 1.0:f32 i
  return x
"""
    backend, options = CpuBackend(), options_from({})
    one, other, longer = (parse_program(text.format(n=n, stop=stop)) for n, stop in ((100, 50), (200, 50), (200, 60)))
    assert backend.compile_given(one, other, options) is not None
    assert backend.compile_given(one, longer, options) is None
