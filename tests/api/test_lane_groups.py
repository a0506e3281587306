"""Groups of threads for each lane: kernels in Pallas's interpreter, derivatives of any order, batches, the choice."""

import functools
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import mlir

import qdtrace as qd
from benchmarks.array_lanes import cholesky_solve, kalman, predictions
from qdtrace.groups import threads
from qdtrace.groups.forms import Form, forms_of
from qdtrace.groups.kernel import refusal, run_groups
from qdtrace.groups.primitive import anywhere, by_loop, by_xla, group_p, grouped
from qdtrace.lanes import batch as vmap_batch
from qdtrace.lanes import limits

pytestmark = pytest.mark.cpu


def shapes(*of: str) -> Callable[[int], list[tuple[int, ...]]]:
    known: dict[str, Callable[[int], tuple[int, ...]]] = {
        "matrix": lambda n: (n, n), "wide": lambda n: (n, n // 2 + 1), "vector": lambda n: (n,),
        "rows": lambda n: (3, n, n),
    }  # fmt: skip
    return lambda n: [known[name](n) for name in of]


def solve(lower: bool, transpose: bool, unit: bool, left: bool) -> Callable[[Any, Any], Any]:
    def run(a: Any, b: Any) -> Any:
        a = a @ a.T + 2 * jnp.eye(len(a))
        return lax.linalg.triangular_solve(
            a, b if left else b.T, left_side=left, lower=lower, transpose_a=transpose, unit_diagonal=unit
        )

    return run


def factor(a: Any) -> Any:
    return jnp.linalg.cholesky(a @ a.T + jnp.eye(len(a)))


def summed(p: Any, rows: Any) -> Any:
    def step(p: Any, f: Any) -> tuple[Any, Any]:
        p = f @ p @ f.T * 0.5 + jnp.eye(len(p))
        return p, jnp.sum(p, 0)

    return lax.scan(step, p, rows, reverse=True)


ONE_SIDE: dict[str, Callable[[Any, Any], Any]] = {
    f"lower {lower}, transposed {turned}": functools.partial(
        lax.linalg.triangular_solve, left_side=True, lower=lower, transpose_a=turned, unit_diagonal=lower and turned
    )
    for lower in (False, True)
    for turned in (False, True)
}


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[int], list[tuple[int, ...]]]]] = {
    "product": (lambda a, b: a @ b, shapes("matrix", "wide")),
    "transposed": (lambda a, b: (a.T @ b).T, shapes("matrix", "wide")),
    "outer": (lambda a, b: b @ b.T + a, shapes("matrix", "wide")),
    "vectors": (lambda a, v: (a @ v) @ a * jnp.dot(v, v) + jnp.outer(v, v)[0], shapes("matrix", "vector")),
    "elements": (lambda a, v: jnp.where(a > v, jnp.tanh(a) / (1 + a * a), a.max(0)), shapes("matrix", "vector")),
    "predictions": (predictions, shapes("matrix", "matrix")),
    "rows of a loop": (summed, shapes("matrix", "rows")),
    "factor": (factor, shapes("matrix")),
    "factor and solve": (lambda a, v: cholesky_solve(a @ a.T + jnp.eye(len(a)), v), shapes("matrix", "vector")),
    "lower": (solve(True, False, False, True), shapes("matrix", "wide")),
    "lower transposed": (solve(True, True, True, True), shapes("matrix", "wide")),
    "upper": (solve(False, False, True, True), shapes("matrix", "wide")),
    "upper from the right": (solve(False, True, False, False), shapes("matrix", "wide")),
    "lower from the right": (solve(True, False, False, False), shapes("matrix", "wide")),
}  # fmt: skip


def drawn(sizes: Sequence[tuple[int, ...]], lanes: int, dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(len(sizes[0]) + sizes[0][0])
    return [jnp.asarray(rng.normal(size=(lanes, *s)) / np.sqrt(s[-1])).astype(dtype) for s in sizes]


def by_kernel(f: Callable[..., Any], args: Sequence[Any]) -> Any:
    lane, shape = jax.make_jaxpr(f, return_shape=True)(*(x[0] for x in args))
    assert refusal(lane, [True] * len(args)) is None
    return jax.tree.unflatten(jax.tree.structure(shape), run_groups(lane, [True] * len(args), args, interpret=True))


def same(got: Any, want: Any, digits: float) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(
            one.astype("float32"), other.astype("float32"), rtol=0, atol=digits * max(1.0, float(jnp.abs(other).max()))
        )


def gradient(f: Any, count: int) -> Any:
    return jax.grad(lambda *a: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(*a))), argnums=tuple(range(count)))


@pytest.fixture(autouse=True)
def precision() -> Any:
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.sample(full=4)
@pytest.mark.full
@pytest.mark.parametrize("n", [3, 17])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_give_what_the_batch_gives(name: str, n: int) -> None:
    f, sizes = FUNCTIONS[name]
    args = drawn(sizes(n), 3)
    same(by_kernel(f, args), jax.vmap(f)(*args), 1e-5)


@pytest.mark.full
@pytest.mark.sample(full=10)
@pytest.mark.parametrize("lanes", [1, 31, 1000])
@pytest.mark.parametrize("n", [1, 7, 8, 13, 15, 16, 31, 32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_of_every_size(name: str, n: int, lanes: int) -> None:
    f, sizes = FUNCTIONS[name]
    if n == 1 and ("factor" in name or "upper" in name or "lower" in name):
        return
    args = drawn(sizes(n), lanes)
    same(by_kernel(f, args), jax.vmap(f)(*args), 1e-5)


@pytest.mark.sample(full=5)
@pytest.mark.parametrize("n", [48, pytest.param(64, marks=pytest.mark.full), pytest.param(50, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["factor", "factor and solve", *ONE_SIDE])
def test_blocks_of_large_matrices(name: str, n: int) -> None:
    a, v = drawn([(n, n), (n,)], 3)
    a = a @ a.transpose(0, 2, 1) + jnp.eye(n)
    one = {"factor": lambda a, v: jnp.linalg.cholesky(a) * v, "factor and solve": cholesky_solve}
    f = one[name] if name in one else lambda a, v: ONE_SIDE[name](a, v[:, None]).T
    same(by_kernel(f, [a, v]), jax.vmap(f)(a, v), 1e-5)


@pytest.mark.full
@pytest.mark.parametrize("n", [17, 48])
def test_what_depends_on_no_operand_is_no_residual(n: int) -> None:
    (a,) = drawn([(n, n)], 2)
    a = a @ a.transpose(0, 2, 1) + jnp.eye(n)
    group = lambda a: grouped(lambda a: [jnp.linalg.cholesky(a)], [True])(a)[0]  # noqa: E731
    made = jax.make_jaxpr(gradient(group, 1))(a)
    values = next(e for e in made.eqns if e.primitive.name == "qd_group")
    assert [v.aval.dtype for v in values.outvars] == [jnp.float32] * 2  # the factor, twice: no masks
    same(jax.jit(gradient(group, 1))(a), gradient(jax.vmap(jnp.linalg.cholesky), 1)(a), 1e-4)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats(dtype: str) -> None:
    args = drawn([(17, 17)] * 2, 3, dtype)
    f = lambda a, b: jnp.tanh(a @ b + a) @ (b @ jnp.exp(a).sum(0))  # noqa: E731
    same(by_kernel(f, args), jax.vmap(f)(*args), 0.05 if dtype == "bfloat16" else 0.01)


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_by_xla(name: str) -> None:
    f, sizes = FUNCTIONS[name]
    args = drawn(sizes(9), 3)
    count = len(args)
    group = lambda *xs: grouped(lambda *xs: jax.tree.leaves(f(*xs)), [True] * count)(*xs)  # noqa: E731
    assert "qd_group" in str(jax.make_jaxpr(gradient(group, count))(*args))
    same(jax.jit(gradient(group, count))(*args), gradient(jax.vmap(f), count)(*args), 1e-4)
    if name in ("predictions", "factor", "rows of a loop"):
        second = lambda g: jax.jvp(gradient(g, count), args, [jnp.cos(x) for x in args])[1]  # noqa: E731
        same(second(group), second(jax.vmap(f)), 1e-3)


@pytest.mark.parametrize("name", ["predictions", "factor and solve", "rows of a loop"])
@pytest.mark.full
def test_derivatives_by_kernels(name: str) -> None:
    f, sizes = FUNCTIONS[name]
    args = drawn(sizes(17), 2)
    group = grouped(lambda *xs: jax.tree.leaves(f(*xs)), [True] * len(args), interpret=True)
    same(gradient(group, len(args))(*args), gradient(jax.vmap(f), len(args))(*args), 1e-4)


@pytest.mark.full
def test_batches_and_shared_operands() -> None:
    (f, _), (a, p) = FUNCTIONS["predictions"], drawn([(9, 9)] * 2, 6)
    group = lambda a, p: grouped(lambda a, p: [f(a, p)], (False, True))(a, p)[0]  # noqa: E731
    plain = jax.vmap(f, (None, 0))
    same(gradient(group, 2)(a[0], p), gradient(plain, 2)(a[0], p), 1e-4)
    more = jnp.stack([p, 2 * p], 1)
    for axes, args in (((None, 1), (a[0], more)), ((0, None), (a, p)), ((0, 1), (a[:2], more))):
        same(jax.vmap(group, axes)(*args), jax.vmap(plain, axes)(*args), 1e-4)


@pytest.mark.full
def test_results_that_are_operands_or_constants() -> None:
    (a,) = drawn([(5, 5)], 4)
    got = grouped(lambda a: [a, a @ a, jnp.zeros((2,)), a @ a, 3.0], [True])(a)
    same(got, [a, a @ a, jnp.zeros((4, 2)), a @ a, jnp.full(4, 3.0)], 1e-6)


@pytest.mark.full
def test_a_shared_scalar_and_an_argument_that_is_a_result() -> None:
    f = lambda a, k: (a, a @ a * k)  # noqa: E731
    (a,) = drawn([(5, 5)], 4)
    lane = jax.make_jaxpr(f)(a[0], 2.0)
    got = run_groups(lane, [True, False], [a, jnp.float32(2)], interpret=True)
    same(got, [a, a @ a * 2], 1e-6)


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("n", [17, 18, 24, 31, 32, 33, 34, 64])
def test_factors_in_blocks(n: int) -> None:
    """Of 16 rows to 32 x 32, of 32 rows above; one row is no block."""
    a, v = drawn([(n, n), (n,)], 2)
    a = a @ a.transpose(0, 2, 1) + jnp.eye(n)
    scaled = lambda a, v: jnp.linalg.cholesky(a).T * v  # noqa: E731
    for f, args in ((jnp.linalg.cholesky, [a]), (cholesky_solve, [a, v]), (scaled, [a, v])):
        lane = jax.make_jaxpr(f)(*(x[0] for x in args))
        assert (Form(16) in forms_of(lane)) == (n <= 32)
        if n == 33:
            assert refusal(lane, [True] * len(args)) is not None
        else:
            same(by_kernel(f, args), jax.vmap(f)(*args), 1e-5)


@pytest.mark.full
@pytest.mark.parametrize(("n", "at"), [(17, 9), (24, 3), (24, 20), (40, 3), (40, 36)])
def test_a_matrix_without_a_factor_has_nan(n: int, at: int) -> None:
    a = jnp.stack([jnp.eye(n), jnp.eye(n).at[at, at].set(-1)])
    same(by_kernel(jnp.linalg.cholesky, [a]), jnp.linalg.cholesky(a), 0.0)


@pytest.mark.parametrize(
    ("f", "size", "why"),
    [
        (jnp.sort, (5, 5), "the primitive sort"),
        (lambda a: a @ a, (65, 65), r"an array of shape \(65, 65\)"),
        (lambda a: a @ a, (33, 33), r"an array of shape \(33, 33\)"),
        (jnp.linalg.cholesky, (65, 65), r"an array of shape \(65, 65\)"),
        (lambda a: lax.linalg.triangular_solve(a, a, left_side=True), (48, 48), r"a solve for \(48, 48\)"),
        (lambda a: a.sum(0), (0, 3), "an array without elements"),
        (lambda a: a.reshape(25), (5, 5), "a reshape that splits or joins axes"),
        (lambda a: a + 1j, (5, 5), "complex64"),
        (lambda a: lax.map(jnp.sin, lax.map(jnp.cos, a)), (3, 5), "rows"),
        (lambda a: jnp.linalg.matrix_power(a, 2**14), (32, 32), "products of 7168 multiplications"),
    ],
)
def test_what_no_kernel_is_made_of(f: Any, size: Any, why: str) -> None:
    found = refusal(jax.make_jaxpr(f)(jnp.zeros(size)), [True])
    assert found is not None
    assert re.search(why, found)


def generators(f: Any, args: Sequence[Any], axes: Any = 0, mode: str = "group") -> list[str]:
    low = qd.jit(lambda *a: qd.vmap(f, axes)(*a), options={"array_mapping": mode}).lower(*args)
    return [task.codegen for task in low.tasks]


@pytest.mark.full
def test_the_choice() -> None:
    args = drawn([(17, 17), (17, 17), (17,)], 4)
    assert generators(predictions, args[:2]) == ["triton"]
    assert generators(predictions, args[:2], mode="batch") == ["xla"]
    assert generators(lambda a, b: jnp.sort(a, 0) @ b @ a, args[:2]) == ["triton"]  # but for the sort
    assert generators(lambda a, v: jnp.tanh(a @ v), (args[0][0], args[2]), (None, 0)) == ["xla"]
    assert generators(kalman, (args[0], args[1], args[2])) == ["triton"]
    low = qd.jit(lambda a: qd.vmap(factor)(a), options={"array_mapping": "group"}).lower(args[0])
    assert low.tasks[0].reason == "a group of threads for each lane; the largest: qd_group of 4x17x17"


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has stages chosen as on a GPU, and loops of lanes, which are lowered for one, run on this processor."""
    known = SimpleNamespace(jit=jax.jit, vmap=jax.vmap, default_backend=lambda: "gpu")
    monkeypatch.setattr(vmap_batch, "jax", known)
    rule = lambda *xs, by_threads, **params: (by_loop if by_threads else by_xla)(*xs, **params)  # noqa: E731
    mlir.register_lowering(group_p, mlir.lower_fun(rule, multiple_results=True))
    yield
    mlir.register_lowering(group_p, mlir.lower_fun(anywhere, multiple_results=True))


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("product", "group"),
        ("root", "group"),
        ("root and solve", "thread"),
        ("predictions", "thread"),
        ("LU", "thread"),
    ],
)
def test_a_thread_has_the_values_of_small_lanes_that_compute_much(name: str, who: str) -> None:
    known = {"root": jnp.linalg.cholesky, "root and solve": cholesky_solve, "LU": jnp.linalg.solve}
    f = known[name] if name in known else FUNCTIONS[name][0]
    for n, whose in ((11, who), (12, "group")):
        a, b, v = drawn([(n, n), (n, n), (n,)], 3)
        args = [a, b] if name in FUNCTIONS else [a @ a.transpose(0, 2, 1) + jnp.eye(n), v][: 1 if name == "root" else 2]
        mapped = lambda *xs: qd.vmap(f)(*xs)  # noqa: E731
        if whose == "thread":
            (task,) = qd.jit(mapped).lower(*args).tasks
            assert task.codegen == "llvm"
            assert "a thread for each lane" in task.reason
        elif name != "LU":
            assert generators(f, args, mode="auto") == ["triton"]
        same(jax.jit(mapped)(*args), jax.vmap(f)(*args), 1e-5)
        same(jax.jit(gradient(mapped, len(args)))(*args), gradient(jax.vmap(f), len(args))(*args), 1e-3)


@pytest.mark.full
@pytest.mark.usefixtures("as_on_a_gpu")
def test_long_rows_are_the_whole_batch() -> None:
    (x,) = drawn([(128,)], 7)
    row = lambda x: jnp.tanh(x * jnp.sum(x)) / (1 + x * x)  # noqa: E731
    loop = lambda x: lax.fori_loop(0, 3, lambda _, y: row(y), x)  # noqa: E731
    assert generators(row, [x], mode="auto") == ["xla"]
    assert generators(loop, [x], mode="auto") == ["llvm"]
    assert generators(row, [x[:, :32]], mode="auto") == ["xla"]
    assert generators(row, [x[:, :3]], mode="auto") == ["llvm"]
    many = jax.ShapeDtypeStruct((1 << 16, 128), x.dtype)
    assert generators(row, [many], mode="auto") == ["xla"]  # threads would store rows far apart
    assert generators(lambda x: jnp.sum(row(x)), [many], mode="auto") == ["xla"]
    assert generators(lambda x: row(row(x) * jnp.max(x)) / jnp.min(x), [x[:, :32]], mode="auto") == ["llvm"]
    assert generators(lambda x: x[jnp.argmax(row(x))], [x[:, :32]], mode="auto") == ["llvm"]
    assert generators(lambda x: jnp.convolve(x, x[:3], "same"), [many], mode="auto") == ["llvm"]
    mapped = lambda x: qd.vmap(row)(x)  # noqa: E731
    same(jax.jit(gradient(mapped, 1))(x), gradient(jax.vmap(row), 1)(x), 1e-5)


@pytest.mark.full
@pytest.mark.usefixtures("as_on_a_gpu")
def test_small_products_alone_are_the_whole_batch() -> None:
    for n, who in ((4, "xla"), (7, "xla"), (8, "llvm")):
        a, b = (jax.ShapeDtypeStruct((1 << 16, n, n), "float32"),) * 2
        assert generators(jnp.matmul, [a, b], mode="auto") == [who]
        assert generators(lambda a, b: jnp.matmul(a.T, b), [a, b], mode="auto") == [who]
        assert generators(lambda a, b: a @ b @ a, [a, b], mode="auto") == ["llvm"]
    for depth, who in ((7, "xla"), (8, "triton")):
        a, b = (jax.ShapeDtypeStruct((1 << 16, *shape), "float32") for shape in ((20, depth), (depth, 20)))
        assert generators(jnp.matmul, [a, b], mode="auto") == [who]
    a, v = jax.ShapeDtypeStruct((4, 4), "float32"), jax.ShapeDtypeStruct((1 << 16, 4), "float32")
    assert generators(jnp.matmul, [a, v], (None, 0), "auto") == ["llvm"]


@pytest.mark.full
@pytest.mark.usefixtures("as_on_a_gpu")
def test_groups_have_the_derivatives_of_small_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (limits, threads):
        monkeypatch.setattr(module, "FEW_LANES", 3)
    for n, is_group in ((6, False), (7, True), (8, True)):
        a, v = drawn([(n, n), (n,)], 3)
        a = a @ a.transpose(0, 2, 1) + jnp.eye(n)
        for f, args in ((jnp.linalg.cholesky, [a]), (cholesky_solve, [a, v])):
            mapped = lambda *xs, f=f: qd.vmap(f)(*xs)  # noqa: E731
            (task,) = qd.jit(mapped).lower(*args).tasks
            assert ("a group of threads in derivatives" in task.reason) == is_group
            if n == 8:
                continue
            same(jax.jit(mapped)(*args), jax.vmap(f)(*args), 1e-5)
            same(jax.jit(gradient(mapped, len(args)))(*args), gradient(jax.vmap(f), len(args))(*args), 1e-3)
    assert "a group" not in qd.jit(lambda a: qd.vmap(lambda a: jnp.linalg.cholesky(a) @ a)(a)).lower(a).tasks[0].reason


def lane_with_loops(seed: int) -> Callable[[Any], Any]:
    """Returns a random function of a vector of 70: sums, shifts, tables, and loops whose trip counts are the lane's."""
    choice = np.random.default_rng(seed)
    parts = choice.choice(["loop", "outer", "shift", "scale", "sum", "table"], 8, p=[0.2, 0.15, 0.2, 0.2, 0.1, 0.15])
    picks = choice.integers(0, 100, (8, 2))

    def lane(x: Any) -> Any:
        known = [x]
        for part, (j, k) in zip(parts, picks, strict=True):
            y, z = known[j % len(known)], known[k % len(known)]
            if part == "loop":
                halve = lambda s: (s[0] / 2, s[1] * 0.9 + 0.1 * z[k % 70])  # noqa: B023, E731
                y = lax.while_loop(lambda s: s[0] > 0.3, halve, (jnp.abs(y[j % 70]), y))[1]
            elif part == "outer":
                y = jnp.sum(jnp.tanh(y[:, None] - z[None, :]), 1) / 70
            elif part == "table":
                y = y[jnp.argsort(z)]
            else:
                y = {"shift": jnp.roll(y, j), "scale": jnp.cos(y) * z, "sum": y * jnp.sum(z) / 70}[part]
            known.append(y)
        return known[-1], sum(map(jnp.sum, known))

    return lane


@pytest.mark.full
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.sample(20, full=6)
@pytest.mark.parametrize("seed", range(40))
def test_long_rows_behind_loops_are_the_whole_batch(seed: int) -> None:
    (x,), f = drawn([(70,)], 5), lane_with_loops(seed)
    mapped = lambda x: qd.vmap(f)(x)  # noqa: E731
    same(jax.jit(mapped)(x), jax.vmap(f)(x), 1e-5)
    forward = lambda g: jax.jvp(g, [x], [jnp.cos(x)])[1]  # noqa: E731
    same(jax.jit(lambda: forward(mapped))(), forward(jax.vmap(f)), 1e-4)
    (slopes,) = jax.jit(gradient(mapped, 1))(x)
    along = sum(jnp.vdot(jnp.cos(y), t) for y, t in zip(jax.vmap(f)(x), forward(jax.vmap(f)), strict=True))
    np.testing.assert_allclose(jnp.vdot(slopes, jnp.cos(x)), along, rtol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("axis", [0, 1])
def test_mapped_functions(axis: int) -> None:
    a, b = drawn([(9, 9)] * 2, 4)
    b = jnp.moveaxis(b, 0, axis)
    for f in (predictions, lambda a, b: jnp.sort(a, 0) @ b @ factor(a), lambda a, b: (a @ b, jnp.eye(3))):
        with qd.options(array_mapping="group"):
            got = jax.jit(qd.vmap(f, (0, axis)))(a, b)
            slopes = gradient(qd.vmap(f, (0, axis)), 2)(a, b)
        same(got, jax.vmap(f, (0, axis))(a, b), 1e-5)
        same(slopes, gradient(jax.vmap(f, (0, axis)), 2)(a, b), 1e-3)


def for_a_gpu(f: Callable[..., Any], args: Sequence[Any]) -> str:
    """Returns what is compiled for NVIDIA's GPUs."""
    if jax.__version_info__ >= (0, 11):
        pytest.skip("newer releases compile a kernel as it is lowered, by the plugin of a GPU")
    return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_lowered_for_a_gpu() -> None:
    args = drawn([(17, 17)] * 2, 4)
    group = grouped(lambda a, b: [predictions(a, b)], [True] * 2)
    text = for_a_gpu(gradient(group, 2), args)
    assert text.count("xla.gpu.triton") == 2
    assert "stablehlo.dot_general" not in text
    # XLA's product of a transposed matrix is as fast
    alone = for_a_gpu(gradient(grouped(lambda a, b: [a @ b], [True] * 2), 2), args)
    assert alone.count("xla.gpu.triton") == 1
    assert alone.count("stablehlo.dot_general") == 2


UNARY = (
    lax.abs, lax.ceil, lax.cos, lax.exp, lax.expm1, lax.floor, lax.is_finite, lax.log, lax.log1p, lax.logistic,
    lax.neg, lax.rsqrt, lax.sign, lax.sin, lax.sqrt, lax.square, lax.tanh, lambda x: lax.integer_pow(x, 3),
    lambda x: lax.integer_pow(x, -2), lambda x: ~(x > 0), lambda x: x.astype("int32"), lambda x: x.astype("bfloat16"),
    lambda x: x.astype("float16"), lambda x: jnp.sum(x, 1), lambda x: jnp.max(x, 0), jnp.min, lambda x: x[2:3],
)  # fmt: skip
BINARY = (
    lax.add, lax.div, lax.max, lax.min, lax.mul, lax.pow, lax.sub, lax.eq, lax.ge, lax.gt, lax.le, lax.lt, lax.ne,
    lambda x, y: jnp.where(x > y, x, y), lambda x, y: (x > 0) & (y > 0) | (x < y) ^ (x > y),
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.full
def test_every_elementwise_operation(dtype: str) -> None:
    """Each is right in the interpreter, and Pallas has it for a GPU in this dtype (where it lowers without one)."""
    x, y = drawn([(17, 17)] * 2, 3, dtype)
    both = [lambda x, y, f=f: f(x) for f in UNARY] + list(BINARY)
    f = lambda x, y: [f(abs(x) + 0.5, y) for f in both]  # noqa: E731
    same(by_kernel(f, [x, y]), jax.vmap(f)(x, y), {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype])
    if jax.__version_info__ < (0, 11):
        jax.jit(grouped(f, [True] * 2)).trace(x, y).lower(lowering_platforms=("cuda",))


SPECIAL = (0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, 88.8, -104.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_special_values_on_a_gpu(dtype: str) -> None:
    """Every pair of them in each elementwise operation and along a row: NaN and infinities where XLA has them."""
    x = jnp.tile(jnp.asarray(SPECIAL, "float32").astype(dtype), (len(SPECIAL), 1))[None]
    y = jnp.swapaxes(x, 1, 2)
    both = [lambda x, y, f=f: f(x) for f in UNARY] + list(BINARY)
    both += [lambda x, y: jnp.max(x, 1), lambda x, y: jnp.min(y, 1), lambda x, y: jnp.clip(x, -1, 1)]
    for f in both:
        lane = lambda x, y, f=f: [f(x, y)]  # noqa: E731
        assert refusal(jax.make_jaxpr(lane)(x[0], y[0]), [True, True]) is None
        (got,), (want,) = (jax.jit(g)(x, y) for g in (grouped(lane, [True, True]), jax.vmap(lane)))
        if want.dtype == jnp.int32:
            continue  # conversions of what no integer holds differ among machines
        if want.dtype == jnp.bool_:
            np.testing.assert_array_equal(got, want)
        got, want = got.astype("float32"), want.astype("float32")
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.where(np.isinf(got), got, 0), np.where(np.isinf(want), want, 0))
