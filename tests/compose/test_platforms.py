"""`lax.platform_dependent` in bodies: the branch of the platform that the program is lowered for."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.analysis.machine import CPU, GPU
from qdtrace.config import Options, options
from qdtrace.errors import GradientError, UnsupportedError, VerifyError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.platforms import asks_platform
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Stage, ref_type
from qdtrace.ir.verify import verify_stage
from qdtrace.lowered import find_programs
from qdtrace.passes.choose_platform import ChoosePlatform
from qdtrace.passes.pipelines import optimise
from tests.gpu.fake import fake_backend

X = np.linspace(-2, 2, 9, dtype=np.float32)
TARGETS = {"cpu": "cpu", "cuda": "sm_90", "rocm": "gfx942"}
BRANCHES = {"cpu": lambda v: v * v, "cuda": lambda v: v * v * v, "default": lambda v: 5 * v}
VALUES = {"cpu": X**2, "cuda": X**3, "rocm": 5 * X}
SLOPES = {"cpu": 2 * X, "cuda": 3 * X**2, "rocm": np.full_like(X, 5)}
SECOND = {"cpu": np.full_like(X, 2), "cuda": 6 * X, "rocm": 0 * X}


def over_elements(fn: Any) -> Any:
    @qd.jit
    def f(x: Any) -> Any:
        y = qd.zeros(x.shape, jnp.float32)
        for i in qd.range(x.shape[0]):
            y[i] = fn(x[i])
        return y

    return f


def on_each(f: Any, *args: Any) -> dict[str, list[np.ndarray]]:
    """Results of the one program of a function as it is lowered for each platform, by the interpreter."""
    out = {}
    for platform, target in TARGETS.items():
        low = f.lower(*args, target=target)
        assert len(low.programs) == 1
        program = parse_program(low.graph())
        assert not asks_platform(program)
        out[platform] = evaluate(program, [np.asarray(a) for a in args])
    return out


def check(f: Any, wanted: dict[str, np.ndarray], *args: Any) -> None:
    """A call runs what the CPU has, and programs for others what those have."""
    for platform, (found,) in on_each(f, *args).items():
        np.testing.assert_allclose(found, wanted[platform], rtol=1e-6, err_msg=platform)
    np.testing.assert_allclose(f(*args), wanted["cpu"], rtol=1e-6)


def test_the_branch_of_the_platform() -> None:
    check(over_elements(lambda v: lax.platform_dependent(v, **BRANCHES)), VALUES, X)
    with options(opt_level=0):
        check(over_elements(lambda v: lax.platform_dependent(v, **BRANCHES)), VALUES, X)


def test_a_platform_twice_and_platforms_nobody_has() -> None:
    """The first branch wins; where all take one branch nothing is left of the choice."""
    f = over_elements(lambda v: lax.platform_dependent(v, tpu=jnp.sin, cpu=jnp.cos, default=jnp.cos))
    check(f, dict.fromkeys(TARGETS, np.cos(X)), X)
    g = over_elements(lambda v: lax.platform_dependent(v, tpu=jnp.sin, default=lambda v: v + 1))
    assert not asks_platform(g.lower(X).programs[0].program)
    check(g, dict.fromkeys(TARGETS, X + 1), X)


def test_conditions_around_and_inside() -> None:
    def inner(v: Any) -> Any:
        def default(v: Any) -> Any:
            return lax.cond(v > 1, lambda v: 10 * v, jnp.abs, v)

        return lax.platform_dependent(v, rocm=lambda v: v - 1, default=default)

    def grown(c: Any) -> Any:
        return c + lax.platform_dependent(c, cpu=jnp.abs, default=lambda c: c / 2)

    def fn(v: Any) -> Any:
        there = lax.platform_dependent(v, cpu=inner, cuda=lambda v: inner(v) + 100, default=inner)
        here = lax.cond(v > 0, lambda v: lax.platform_dependent(v, **BRANCHES), lambda v: v, v)
        return lax.fori_loop(0, 3, lambda _, c: grown(c), there + here)

    wanted = {}
    for platform in TARGETS:
        within = X - 1 if platform == "rocm" else np.where(X > 1, 10 * X, np.abs(X))
        total = within + 100 * (platform == "cuda") + np.where(X > 0, VALUES[platform], X)
        for _ in range(3):
            total = total + (np.abs(total) if platform == "cpu" else total / 2)
        wanted[platform] = total
    check(over_elements(fn), wanted, X)


def test_arrays_and_lanes_of_vmap() -> None:
    """Branches that give arrays in memory, and `jax.vmap` inside of a body, `qd.vmap` and `jax.vmap` around it."""
    rows = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)

    def fn(row: Any) -> Any:
        made = lax.platform_dependent(row, cpu=lambda r: jnp.cumsum(r), default=lambda r: jnp.sort(r)[::-1])
        return jax.vmap(lambda v: lax.platform_dependent(v, **BRANCHES))(made)

    wanted = np.cumsum(rows, axis=1) ** 2
    np.testing.assert_allclose(qd.vmap(fn)(rows), wanted, rtol=1e-5)
    f = over_elements(lambda v: lax.platform_dependent(v, **BRANCHES))
    np.testing.assert_allclose(jax.vmap(f)(np.stack([X, X + 1])), np.stack([X, X + 1]) ** 2, rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_derivatives(mode: str) -> None:
    def fn(v: Any) -> Any:
        return lax.platform_dependent(v, **BRANCHES)

    f = over_elements(fn)
    change = jax.grad(lambda x: f(x).sum()) if mode == "reverse" else lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]
    again = jax.grad(lambda x: change(x).sum())
    for of, wanted in ((change, SLOPES), (again, SECOND)):
        np.testing.assert_allclose(of(X), wanted["cpu"], rtol=1e-6)
        for platform in TARGETS:
            machine = replace(CPU if platform == "cpu" else GPU, platform=platform)
            program = find_programs(jax.jit(of).trace(X).jaxpr, machine)[-1].optimised_for(machine)
            ones = [np.ones(ref_type(p).shape, np.float32) for p in program.params[1:]]
            (found,) = evaluate(program, [X, *ones])
            np.testing.assert_allclose(found, wanted[platform], rtol=1e-6, err_msg=platform)


def test_the_rule_of_a_derivative() -> None:
    @jax.custom_jvp
    def square(v: Any) -> Any:
        return v * v

    @square.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (v,), (t,) = primals, tangents
        return square(v), lax.platform_dependent(v, cpu=lambda v: 2 * v, default=lambda v: 7 * v) * t

    f = over_elements(square)
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(X), 2 * X, rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(f, (X,), (jnp.ones_like(X),))[1], 2 * X, rtol=1e-6)
    low = qd.jit(jax.grad(lambda x: f(x).sum())).lower(X, target="sm_90")
    assert "7.0:f32" in low.graph()
    assert "2.0:f32" not in low.graph()


@pytest.mark.full
def test_several_tasks_and_derivatives() -> None:
    """With contents that one task hands to the next, which a derivative would take from the primal."""

    @qd.jit
    def f(x: Any) -> Any:
        y, z = qd.zeros(x.shape, jnp.float32), qd.zeros((), jnp.float32)
        for i in qd.range(x.shape[0]):
            y[i] = lax.platform_dependent(x[i], cpu=jnp.sin, default=lambda v: jnp.float32(3))
        for i in qd.range(x.shape[0]):
            z[()] += y[i] * y[x.shape[0] - 1 - i]
        return z

    np.testing.assert_allclose(jax.grad(f)(X), 2 * np.sin(X[::-1]) * np.cos(X), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.value_and_grad(f))(X)[1], 2 * np.sin(X[::-1]) * np.cos(X), rtol=1e-5)
    low = qd.jit(jax.grad(f)).lower(X, target="sm_90")
    assert "cos" not in low.graph()


def test_no_branch() -> None:
    """The trace is of no platform: who has no branch is refused when the program is lowered for it."""
    f = over_elements(lambda v: lax.platform_dependent(v, tpu=jnp.sin, cuda=jnp.tan))
    words = "`platform_dependent` has no branch for '{}', where the loop runs"
    for platform in ("cpu", "rocm"):
        with pytest.raises(UnsupportedError, match=words.format(platform)) as raised:
            f.lower(X, target=TARGETS[platform])
        assert raised.value.help == "give a branch for it, or a `default`"
        assert raised.value.loc is not None
        assert raised.value.loc.file == __file__
    with pytest.raises(UnsupportedError, match=words.format("cpu")):
        f(X)
    with pytest.raises(UnsupportedError, match=words.format("cpu")):
        jax.jit(jax.grad(lambda x: f(x).sum()))(X)
    with options(debug=True), pytest.raises(UnsupportedError, match=words.format("cpu")):
        f(X)
    assert "tan" in f.lower(X, target="sm_90").graph()
    g = over_elements(lambda v: lax.platform_dependent(v, tpu=jnp.sin, mosaic=jnp.tan))
    with pytest.raises(UnsupportedError, match=words.format("cpu")):
        g.lower(X, target="sm_90")


def test_a_missing_branch_of_another_platform() -> None:
    """Nested choices: what a branch lacks is asked only where that branch is taken."""
    f = over_elements(
        lambda v: lax.platform_dependent(v, cpu=lambda v: lax.platform_dependent(v, cpu=jnp.cos), default=jnp.sin)
    )
    check(f, {"cpu": np.cos(X), "cuda": np.sin(X), "rocm": np.sin(X)}, X)


def test_a_branch_that_cannot_be_imported() -> None:
    def by_python(v: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), v * 3)

    f = over_elements(lambda v: lax.platform_dependent(v + 1, cuda=by_python, default=lambda v: v * 4))
    np.testing.assert_allclose(f(X), (X + 1) * 4, rtol=1e-6)
    with pytest.raises(GradientError, match="JAX has no derivative here: Pure callbacks do not support JVP"):
        jax.grad(lambda x: f(x).sum())(X)
    assert "4.0:f32" in f.lower(X, target="gfx942").graph()
    with pytest.raises(UnsupportedError, match="`pure_callback` calls Python") as raised:
        f.lower(X, target="sm_90")
    assert raised.value.help == "call it outside of the loop, on whole arrays"
    g = over_elements(lambda v: lax.platform_dependent(v, cpu=by_python, default=lambda v: v * 4))
    with pytest.raises(UnsupportedError, match="`pure_callback` calls Python"):
        g(X)
    h = over_elements(lambda v: lax.platform_dependent(v, cpu=by_python, default=by_python))
    with pytest.raises(UnsupportedError, match="`pure_callback` calls Python"):
        h.lower(X, target="sm_90")


def test_debug_takes_the_platform_of_the_program() -> None:
    f = over_elements(lambda v: lax.platform_dependent(v, **BRANCHES))
    with options(debug=True):
        np.testing.assert_allclose(f(X), VALUES["cpu"], rtol=1e-6)
        (staged,) = f.lower(X, target="sm_90").programs
    (found,) = evaluate(staged.program, [X])
    np.testing.assert_allclose(found, VALUES["cuda"], rtol=1e-6)


def test_a_device_runs_its_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a fake device."""
    with fake_backend() as (fake, driver):
        for module in ("call", "derivative"):
            monkeypatch.setattr(f"qdtrace.compose.{module}.backend", lambda name: fake)
        f = over_elements(lambda v: lax.platform_dependent(v, **BRANCHES))
        with options(block_dim=4, offline_cache=False):
            np.testing.assert_allclose(f(X), VALUES["cuda"], rtol=1e-6)
            np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(X), SLOPES["cuda"], rtol=1e-6)
        assert driver.asked


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls run the kernels of a fake device."""
    with fake_backend() as (fake, _), options(block_dim=4, offline_cache=False):
        for module in ("call", "derivative"):
            monkeypatch.setattr(f"qdtrace.compose.{module}.backend", lambda name: fake)
        yield


def chosen(v: Any) -> Any:
    return lax.platform_dependent(v, cpu=lambda v: v * v, cuda=lambda v: jnp.sin(v) + 1, default=lambda v: 5 * v)


def fixed(v: Any) -> Any:
    return jnp.sin(v) + 1


def until(f: Any) -> Any:
    """A `while` whose condition, body and place in memory ask for the platform."""

    def fn(row: Any) -> Any:
        def goes_on(s: Any) -> Any:
            return f(s[0]) < 1.9 + s[1]

        def step(s: Any) -> Any:
            index = (f(s[0]) > 1.5).astype(int)
            return s[0] + f(s[0]) / 8, s[1] + 0.01 * row[index]

        return lax.while_loop(goes_on, step, (row[2], jnp.float32(0)))[0]

    return fn


NESTED = {
    "vmap": lambda m, f: m(lambda row: jax.vmap(jax.vmap(f))(jnp.outer(row, row))),
    "lanes of lanes": lambda m, f: m(lambda row: m(f)(row)),
    "while": lambda m, f: m(until(f)),
    "vmap of while": lambda m, f: m(lambda row: jax.vmap(until(f))(jnp.outer(row, row) / 4)),
    "scan": lambda m, f: m(lambda row: lax.scan(lambda c, t: (f(c) / 4 + t, f(c + t)), row[0], row)),
    "predicate": lambda m, f: m(lambda row: lax.cond(f(row[0]) > 1, f, jnp.cos, row)),
    "gradient of scan": lambda m, f: m(
        jax.grad(lambda row: lax.scan(lambda c, t: (f(c) / 4 + t, f(c + t)), row[0], row)[1].sum())
    ),
    "second gradient": lambda m, f: m(lambda row: jax.grad(jax.grad(lambda v: f(v) * row[1]))(row[0])),
    "gradient around": lambda m, f: jax.grad(lambda x: (m(lambda row: f(f(row)))(x) ** 2).sum()),
}


@pytest.mark.full
@pytest.mark.sample(3)
@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("name", NESTED)
def test_a_device_runs_its_branch_in_loops_and_derivatives(name: str) -> None:
    rows = np.linspace(-1.5, 1.5, 9, dtype=np.float32).reshape(3, 3)
    got, wanted = NESTED[name](qd.vmap, chosen)(rows), NESTED[name](jax.vmap, fixed)(rows)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def test_the_text_and_the_verifier() -> None:
    f = over_elements(lambda v: lax.platform_dependent(v, cpu=jnp.sin, cuda=jnp.cos))
    program = _traced(f)
    text = print_program(program)
    assert text.count("platform[") == 4  # of the index and of the branches: which, and none for ROCm
    assert print_program(parse_program(text)) == text
    with pytest.raises(VerifyError, match="stage: `platform` stands in a program of stage final"):
        verify_stage(replace(program, stage=Stage.FINAL))
    verify_stage(program)
    np.testing.assert_allclose(evaluate(program, [X])[0], np.sin(X), rtol=1e-6)  # the host
    there = ChoosePlatform("cuda")(program)
    assert there is not program
    assert ChoosePlatform("rocm")(there) is there
    done = optimise(program, Options(verify=True), machine=GPU)
    np.testing.assert_allclose(evaluate(done, [X])[0], np.cos(X), rtol=1e-6)


def _traced(f: Any) -> Any:
    """The program before it is lowered."""
    (outer,) = jax.make_jaxpr(f)(X).eqns
    (staged,) = [e.params["staged"] for e in outer.params["jaxpr"].eqns if e.primitive.name == "qd_call"]
    return staged.program
