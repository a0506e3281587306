"""Lineax: every solver and operator, and derivatives through them."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np

from tests.libraries.lanes import LANES, Lanes, uniform

LINEAX = Lanes()
SQUARE = uniform(4, 4) + 3 * np.eye(4)
LARGE = uniform(9, 9) + 5 * np.eye(9)
TALL = uniform(5, 3, seed=3)
WIDE = uniform(3, 5, seed=4)
FOUR, FIVE, THREE, NINE = (uniform(n, seed=5) for n in (4, 5, 3, 9))
POSITIVE = np.einsum("bij,bkj->bik", uniform(4, 4), uniform(4, 4)) + np.eye(4)


def solved(operator, b, solver=None, **options):
    solution = lx.linear_solve(
        operator, b, lx.AutoLinearSolver(well_posed=True) if solver is None else solver, **options
    )
    return solution.value


@LINEAX(SQUARE, FOUR, slow=False)
def lu(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.LU())


@LINEAX(LARGE, NINE)
def lu_large(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.LU())


@LINEAX(SQUARE, FOUR)
def lu_gradient(a, b):
    return jax.grad(lambda a, b: jnp.sum(solved(lx.MatrixLinearOperator(a), b, lx.LU()) ** 2), (0, 1))(a, b)


@LINEAX(SQUARE, FOUR)
def lu_jacobian(a, b):
    return jax.jacfwd(lambda a: solved(lx.MatrixLinearOperator(a), b, lx.LU()))(a)


@LINEAX(SQUARE, FOUR, slow=False)
def qr(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.QR())


@LINEAX(TALL, FIVE)
def qr_least_squares(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.QR())


@LINEAX(WIDE, THREE)
def qr_least_norm(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.QR())


@LINEAX(TALL, FIVE)
def qr_gradient(a, b):
    return jax.grad(lambda a, b: jnp.sum(solved(lx.MatrixLinearOperator(a), b, lx.QR()) ** 2), (0, 1))(a, b)


@LINEAX(SQUARE, FOUR, slow=False)
def svd(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.SVD())


@LINEAX(TALL, FIVE)
def svd_least_squares(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.SVD())


@LINEAX(WIDE, THREE)
def svd_least_norm(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.SVD())


@LINEAX(TALL, FIVE)
def svd_gradient(a, b):
    return jax.grad(lambda a: jnp.sum(solved(lx.MatrixLinearOperator(a), b, lx.SVD()) ** 2))(a)


@LINEAX(POSITIVE, FOUR, slow=False)
def cholesky(a, b):
    return solved(lx.MatrixLinearOperator(a, lx.positive_semidefinite_tag), b, lx.Cholesky())


@LINEAX(POSITIVE, FOUR)
def cholesky_gradient(a, b):
    tag = lx.positive_semidefinite_tag
    return jax.grad(lambda b: jnp.sum(solved(lx.MatrixLinearOperator(a, tag), b, lx.Cholesky()) ** 2))(b)


@LINEAX(POSITIVE, FOUR, rtol=1e-7, slow=False)
def cg(a, b):
    return solved(lx.MatrixLinearOperator(a, lx.positive_semidefinite_tag), b, lx.CG(1e-10, 1e-10))


@LINEAX(POSITIVE, FOUR, rtol=1e-7)
def cg_gradient(a, b):
    tag = lx.positive_semidefinite_tag
    return jax.grad(lambda b: jnp.sum(solved(lx.MatrixLinearOperator(a, tag), b, lx.CG(1e-10, 1e-10)) ** 2))(b)


@LINEAX(POSITIVE, FOUR, rtol=1e-7)
def cg_function(a, b):
    struct = jax.ShapeDtypeStruct((4,), b.dtype)
    operator = lx.FunctionLinearOperator(lambda x: a @ x + x, struct, lx.positive_semidefinite_tag)
    return solved(operator, b, lx.CG(1e-10, 1e-10))


@LINEAX(TALL, FIVE, rtol=1e-7)
def normal_cg(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.Normal(lx.CG(1e-10, 1e-10)))


@LINEAX(TALL, FIVE)
def normal_cholesky(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.Normal(lx.Cholesky()))


@LINEAX(SQUARE, FOUR, rtol=1e-7, slow=False)
def gmres(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.GMRES(1e-10, 1e-10))


@LINEAX(SQUARE, FOUR, rtol=1e-7)
def gmres_gradient(a, b):
    return jax.grad(lambda b: jnp.sum(solved(lx.MatrixLinearOperator(a), b, lx.GMRES(1e-10, 1e-10)) ** 2))(b)


@LINEAX(SQUARE, FOUR, rtol=1e-7)
def bicgstab(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.BiCGStab(1e-10, 1e-10))


@LINEAX(TALL, FIVE, rtol=1e-7)
def lsmr(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.LSMR(1e-10, 1e-10))


@LINEAX(uniform(6, low=3, high=4), uniform(5, seed=1), uniform(5, seed=2), uniform(6, seed=3), slow=False)
def tridiagonal(d, lower, upper, b):
    return solved(lx.TridiagonalLinearOperator(d, lower, upper), b, lx.Tridiagonal())


@LINEAX(uniform(6, low=3, high=4), uniform(5, seed=1), uniform(5, seed=2), uniform(6, seed=3))
def tridiagonal_gradient(d, lower, upper, b):
    f = lambda d, b: jnp.sum(solved(lx.TridiagonalLinearOperator(d, lower, upper), b, lx.Tridiagonal()) ** 2)  # noqa: E731
    return jax.grad(f, (0, 1))(d, b)


@LINEAX(SQUARE, FOUR)
def triangular(a, b):
    lower = lx.MatrixLinearOperator(jnp.tril(a), lx.lower_triangular_tag)
    upper = lx.MatrixLinearOperator(jnp.triu(a), lx.upper_triangular_tag)
    return solved(lower, b, lx.Triangular()), solved(upper, b, lx.Triangular())


@LINEAX(uniform(4, low=1, high=2), FOUR)
def diagonal(d, b):
    return solved(lx.DiagonalLinearOperator(d), b, lx.Diagonal())


@LINEAX(SQUARE, FOUR, slow=False)
def auto(a, b):
    return solved(lx.MatrixLinearOperator(a), b)


@LINEAX(POSITIVE, FOUR)
def auto_positive(a, b):
    return solved(lx.MatrixLinearOperator(a, lx.positive_semidefinite_tag), b)


@LINEAX(uniform(6, low=3, high=4), uniform(5, seed=1), uniform(5, seed=2), uniform(6, seed=3))
def auto_tridiagonal(d, lower, upper, b):
    return solved(lx.TridiagonalLinearOperator(d, lower, upper), b)


@LINEAX(TALL, FIVE)
def auto_tall(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.AutoLinearSolver(well_posed=None))


@LINEAX(TALL, FIVE)
def auto_ill_posed(a, b):
    return solved(lx.MatrixLinearOperator(a), b, lx.AutoLinearSolver(well_posed=False))


@LINEAX(FOUR, FOUR[::-1].copy())
def jacobian_operator(x, b):
    def f(x, _):
        return jnp.stack([jnp.sin(x[0]) + 3 * x[1], x[1] ** 3 + x[0] + 2, x[2] * 2 + x[0], x[3] * x[0] + 4 * x[3]])

    return solved(lx.JacobianLinearOperator(f, x + 2), b, lx.AutoLinearSolver(well_posed=True))


@LINEAX(SQUARE, FOUR)
def operators(a, b):
    left = lx.MatrixLinearOperator(a)
    both = left @ left.T + 2.0 * lx.IdentityLinearOperator(left.in_structure())
    return both.mv(b), solved(lx.linearise(both), b), lx.diagonal(left), both.as_matrix()


@LINEAX(SQUARE, FOUR)
def pytree_operator(a, b):
    operator = lx.PyTreeLinearOperator(
        {"x": {"x": a[:2, :2], "y": a[:2, 2:]}, "y": {"x": a[2:, :2], "y": a[2:, 2:]}},
        jax.eval_shape(lambda: {"x": b[:2], "y": b[2:]}),
    )
    return solved(operator, {"x": b[:2], "y": b[2:]})


@LINEAX(SQUARE, FOUR)
def state_used_twice(a, b):
    solver = lx.LU()
    operator = lx.MatrixLinearOperator(a)
    state = solver.init(operator, {})
    one = lx.linear_solve(operator, b, solver, state=state).value
    return lx.linear_solve(operator, one, solver, state=state).value


@LINEAX(np.zeros((LANES, 3, 3)), THREE)
def singular_not_thrown(a, b):
    solution = lx.linear_solve(lx.MatrixLinearOperator(a), b, lx.LU(), throw=False)
    return solution.result._value
