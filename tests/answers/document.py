"""The part of docs/coverage.md that tells which answers surprise."""

from pathlib import Path

from .matrix_rows import ROWS
from .slope_rows import POWERS_SAID

PATH = Path(__file__).parents[2] / "docs" / "coverage.md"
TITLE = "## Answers that surprise"
HEAD = f"""{TITLE}

What a lane gives where one would expect something else. It is what `jax.vmap` of the same function gives, of the same
release, but for lines that name JAX. `tests/answers` has each with its numbers, values and slopes in both modes.

"""
MORE = (
    "gradients of a `fori_loop` with a traced number of iterations, of a batched `sequential_vmap`: right; JAX raises",
    "an integer from a backward function for a float: the gradient is a float; JAX returns the integer",
    "keys other than threefry: refused; under `jax.vmap` only the first `rbg` key draws what it draws alone",
    "checks of `eqx.error_if` in a branch not taken, or a loop that a lane has left: no error; `jax.vmap` raises "
    "for all",
    "Diffrax: states and times are promoted to one dtype: Python times under x64 make states of float32 float64, a "
    "`SaveAt(ts=...)` of float32 makes both float32",
    "Diffrax: the gradient by t1 where t1 is t0 is 0, as alone; `jax.vmap` gives NaN beside others",
    "complex quotients of an infinite number by a finite one: NaN where both parts of the formula are "
    "(`complex(inf, inf) / 1.0`); JAX then gives C99's `complex(inf, inf)`",
    "`log(complex(inf, nan))`: infinite real part, as in C; JAX gives NaN",
    "`exp2` of complex numbers whose real part is infinite or NaN: as `exp`; JAX gives NaN in both parts",
    "`atan`, `atanh` of complex numbers with NaN: NaN; JAX gives a quarter turn in one part",
    "`(2.5+0j)**1e30`: inf with imaginary part 0; JAX gives NaN for that part",
    "`complex(1, inf)**2.0`: NaN, as eager; `jax.jit` makes a product of it",
    "64-bit arrays outside of the x64 mode: refused by name; JAX cuts their values at the first operation",
    "gradients of `jnp.maximum` of complex numbers: shared by equal ones; a TypeError in jax 0.12",
    "Optimistix: the gradient of `least_squares` where the Jacobian has not full rank raises, also with `throw=False`",
    "Optimistix: `Bisection` with the root at an end of the bracket raises, also with `throw=False`",
)
"""What other tests show."""


def section() -> str:
    """The part of the page."""
    lines = [*(row.said for row in ROWS if row.said), POWERS_SAID, *MORE]
    return HEAD + "".join(f"- {line}.\n" for line in lines) + "\n"


def written(page: str) -> str:
    """The page with this part, in front of the first module's."""
    before, _, behind = page.partition(TITLE)
    if not behind:
        before, _, behind = page.partition("## jax.numpy\n")
        return before + section() + "## jax.numpy\n" + behind
    return before + section() + behind[behind.index("## jax.numpy\n") :]
