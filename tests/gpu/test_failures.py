"""Failed checks on a device: the words that kernels store to, and who raises what they say."""

import ctypes
import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from lowering.gpu.words import BLOCK, Words, error_of
from lowering.tables import FAILURE_BITS
from qdtrace import failures
from qdtrace.ir.parser import parse_program
from qdtrace.trace import compat
from tests.gpu.fake import fake_backend, watched_again
from tests.runtime.programs import affine, uncached

OPTIONS = uncached(block_dim=4)
TEXT = "index %lld is out of bounds for axis 0 of `x` with shape (3,)"
MASK = (1 << FAILURE_BITS) - 1
SHIFTED = """
program shifted(x: ref[f32,8], by: ref[i32])
  buffer out: ref[f32,8]
  buffer last: ref[f32,8]
  range_for i in 0:i32 : 8:i32
    head
      n: i32 = load by
    j: i32 = add i n
    k: i32 = bound[axis=0, buffer="x", shape=(8,), size=8] j
    v: f32 = load x k
    store out v i
  range_for i in 0:i32 : 8:i32
    head
      n: i32 = load by
    j: i32 = sub i n
    k: i32 = bound[axis=0, buffer="x", shape=(8,), size=8] j
    v: f32 = load x k
    store last v i
  return out, last"""


def memory(kept: list[object]):
    """What allocates for `Words`."""

    def allocate(nbytes: int) -> int:
        kept.append(ctypes.create_string_buffer(nbytes))
        return ctypes.addressof(kept[-1])

    return allocate


def store(address: int, number: int, value: int) -> None:
    """What a thread does whose check fails."""
    ctypes.c_uint64.from_address(address).value = number << FAILURE_BITS | value & MASK


ENDS = (1 << 47) - 1, -(1 << 47)


@pytest.mark.parametrize("value", [0, 1, -1, 7, -(1 << 31), (1 << 47) - 2, 1 - (1 << 47), *ENDS])
def test_a_word_is_the_number_of_a_check_and_a_value(value: int) -> None:
    texts = ("check failed: 100%% of %%lld", TEXT)
    error = error_of(2 << FAILURE_BITS | value & MASK, texts)
    assert isinstance(error, qd.BoundsError)
    assert error.rule == TEXT.replace("%lld", str(value))
    assert hasattr(error, "__notes__") == (value in ENDS)
    error = error_of(1 << FAILURE_BITS | value & MASK, texts)
    assert isinstance(error, qd.CheckError)
    assert error.rule == "check failed: 100% of %lld"
    assert error_of((1 << 16) - 1 << FAILURE_BITS, ("",) * ((1 << 16) - 2) + (TEXT,)).args


def test_the_first_failure_of_each_program_is_raised_once() -> None:
    kept: list[object] = []
    words = Words(memory(kept))
    assert words.failure() is None
    first, second = words.take([(), (TEXT,), (TEXT,)]), words.take([(TEXT,)])
    assert words.failure() is None
    store(first + 16, 1, 5)
    store(first + 8, 1, 4)
    store(second, 1, -3)
    error = words.failure()
    assert isinstance(error, qd.BoundsError)
    assert error.rule.startswith("index 4 is")
    assert [note.split(" is ")[0] for note in error.__notes__] == ["another check failed: index -3"]
    assert words.failure() is None
    store(second, 1, 8)
    error = words.failure()
    assert error is not None
    assert error.rule.startswith("index 8 is")
    assert not hasattr(error, "__notes__")


def test_there_are_words_for_any_number_of_programs_and_tasks() -> None:
    kept: list[object] = []
    words = Words(memory(kept))
    counts = [1, BLOCK - 1, 1, 3 * BLOCK, 2, BLOCK - 1]
    places = [words.take([(TEXT,)] * n) for n in counts]
    assert len(kept) == 5
    taken = [range(place, place + 8 * n, 8) for place, n in zip(places, counts, strict=True)]
    assert len({word for r in taken for word in r}) == sum(counts)
    for k, place in enumerate(places):
        store(place + 8 * (counts[k] - 1), 1, k)
        error = words.failure()
        assert error is not None
        assert error.rule.startswith(f"index {k} is")
    assert words.failure() is None


def test_a_call_does_not_wait_and_the_next_one_fails() -> None:
    with fake_backend() as (backend, _):
        call = jax.jit(backend.compile(parse_program(SHIFTED), OPTIONS).call)
        x = np.arange(8, dtype=np.float32)
        assert np.array_equal(call(x, np.int32(0))[0], x)
        out, _ = jax.block_until_ready(call(x, np.int32(3)))
        assert np.array_equal(out[:5], x[3:])
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as raised:
            jax.block_until_ready(call(x, np.int32(0)))
        # iterations are threads in no order; the first task is told, the second one is forgotten with it
        index = str(raised.value).split()[2]
        assert str(raised.value).startswith(f"OUT_OF_RANGE: index {index} is out of bounds for axis 0 of `x`")
        assert int(index) in (8, 9, 10)
        assert backend.words.failure() is None
        assert np.array_equal(call(x, np.int32(0))[0], x)
        jax.block_until_ready(call(x, np.int32(-1)))
        error = backend.words.failure()
        assert isinstance(error, qd.BoundsError)
        assert error.rule.startswith("index -1 is")
        assert np.array_equal(call(x, np.int32(0))[0], x)


@pytest.mark.parametrize(
    ("value", "limit", "note"),
    [
        (np.int32(7), np.int32(5), "7 <= 5 does not hold"),
        (np.int32(2**31 - 1), np.int32(-(2**31)), "2147483647 <= -2147483648 does not hold"),
        (np.uint32(2**32 - 1), np.uint32(5), "4294967295 <= 5 does not hold"),
        (np.int8(-128), np.int8(-128), None),
        (np.float32(7.5), np.float32(5), ""),
    ],
)
def test_a_check_of_one_integer_tells_it(value: np.generic, limit: np.generic, note: str | None) -> None:
    @qd.jit
    def checked(n: jax.Array) -> jax.Array:
        out = qd.zeros(8, n.dtype)
        for i in qd.range(8):
            qd.check(n <= limit, "too many")
            out[i] = n
        return out

    program = parse_program(str(checked.lower(value).graph()))
    with fake_backend() as (backend, _):
        jax.block_until_ready(jax.jit(backend.compile(program, OPTIONS).call)(value))
        error = backend.words.failure()
    assert (error is None) == (note is None)
    if note is not None:
        assert isinstance(error, qd.CheckError)
        assert error.rule == "check failed: too many"
        assert error.notes == ((note,) if note else ())


def test_an_overflow_of_pushes_tells_how_many_there_are() -> None:
    @qd.jit
    def small(x: jax.Array) -> qd.Append[jax.Array]:
        out = qd.append(5, like=0)
        for i in qd.range(x.shape[0]):
            with qd.when(x[i] > 0):
                out.push(i)
        return out

    x = np.arange(-4, 9, dtype=np.float32)
    program = parse_program(str(small.lower(x).graph()))
    with fake_backend() as (backend, _):
        jax.block_until_ready(jax.jit(backend.compile(program, OPTIONS).call)(x))
        error = backend.words.failure()
    assert isinstance(error, qd.CheckError)
    assert error.notes == ("8 <= 5 does not hold",)


def test_programs_without_checks_have_no_words() -> None:
    with fake_backend() as (backend, driver):
        backend.compile(affine(8), OPTIONS).call(np.ones(8, np.float32))
        assert "words" not in vars(backend)
    (launched,) = driver.asked
    assert launched.arguments[-2] == 0


@pytest.fixture
def failed():
    """Something that may have failed: what is put into the list."""
    found: list[qd.QdError] = []
    with watched_again():
        failures.watched.clear()
        failures.watch(lambda: found.pop() if found else None, lambda: [memoryview(b"\1")])
        yield found


def test_nobody_looks_while_memory_is_zero() -> None:
    """Of any of several, also of memory that is watched later, or again."""
    calls: list[str] = []

    def look_here() -> None:
        calls.append("here")

    def look_there() -> None:
        calls.append("there")

    @qd.jit
    def twice(x):
        for i in qd.range(x.shape[0]):
            x[i] = 2 * x[i]
        return x

    here, there, more = bytearray(8), bytearray(16), bytearray(8)
    with watched_again():
        failures.watched.clear()
        failures.watch(look_here, lambda: [memoryview(here)])
        failures.watch(look_there, lambda: [memoryview(there)])
        failures.watch(look_there, lambda: [memoryview(there), memoryview(more)])
        x = jnp.ones(3)
        twice(x)
        assert calls == []
        for memory_ in (here, there, more):
            memory_[5] = 1
            twice(x)
            assert calls == ["here", "there"]
            calls.clear()
            memory_[5] = 0
        twice(x)
        assert calls == []


def test_of_two_threads_that_add_memory_none_is_forgotten() -> None:
    """The second one comes while the first one looks for its memory."""
    views = [memoryview(bytes(8))]
    looks = threading.Event()

    def look() -> None:
        """What is watched."""

    def memory() -> list[memoryview]:
        found = list(views)
        if len(found) == 1:
            looks.set()
            second.join(0.1)
        return found

    def add() -> None:
        looks.wait()
        views.append(memoryview(bytes(16)))
        failures.watch(look, memory)

    with watched_again():
        second = threading.Thread(target=add)
        second.start()
        failures.watch(look, memory)
        second.join()
        assert failures.watched[look] == views


def test_direct_calls_and_waiting_raise_what_failed_before(failed) -> None:
    @qd.jit
    def twice(x):
        for i in qd.range(x.shape[0]):
            x[i] = 2 * x[i]
        return x

    x = jnp.arange(3.0)
    assert qd.block_until_ready({"x": [x, 1]})["x"][0] is x
    failed.append(qd.BoundsError("first"))
    with pytest.raises(qd.BoundsError, match="first"):
        twice(x)
    assert twice(x).tolist() == [0, 2, 4]
    failed.append(qd.CheckError("second"))
    with pytest.raises(qd.CheckError, match="second"):
        qd.block_until_ready(x)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"OUT_OF_RANGE: {TEXT.replace('%lld', '3')}\n  at file.py:7 in f\n      x[i + 1]", qd.BoundsError),
        ("OUT_OF_RANGE: check failed: too large", qd.CheckError),
        ("INTERNAL: something else", ValueError),
    ],
)
def test_waiting_words_what_a_handler_said_as_ours(monkeypatch, text: str, kind: type[Exception]) -> None:
    def wait(_: object) -> None:
        raise ValueError(text)

    monkeypatch.setattr(jax, "block_until_ready", wait)
    with pytest.raises(kind) as raised:
        qd.block_until_ready(jnp.ones(1))
    assert str(raised.value).splitlines()[0] == text.removeprefix("OUT_OF_RANGE: ").splitlines()[0]


def test_on_a_device_a_call_waits_for_the_interpreter_only(monkeypatch) -> None:
    waited: list[object] = []
    wait = jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda x: waited.append(x) or wait(x))
    monkeypatch.setattr(compat, "is_on_host", lambda array: False)

    def shifted(x, by):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = x[i + by]
        return out

    x = jnp.arange(3.0)
    qd.jit(shifted)(x, 0)
    assert waited == []
    out = qd.jit(shifted, options={"debug": True})(x, 0)
    assert waited[-1] == [out]


@pytest.mark.usefixtures("young_heap")
def test_what_nobody_asked_for_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    words = Words(memory(kept))
    place = words.take([(TEXT,)])
    monkeypatch.setattr(failures, "watched", {words.failure: words.memory()})
    failures.tell()
    store(place, 1, 9)
    with pytest.warns(qd.QdWarning, match="nobody waited for this BoundsError: index 9 is out of bounds"):
        failures.tell()
    failures.tell()
    gc.collect()
