"""Calls of the functions of `jax.scipy`."""

import jax.numpy as jnp
import numpy as np

from .numpy_calls import COMPLEX, MATRICES
from .table import SPD, SQUARE, C, F, I, Module, P, T

S = Module("jax.scipy.special", "series and recurrences of another length")
S.elementwise(
    "dawsn entr erf erfc erfcinv erfinv erfcx exp1 expit factorial fresnel gamma gammasgn i0 i0e i1 i1e "
    "log_ndtr logit ndtr ndtri sici spence expi wofz",
    ulps=512,
    why="differences of other functions of the same argument",
)
S.elementwise("gammaln loggamma digamma", absolute=8, why="near its zeros XLA gives roundings of one")
NEAR = np.array([-3, -1, -0.25, 0.0, 0.25, 0.5, 1, 2, 3, 10, np.nan])
S.elementwise(
    "betaln boxcox boxcox1p kl_div rel_entr xlog1py xlogy beta comb poch owens_t",
    2,
    values=NEAR,
    ulps=4096,
    absolute=64,
    why="differences of lgamma, whose sizes are larger than the result's",
)
GAMMA = np.array([-1, 0, 1e-3, 0.25, 0.75, 1, 2.5, 7, 30, 88.5, np.inf, np.nan])
S.elementwise(
    "gammainc gammaincc", 2, values=GAMMA, ulps=4096, absolute=64, why="a series of a hundred terms on another lgamma"
)
S("betainc", P(4), P(4), T(4, low=0, high=1), ulps=4096, why="a continued fraction on another lgamma")
S("bernoulli", F(), via=lambda f, x: f(4))
S("bessel_jn", P(4, low=1, high=3), v=3, ulps=4096, why="a recurrence", via=lambda f, z, v: f(z, v=v, n_iter=20))
S("expn", 2, P(4), ulps=512)
S("hyp1f1", P(3), P(3), T(3), ulps=4096, why="a series")
S("hyp2f1", P(3), P(3), P(3), T(3, low=-0.5, high=0.5), ulps=4096, why="a series")
S("log_softmax softmax logsumexp", F(5))
S("log_softmax softmax logsumexp", F(2, 3), axis=1)
S("logsumexp", F(4), b=np.arange(1.0, 5))
S("multigammaln", P(4, low=3, high=8), 3, ulps=512)
S("polygamma", 1, P(4), ulps=512)
S("polygamma", I(4, low=0, high=5), P(4), ulps=512)
S("zeta", P(4, low=1.25, high=9), P(4), ulps=512)
S(
    "sph_harm_y",
    np.array([2]),
    np.array([1]),
    P(1),
    P(1),
    ulps=4096,
    n_max=3,
    via=lambda f, n, m, a, b, n_max: f(n, m, a, b, n_max=n_max),
)

D = Module("jax.scipy.linalg", MATRICES)
D("block_diag", F(2, 2), F(1, 3))
D("cho_factor cholesky", SPD(3), ulps=512)
D("cho_factor cholesky", SPD(3), lower=True, ulps=512)
D("cho_solve", SPD(3), T(3), via=lambda f, a, b: f((jnp.linalg.cholesky(a), True), b), ulps=512)
D("circulant fiedler", F(3))
D("companion leslie fiedler_companion", P(4), via=lambda f, x: f(x, x[1:]) if f.__name__ == "leslie" else f(x))
D("convolution_matrix", F(3), 4)
D("det inv", SQUARE(3), ulps=512)
D("dft hadamard helmert hilbert invhilbert pascal invpascal", F(), via=lambda f, x: f(4))
D("eigh", SPD(3), ulps=512, invariant=lambda a, w, v: [w, (v * w[:, None]) @ v.swapaxes(1, 2)])
D("eigh", SPD(3), eigvals_only=True, ulps=512)
D("eigh_tridiagonal", T(4), P(3), eigvals_only=True, ulps=4096, why="bisection to a bound relative to the norm")
D("expm", SQUARE(3), ulps=512)
D("expm_frechet", SQUARE(3), SQUARE(3), ulps=1024)
D("funm", SPD(3), jnp.sin, why=COMPLEX, via=lambda f, a, g: f(a + 0j, g), ulps=4096)
D("hankel toeplitz", F(3))
D("hankel toeplitz", F(3), F(4))
D("hessenberg", SQUARE(3), ulps=512)
D("hessenberg", SQUARE(3), calc_q=True, ulps=512)
D("lu", SQUARE(3), ulps=512)
D("lu_factor", SQUARE(3), ulps=512)
D("lu_solve", SQUARE(3), T(3), via=lambda f, a, b: f(__import__("jax").scipy.linalg.lu_factor(a), b), ulps=512)
D("polar", SQUARE(3), ulps=4096, why="the unitary factor of an iteration that stops at a rounding")
D("qr", SQUARE(3), ulps=512)
D("qr", T(3, 2), mode="economic", pivoting=True, ulps=512)
D("qr_multiply", SQUARE(3), T(3, 3), ulps=512)
D("rsf2csf", SPD(3), SQUARE(3), via=lambda f, a, b: f(jnp.triu(a), b), ulps=4096)
D(
    "schur",
    SQUARE(3),
    why=COMPLEX,
    output="complex",
    ulps=4096,
    invariant=lambda a, t, q: [q @ t @ q.conj().swapaxes(1, 2)],
)
D("solve", SQUARE(3), T(3), ulps=512)
D("solve", SPD(3), T(3), assume_a="pos", ulps=512)
D("solve_sylvester", SPD(3), SPD(3), T(3, 3), ulps=4096)
D("solve_triangular", SPD(3), T(3), lower=True, ulps=512)
D("sqrtm", SPD(3), ulps=4096)
D("svd", T(3, 2), full_matrices=False, ulps=512, invariant=lambda a, u, s, v: [s, (u * s[:, None]) @ v])

G = Module("jax.scipy.signal")
G("convolve correlate fftconvolve", T(5), T(3), ulps=256, why="a transform and its inverse")
G("convolve correlate", T(3, 3), T(2, 2), mode="same")
G("convolve2d correlate2d", T(3, 3), T(2, 2))
G("detrend", T(6), ulps=256)
G("detrend", T(6), type="constant")
G("stft", T(16), nperseg=8, ulps=256)
G("istft", C(5, 4), nperseg=8, ulps=256)
G("welch", T(16), nperseg=8, ulps=256)
G("csd", T(16), T(16), nperseg=8, ulps=256)
Module("jax.scipy.integrate")("trapezoid", T(5))
H = Module("jax.scipy.fft")
H("dct idct", T(6), ulps=128)
H("dctn idctn", T(3, 4), ulps=128)

# Distributions: a value and parameters.
VALUE = np.array([-np.inf, -10, -2.5, -1, -0.25, 0.0, 0.25, 0.75, 1, 2, 3.5, 10, 88.5, np.inf, np.nan])
CHANCE = np.array([-0.5, 0.0, 1e-3, 0.25, 0.5, 0.75, 0.999, 1.0, 1.5, np.nan])
DIFFERENCES = "differences of exponentials or of lgamma, whose sizes are larger than the result's"


def distribution(name: str, functions: str, *more: object, values: np.ndarray = VALUE, ulps: float = 1024) -> None:
    """Functions of a value and of fixed parameters, and of lanes of both."""
    module = Module(f"jax.scipy.stats.{name}")
    for function in functions.split():
        inverse = function in ("ppf", "isf")
        module.elementwise(
            function, values=CHANCE if inverse else values, ulps=ulps, why=DIFFERENCES, via=lambda f, x: f(x, *more)
        )


for _name, _functions in {
    "cauchy": "cdf isf logcdf logpdf logsf pdf ppf sf",
    "gumbel_l": "cdf logcdf logpdf logsf pdf ppf sf",
    "gumbel_r": "cdf logcdf logpdf logsf pdf ppf sf",
    "laplace": "cdf logpdf pdf",
    "logistic": "cdf isf logpdf pdf ppf sf",
    "norm": "cdf isf logcdf logpdf logsf pdf ppf sf",
    "expon": "cdf logcdf logpdf logsf pdf ppf sf",
    "uniform": "cdf logpdf pdf ppf",
}.items():
    # of infinities XLA's value depends on the order in which it takes a difference of two
    distribution(_name, _functions, values=VALUE[1:-2] if _name.startswith("gumbel") else VALUE)
    distribution(_name, _functions, 0.5, 2.0, values=VALUE[1:-2] if _name.startswith("gumbel") else VALUE)
distribution("beta", "cdf logcdf logpdf logsf pdf sf", 1.5, 2.5, ulps=8192)
distribution("chi2", "cdf logcdf logpdf logsf pdf sf", 3.0, ulps=8192)
distribution("gamma", "cdf logcdf logpdf logsf pdf sf", 2.5, ulps=8192)
distribution("gennorm", "cdf logpdf pdf", 1.5, ulps=8192)
distribution("pareto", "cdf logcdf logpdf logsf pdf ppf sf", 2.5)
distribution("t", "logpdf pdf", 3.0)
distribution("truncnorm", "cdf logcdf logpdf logsf pdf sf", -1.0, 2.0, ulps=8192)
distribution("vonmises", "logpdf pdf", 1.5)
distribution("wrapcauchy", "logpdf pdf", 0.5)
COUNTS = np.array([-1.0, 0.0, 1.0, 2.0, 3.0, 5.0, 1.5])
distribution("bernoulli", "cdf logpmf pmf ppf", 0.25, values=COUNTS)
distribution("betabinom", "logpmf pmf", 5, 1.5, 2.5, values=COUNTS, ulps=8192)
distribution("binom", "logpmf pmf", 5, 0.25, values=COUNTS, ulps=8192)
distribution("geom", "logpmf pmf", 0.25, values=COUNTS)
distribution("nbinom", "logpmf pmf", 3, 0.25, values=COUNTS, ulps=8192)
distribution("poisson", "cdf logpmf pmf", 2.5, values=COUNTS, ulps=8192)
Module("jax.scipy.stats.poisson", DIFFERENCES)("entropy", P(4), ulps=8192)
Module("jax.scipy.stats.dirichlet", DIFFERENCES)(
    "logpdf pdf", P(3), P(3), via=lambda f, x, a: f(x / jnp.sum(x), a), ulps=8192
)
Module("jax.scipy.stats.multinomial", DIFFERENCES)(
    "logpmf pmf",
    I(3, low=0, high=4),
    P(3),
    ulps=8192,
    absolute=64,
    via=lambda f, x, p: f(x, jnp.sum(x), p / jnp.sum(p)),
)
Module("jax.scipy.stats.multivariate_normal", DIFFERENCES)("logpdf pdf", T(3), T(3), SPD(3), ulps=4096)
Q = Module("jax.scipy.stats")
Q("mode", I(6, low=0, high=3))
Q("rankdata sem", T(6))
