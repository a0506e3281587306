"""Transposes of calls that are linear in unknown operands: `jax.linear_transpose` and linear solvers of JAX.

The oracle is the matrix of a function, whose columns are its values for unit vectors: no derivative is asked for it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.sparse.linalg import bicgstab, gmres

import qdtrace as qd
from tests.autodiff.linear_programs import PIECES, operands, program
from tests.selection import drawn

SINGLE = 2e-5
"""Bound of f32: rounding errors of four tasks, relative to the largest element."""
DOUBLE = 1e-12
KINDS = (np.float64, np.complex128, np.float32)


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])


def matrix(f: Any, *likes: Any) -> np.ndarray:
    """The matrix of a linear function of arrays, from its values."""
    ends = np.cumsum([x.size for x in likes])[:-1]
    units = jnp.eye(sum(x.size for x in likes), dtype=likes[0].dtype)
    columns = jax.vmap(lambda unit: f(*jnp.split(unit, ends)))(units)
    return np.concatenate([np.asarray(x) for x in jax.tree.leaves(columns)], axis=1).T


def close(got: Any, want: Any, dtype: Any = np.float64) -> None:
    bound = SINGLE if dtype == np.float32 else DOUBLE
    got, want = flat(got), flat(want)
    assert np.abs(got - want).max() <= bound * max(np.abs(want).max(), 1)


def check(f: Any, seed: int, dtype: Any) -> None:
    u, v, known = operands(seed, dtype)
    apply = lambda u, v: f(u, v, known)  # noqa: E731
    whole = matrix(apply, u, v)
    cotangents = jax.tree.map(lambda x: x[::-1] * 0.5, apply(u, v))
    transposed = jax.linear_transpose(apply, u, v)
    found = transposed(cotangents)
    close(found, whole.T @ flat(cotangents), dtype)
    close(np.dot(flat(found), flat((u, v))), np.dot(flat(cotangents), flat(apply(u, v))), dtype)
    (again,) = jax.linear_transpose(lambda c: transposed(c), cotangents)((u, v))
    close(again, apply(u, v), dtype)


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("name", sorted(PIECES))
def test_each_task(name: str) -> None:
    for seed, dtype in enumerate(KINDS):
        check(qd.jit(PIECES[name]), seed, dtype)


@pytest.mark.full
@pytest.mark.sample(2, full=2)
@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    check(program(seed), seed, KINDS[seed % 3])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_more_random_programs(seed: int) -> None:
    check(program(seed), seed, KINDS[seed % 3])


@pytest.mark.sample(full=3)
@pytest.mark.full
@pytest.mark.parametrize("seed", range(drawn(9)))
def test_one_unknown_of_two(seed: int) -> None:
    """The other one is zero, as the function is linear in both."""
    f, dtype = program(seed), KINDS[seed % 3]
    u, v, known = operands(seed, dtype)
    for k, like in enumerate((u, v)):
        apply = lambda x, k=k: f(*(x if j == k else jnp.zeros_like(x) for j in range(2)), known)  # noqa: E731
        cotangents = apply(like)
        close(jax.linear_transpose(apply, like)(cotangents), matrix(apply, like).T @ flat(cotangents), dtype)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(drawn(6)))
def test_batches(seed: int) -> None:
    """`vmap` of a transpose, by cotangents and by known operands, and transposes of a `vmap`, shared unknowns too."""
    f, dtype = program(seed), KINDS[seed % 3]
    cases = [operands(100 * seed + k, dtype) for k in range(3)]
    for case in cases:  # their rows have the lengths of the first one
        case[2].first, case[2].columns, case[2].entries = (
            getattr(cases[0][2], name) for name in ("first", "columns", "entries")
        )
    us, vs, knowns = jax.tree.map(lambda *xs: jnp.stack(xs), *cases)
    wholes = [matrix(lambda u, v, known=known: f(u, v, known), u, v) for u, v, known in cases]
    outs = jax.jit(jax.vmap(f))(us, vs, knowns)
    backs = [w.T @ flat(jax.tree.map(lambda x, k=k: x[k], outs)) for k, w in enumerate(wholes)]

    def transposed(c: Any, known: Any) -> Any:
        return jax.linear_transpose(lambda u, v: f(u, v, known), us[0], vs[0])(c)

    found = jax.jit(jax.vmap(transposed))(outs, knowns)
    for k, back in enumerate(backs):
        close(jax.tree.map(lambda x, k=k: x[k], found), back, dtype)
    same = jax.vmap(transposed, (0, None))(outs, cases[1][2])
    close(jax.tree.map(lambda x: x[2], same), wholes[1].T @ flat(jax.tree.map(lambda x: x[2], outs)), dtype)
    many = jax.linear_transpose(lambda u, v: jax.vmap(f)(u, v, knowns), us, vs)(outs)
    close(many, found, dtype)
    shared = jax.linear_transpose(lambda u, v: jax.vmap(f, (None, None, 0))(u, v, knowns), us[0], vs[0])(outs)
    close(shared, sum(backs), dtype)


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("seed", range(drawn(6)))
def test_derivatives_by_known_operands(seed: int) -> None:
    """Of <y, A(k) x>, directly and through the transpose: along a direction, back, and forward over back."""
    f = program(seed)
    u, v, known = operands(seed, np.float64)
    with_numbers = lambda s, e: type(known)(s, known.place, known.mask, known.first, known.columns, e)  # noqa: E731
    cotangents = jax.tree.map(jnp.cos, f(u, v, known))
    dot = lambda a, b: sum(jnp.vdot(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))  # noqa: E731

    def plain(s: Any, e: Any) -> Any:
        return dot(cotangents, f(u, v, with_numbers(s, e)))

    def through(s: Any, e: Any) -> Any:
        return dot(jax.linear_transpose(lambda u, v: f(u, v, with_numbers(s, e)), u, v)(cotangents), (u, v))

    at = known.scale, known.entries
    close(through(*at), plain(*at))
    close(jax.grad(through, (0, 1))(*at), jax.grad(plain, (0, 1))(*at))
    along = tuple(map(jnp.sin, at))
    close(jax.jvp(through, at, along), jax.jvp(plain, at, along))
    second = lambda g: jax.jvp(jax.grad(g, (0, 1)), at, along)[1]  # noqa: E731
    close(second(through), second(plain))


N = 40


def convection(u: Any, k: Any) -> Any:
    """An unsymmetric tridiagonal matrix times a vector."""
    n = u.shape[0]
    out = qd.empty_like(u)
    for i in qd.range(n):
        left = jnp.where(i > 0, u[jnp.maximum(i - 1, 0)], 0.0)
        right = jnp.where(i < n - 1, u[jnp.minimum(i + 1, n - 1)], 0.0)
        out[i] = (4.0 + k[i]) * u[i] - 1.5 * left - 0.5 * right
    return out


def dense(k: Any) -> Any:
    return jnp.diag(4.0 + k) - 1.5 * jnp.eye(N, k=-1) - 0.5 * jnp.eye(N, k=1)


def by_elimination(apply: Any, b: Any) -> Any:
    columns = jax.vmap(apply, out_axes=1)(jnp.eye(N, dtype=b.dtype))
    return jnp.linalg.solve(columns, b)


SOLVERS = {
    "gmres": lambda apply, b: gmres(apply, b, tol=1e-12)[0],
    "bicgstab": lambda apply, b: bicgstab(apply, b, tol=1e-12)[0],
    "custom": lambda apply, b: jax.lax.custom_linear_solve(apply, b, by_elimination, by_elimination),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.full
def test_solvers(name: str) -> None:
    """Value, gradients by entries and right side, a Hessian's product, and `vmap`."""
    apply = qd.jit(convection)
    rng = np.random.default_rng(0)
    k, b = jnp.asarray(rng.random(N)), jnp.asarray(rng.normal(size=N))
    solve = lambda k, b: SOLVERS[name](lambda u: apply(u, k), b)  # noqa: E731
    exact = lambda k, b: jnp.linalg.solve(dense(k), b)  # noqa: E731
    close(1e-3 * jax.jit(solve)(k, b), 1e-3 * exact(k, b))
    grads, wanted = (jax.grad(lambda k, b, s=s: (s(k, b) ** 2).sum(), (0, 1)) for s in (solve, exact))
    close(1e-3 * flat(jax.jit(grads)(k, b)), 1e-3 * flat(wanted(k, b)))
    second, want = (jax.jvp(lambda k, g=g: g(k, b), (k,), (b,))[1] for g in (grads, wanted))
    close(1e-3 * flat(second), 1e-3 * flat(want))
    bs = jnp.stack([b, b[::-1], 2 * b])
    close(1e-3 * jax.vmap(solve, (None, 0))(k, bs), 1e-3 * jax.vmap(exact, (None, 0))(k, bs))


@pytest.mark.full
def test_lineax() -> None:
    lx = pytest.importorskip("lineax")
    apply = qd.jit(convection)
    rng = np.random.default_rng(1)
    k, b = jnp.asarray(rng.random(N)), jnp.asarray(rng.normal(size=N))
    operator = lambda k: lx.FunctionLinearOperator(lambda u: apply(u, k), jax.eval_shape(lambda: b))  # noqa: E731
    close(operator(k).T.mv(b), dense(k).T @ b)
    close(operator(k).T.as_matrix(), dense(k).T)
    exact = lambda k, b: jnp.linalg.solve(dense(k), b)  # noqa: E731
    for solver in (lx.GMRES(1e-11, 1e-11), lx.LU()):
        solve = lambda k, b, solver=solver: lx.linear_solve(operator(k), b, solver).value  # noqa: E731
        close(1e-3 * solve(k, b), 1e-3 * exact(k, b))
        got, want = (jax.jit(jax.grad(lambda k, b, s=s: (s(k, b) ** 2).sum(), (0, 1)))(k, b) for s in (solve, exact))
        close(1e-3 * flat(got), 1e-3 * flat(want))


@pytest.mark.full
def test_gradient_of_a_quadratic_form() -> None:
    """A gradient that is linear in the point is an operator: of an energy in one task, and in two with residuals."""

    @qd.jit
    def energy(u, k):
        change, out = qd.zeros_like(u), qd.zeros((), u.dtype)
        for i in qd.range(1, u.shape[0]):
            change[i] = k[i] * (u[i] - u[i - 1])
        for i in qd.range(1, u.shape[0]):
            out[()] += change[i] * (change[i] - change[i - 1])
        return out

    rng = np.random.default_rng(2)
    u, k = jnp.asarray(rng.normal(size=N)), jnp.asarray(rng.random(N))
    hessian = jax.hessian(energy)(u, k)
    force = lambda u: jax.grad(energy)(u, k)  # noqa: E731
    close(force(u), hessian @ u)
    for run in (jax.linear_transpose(force, u), jax.jit(lambda c: jax.linear_transpose(force, u)(c))):
        close(run(k), hessian.T @ k)
    close(jax.vmap(jax.linear_transpose(force, u))(jnp.stack([u, k]))[0], jnp.stack([u, k]) @ hessian)
    many = jax.linear_transpose(jax.vmap(force), jnp.stack([u, u]))(jnp.stack([u, k]))[0]
    close(many, jnp.stack([u, k]) @ hessian)
    cubes = qd.vmap(lambda u: u**3)
    with pytest.raises(qd.GradientError, match="`mul` of two values"):
        jax.linear_transpose(jax.grad(lambda u: cubes(u).sum()), u)(u)


@pytest.mark.full
def test_lanes_around_operators() -> None:
    """In a lane that transposes an operator, or solves with it, the operator is a function of lanes itself."""
    double = qd.vmap(lambda u, k: 2.0 * u * k)
    rng = np.random.default_rng(3)
    k, bs = jnp.asarray(1 + rng.random(6)), jnp.asarray(rng.normal(size=(4, 6)))
    transposed = lambda b, k: jax.linear_transpose(lambda u: double(u, k), b)(b)[0]  # noqa: E731
    close(qd.vmap(transposed, in_axes=(0, None))(bs, k), 2 * bs * k)
    solved = lambda b, k: bicgstab(lambda u: double(u, k), b, tol=1e-12)[0]  # noqa: E731
    close(qd.vmap(solved, in_axes=(0, None))(bs, k), bs / k / 2)


def test_results_without_cotangent() -> None:
    """Only what a cotangent is given for has to be linear."""

    @qd.jit
    def f(u):
        squares, halves, known = qd.empty_like(u), qd.empty_like(u), qd.ones(u.shape, u.dtype)
        for i in qd.range(u.shape[0]):
            squares[i] = u[i] ** 2
            halves[i] = u[i] / 2
        return squares, halves, known

    u = jnp.arange(3.0)
    assert jax.linear_transpose(lambda u: f(u)[1], u)(u)[0].tolist() == [0.0, 0.5, 1.0]
    assert jax.linear_transpose(lambda u: f(u)[2], u)(u)[0].tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(qd.GradientError, match=r"`mul` of two values|`integer_pow` of a value"):
        jax.linear_transpose(lambda u: f(u)[0], u)(u)


def test_constants() -> None:
    """A number that is added is refused; a known array counts as zero, as in JAX; what is overwritten is not seen."""

    def into(out, u, first):
        for i in qd.range(first, u.shape[0]):
            out[i] = 2 * u[i]
        return out

    u = jnp.arange(3.0)
    given = qd.jit(lambda out, u: into(out, u, 1))
    assert jax.linear_transpose(lambda u: given(jnp.ones(3), u), u)(u)[0].tolist() == [0.0, 2.0, 4.0]
    whole, part = (qd.jit(lambda u, first=first: into(qd.ones(u.shape, u.dtype), u, first)) for first in (0, 1))
    assert jax.linear_transpose(whole, u)(u)[0].tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(qd.GradientError, match=r"elements of `\w+` that keep 1\.0"):
        jax.linear_transpose(part, u)(u)


@jax.custom_jvp
def with_a_rule(x):
    return 0.75 * x


with_a_rule.defjvp(lambda primals, tangents: (with_a_rule(*primals), 100 * tangents[0]))
REFUSED = {
    "a product": (lambda u, i: u[i] * u[i - 1], "`mul` of two values"),
    "a function": (lambda u, i: jnp.sin(u[i]), "`sin` of a value"),
    "a divisor": (lambda u, i: 1 / u[i], "`div` of a value"),
    "a constant": (lambda u, i: u[i] + 1.0, "`add` of a number"),
    "a constant side": (lambda u, i: jnp.where(i == 1, 2.0, u[i]), "`select` of a number"),
    "a step": (lambda u, i: u[i] + jnp.floor(u[i]), "`floor` of a value"),
    "a comparison": (lambda u, i: jnp.where(u[i] > 0, u[i], 0), "`gt` of a value"),
    "a largest": (lambda u, i: jnp.maximum(u[i], 0), "`max` of a value"),
    "an absolute value": (lambda u, i: jnp.abs(u[i]), "`abs` of a value"),
    "integers": (lambda u, i: u[i] + u[i].astype(jnp.int32), "`convert` of a value"),
    "bits": (lambda u, i: u[i] + jax.lax.bitcast_convert_type(u[i], jnp.int64), "`bitcast` of a value"),
    "an index": (lambda u, i: u[u[i].astype(jnp.int32)], "`convert` of a value"),
    "a condition": (lambda u, i: jax.lax.cond(u[i] > 0, lambda: u[i], lambda: 2 * u[i]), "`gt` of a value"),
    "a loop": (lambda u, i: jax.lax.while_loop(lambda s: s < 9, lambda s: s * 2, u[i]), "`while` that one"),
    "a carry": (lambda u, i: jax.lax.fori_loop(0, i, lambda _, s: s + u[i], 1.0), "`while` of a number"),
    "no derivative": (lambda u, i: u[i] + jax.lax.stop_gradient(u[i]), "`lax.stop_gradient` with a derivative"),
    "a rule": (lambda u, i: with_a_rule(u[i]), "`with_a_rule` with a derivative"),
    "a rule inside": (
        lambda u, i: jax.jit(lambda a, b: b * with_a_rule(a))(u[i], i),
        "`with_a_rule` with a derivative",
    ),
}


def on_each(body: Any) -> Any:
    @qd.jit
    def f(u):
        out = qd.zeros_like(u)
        for i in qd.range(1, u.shape[0]):
            out[i] = body(u, i)
        return out

    return f


@pytest.mark.every_case
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_linear_is_refused(name: str) -> None:
    body, found = REFUSED[name]
    u = jnp.ones(4)
    with pytest.raises(qd.GradientError) as caught:
        jax.linear_transpose(on_each(body), u)(u)
    assert f"f: needs a linear function of the unknown operands to be transposed, got {found}" in str(caught.value)
    assert caught.value.loc is not None
    assert caught.value.loc.file == __file__
    known = on_each(lambda u, i: u[i] * jnp.cos(jnp.ones(4))[i])
    slope = jax.linearize(on_each(body), u)[1] if name not in ("bits", "integers", "a step") else known
    jax.linear_transpose(slope, u)(u)  # as the help says


@pytest.mark.parametrize("name", ["max", "min", "mul"])
def test_accumulations_are_refused(name: str) -> None:
    @qd.jit
    def f(u):
        out = qd.zeros((), u.dtype)
        for i in qd.range(u.shape[0]):
            getattr(out.at[()], name)(u[i])
        return out

    with pytest.raises(qd.GradientError, match=f"`accum` {name}"):
        jax.linear_transpose(f, jnp.ones(3))(1.0)


@pytest.mark.full
def test_known_operands_may_pass_anything() -> None:
    """Rules, decisions and steps of known operands are part of the matrix."""

    @qd.jit
    def f(u, k):
        out = qd.zeros_like(u)
        for i in qd.range(u.shape[0]):
            weight = with_a_rule(jnp.floor(k[i]) + jax.lax.stop_gradient(jnp.sin(k[i])))
            with qd.when(k[i] > 1):
                out[i] = jax.jit(lambda a, b: a * jax.nn.softmax(b)[0])(u[i], jnp.stack([weight, k[i]]))
        return out

    u, k = jnp.arange(4.0), jnp.arange(4.0) * 0.8
    close(jax.linear_transpose(lambda u: f(u, k), u)(u)[0], matrix(lambda u: f(u, k), u).T @ u)


@pytest.mark.full
def test_loops_around_tasks() -> None:
    """The trips are known; the state has a counter, an array that is unknown and one that both parts make."""

    @qd.jit
    def smoothed(u, k, trips):
        scaled, count = qd.zeros_like(u), qd.zeros((), jnp.int32)
        for _ in qd.while_(lambda: count[()] < trips):
            for i in qd.range(u.shape[0]):
                scaled[i] = u[i] * k[i] - 0.5 * u[jnp.maximum(i - 1, 0)]
            for i in qd.range(u.shape[0]):
                u[i] = scaled[i] / (1 + count[()])
            count[()] += 1
        return u

    u, k = jnp.arange(1.0, 6.0), jnp.linspace(1.0, 2.0, 5)
    for trips in (0, 1, 7):
        apply = lambda u, trips=trips: smoothed(u, k, trips)  # noqa: E731
        whole = jnp.stack([apply(unit) for unit in jnp.eye(5)], 1)
        transposed = jax.linear_transpose(apply, u)
        close(transposed(u), whole.T @ u)
        close(jax.jit(transposed)(k), whole.T @ k)
        close(jax.linear_transpose(lambda c: transposed(c)[0], u)(k), whole @ k)  # noqa: B023
    by_known = lambda k: jnp.vdot(jax.linear_transpose(lambda u: smoothed(u, k, 3), u)(u)[0], k)  # noqa: E731
    plain = lambda k: jnp.vdot(jax.vjp(lambda u: smoothed(u, k, 3), u)[1](u)[0], k)  # noqa: E731
    close(jax.jvp(by_known, (k,), (u,)), jax.jvp(plain, (k,), (u,)))


def test_loops_around_tasks_that_are_not_linear() -> None:
    def looping(test: Any, body: Any) -> Any:
        @qd.jit
        def f(u):
            count = qd.zeros((), jnp.int32)
            for _ in qd.while_(lambda: test(u, count)):
                for i in qd.range(u.shape[0]):
                    u[i] = body(u[i])
                count[()] += 1
            return u

        return f

    u = jnp.ones(3)
    decided = looping(lambda u, count: (u[0] < 9) & (count[()] < 4), lambda x: 2 * x)
    with pytest.raises(qd.GradientError, match="got a condition that depends on them"):
        jax.linear_transpose(decided, u)(u)
    squared = looping(lambda u, count: count[()] < 4, lambda x: x * x)
    with pytest.raises(qd.GradientError, match="`mul` of two values"):
        jax.linear_transpose(squared, u)(u)
