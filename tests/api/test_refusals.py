"""Bad arguments and settings, what failed traces leave behind (nothing), checks of debug, threads."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.api.messages import good, text_of

X = np.ones(4, np.float32)


def float_bound(x):
    for i in qd.range(x.shape[0] / 2):
        x[i] = 1.0
    return x


def refusal(kind: type[qd.QdError], run: Any) -> str:
    """The message without the place in this file."""
    with pytest.raises(kind) as caught:
        run()
    lines = str(caught.value).splitlines()
    drop = {k for k, line in enumerate(lines) if line.startswith("  at ")}
    return "\n".join(line for k, line in enumerate(lines) if k not in drop and k - 1 not in drop)


# ---------------------------------------------------------------------- arguments and settings
@pytest.mark.parametrize(
    ("argument", "got"),
    [
        (object(), "object"),
        ("abc", "str"),
        (len, "builtin_function_or_method"),
        (np.array(["a"]), "an array of <U1"),
        (np.array([object()]), "an array of object"),
        (np.array(["2020-01-01"], "datetime64[D]"), "an array of datetime64[D]"),
    ],
)
def test_arguments_that_are_no_arrays(argument: Any, got: str) -> None:
    f = qd.jit(good)
    for call in (f, f.lower):
        assert refusal(qd.TraceTypeError, lambda call=call: call(argument)) == (
            f"good: the argument `x` needs to be an array, a number or a pytree of them, got {got}\n"
            "help: make it static: qd.jit(f, static_argnames='x'), or register its class with qd.dataclass"
        )
    np.testing.assert_array_equal(f(X), X + 1)


def test_argument_inside_a_tree() -> None:
    @qd.jit
    def f(state):
        return state["x"]

    text = refusal(qd.TraceTypeError, lambda: f({"x": X, "name": "abc"}))
    assert text.splitlines()[0] == (
        "f: the argument `state['name']` needs to be an array, a number or a pytree of them, got str"
    )


def test_element_type_of_an_argument() -> None:
    assert refusal(qd.TraceTypeError, lambda: qd.jit(good)(jnp.ones(3, jnp.float8_e4m3fn))) == (
        "buffers and loops need one of bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, "
        "got float8_e4m3fn\n"
        "help: convert it with .astype outside of the function, or outside of the loop"
    )


def test_kind_of_a_random_key() -> None:
    @qd.jit
    def f(key, x):
        for i in qd.range(x.shape[0]):
            x[i] = jax.random.uniform(jax.random.fold_in(key, i))
        return x

    assert refusal(qd.UnsupportedError, lambda: f(jax.random.key(0, impl="rbg"), X)) == (
        'needs threefry2x32 keys, got key<rbg>\nhelp: jax.random.key(seed, impl="threefry2x32")'
    )


def test_static_argument_that_cannot_be_hashed() -> None:
    f = qd.jit(lambda x, n: x, static_argnums=1)
    assert refusal(qd.TraceTypeError, lambda: f(X, [1, 2])) == (
        "<lambda>: a static argument needs to be hashable, got list [1, 2]\n"
        "help: give a tuple in place of a list, or a frozen dataclass; arrays are not static"
    )


@pytest.mark.parametrize("settings", [{"static_argnums": 5}, {"donate_argnums": 5}])
def test_positions_that_the_function_does_not_have(settings: dict[str, Any]) -> None:
    (name,) = settings
    assert refusal(qd.TraceValueError, lambda: qd.jit(good, **settings)) == (
        f"qd.jit: Jitted function has {name}=(5,), but only accepts 1 positional arguments.\n"
        "help: name its arguments by position or name (0: x)"
    )


def test_names_that_the_function_does_not_have() -> None:
    for name in ("static_argnames", "donate_argnames"):
        assert refusal(qd.TraceValueError, lambda name=name: qd.jit(good, **{name: "z"})) == (
            f"qd.jit: Jitted function has invalid argnames {{'z'}} in {name}. Function does not take these args.\n"
            "help: name its arguments by position or name (0: x)"
        )


def test_what_jit_is_given() -> None:
    assert refusal(qd.TraceTypeError, lambda: qd.jit(3)) == "needs a function, got int"
    assert refusal(qd.TraceTypeError, lambda: qd.jit(good, options={"num_threads": "a"})) == (
        "option `num_threads` needs an int or None, 1 or more, got 'a'"
    )
    text = refusal(qd.TraceValueError, lambda: qd.jit(good, options={"fast_maths": True}))
    assert text.splitlines()[0] == "needs the name of an option, got 'fast_maths'"
    assert text.splitlines()[-1] == "help: write `fast_math`"


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64])
@pytest.mark.parametrize("x64", [False, True])
def test_bounds_of_more_than_64_bits(number: int, x64: bool) -> None:
    def task(x):
        for i in qd.range(0, number, 2**62):
            x[i] = 0
        return x

    def loop(x):
        for i in qd.range(1):
            for _ in qd.range(-(2**63), number):
                x[i] = 0
        return x

    with jax.enable_x64(x64):
        for f in (task, loop):
            text = refusal(qd.TraceValueError, lambda f=f: qd.jit(f)(jnp.ones(2)))
            assert text.splitlines()[0] == f"qd.range needs bounds that fit into int64, got {number}"


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_bounds_without_sign(dtype: str) -> None:
    def f(n):
        x = qd.zeros(4)
        for i in qd.range(n):
            x[i] = 1
        return x

    with jax.enable_x64(True):
        text = refusal(qd.TraceTypeError, lambda: qd.jit(f)(np.dtype(dtype).type(2)))
    assert text.splitlines()[0] == f"qd.range needs signed bounds, got stop of {dtype}"
    assert text.splitlines()[-1] == f"help: convert it: `.astype(jnp.{dtype[1:]})`"


def test_backends_that_are_not_there() -> None:
    np.testing.assert_array_equal(qd.jit(good, backend="cpu")(X), X + 1)
    assert refusal(qd.BackendError, lambda: qd.jit(good, backend="nonesuch")(X)).splitlines() == [
        "good: Unknown backend nonesuch. Available backends are ['cpu']",
        "help: leave `backend` out of qd.jit to run on the default device",
    ]
    text = refusal(qd.BackendError, lambda: qd.jit(good).lower(X, target="sm_91"))
    assert text.startswith(  # and those that were added since the package was installed
        "needs a backend for 'sm_91', found cpu, cuda, gfx1100, gfx90a, gfx942, gfx950, rocm, sm_100, sm_120, "
        "sm_80, sm_86, sm_89, sm_90"
    )
    assert text.endswith("\nhelp: run on the CPU: JAX_PLATFORMS=cpu")


def test_outside_of_a_function() -> None:
    for what, run in {
        "qd.range": lambda: qd.range(3),
        "qd.ndrange": lambda: qd.ndrange(3, 3),
        "qd.while_": lambda: qd.while_(lambda: True),
        "qd.zeros": lambda: qd.zeros(3),
        "qd.local": lambda: qd.local(0),
        "qd.break_if": lambda: qd.break_if(True),
        "qd.continue_if": lambda: qd.continue_if(True),
        "qd.when": lambda: qd.when(True).__enter__(),
        "qd.copy": lambda: qd.copy(X),
    }.items():
        assert refusal(qd.TraceValueError, run) == (
            f"{what} is used outside of a function decorated with qd.jit\n"
            "help: move it into a function and decorate that with @qd.jit"
        )


def test_signature_errors_are_those_of_python() -> None:
    f = qd.jit(good)
    with pytest.raises(TypeError, match=r"^good\(\) missing 1 required positional argument: 'x'"):
        f()
    with pytest.raises(TypeError, match=r"^good\(\) takes 1 positional argument but 2 were given"):
        f(X, X)
    with pytest.raises(TypeError, match=r"^good\(\) got an unexpected keyword argument 'y'"):
        f(X, y=2)


# ---------------------------------------------------------------------- nothing is left behind
class OwnError(Exception):
    """An error of the user's code."""


def test_own_errors_pass_unchanged() -> None:
    cause = KeyError("why")

    @qd.jit
    def f(x):
        for i in qd.range(4):
            x[i] = 1
            with qd.when(x[i] > 0):
                raise OwnError("mine") from cause
        return x

    for _ in range(2):
        with pytest.raises(OwnError, match=r"^mine") as caught:
            f(X)
        assert caught.value.__cause__ is cause
        np.testing.assert_array_equal(qd.jit(good)(X), X + 1)


def test_interrupt_in_the_middle() -> None:
    stop = [True]

    @qd.jit
    def f(x):
        for i in qd.range(4):
            x[i] += 1
            for _ in qd.range(3):
                if stop:
                    raise KeyboardInterrupt
                x[i] += 1
        return x

    with pytest.raises(KeyboardInterrupt):
        f(X)
    stop.clear()
    np.testing.assert_array_equal(f(X), X + 4)


def test_failure_in_a_nested_call() -> None:
    @qd.jit
    def outer(x, flag):
        try:
            qd.jit(float_bound)(x)
        except qd.TraceTypeError:
            x[0] = 5
        for i in qd.range(4):
            x[i] += 1
        return x

    np.testing.assert_array_equal(outer(X, True), [6, 2, 2, 2])


def test_values_of_an_earlier_call() -> None:
    class Box:
        index = buffer = None

    @qd.jit
    def keeps(x):
        Box.buffer = x
        for i in qd.range(4):
            Box.index = i
            x[i] = 1
        return x

    keeps(X)
    for leaked in (Box.index, Box.buffer):
        with pytest.raises(qd.TraceValueError) as caught:
            qd.jit(lambda x, leaked=leaked: x + leaked)(X)
        assert "of an earlier trace" in str(caught.value)
    with pytest.raises(qd.TraceValueError, match=r"is used outside of a function decorated with qd\.jit"):
        Box.buffer[0]
    np.testing.assert_array_equal(qd.jit(good)(X), X + 1)


# ---------------------------------------------------------------------- debug
def out_of_range(x, n):
    for i in qd.range(n):
        x[i] = 1.0
    return x


def race(x):
    for i in qd.range(4):
        x[i // 2] = i.astype(jnp.float32)
    return x


def reads_nothing(x):
    y = qd.empty(4, jnp.float32)
    for i in qd.range(4):
        x[i] = y[i]
    return x


def test_checks_of_debug() -> None:
    with qd.options(debug=True):
        for f, args in ((out_of_range, (X, 5)), (race, (X,)), (reads_nothing, (X,))):
            with pytest.raises(qd.QdError) as caught:
                qd.jit(f)(*args)
            assert text_of(caught.value, f) == CHECKS[f]
        np.testing.assert_array_equal(qd.jit(good)(X), X + 1)
        # a failure that another call hid must not come out here
        with pytest.raises(Exception, match="out of bounds"):
            jax.block_until_ready(jax.jit(lambda x: qd.jit(out_of_range)(x, 5))(X))
        with pytest.raises(qd.TraceTypeError, match="needs to be an array"):
            qd.jit(good)("abc")


CHECKS: dict[Any, str] = {
    out_of_range: """index 4 is out of bounds for axis 0 of `x` with shape (4,)
  at FILE:2 in out_of_range
      x[i] = 1.0
help: keep traced indices between 0 and the length of the axis minus 1 (negative ones do not count from the end), \
or guard the access with qd.when""",
    race: """race on `x[0]`: two iterations of one task `race.0` use it, at least one writes
  at FILE:2 in race
      x[i // 2] = i.astype(jnp.float32)
note: iteration 0 stores to it at FILE:2 in race
note: iteration 1 stores to it at FILE:2 in race
help: accumulate with one operation (`b[i] += v`), or give each iteration its own element""",
    reads_nothing: """`y[0]` is read before anything is stored there; its shape is (4,)
  at FILE:3 in reads_nothing
      x[i] = y[i]
note: `load` needs the content of `y`
help: store a value first, or start from zeros""",
}


# ---------------------------------------------------------------------- threads
@pytest.mark.full
def test_threads_trace_and_call_at_once() -> None:
    shared = qd.jit(lambda x, k: qd.vmap(lambda v: v * k)(x))
    failures: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(which: int) -> None:
        try:
            barrier.wait()
            for n in range(3):
                x = np.arange(5 + n, dtype=np.int32)

                @qd.jit
                def own(x, which=which):
                    for i in qd.range(x.shape[0]):
                        with qd.when(x[i] > 1):
                            x[i] = x[i] * 10 + which
                    return x

                np.testing.assert_array_equal(own(x), np.where(x > 1, x * 10 + which, x))
                np.testing.assert_array_equal(shared(x, which), x * which)
                with qd.options(opt_level=which % 2), pytest.raises(qd.TraceTypeError, match="needs integer bounds"):
                    qd.jit(float_bound)(X)
                for _ in range(5):
                    np.testing.assert_array_equal(shared(x, n), x * n)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
