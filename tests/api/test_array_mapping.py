"""Arrays of lanes: XLA works on those of all lanes where these come together, each lane on its own elsewhere."""

from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.lanes.limits import limits_on_cpu, limits_on_gpu
from qdtrace.lanes.stages import stages_of
from qdtrace.trace.dependence import dependent
from tests.api.array_programs import STEPS, draw, function_of
from tests.selection import drawn

MODES = ("lanes", "batch", "auto")


@pytest.fixture(autouse=True)
def all_digits() -> Generator[None]:
    """Has GPUs multiply in f32; by default JAX has them round factors to fewer digits."""
    with jax.default_matmul_precision("highest"):
        yield


RNG = np.random.default_rng(0)


def matrices(n: int, lanes: int = 5) -> Any:
    return jnp.asarray(RNG.normal(size=(lanes, n, n)).astype(np.float32) / np.sqrt(n))


def generators(f: Any, *args: Any, **options: Any) -> list[str]:
    with qd.options(**options):
        return [task.codegen for task in qd.jit(lambda *args: qd.vmap(f)(*args)).lower(*args).tasks]


def product(a: Any) -> Any:
    return a @ a


def count(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] > 1, lambda c: (c[0] / 2, c[1] + 1), (x, 0))[1]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("f", "n", "found"),
    [
        (product, 7, ["llvm"]),
        (product, 8, ["xla"]),
        (lambda a: a.T @ a, 8, ["xla"]),
        (lambda a: jnp.sin(a) @ a, 16, ["llvm"]),
        (lambda a: jnp.sin(a) @ a, 17, ["xla"]),
        (lambda a: lax.fori_loop(0, 3, lambda _, m: m @ a, a), 16, ["llvm"]),
        (jnp.linalg.cholesky, 16, ["llvm"]),
        (jnp.linalg.cholesky, 17, ["xla"]),
        (jnp.linalg.eigvals, 4, ["llvm"]),
        (jnp.linalg.eigvals, 5, ["xla"]),
        (jnp.linalg.eigvalsh, 16, ["llvm"]),
        (lambda a: jnp.linalg.eigvals(lax.complex(a, a.T)), 5, ["llvm"]),
        (lambda a: lax.while_loop(lambda m: m[0, 0] > 1, lambda m: m * jnp.linalg.eigvals(m).real, a), 5, ["llvm"]),
        (lambda a: count(jnp.sum(a @ a) ** 2), 20, ["xla", "llvm"]),
        (lambda a: a @ (a * count(a[0, 0])), 20, ["llvm", "xla"]),
        (lambda a: (a @ a) * count((a @ a)[0, 0]) @ a, 20, ["xla", "llvm", "xla"]),
        (lambda a: lax.while_loop(lambda m: m[0, 0] > 1, lambda m: m @ a, a), 20, ["llvm"]),
        (lambda a: lax.fori_loop(0, 3, lambda _, m: m @ a, a), 20, ["xla"]),
        (lambda a: jnp.sum(a), 20, ["llvm"]),
    ],
)
def test_what_runs_where(f: Any, n: int, found: list[str]) -> None:
    a = matrices(n)
    assert generators(f, a) == found
    assert generators(f, a, array_mapping="lanes") == ["llvm"]


@pytest.mark.cpu
def test_eigenvalues_of_all_lanes_are_those_of_jax() -> None:
    a = matrices(5, lanes=9)
    f = lambda a: count(20 * jnp.sum(jnp.abs(jnp.linalg.eig(a @ a)[0])) ** 2)  # noqa: E731
    np.testing.assert_array_equal(qd.vmap(f)(a), jax.vmap(f)(a))
    largest = jax.grad(lambda a, over: jnp.sum(over(lambda a: jnp.max(jnp.abs(jnp.linalg.eigvals(a))))(a)))
    np.testing.assert_allclose(largest(a, qd.vmap), largest(a, jax.vmap), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("f", "n", "is_batched"),
    [
        (lambda x: lax.top_k(x, 4)[0], 21, False),
        (lambda x: lax.top_k(x, 4)[0], 22, True),
        (jnp.argsort, 31, False),
        (jnp.argsort, 32, True),
        (jnp.sort, 63, False),
        (jnp.sort, 64, True),
        (lambda x: lax.scan(lambda c, _: (x[jnp.argsort(c)], None), x, length=5)[0], 64, False),  # lanes take each step
    ],
)
def test_long_sorts_of_a_gpu(f: Any, n: int, is_batched: bool) -> None:
    """Where they are decided, which needs no GPU."""
    jaxpr = jax.make_jaxpr(f)(jnp.zeros(n)).jaxpr
    varies = dependent(jaxpr, jaxpr.invars)
    assert any(s.batched for s in stages_of(jaxpr, varies, limits_on_gpu(jaxpr, 1 << 20, varies))) == is_batched
    assert not stages_of(jaxpr, varies, limits_on_cpu(jaxpr, 1 << 20))


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("f", "found"),
    [
        (lambda b: b.T * b, "xla"),
        (lambda b: jnp.flip(b, 0) + jnp.rot90(b), "xla"),
        (lambda b: b.reshape(4, 2, 2, 4).transpose(2, 0, 3, 1).reshape(8, 8) ** 2, "xla"),
        (lambda b: b.T * jnp.sin(b), "llvm"),
        (lambda b: (b.T * b).sum(0), "llvm"),
        (lambda b: jnp.roll(b, 1, 0) * b, "llvm"),
        (lambda b: jnp.concatenate([b, b.T]), "llvm"),
        (lambda b: jnp.outer(b[0], b[1]), "llvm"),
    ],
    ids=["transposed", "flipped", "interleaved", "sines", "sums", "rolled", "larger", "rows"],
)
def test_arithmetic_on_permuted_elements_is_for_the_batch(f: Any, found: str) -> None:
    """What XLA has in one loop with its derivative; not what it is slower at, nor parts of arrays."""
    b = jnp.linspace(-1.0, 1.0, 20 * 64).reshape(20, 8, 8)
    assert generators(f, b) == [found]

    def slope(vmap: Any) -> jax.Array:
        return jax.grad(lambda x: jnp.sum(vmap(f)(x) ** 2))(b)

    np.testing.assert_allclose(slope(qd.vmap), slope(jax.vmap), rtol=1e-5, atol=1e-5)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("f", "found"),
    [
        (lambda r: r[:, None] * r, "llvm"),
        (lambda r: jnp.kron(r, r), "llvm"),
        (lambda r: jnp.tanh(r[:, None] - r), "xla"),
        (lambda r: 2 * r * r[::-1], "xla"),
    ],
    ids=["outer", "kron", "tanh", "row"],
)
def test_outer_products_are_for_lanes(f: Any, found: str) -> None:
    """Where their derivative sums along both axes, and nothing takes long to compute twice."""
    r = jnp.linspace(-1.0, 1.0, 20 * 12).reshape(20, 12)
    assert generators(f, r) == [found]


@pytest.mark.cpu
def test_a_row_says_who_works_and_why() -> None:
    (task,) = qd.jit(lambda a: qd.vmap(product)(a)).lower(matrices(32)).tasks
    assert (task.name, task.bounds, task.codegen) == ("product.batch_of_5", (0, 5), "xla")
    assert task.reason == ("array operations of XLA for all lanes together; the largest: qd_product of 5x32x32")
    gradient = qd.jit(jax.grad(lambda a: jnp.sum(qd.vmap(product)(a)))).lower(matrices(32)).tasks
    assert {task.codegen for task in gradient} == {"xla"}


@pytest.mark.cpu
def test_weights_that_all_lanes_share_are_multiplied_once() -> None:
    w, x = matrices(64)[0], matrices(64)[:, 0]
    text = str(jax.make_jaxpr(lambda w, x: qd.vmap(lambda w, x: (w @ w) @ x, (None, 0))(w, x))(w, x))
    assert "f32[64,64] = dot_general" in text
    assert "f32[5,64,64]" not in text


def test_a_forced_mapping_is_checked() -> None:
    with pytest.raises(TraceValueError, match="array_mapping"):
        qd.options(array_mapping="rows")
    with pytest.raises(TraceTypeError, match="array_mapping"):
        qd.options(array_mapping=1)


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_axes_results_and_closures(mode: str) -> None:
    a, w = matrices(20), matrices(20)[0]

    def lane(a: Any, *, x: Any) -> Any:
        m = a @ w
        return {"m": m, "n": count(m[0, 0]), "one": 1.0, "same": w @ w, "x": x, "key": jax.random.key(3)}

    def run(vmap: Any) -> Any:
        out = vmap(lane, in_axes=2, out_axes={"m": 1, "n": 0, "one": 0, "same": 2, "x": 0, "key": 0})(
            jnp.moveaxis(a, 0, 2), x=jnp.arange(5)
        )
        return {**out, "key": jax.random.key_data(out["key"])}

    with qd.options(array_mapping=mode):
        got, want = run(qd.vmap), run(jax.vmap)
        slopes = [jax.grad(lambda w, v=v: jnp.sum(v(lambda a: jnp.sin(a @ w))(a)))(w) for v in (qd.vmap, jax.vmap)]
    for key, value in want.items():
        assert got[key].dtype == value.dtype
        np.testing.assert_allclose(got[key], value, rtol=1e-5, atol=1e-5)  # sums of 20 products in another order
    np.testing.assert_allclose(*slopes, rtol=1e-4, atol=1e-5)  # sums of 100 terms


@pytest.mark.parametrize("mode", MODES)
def test_results_that_no_axis_has(mode: str) -> None:
    w = matrices(20)[0]
    with qd.options(array_mapping=mode):
        kept, mapped = qd.vmap(lambda w, x: (w @ w, x + 1), in_axes=(None, 0), out_axes=(None, 0))(w, jnp.arange(3))
        np.testing.assert_allclose(kept, w @ w, rtol=1e-5, atol=1e-6)  # sums of 20 products
        np.testing.assert_array_equal(mapped, [1, 2, 3])
        with pytest.raises(TraceValueError, match="out_axes=None depends on a mapped argument"):
            qd.vmap(lambda a: a @ a, out_axes=None)(matrices(20))


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_random_keys_and_calls_inside(mode: str) -> None:
    keys, a = jax.random.split(jax.random.key(0), 5), matrices(20)

    def lane(key: Any, a: Any) -> Any:
        noise = jax.random.normal(key, (20,))
        return jax.vmap(lambda row: row @ noise)(a @ a), jax.random.key_data(jax.random.fold_in(key, 1))

    with qd.options(array_mapping=mode):
        got = qd.vmap(lane)(keys, a)
        nested = jax.vmap(qd.vmap(product))(a[None]), qd.vmap(qd.vmap(product))(a[None])
    for x, y in zip(got, jax.vmap(lane)(keys, a), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)  # sums of 20 products in another order
    for x in nested:
        np.testing.assert_allclose(x[0], a @ a, rtol=1e-5, atol=1e-5)  # the same


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_checks_of_a_lane_stay(mode: str) -> None:
    def lane(a: Any) -> Any:
        m = a @ a
        qd.check(jnp.sum(m) < 1e6, "grows")
        return m

    with qd.options(array_mapping=mode), pytest.raises(qd.CheckError, match="grows"):
        qd.block_until_ready(qd.vmap(lane)(1e3 * jnp.ones((3, 20, 20))))


@pytest.mark.parametrize("mode", MODES)
def test_nothing_to_map(mode: str) -> None:
    with qd.options(array_mapping=mode):
        assert qd.vmap(product)(jnp.zeros((0, 20, 20))).shape == (0, 20, 20)
        assert qd.vmap(product)(jnp.zeros((3, 0, 0))).shape == (3, 0, 0)


def compare(seed: int, mode: str) -> None:
    names, args, axes = draw(seed)
    lane = function_of(names)
    rng = np.random.default_rng(seed)
    digits = 1e-3 if args[0].dtype == np.float32 else 1e-9  # of five steps, whose condition is at most some 100

    def same(x: Any, y: Any) -> None:
        np.testing.assert_allclose(x, y, rtol=digits, atol=digits * (1 + np.abs(y).max(initial=0)))

    def slopes(f: Any) -> Any:
        def loss(*args: Any) -> Any:
            return sum(jnp.sum(jnp.abs(f(*args)[key]) ** 2) for key in "mvx")

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*args)

    def in_one_loop(*args: Any) -> Any:
        with qd.options(array_mapping="lanes"):
            return qd.vmap(lane, axes)(*args)

    with jax.enable_x64(True), qd.options(array_mapping=mode):
        ours, theirs = qd.vmap(lane, axes), jax.vmap(lane, axes)
        jax.tree.map(same, ours(*args), theirs(*args))
        directions = tuple(rng.normal(size=a.shape).astype(a.dtype) for a in args)
        got, want = (jax.jit(lambda *a, f=f: jax.jvp(f, a, directions)[1])(*args) for f in (ours, theirs))
        jax.tree.map(same, {**got, "k": 0}, {**want, "k": 0})
        # JAX has no reverse mode of a loop that lanes leave
        jax.tree.map(same, slopes(ours), slopes(in_one_loop if "loop that lanes leave" in names else theirs))


@pytest.mark.full
@pytest.mark.sample(full=3)
@pytest.mark.parametrize("seed", range(drawn(6)))
@pytest.mark.parametrize("mode", ["batch", "auto"])
def test_random_programs(seed: int, mode: str) -> None:
    compare(seed, mode)


def test_all_steps_are_drawn() -> None:
    assert {name for seed in range(60) for name in draw(seed)[0]} == set(STEPS)
