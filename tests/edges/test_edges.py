"""Nothing of JAX's crashes in lanes and bodies: what random programs give there is JAX's, or a refusal known here."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .calls import CALLS
from .compare import WAYS, finding
from .programs import Program, drawn, results_of
from .steps import ALONG, BINARY, DTYPES, UNARY, Step

pytestmark = pytest.mark.usefixtures("wide_oracle")

DEFAULT, MANY = 24, 400
REFUSED = re.compile(
    "`(cumlogsumexp|argmax|argmin|clamp|atan2)` of complex numbers has no import rule"
    "|`cumlogsumexp` needs floats, got u?int"
    "|needs at most .* bytes of arrays private to a thread|at most 256 elements may be used as one value"
)
"""What is refused of the programs that are drawn, and that JAX runs."""
SHAPES = ((), (0,), (3,), (0, 3), (3, 0), (2, 2), (0, 0), (2, 0, 2), (19,))
SHORT = ("pooled max", "cummin", "scatter_max", "sort of two", "pad away", "update row")


def check(program: Program, way: str) -> None:
    kind, why = finding(program, way)
    if kind == "refused" and REFUSED.search(why):
        pytest.skip(why)  # `why` is the refusal, one of REFUSED
    assert kind in ("equal", "none"), f"{kind} {way} of {program}: {why}"


@pytest.mark.sample(2, full=3)
@pytest.mark.parametrize("seed", range(DEFAULT))
def test_a_sample(seed: int) -> None:
    check(drawn(seed), WAYS[seed % len(WAYS)])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(MANY))
def test_many(seed: int, way: str) -> None:
    check(drawn(DEFAULT + seed, 4 + seed % 5), way)
    if seed % 20 == 0:
        jax.clear_caches()


def calls():
    along = {f"{n} {k}": lambda x, n=n, k=k: ALONG[n](x, axis=k) for n in ALONG for k in (0, -1)}
    binary = {n: lambda x, n=n: BINARY[n](x, x) for n in BINARY}
    for name, call in {**CALLS, **UNARY, **along, **binary}.items():
        yield pytest.param(name, call, id=name, marks=[] if name in SHORT else [pytest.mark.slow])


@pytest.mark.sample(full=80)
@pytest.mark.parametrize(("name", "call"), [*calls()])
@pytest.mark.full
def test_a_call_of_each_shape_and_dtype(name: str, call) -> None:
    rng = np.random.default_rng(0)
    for dtype in ("bool", "uint8", "float32", "complex64") if name in SHORT else DTYPES:
        steps, arguments = [], []
        for shape in SHAPES:
            step = Step(f"{name} {dtype}{shape}", (len(steps),), call)
            avals = [jax.ShapeDtypeStruct(shape, dtype)] * (len(steps) + 1)
            if results_of(step, avals):
                steps.append(step)
                arguments.append(rng.integers(0, 5, (2, *shape)).astype(dtype))
        if not steps:
            continue
        in_axes = ({"x": 0, "none": None}, None, *[0] * (len(arguments) - 1))
        tree = ({"x": arguments[0], "none": None}, (), *arguments[1:])
        count = len(jax.tree.leaves([results_of(s, [jax.typeof(jnp.asarray(a[0])) for a in arguments]) for s in steps]))
        results = tuple(range(len(arguments), len(arguments) + count))
        for way in ("lanes", "gradient") if np.dtype(dtype).kind in "fc" else ("lanes",):
            kind, why = finding(Program(tuple(steps), results, tree, in_axes, -1), way)
            assert kind in ("equal", "none") or REFUSED.search(why), f"{kind} {way} {dtype}: {why}"
