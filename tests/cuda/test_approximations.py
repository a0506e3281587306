"""`fast_math="approx"`: which instructions it takes, where it changes nothing, and on a GPU what its errors are."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from lowering.llvm.options import emit_options
from lowering.runtime.keys import task_content
from qdtrace.config import FastMath, Options
from qdtrace.ir.parser import parse_program
from qdtrace.ir.types import DType

FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "sin": (jnp.sin, "sin.approx.ftz.f32"),
    "cos": (jnp.cos, "cos.approx.ftz.f32"),
    "exp": (jnp.exp, "ex2.approx.ftz.f32"),
    "exp2": (jnp.exp2, "ex2.approx.ftz.f32"),
    "log": (jnp.log, "lg2.approx.ftz.f32"),
    "log2": (jnp.log2, "lg2.approx.ftz.f32"),
    "tanh": (jnp.tanh, "tanh.approx.f32"),
    "sqrt": (jnp.sqrt, "sqrt.approx.ftz.f32"),
    "rsqrt": (lax.rsqrt, "rsqrt.approx.ftz.f32"),
    "div": (lax.div, "div.full.ftz.f32"),
}
"""With the instruction of each."""
SMALLEST, LARGEST = float(np.finfo(np.float32).smallest_normal), float(np.finfo(np.float32).max)


def applied(name: str, fast_math: bool | str = "approx") -> Any:
    """The function over arrays."""
    function = FUNCTIONS[name][0]

    @qd.jit(options={"fast_math": fast_math})
    def run(*operands: Any) -> Any:
        out = qd.empty_like(operands[0])
        for i in qd.range(out.shape[0]):
            out[i] = function(*(x[i] for x in operands))
        return out

    return run


def operands(name: str, x: np.ndarray) -> list[np.ndarray]:
    return [x, x[::-1].copy()] if name == "div" else [x]


def ptx(name: str, fast_math: bool | str, dtype: DType = DType.f32) -> str:
    with jax.enable_x64(True):
        given = operands(name, np.ones(64, dtype.numpy))
        return applied(name, fast_math).lower(*given, target="sm_90").as_text("ptx")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_instructions(name: str) -> None:
    instruction = FUNCTIONS[name][1]
    assert ptx(name, "approx").count(instruction) == 1
    for fast_math in (True, False):
        assert "approx" not in ptx(name, fast_math)
        assert "div.full" not in ptx(name, fast_math)


@pytest.mark.parametrize("name", ["sin", "log", "div"])
def test_instructions_of_other_dtypes(name: str) -> None:
    assert FUNCTIONS[name][1] in ptx(name, "approx", DType.f16)
    assert FUNCTIONS[name][1] in ptx(name, "approx", DType.bf16)
    assert ptx(name, "approx", DType.f64) == ptx(name, True, DType.f64)


def test_integers_are_divided_as_ever() -> None:
    assert ptx("div", "approx", DType.i32) == ptx("div", True, DType.i32)


@pytest.mark.parametrize("name", ["sin", "div"])
def test_amd_takes_its_own_functions(name: str) -> None:
    given = operands(name, np.ones(64, np.float32))
    texts = [applied(name, mode).lower(*given, target="gfx942").as_text("amdgcn") for mode in ("approx", True)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_cpu_computes_what_it_did(name: str) -> None:
    with jax.default_device(jax.devices("cpu")[0]):
        given = operands(name, np.concatenate([np.linspace(-9, 9, 99), [1e6, 3e38, np.inf, np.nan]]).astype(np.float32))
        got, wanted = (np.asarray(applied(name, mode)(*given)) for mode in ("approx", True))
    np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))


def test_derivatives_take_approximations_too() -> None:
    slope = jax.grad(lambda x: applied("sin")(x).sum())
    assert "cos.approx.ftz.f32" in qd.jit(slope).lower(np.ones(64, np.float32), target="sm_90").as_text("ptx")


def test_derivatives_that_compare_values_keep_every_rounding() -> None:
    """The gradient of a largest value finds its place by computing the values again."""

    @qd.jit(options={"fast_math": "approx"})
    def largest(x: Any) -> Any:
        out = qd.full((1,), -9.0)
        for i in qd.range(x.shape[0]):
            out.at[0].max(jnp.sin(x[i]))
        return out[0]

    x = np.linspace(-1, 1, 64, dtype=np.float32)
    assert "sin.approx" in qd.jit(largest, options={"fast_math": "approx"}).lower(x, target="sm_90").as_text("ptx")
    slope = qd.jit(jax.grad(largest)).lower(x, target="sm_90").as_text("ptx")
    assert "approx" not in slope


def test_the_level_is_in_the_names_of_code() -> None:
    (task,) = parse_program("""program p(x: ref[f32,64])
  range_for i in 0:i32 : 64:i32
    a: f32 = load x i
    b: f32 = sin a
    store x b i
  return x
""").tasks
    levels: tuple[FastMath, ...] = (False, True, "approx")
    assert len({task_content(task, emit_options(Options(fast_math=level))) for level in levels}) == 3


# What docs/approximations.md promises: function, largest argument in size, absolute error.
BOUNDS = [
    ("sin", 2 * np.pi, 2**-20),
    ("sin", 100 * np.pi, 2**-14.5),
    ("cos", 2 * np.pi, 2**-20),
    ("cos", 100 * np.pi, 2**-14.5),
]
RELATIVE = {
    "exp": lambda x: (2 + 1.2 * np.abs(x)) * 2**-23,
    "exp2": lambda x: 2**-22,
    "tanh": lambda x: 2**-10.9,
    "sqrt": lambda x: 2**-22,
    "rsqrt": lambda x: 2**-22,
    "div": lambda x: 2**-22,
}
LOGARITHMS = ("log", "log2")
NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "sin": np.sin, "cos": np.cos, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "tanh": np.tanh,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "div": np.divide,
}  # fmt: skip


def arguments() -> np.ndarray:
    """4096 normal numbers of every exponent and sign, and as many again where functions are not constant."""
    rng = np.random.default_rng(0)
    exponents = np.repeat(np.arange(1, 255, dtype=np.uint32), 4096)
    bits = exponents << 23 | rng.integers(0, 1 << 23, exponents.size, np.uint32)
    bits |= rng.integers(0, 2, exponents.size, np.uint32) << 31
    even = [rng.uniform(-a, a, 1 << 18).astype(np.float32) for a in (1, 2, 2 * np.pi, 88, 100 * np.pi)]
    return rng.permutation(np.concatenate([bits.view(np.float32), *even]))


def errors(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(argument, exact value, error) where the exact value and the operands are normal numbers."""
    given = operands(name, arguments())
    if name in (*LOGARITHMS, "sqrt", "rsqrt"):
        given = [np.abs(given[0])]
    got = np.asarray(applied(name)(*given)).astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = NUMPY[name](*(x.astype(np.float64) for x in given))
        error = np.abs(got - wanted)  # of infinities NaN
    plain = (np.abs(wanted) >= SMALLEST * (1 + 1e-4)) & (np.abs(wanted) <= LARGEST * (1 - 1e-4))
    return given[0][plain], wanted[plain], error[plain]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "most", "bound"), BOUNDS)
def test_absolute_errors(name: str, most: float, bound: float) -> None:
    x, _, error = errors(name)
    worst = error[np.abs(x) <= most].max()
    print(name, f"|x| <= {most:.4g}: 2**{np.log2(worst):.2f}")
    assert worst <= bound


@pytest.mark.gpu
@pytest.mark.parametrize("name", RELATIVE)
def test_relative_errors(name: str) -> None:
    x, wanted, error = errors(name)
    relative = error / np.abs(wanted)
    print(name, f"2**{np.log2(relative.max()):.2f}, of the bound {(relative / RELATIVE[name](x)).max():.3f}")
    assert (relative <= RELATIVE[name](x)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", LOGARITHMS)
def test_errors_of_logarithms(name: str) -> None:
    x, wanted, error = errors(name)
    near = (x > 0.5) & (x < 2)
    relative = (error / np.abs(wanted))[~near].max()
    print(name, f"near 1: 2**{np.log2(error[near].max()):.2f}, elsewhere relative 2**{np.log2(relative):.2f}")
    assert error[near].max() <= 2**-21
    assert relative <= 2**-21


@pytest.mark.gpu
def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    cases = {
        "sin": {0.0: 0.0, inf: nan, -inf: nan, nan: nan},
        "cos": {0.0: 1.0, inf: nan, nan: nan},
        "exp": {0.0: 1.0, inf: inf, -inf: 0.0, 89.0: inf, -104.0: 0.0, nan: nan},
        "exp2": {3.0: 8.0, inf: inf, -inf: 0.0, 128.0: inf, nan: nan},
        "log": {1.0: 0.0, 0.0: -inf, -1.0: nan, inf: inf, nan: nan},
        "log2": {1.0: 0.0, 0.0: -inf, -1.0: nan, inf: inf, nan: nan},
        "tanh": {0.0: 0.0, inf: 1.0, -inf: -1.0, nan: nan},
        "sqrt": {0.0: 0.0, 4.0: 2.0, -1.0: nan, inf: inf, nan: nan},
        "rsqrt": {0.0: inf, 4.0: 0.5, -1.0: nan, inf: 0.0, nan: nan},
    }
    got = {name: np.asarray(applied(name)(np.array(list(values), np.float32))) for name, values in cases.items()}
    found = {name: dict(zip(cases[name], map(str, row.tolist()), strict=True)) for name, row in got.items()}
    assert found == {name: {x: str(y) for x, y in values.items()} for name, values in cases.items()}
    for name in ("sin", "tanh", "sqrt"):
        assert np.signbit(applied(name)(np.array([-0.0], np.float32))).all()
    x = np.array([1.0, 0.0, inf, 1.0, 3e38, nan, -2.0], np.float32)
    y = np.array([0.0, 0.0, 1.0, inf, 2.5e38, 1.0, 4.0], np.float32)
    np.testing.assert_allclose(applied("div")(x, y), [inf, nan, inf, 0.0, 1.2, nan, -0.5], rtol=1e-6)
