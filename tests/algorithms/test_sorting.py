"""`qd.sort` and `qd.argsort` against NumPy and JAX: dtypes of keys, lengths, rows, derivatives, and what is refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.algorithms import first_digit, moves, radix
from qdtrace.algorithms.radix import sort_rows
from qdtrace.algorithms.sorted import LEAST

SPECIAL = [np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40]
DTYPES = ["float32", "int32", "uint8", "int8", "int16", "uint16", "uint32", "bfloat16", "float16"]
WIDE = ["float64", "int64", "uint64"]
OPTIONS = {"bounds": "unchecked", "vectorize": False}
DRAW = np.random.default_rng(0)
KEYS = DRAW.normal(size=LEAST + 77).astype(np.float32)
WEIGHTS = DRAW.normal(size=LEAST + 77).astype(np.float32)


def drawn(dtype: str, count: int, rng: np.random.Generator) -> Any:
    """Keys of all bit patterns, with some that are equal and what is special about floats."""
    kind = jnp.dtype(dtype)
    keys = rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)
    if jnp.issubdtype(kind, jnp.floating):
        with np.errstate(over="ignore"):
            keys = np.concatenate([keys, np.tile(np.array(SPECIAL).astype(kind), 3)])
    keys = np.concatenate([keys, keys[: count // 3]])
    return rng.permutation(keys)


def by_numpy(keys: Any) -> Any:
    """Returns the places of a stable sort: NumPy has NaN last, too, and zeros equal."""
    return np.argsort(plain(keys), kind="stable")


def plain(keys: Any) -> Any:
    """Returns floats as f64, which is exact: NumPy orders bf16 by other rules."""
    with np.errstate(invalid="ignore"):
        return keys.astype(np.float64) if jnp.issubdtype(keys.dtype, jnp.floating) else keys


def require_sorted(dtype: str, count: int) -> None:
    keys = drawn(dtype, count, np.random.default_rng(count))
    found, places = sort_rows(jnp.asarray(keys)[None], ordered=True, bits=None)
    np.testing.assert_array_equal(places[0], by_numpy(keys))
    wanted = plain(keys)[by_numpy(keys)]
    (alone,) = sort_rows(jnp.asarray(keys)[None], ordered=False, bits=None)
    for sorted_keys in (found[0], alone[0]):
        np.testing.assert_array_equal(plain(np.asarray(sorted_keys)), wanted)
        np.testing.assert_array_equal(np.signbit(plain(np.asarray(sorted_keys))), np.signbit(wanted))


@pytest.mark.full
@pytest.mark.sample(9, full=3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_digits_sort_every_bit_pattern(dtype: str) -> None:
    require_sorted(dtype, 999)


@pytest.mark.full
@pytest.mark.sample(9, full=3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_digits_sort_parts_of_a_row(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PART_BYTES", 1024)
    require_sorted(dtype, 1003)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["uint32", "float32", "int8", "bfloat16"])
@pytest.mark.parametrize("bits", [0, 1, 7, 11, 12, 22, 23, 31, 32])
def test_keys_that_differ_in_so_many_bits(dtype: str, bits: int) -> None:
    """Rows that a cache holds are sorted by the bits in which their keys differ: by none, some, or all."""
    size = np.dtype(jnp.dtype(dtype)).itemsize
    rng = np.random.default_rng(bits)
    words = rng.integers(0, 1 << min(bits, 8 * size), (3, 77), dtype=np.uint64)
    words += rng.integers(0, 1 << 8 * size, dtype=np.uint64)
    keys = words.astype(f"uint{8 * size}").view(jnp.dtype(dtype))
    found, places = sort_rows(jnp.asarray(keys), ordered=True, bits=None)
    (alone,) = sort_rows(jnp.asarray(keys), ordered=False, bits=None)
    for row, one, place, other in zip(keys, found, places, alone, strict=True):
        np.testing.assert_array_equal(place, by_numpy(row))
        for made in (one, other):
            np.testing.assert_array_equal(plain(np.asarray(made)), plain(row)[by_numpy(row)])


def first_digits(shape: tuple[int, ...], kind: str, dtype: str, rng: np.random.Generator) -> Any:
    """Keys whose first digits are spread, are often one, are as many as just fit a cache or one more, or all one."""
    keys = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
    few = {"fit": 256, "one more": 257, "often one": shape[1] // 2, "one": shape[1]}.get(kind, 0)
    keys[-1] |= np.uint32(1 << 31)  # so that the first digit 0 has those keys of the last row that follow
    keys[-1, :few] &= np.uint32((1 << 20) - 1)
    return rng.permuted(keys, axis=1).view(dtype)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["uint32", "int32", "float32"])
@pytest.mark.parametrize("ordered", [False, True])
def test_long_rows_are_sorted_by_their_first_digit(dtype: str, ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PART_BYTES", 1024 * (1 + ordered))
    monkeypatch.setattr(first_digit, "FIRST_BITS", 5)
    monkeypatch.setattr(radix, "FIRST_BITS", 5)
    monkeypatch.setattr(first_digit, "SHORTEST", 1)
    sort: Any = qd.jit(radix.sort_rows.__wrapped__, static_argnames=("ordered", "bits"), options=OPTIONS)
    rng = np.random.default_rng(0)
    for kind in ("spread", "fit", "one more", "often one", "one"):
        keys = first_digits((2, 2003), kind, dtype, rng)
        found = sort(jnp.asarray(keys), ordered=ordered, bits=None)
        places = np.stack([by_numpy(row) for row in keys])
        np.testing.assert_array_equal(found[0], np.take_along_axis(keys, places, 1), err_msg=kind)
        if ordered:
            np.testing.assert_array_equal(found[1], places, err_msg=kind)
    if dtype == "uint32" and not ordered:
        keys = np.random.default_rng(1).integers(0, 1 << 22, (1, 2003), dtype=np.uint32)
        np.testing.assert_array_equal(sort(keys, ordered=False, bits=22)[0], np.sort(keys))
        keys[0, 2001] = 1 << 22
        with pytest.raises(qd.CheckError, match="a key that bits=22 does not hold"):
            jax.block_until_ready(sort(keys, ordered=False, bits=22))


NEAR: dict[str, Callable[[np.random.Generator], Any]] = {
    "normal": lambda rng: rng.standard_normal(2003) * 1e4,
    "uniform": lambda rng: rng.integers(0, 10**4, 2003),
    "one value": lambda rng: np.full(2003, 7),
    "ends": lambda rng: rng.choice([-np.inf, np.inf, np.nan, -0.0, 0.0, 1e-42, -1e-42, 1.0, 2.0], 2003),
    "huge": lambda rng: rng.choice([-3e38, 3e38, -1e-38, 1e-38, np.inf, -np.inf], 2003) * rng.random(2003),
    "no number": lambda rng: np.full(2003, np.nan),
    "an outlier": lambda rng: np.append(rng.standard_normal(2002), 1e30),
}
"""Keys that are near each other, or have values at the ends of what there is."""


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "int64"])
def test_keys_near_each_other_are_sorted_by_pieces(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PART_BYTES", 1024 * np.dtype(dtype).itemsize // 4)
    monkeypatch.setattr(radix, "FIRST_BITS", 5)
    monkeypatch.setattr(first_digit, "FIRST_BITS", 5)
    monkeypatch.setattr(first_digit, "SHORTEST", 1)
    sort: Any = qd.jit(radix.sort_rows.__wrapped__, static_argnames=("ordered", "bits"), options=OPTIONS)
    info = np.iinfo(dtype) if np.dtype(dtype).kind == "i" else None
    with jax.enable_x64(True), np.errstate(invalid="ignore", over="ignore"):
        for kind, draw in NEAR.items():
            keys = np.stack([draw(np.random.default_rng(seed)) for seed in range(2)])
            if info:
                keys = np.clip(np.nan_to_num(keys, posinf=info.max, neginf=info.min), info.min, info.max // 2)
            keys = keys.astype(dtype)
            (found,) = sort(jnp.asarray(keys), ordered=False, bits=None)
            places = np.stack([by_numpy(row) for row in keys])
            wanted = np.take_along_axis(keys, places, 1)
            assert np.asarray(found).tobytes() == wanted.tobytes(), kind


@pytest.mark.full
def test_many_keys_are_sorted_by_their_first_digit() -> None:
    keys = np.random.default_rng(0).integers(0, 1 << 32, first_digit.SHORTEST + 5, dtype=np.uint32)
    found, places = sort_rows(jnp.asarray(keys)[None], ordered=True, bits=None)
    np.testing.assert_array_equal(found[0], np.sort(keys))
    np.testing.assert_array_equal(places[0], np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(qd.sort(jnp.asarray(keys % (1 << 22)), bits=22), np.sort(keys % (1 << 22)))


@pytest.mark.full
@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", WIDE)
def test_digits_sort_wide_keys(dtype: str) -> None:
    with jax.enable_x64(True):
        require_sorted(dtype, 500)


@pytest.mark.full
@pytest.mark.parametrize("count", [1, 2, 65535, 65536, 300_001])
def test_digits_sort_rows_of_several_parts(count: int) -> None:
    require_sorted("int32", count)


@pytest.mark.full
@pytest.mark.parametrize("count", [0, 1, 100, LEAST])
def test_sort_and_argsort_are_numpys(count: int) -> None:
    keys = np.random.default_rng(count).integers(-50, 50, count).astype(np.int32)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(qd.argsort(keys), order)
    np.testing.assert_array_equal(qd.sort(keys), keys[order])
    numbers, rows = np.arange(count)[::-1].copy(), np.arange(2 * count).reshape(count, 2)
    found, tree, alone = qd.sort(keys, {"numbers": numbers, "rows": rows}, numbers)
    np.testing.assert_array_equal(found, keys[order])
    np.testing.assert_array_equal(tree["numbers"], numbers[order])
    np.testing.assert_array_equal(tree["rows"], rows[order])
    np.testing.assert_array_equal(alone, numbers[order])


@pytest.mark.full
@pytest.mark.parametrize("count", [9, LEAST])
def test_every_length_has_one_order_of_floats(count: int) -> None:
    """XLA's comparisons take numbers below the smallest normal one for zeros on a CPU."""
    keys = drawn("float32", count, np.random.default_rng(0))
    np.testing.assert_array_equal(qd.argsort(keys), by_numpy(keys))
    np.testing.assert_array_equal(qd.sort(keys), keys[by_numpy(keys)])
    rows = np.resize(keys, (5, 9))
    np.testing.assert_array_equal(qd.vmap(qd.argsort)(rows), np.argsort(rows, axis=1, kind="stable"))


@pytest.mark.full
@pytest.mark.sample(5)
@pytest.mark.parametrize("bits", [1, 7, 11, 12, 31])
def test_keys_of_few_bits(bits: int) -> None:
    keys = DRAW.integers(0, 2**bits, LEAST).astype(np.int32)
    np.testing.assert_array_equal(qd.argsort(keys, bits=bits), np.argsort(keys, kind="stable"))
    keys[LEAST // 2] = -1 if bits == 31 else 2**bits
    with pytest.raises(qd.CheckError, match=f"a key that bits={bits} does not hold"):
        jax.block_until_ready(qd.argsort(keys, bits=bits))
    small = keys[LEAST // 2 - 3 : LEAST // 2 + 3]  # sorted by XLA, by all bits
    np.testing.assert_array_equal(qd.argsort(small, bits=bits), np.argsort(small, kind="stable"))


@pytest.mark.full
def test_bools_are_keys() -> None:
    keys = DRAW.integers(0, 2, LEAST).astype(bool)
    np.testing.assert_array_equal(qd.argsort(keys), np.argsort(keys, kind="stable"))
    assert qd.sort(keys).dtype == bool


@pytest.mark.full
def test_derivatives_move_with_the_keys() -> None:
    def ours(keys: Any, x: Any) -> Any:
        found, moved = qd.sort(keys, x)
        return (WEIGHTS * found * jnp.sin(moved)).sum()

    def by_jax(keys: Any, x: Any) -> Any:
        order = jnp.argsort(keys)
        return (WEIGHTS * keys[order] * jnp.sin(x[order])).sum()

    wanted = jax.grad(by_jax, (0, 1))(KEYS, WEIGHTS)
    for derivative in (jax.grad(ours, (0, 1)), jax.jit(jax.grad(ours, (0, 1)))):
        for found, value in zip(derivative(KEYS, WEIGHTS), wanted, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-6)  # products of two roundings
    alone = jax.grad(lambda keys: (WEIGHTS * qd.sort(keys)).sum())(KEYS)
    np.testing.assert_array_equal(alone, WEIGHTS[np.argsort(np.argsort(KEYS, kind="stable"))])
    _, tangent = jax.jvp(qd.sort, (KEYS,), (WEIGHTS,))
    np.testing.assert_array_equal(tangent, WEIGHTS[np.argsort(KEYS, kind="stable")])


@pytest.mark.full
@pytest.mark.parametrize("length", [5, LEAST])
def test_vmap_sorts_rows(length: int) -> None:
    keys = DRAW.normal(size=(3, length)).astype(np.float32)
    np.testing.assert_array_equal(jax.vmap(qd.sort)(keys), np.sort(keys))
    np.testing.assert_array_equal(jax.jit(jax.vmap(qd.argsort, 1, 1))(keys.T), np.argsort(keys, kind="stable").T)
    slopes = jax.grad(lambda keys: (jax.vmap(qd.sort)(keys) * np.arange(length)).sum())(keys)
    np.testing.assert_array_equal(slopes, np.argsort(np.argsort(keys, kind="stable")))


def test_lanes_and_loops_sort() -> None:
    keys = DRAW.normal(size=(40, 6)).astype(np.float32)

    @qd.jit
    def rows(x: Any) -> Any:
        out = qd.empty_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = qd.sort(x[i])
        return out

    np.testing.assert_array_equal(qd.vmap(qd.sort)(keys), np.sort(keys))
    np.testing.assert_array_equal(rows(keys), np.sort(keys))


@pytest.mark.full
def test_between_the_loops_of_a_program() -> None:
    @qd.jit
    def program(x: Any, y: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = -x[i]
        keys, moved = qd.sort(x, y)
        out = qd.empty_like(y)
        for i in qd.range(x.shape[0]):
            out[i] = keys[i] * moved[i]
        return out

    order = np.argsort(-KEYS, kind="stable")
    np.testing.assert_array_equal(program(KEYS, WEIGHTS), -KEYS[order] * WEIGHTS[order])


@pytest.mark.parametrize(
    ("keys", "values", "bits", "told"),
    [
        (KEYS, (), 3, "takes bits= for integers, got keys of float32"),
        (KEYS + 1j, (), None, "needs bools, integers or floats, got complex64"),
        (np.zeros((2, 3)), (), None, r"needs an array with one axis, got shape \(2, 3\)"),
        (np.float32(1), (), None, r"needs an array with one axis, got shape \(\)"),
        (KEYS, (np.zeros(3),), None, rf"a first axis as long as the keys \({len(KEYS)}\), got shape \(3,\)"),
        (KEYS, (1.0,), None, r"got shape \(\)"),
        (np.arange(3), (), 0, "bits= of qd.sort needs 1 to 31, got 0"),
        (np.arange(3), (), 32, "bits= of qd.sort needs 1 to 31, got 32"),
        (np.arange(3, dtype=np.uint8), (), 9, "bits= of qd.sort needs 1 to 8, got 9"),
        (np.arange(3), (), 2.0, "bits= of qd.sort needs a static integer, got float"),
        ("keys", (), None, "qd.sort needs a number or an array, got str"),
    ],
)  # fmt: skip
def test_what_is_refused(keys: Any, values: Any, bits: Any, told: str) -> None:
    with pytest.raises(qd.QdError, match=told) as error:
        qd.sort(keys, *values, bits=bits)
    assert error.value.loc is not None
    assert error.value.loc.file == __file__
