"""Programs with annotations that use every public name, as users write them. Checked, and never run."""

# pyright: reportUnknownVariableType=true, reportUnknownArgumentType=true, reportUnknownParameterType=true
# pyright: reportUnknownLambdaType=true, reportMissingParameterType=true
# mypy: disallow-untyped-defs, disallow-incomplete-defs, disallow-untyped-calls

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.extend.core import Primitive
from jax.typing import ArrayLike, DTypeLike

import qdtrace as qd

X = jnp.arange(3.0)
N = np.arange(3)
Scalar = float | jax.Array
Field = Callable[[jax.Array, Scalar], jax.Array]


# --- results of unknown length
@qd.jit
def positive(x: jax.Array) -> tuple[qd.Append[jax.Array], qd.Append[Any], jax.Array]:
    out, both = qd.append(9, like=0.0), qd.append(9, like=(0.0, x[0]))
    for i in qd.range(x.shape[0]):
        place = out.push(x[i])
        assert_type(place, jax.Array)
        both.push((place, x[i]))
    assert_type(out, qd.Append[jax.Array])
    assert_type(out.count, jax.Array)
    return out, both, out.values[0]


@qd.jit
def neighbours(x: jax.Array, radius: Scalar) -> tuple[qd.Grid, jax.Array]:
    grid, count = qd.grid(x, 0.5), qd.zeros(x.shape[0], jnp.int32)
    for i in qd.range(x.shape[0]):
        for j in grid.near(x[i], radius):
            assert_type(j, jax.Array)
            count[i] += 1
    assert_type(grid.count, int)
    return grid, count


@qd.jit
def first_hits(x: jax.Array, low: jax.Array, high: jax.Array) -> tuple[qd.Boxes, jax.Array, jax.Array]:
    tree, item, total = qd.boxes(low, high).refit(low, high), qd.zeros(x.shape[0], jnp.int32), qd.zeros(())
    for i in qd.range(x.shape[0]):
        p = x[i]
        j, t = tree.ray(p, -p, lambda j: jnp.sum(low[j]))
        assert_type(j, jax.Array)
        assert_type(t, jax.Array)
        item[i], _ = tree.closest(p, lambda j: jnp.sum(low[j]))
        for j in tree.near(p, t):
            assert_type(j, jax.Array)
            total[()] += low[j, 0]
    assert_type(tree.count, int)
    return tree, item, total


# --- buffers
@qd.jit
def buffers(x: jax.Array, like: npt.NDArray[np.float32], dtype: DTypeLike = jnp.float32) -> dict[str, jax.Array]:
    shape: tuple[int, ...] = x.shape
    made = [qd.zeros(3), qd.ones((2, 3), dtype), qd.full(shape, 2.5), qd.full((), x[0]), qd.empty([2, 3], "float32")]
    made += [qd.zeros_like(x), qd.zeros_like(like, np.int32), qd.empty_like(like), qd.empty_like(x, bool)]
    made += [qd.copy(like)]
    assert_type(made, list[jax.Array])
    return {str(k): b for k, b in enumerate(made)}


def put(b: jax.Array | qd.Buffer, k: ArrayLike, v: ArrayLike) -> None:
    b[k] = v
    b.at[k].set(v)


def explicit(b: qd.Buffer, c: qd.Cell) -> tuple[tuple[int, ...], np.dtype[Any], int, jax.Array]:
    put(b, 0, 1.0)
    b[...] = jnp.zeros(3)
    b[0:2, None] += c.value
    for op in (b.at[0].add, b.at[1].subtract, b.at[2].mul, b.at[0].min, b.at[0].max, b.at[0].set):
        assert_type(op(2.0), qd.Buffer)
    assert_type(b.at[0].get(), jax.Array)
    assert_type(b[0], jax.Array)
    assert_type(b + 1, jax.Array)
    assert_type(b.T, jax.Array)
    return b.shape, b.dtype, b.ndim, b.copy() @ b


@qd.jit
def atomics(b: jax.Array, n: jax.Array) -> jax.Array:
    for i in qd.range(10, name="atomics"):
        old = [f(n, i, 1) for f in (qd.atomic_add, qd.atomic_min, qd.atomic_max, qd.atomic_exchange)]
        old += [f(n, (i,), True) for f in (qd.atomic_and, qd.atomic_or, qd.atomic_xor)]
        old.append(qd.atomic_cas(n, i, old[0], np.int32(3)))
        b[i] = sum(old)
    return b


# --- bodies
@qd.jit(static_argnames=("rows", "names"), donate_argnums=0, bounds_from="stop", options={"fast_math": False})
def bodies(x: jax.Array, stop: int | jax.Array, *, rows: int = 2, names: tuple[str, ...] = ()) -> jax.Array:
    def wanted(k: qd.Cell, bound: Scalar) -> jax.Array:
        return (k < bound) & (k.value != 3)

    for i in qd.range(stop):
        k = qd.local(0, jnp.int32)
        total: qd.Cell = qd.local(jnp.zeros(3))
        for j in qd.range(0, x.shape[0], 2):
            total[j % 3] += jnp.sin(x[j])
        for _ in qd.while_(lambda: wanted(k, stop)):  # noqa: B023
            k += 1
            qd.break_if(k > 10)
            qd.continue_if(total[0] > 1)
        with qd.when(x[i] > 0):
            x[i] = k
        with qd.otherwise():
            x[i] = total.value.sum() * float(rows)
        qd.check(k >= 0, "never")
        qd.check(jnp.isfinite(x[i]), f"finite {names}")
    for a, b, c in qd.ndrange(rows, (1, stop), x.shape[0]):
        assert_type(a, jax.Array)
        x[a] = b + c
    for index in qd.ndrange(*x.shape):
        assert_type(index, tuple[jax.Array, ...])
        x[index] = 0
    return x


# --- functions
class State(NamedTuple):
    x: jax.Array
    v: jax.Array


@qd.dataclass
class Body:
    x: jax.Array
    mass: Scalar = 1.0
    name: str = field(default="", metadata={"static": True})


@qd.dataclass(frozen=True, kw_only=True)
class Pair:
    left: Body
    right: Body


@qd.jit
def move(state: State, body: Body, dt: Scalar = 0.1) -> State:
    for i in qd.range(state.x.shape[0]):
        state.x[i] += state.v[i] * dt * body.mass
    return State(state.x, state.v)


@qd.jit
def structures(x: jax.Array) -> jax.Array:
    for i in qd.range(x.shape[0]):
        state: qd.CellTree[State] = qd.local(State(x[i], x[i]))
        assert_type(qd.local(Body(x[i])), qd.CellTree[Body])
        assert_type(state.value, State)
        state.x += 1
        state.value = State(state.v, state.x)
        x[i] = state.value.x
    return x


def scan(state: State, body: Body) -> State:
    def step(s: State, _: None) -> tuple[State, jax.Array]:
        s = move(s, body)
        return s, s.x

    last, path = jax.lax.scan(step, state, length=10)
    assert_type(last, State)
    assert_type(path, jax.Array)
    return last


assert_type(move(State(X, X), Body(X)), State)
assert_type(move.lower(State(X, X), Body(X), dt=0.2, target="cpu"), qd.Lowered)
assert_type(Pair(left=Body(X), right=Body(X, 2.0, "b")).left.mass, Scalar)

Tree = TypeVar("Tree")
Leaf = TypeVar("Leaf", bound=jax.Array)
T = TypeVar("T")


@qd.jit
def same(tree: Tree) -> Tree:
    return tree


assert_type(same(State(X, X)), State)
assert_type(same({"a": X}), dict[str, jax.Array])
assert_type(qd.vmap(same)(X), jax.Array)


def compiled(f: Callable[[jax.Array], T]) -> qd.Jitted[[jax.Array], T]:
    return qd.jit(f)


def apply(f: Field, x: jax.Array) -> jax.Array:
    return qd.jit(f)(x, 1.0) + qd.vmap(f, in_axes=(0, None))(x, 1.0)


def times(x: jax.Array, t: Scalar) -> jax.Array:
    return x * t


def newton(a: jax.Array) -> tuple[jax.Array, int]:
    """The lane's number of steps is an int to a type checker, and an array of the batch."""
    x, n = jax.lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] / 2, s[1] + 1), (a, 0))
    return x, n


def is_small(a: jax.Array) -> bool:
    return a.shape == ()


assert_type(compiled(same)(X), jax.Array)
apply(lambda x, t: x * t, X)
apply(qd.jit(times), X)
apply(qd.vmap(times), X)
roots, steps = qd.vmap(newton)(X)
print(roots.max(), steps.max())
print(qd.vmap(is_small)(X).any(), qd.jit(is_small)(X).item())
assert_type(qd.jit(newton).__wrapped__(X), tuple[jax.Array, int])
for axes in (0, None, (0,), [0], {"a": 0}):
    print(qd.vmap(same, in_axes=axes, out_axes=0, axis_size=3, axis_name="i")(X))


class Model:
    scale: float = 1.0

    @qd.jit
    def forward(self, x: jax.Array, k: Scalar = 1.0) -> jax.Array:
        return x * self.scale * k

    @qd.jit(static_argnums=0)
    def count(self, x: jax.Array) -> int:
        return x.shape[0]

    @partial(qd.vmap, in_axes=(None, 0))
    def lane(self, x: jax.Array) -> jax.Array:
        return x * self.scale

    @staticmethod
    @qd.jit
    def free(x: jax.Array) -> jax.Array:
        return x


model = Model()
assert_type(model.forward(X, k=2.0), jax.Array)
assert_type(model.lane(X), jax.Array)
assert_type(Model.free(X), jax.Array)
print(model.count(X).item())


# --- derivatives
def energy(x: jax.Array, k: Scalar, n: npt.NDArray[np.int64]) -> jax.Array:
    total: jax.Array = jnp.sum(x**2) * k + n.shape[0]
    return total


def with_aux(x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    return jnp.sum(x), {"x": x}


slope: Callable[[jax.Array, Scalar, npt.NDArray[np.int64]], jax.Array] = qd.grad(energy)
both: tuple[jax.Array, jax.Array] = qd.grad(energy, argnums=(0, 1))(X, 1.0, N)
assert_type(qd.value_and_grad(energy)(X, 1.0, N), tuple[jax.Array, Any])
(value, aux), gradient = qd.value_and_grad(with_aux, has_aux=True)(X)
assert_type(aux, dict[str, jax.Array])
assert_type(qd.jvp(energy, (X, 1.0, N), [X, 0.0, N])[0], jax.Array)
jacobian: jax.Array = qd.jacfwd(energy, 0)(X, 1.0, N) + qd.jacrev(energy, [0])(X, 1.0, N)[0]
hessian: jax.Array = qd.hessian(energy)(X, 1.0, N)
out, pull = qd.vjp(energy, X, 1.0, N)
assert_type(out, jax.Array)
cotangents: tuple[jax.Array, ...] = pull(out)
out, push = qd.linearize(energy, X, 1.0, N)
tangent: jax.Array = push(X, 0.0, N)
qd.check_grads(with_aux, (X,), order=2, modes=["fwd", "rev"], rtol=1e-2, step=1e-3, seed=1)
qd.check_grads(energy, [X, 1.0, N], modes=("rev",))


# --- tensors
layer = qd.torch(energy)
assert layer(X, 1.0, N) == qd.torch(energy, static_argnums=(1,), static_argnames="k")(X, 1.0, N)


# --- looking at programs
def look(f: Callable[..., jax.Array], path: Path, *arguments: jax.Array) -> list[str]:
    low = qd.jit(f).lower(*arguments)
    profile: qd.Profile = qd.profile(f, runs=3)(*arguments)
    graph: qd.Graph = qd.make_graph(f)(*arguments)
    for row in profile.rows:
        assert_type(row.name, str)
        assert_type(row.gb_per_second, float)
    page: Path = low.report(path, profile)
    low.report(str(path))
    lines = [task.reason for task in low.tasks] + [choice.reason for choice in low.storage]
    lines += [low.graph("trace"), low.as_text("llvm"), str(low.traffic()), str(profile), str(graph), page.name]
    assert_type(low.memory_analysis(), dict[str, int])
    return lines


with qd.options(fast_math=False, num_threads=2, debug=True, bounds="unchecked"):
    qd.config.progress = False
    qd.block_until_ready({"x": X})

cube_p = Primitive("cube")


@partial(qd.def_import_rule, cube_p)
def cube(x: jax.Array, **params: Any) -> jax.Array:
    return x**3


qd.def_import_rule("cube", cube)
assert_type(cube(X), jax.Array)


# --- algorithms
def algorithms(keys: jax.Array | npt.NDArray[np.int32], x: ArrayLike) -> jax.Array:
    assert_type(qd.sort(keys), jax.Array)
    assert_type(qd.sort(keys, x, {"x": x}, bits=8), tuple[Any, ...])
    kept, count = qd.compact(keys > 0, {"x": X}, size=3)
    assert_type(kept, dict[str, jax.Array])
    assert_type(qd.scan(jnp.add, X), jax.Array)
    assert_type(qd.scan(lambda a, b: (a[0] + b[0], b[1]), (X, X)), tuple[jax.Array, jax.Array])
    assert_type(qd.reduce_by_key(keys, X, jnp.maximum, size=3), tuple[jax.Array, jax.Array, jax.Array])
    return kept["x"] + count + qd.segments(keys, 3) + qd.argsort(keys, bits=8) + qd.argsort([3.0, 1.0])


# --- sparse derivatives
def curvature(x: jax.Array) -> tuple[jax.Array, Any]:
    pattern = qd.sparsity(energy, 0)(X, 1.0, N)
    assert_type(pattern, qd.Sparsity)
    values = qd.sparse_hessian(energy, pattern, psd=True)(x, 1.0, N) + qd.sparse_jacobian(energy, pattern)(x, 1.0, N)
    assert_type(values, jax.Array)
    return values + pattern.row + pattern.col, pattern.to_scipy(values)


# --- counters
def work_of(f: Callable[[], object]) -> dict[str, float]:
    before = qd.stats()
    f()
    work = qd.stats() - before
    assert_type(work, qd.Stats)
    assert_type(work.compiled, int)
    return {**work.seconds, **work.misses, "read": work.bytes_read}


# --- errors
def told(error: Exception) -> str:
    found = qd.explain(error)
    assert_type(found, qd.QdError | None)
    if isinstance(found, qd.CheckError | qd.BoundsError):
        return found.rule
    return str(found.loc.line) if found and found.loc else ""


def guarded(f: Callable[[], jax.Array]) -> jax.Array | str:
    try:
        return f()
    except (qd.TraceTypeError, qd.TraceValueError, qd.TraceIndexError, qd.TraceAttributeError) as error:
        return error.rule + (error.help or "") + "".join(error.notes)
    except (qd.UnsupportedError, qd.GradientError, qd.VerifyError, qd.InterpreterError):
        raise
    except (qd.BackendError, qd.OutOfMemoryError) as error:
        return told(error)


KINDS: Sequence[type[qd.QdError]] = [qd.TraceTypeError, qd.CheckError, qd.BoundsError]
WARNING: type[Warning] = qd.QdWarning
