"""dtypes of new memory are those of JAX's arrays, also in x64 mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import TraceTypeError
from qdtrace.trace import markers
from qdtrace.trace.dtypes import kept_by_mode
from qdtrace.trace.trace import trace_function
from tests.trace.text import first

X = np.ones(8, np.float32)


NUMBERS = [True, 0, 2.0, 1j, np.float64(1.0), np.float32(1.0), np.int64(1), np.uint8(1), np.ones(2), jnp.float16(1)]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", [None, jnp.float16])
@pytest.mark.parametrize("init", NUMBERS)
def test_dtypes_are_those_of_jax(init, dtype, wide) -> None:
    with jax.enable_x64(wide):
        expected = jnp.asarray(init).dtype if dtype is None else dtype
        if np.iscomplexobj(init) and dtype is not None:
            return

        def body(x):
            for i in qd.range(8):
                c = qd.local(init, dtype)
                assert c.dtype == expected
                assert c.value.dtype == expected
                d = qd.local(x[i] * 2)
                assert d.dtype == np.float32
                assert i.dtype == np.int32
                e = qd.local(2.0 * i)
                assert e.dtype == (2.0 * i).dtype == (np.float64 if wide else np.float32)
            if np.ndim(init) == 0:
                assert qd.full(3, init, dtype).dtype == jnp.full(3, init, dtype).dtype == expected
            assert qd.zeros_like(init, dtype).dtype == qd.empty_like(init, dtype).dtype == expected
            return x

        trace_function(body, (X,))


@pytest.mark.parametrize("wide", [False, True])
def test_default_dtype_of_buffers(wide) -> None:
    def body(x):
        for make in (qd.zeros, qd.ones, qd.empty):
            assert make(3).dtype == jnp.zeros(3).dtype == (np.float64 if wide else np.float32)
            assert make(3, int).dtype == jnp.zeros(3, int).dtype
            assert make(3, jnp.float32).dtype == np.float32
            assert make(3, np.bool_).dtype == np.bool_
        return x

    with jax.enable_x64(wide):
        trace_function(body, (X,))


def test_float64_without_x64_warns_as_jax_does() -> None:
    def outside(x):
        assert qd.zeros(3, jnp.float64).dtype == np.float32

    def inside(x):
        for _ in qd.range(8):
            assert qd.local(0.0, jnp.float64).dtype == np.float32

    for function in (outside, inside):
        with pytest.warns(UserWarning, match="float64"):
            trace_function(function, (X,))


def test_a_given_dtype_stays() -> None:
    """A wider float is rounded when it is stored, as by `.at[].set` of JAX."""

    def body(x):
        b = qd.zeros(8, jnp.float32)
        for i in qd.range(8):
            c = qd.local(0.0, jnp.float32)
            c.value = x[i]
            b[i] = x[i]
            b[i] += x[i]
        return b

    with jax.enable_x64(True):
        traced = trace_function(body, (np.ones(8),))
    assert first(traced, markers.store_p).invars[1].aval.dtype == np.float32
    assert first(traced, markers.accum_p).invars[1].aval.dtype == np.float32
    assert first(traced, markers.lset_p).invars[1].aval.dtype == np.float32


KEYS = {
    "a buffer": [lambda k: qd.zeros_like(k), lambda k: qd.empty_like(k)],
    "qd.full": [lambda k: qd.full(3, k[0])],
    "qd.zeros": [lambda k: qd.zeros(3, k.dtype)],
    "qd.copy": [lambda k: qd.copy(k)],
}


@pytest.mark.parametrize(("what", "function"), [(what, f) for what, fs in KEYS.items() for f in fs])
def test_random_keys_are_no_numbers(refusal, what, function) -> None:
    text = refusal(TraceTypeError, function, jax.random.split(jax.random.key(0), 4))
    message, *_, fix = text.splitlines()
    assert message == f"{what} holds numbers, got random keys (key<fry>)"
    assert fix == "help: keep `jax.random.key_data(key)`; `jax.random.wrap_key_data` makes a key of it"


def test_results_are_kept_however_arguments_are_spelled() -> None:
    calls = []

    @kept_by_mode
    def function(a: int, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
        calls.append((a, b, c))
        return a, b, c

    spelled = [function(1), function(1, 2), function(a=1, b=2), function(1, c=3), function(b=2, c=3, a=1)]
    assert spelled == [(1, 2, 3)] * 5
    assert function(1, c=4) == (1, 2, 4)
    with jax.enable_x64(True):
        assert function(1, b=2) == (1, 2, 3)
    assert calls == [(1, 2, 3), (1, 2, 4), (1, 2, 3)]
