"""Residuals that the primal saves for its derivatives: they suffice, they are used, and they are dropped."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

import qdtrace as qd
from qdtrace.analysis.machine import CPU, GPU
from qdtrace.autodiff import transpose
from qdtrace.autodiff.activity import active_variables
from qdtrace.compose.derivative import derived_for
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Stage
from qdtrace.ir.verify import verify_program
from qdtrace.passes import pipelines
from qdtrace.trace import compat
from tests.autodiff.derive import derive, with_residuals
from tests.autodiff.lanes import each
from tests.autodiff.programs import arguments, random_program
from tests.autodiff.read_residuals import residuals_of, residuals_read

X = np.linspace(0.1, 1.0, 5)


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(20))
def test_derivatives_of_random_programs_are_the_same_with_residuals(seed):
    program, args = random_program(seed), arguments(seed)
    rng = np.random.default_rng(seed)
    wrt = [a.dtype.kind == "f" for a in args]
    active = active_variables(program, [v for v, w in zip(program.params, wrt, strict=True) if w])
    out = [v in active for v in program.results]
    residuals = residuals_of(program, wrt, out)
    assert residuals == residuals_read(program, wrt, out)
    kept = with_residuals(program, wrt, out, residuals)
    verify_program(kept)
    results = evaluate(kept, args, check_races=True)
    count = len(program.results)
    for got, want in zip(results[:count], evaluate(program, args), strict=True):
        np.testing.assert_array_equal(got, want)
    adjoints = [rng.normal(size=r.shape) for r, w in zip(results, out, strict=False) if w]
    tangents = [rng.normal(size=a.shape) for a, w in zip(args, wrt, strict=True) if w]
    for directions, asked, given in (([], wrt, adjoints), ([wrt], None, tangents)):
        plain = evaluate(derive(program, directions, out, asked), [*args, *given])
        derived = derive(program, directions, out, asked, residuals)
        verify_program(derived)
        got = evaluate(derived, [*args, *results[count:], *given], check_races=True)
        for a, b in zip(got, plain, strict=True):
            np.testing.assert_array_equal(a, b)


def run_by(function, *args) -> list:
    """Equations that run programs in the compiled function."""

    def found(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in ("qd_call", "qd_derivative"):
                yield eqn
            for inner in compat.inner_jaxprs(eqn):
                yield from found(compat.open_jaxpr(inner))

    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    used, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return list(found(used))


def ran(function, *args) -> list[list[str]]:
    """Names of the tasks of each program that the compiled function runs, without copies of memory."""
    params = [eqn.params for eqn in run_by(function, *args)]
    programs = [(p["staged"] if "staged" in p else derived_for(p["spec"], CPU)).optimised_for(CPU) for p in params]
    names = [[n.removesuffix("_gather") for t in p.tasks for n in t.name.split("+")] for p in programs]
    # a reverse that is gathered may be two tasks, of its own elements and of those of its neighbours
    return [[n for n in dict.fromkeys(program) if not n.startswith("copy")] for program in names]


@qd.jit
def chain(x, y):
    """Three tasks that read their neighbours, the second in place, so that none of them are joined."""
    n = x.shape[0]
    a = qd.empty(x.shape, x.dtype)
    for i in qd.range(n, name="first"):
        a[i] = jnp.sin(x[i]) * x[(i + 1) % n]
    for i in qd.range(n, name="second"):
        y[i] = y[i] * jnp.exp(-a[(i + 1) % n] * a[i])
    out = qd.empty(x.shape, x.dtype)
    for i in qd.range(n, name="third"):
        out[i] = jnp.tanh(y[(i + 2) % n]) * y[i]
    return out


@pytest.fixture
def work(monkeypatch):
    """What is derived and which passes run: names of programs, and the stages from which and to which they go."""
    derived, passed = [], []

    def reverse(program, *rest):
        derived.append(program.name)
        return own_reverse(program, *rest)

    def optimise(program, *rest, until=Stage.FINAL, **others):
        passed.append((program.name, program.stage.name, until.name))
        return own_optimise(program, *rest, until=until, **others)

    own_reverse, own_optimise = transpose.reverse, pipelines.optimise
    monkeypatch.setattr(transpose, "reverse", reverse)
    monkeypatch.setattr(pipelines, "optimise", optimise)
    return derived, passed


def scaled_chain(scale, name):
    """A chain that no other test has traced, with two results."""

    def run(x):
        n = x.shape[0]
        a, b, c = [qd.empty(x.shape, x.dtype) for _ in range(3)]
        for i in qd.range(n):
            a[i] = jnp.sin(x[i] * scale) * x[(i + 1) % n]
        for i in qd.range(n):
            b[i] = jnp.exp(-a[(i + 1) % n] * a[i])
            c[i] = jnp.cos(a[(i + 2) % n])
        return b, c

    run.__name__ = name
    return qd.jit(run)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_a_reverse_is_derived_once_and_joined_tasks_are_shared(work, target):
    f = scaled_chain({"cpu": 1.5, "sm_90": 1.75}[target], "once")
    qd.jit(jax.grad(lambda x: sum(y.sum() for y in f(x)))).lower(X, target=target).as_text("llvm")
    derived, passed = work
    assert derived == ["once"]
    assert passed == [("once", "TRACED", "JOINED"), ("once_kept", "CANONICAL", "FINAL"), ("once_r0", "TRACED", "FINAL")]


def test_a_reverse_of_another_machine_is_derived_for_it(work):
    f = scaled_chain(2.5, "other")
    spec = run_by(jax.grad(lambda x: sum(y.sum() for y in f(x))), X)[1].params["spec"]
    derived, _ = work
    gpu, cpu = (print_program(derived_for(spec, machine).program) for machine in (GPU, CPU))
    assert derived == ["other", "other"]  # one each
    assert gpu.count("_reverse") == cpu.count("_reverse") == 2


def test_a_reverse_of_fewer_results_is_derived_for_them(work):
    f = scaled_chain(3.5, "fewer")
    spec = run_by(jax.grad(lambda x: sum(y.sum() for y in f(x))), X)[1].params["spec"]
    less = replace(spec, out=(False, True))
    derived, _ = work
    made = derived_for(less, CPU).program
    assert derived == ["fewer"]
    assert len(made.params) == len(spec.program.params) + len(spec.residuals) + 1


def test_forward_mode_derives_no_reverse(work):
    f = scaled_chain(5.5, "forward")
    jax.jit(lambda x: jax.jvp(f, (x,), (x,))).lower(X)
    derived, passed = work
    assert derived == []
    assert [name for name, _, _ in passed] == ["forward", "forward_kept", "forward_d1"]


@pytest.mark.full
def test_tasks_run_again_if_the_reverse_of_joined_tasks_is_refused(monkeypatch):
    """Residuals are numbered by joined tasks, so the reverse of the user's own tasks takes none."""

    def refusing(program, linear, stacks, residuals, wanted):
        if residuals:
            raise qd.GradientError("refused")
        return own(program, linear, stacks, residuals, wanted)

    own = transpose.transpose
    monkeypatch.setattr(transpose, "transpose", refusing)
    f, same = scaled_chain(6.5, "refused"), scaled_chain(6.5, "given")
    total = lambda f: lambda x: sum((y**2).sum() for y in f(x))  # noqa: E731
    primal, reverse = ran(jax.grad(total(f)), X)
    assert primal == ["refused.0", "refused.1"]
    assert reverse == ["refused.0", "refused.1_reverse", "refused.0_reverse"]
    got = jax.grad(total(f))(X)
    monkeypatch.setattr(transpose, "transpose", own)
    np.testing.assert_allclose(got, jax.grad(total(same))(X), rtol=1e-14)


def test_a_loop_without_adjoints_is_not_walked_back():
    """No iterations of it are counted, and nothing is refused for their number."""

    @each
    def f(i, x, n):
        k, left = qd.local(0), qd.local(n[i])
        for _ in qd.while_(lambda left=left: left.value > 1):
            left.value = left.value // 2
            k.value = k.value + 1
        return x[i] * x[i] * k.value

    n = np.arange(5, dtype=np.int32)
    (call,) = run_by(jax.grad(lambda x: f(x, n).sum()), X)
    text = print_program(derived_for(call.params["spec"], CPU).program)
    assert (text.count("while"), "goes back through" in text) == (1, False)
    np.testing.assert_allclose(jax.grad(lambda x: f(x, n).sum())(X), 2 * X * [0, 0, 1, 1, 2], rtol=1e-12)


@pytest.mark.full
def test_a_batch_of_calls_with_residuals_runs_all_passes(work):
    f = scaled_chain(4.5, "many")
    xs = jnp.stack([X, 2 * X])
    got = jax.jit(jax.vmap(jax.grad(lambda x: sum(y.sum() for y in f(x)))))(xs)
    _, passed = work
    assert ("many_kept", "TRACED", "FINAL") in passed
    want = [jax.grad(lambda x: sum(y.sum() for y in f(x)))(x) for x in xs]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def chain_of_arrays(x, y):
    a = jnp.sin(x) * jnp.roll(x, -1)
    y = y * jnp.exp(-jnp.roll(a, -1) * a)
    return jnp.tanh(jnp.roll(y, -2)) * y


def loss(f):
    return lambda x, y: (f(x, y) ** 2).sum()


Y = np.cos(X)
REVERSE = ["third_reverse", "second_reverse", "first_reverse"]


def test_value_and_gradient_run_each_task_once():
    primal, derivative = ran(jax.value_and_grad(loss(chain), (0, 1)), X, Y)
    assert primal == ["first", "second", "third"]
    assert derivative == REVERSE


def test_a_gradient_alone_runs_what_the_reverse_needs():
    primal, derivative = ran(jax.grad(lambda x, y: chain(x, y).sum()), X, Y)
    assert primal == ["first", "second"]
    assert derivative == REVERSE


def test_a_linearized_function_runs_no_task_of_the_primal_again():
    _, linear = jax.linearize(chain, X, Y)
    (tangents,) = ran(linear, X, Y)
    assert tangents == ["first", "second", "third"]
    _, derivative = ran(lambda x, y: jax.jvp(chain, (x, y), (y, x)), X, Y)
    stored = qd.jit(chain).lower(X, Y)
    assert len(derivative) == len(stored.tasks)


@pytest.mark.parametrize(
    "unused",
    [
        lambda x, y: jax.vjp(chain, x, y)[0],
        lambda x, y: jax.linearize(chain, x, y)[0],
        lambda x, y: jax.value_and_grad(loss(chain))(x, y)[0],
    ],
    ids=["vjp", "linearize", "value_and_grad"],
)
def test_residuals_that_nobody_uses_are_dropped(unused):
    assert ran(unused, X, Y) == [["first", "second", "third"]]
    np.testing.assert_allclose(jax.jit(unused)(X, Y), unused(X, Y), rtol=1e-15)


def test_an_adjoint_that_nobody_uses_is_dropped():
    both, one = (ran(lambda x, y, n=n: jax.vjp(chain, x, y)[1](x)[:n], X, Y)[-1] for n in (2, 1))
    assert both == REVERSE
    assert one == REVERSE
    (only_y,) = ran(lambda x, y: jax.vjp(chain, x, y)[1](x)[1], X, Y)[1:]
    assert only_y == REVERSE[:2]


def test_one_task_has_none():
    @qd.jit
    def one(x):
        out = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0], name="only"):
            out[i] = jnp.sin(x[i])
        return out

    assert ran(jax.value_and_grad(lambda x: one(x).sum()), X) == [["only"], ["only_reverse"]]


@pytest.mark.full
def test_checkpoint_keeps_arguments_only():
    def held(f):
        return [x.shape for x in jax.tree.leaves(jax.vjp(f, X, Y)[1]) if x.shape]

    assert len(held(chain)) == 4
    assert len(held(jax.checkpoint(chain))) == 2
    got, want = (jax.grad(jax.checkpoint(loss(f)), (0, 1))(X, Y) for f in (chain, chain_of_arrays))
    np.testing.assert_allclose(got, want, rtol=1e-10)


TRANSFORMS = {
    "vjp": lambda f: lambda x, y: jax.vjp(f, x, y)[1](y),
    "jit of value_and_grad": lambda f: jax.jit(jax.value_and_grad(loss(f), (0, 1))),
    "linearize": lambda f: lambda x, y: jax.linearize(f, x, y)[1](y, x),
    "jvp": lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x)),
    "hessian": lambda f: jax.hessian(loss(f), (0, 1)),
    "reverse of reverse": lambda f: jax.jacrev(jax.grad(loss(f))),
    "jvp of linearize": lambda f: lambda x, y: jax.jvp(lambda x: jax.linearize(f, x, y)[1](y, x), (x,), (y,)),
    "jacrev": lambda f: jax.jacrev(f, (0, 1)),
    "vmap of grad": lambda f: lambda x, y: jax.vmap(jax.grad(loss(f), (0, 1)), (0, None))(jnp.stack([x, y]), y),
    "grad of vmap": lambda f: jax.grad(
        lambda x, y: jax.vmap(loss(f), (None, 0))(x, jnp.stack([y, 2 * y])).sum(), (0, 1)
    ),
    "checkpoint in scan": lambda f: jax.grad(
        lambda x, y: jax.lax.scan(jax.checkpoint(lambda s, _: (f(s, y), s.sum())), x, None, length=3)[0].sum(), (0, 1)
    ),
    "scan": lambda f: jax.value_and_grad(
        lambda x, y: jax.lax.scan(lambda s, _: (f(s, y), s.sum()), x, None, length=3)[0].sum(), (0, 1)
    ),
    "hessian of checkpoint": lambda f: jax.hessian(jax.checkpoint(loss(f))),
}


@pytest.mark.sample(full=3)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.full
def test_like_jax(name):
    transform = TRANSFORMS[name]
    got, want = transform(chain)(X, Y), jax.jit(transform(chain_of_arrays))(X, Y)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.full
def test_what_a_batch_shares_is_computed_and_kept_once():
    def batched(x, ys):
        return jax.vmap(jax.value_and_grad(loss(chain), 1), (None, 0))(x, ys)

    ys = np.stack([Y, 2 * Y, 3 * Y])
    call, derivative = run_by(batched, X, ys)
    assert sorted(v.aval.shape for v in call.outvars) == [(3, 5), (3, 5), (5,)]
    assert [v.aval.shape for v in derivative.outvars] == [(3, 5)]
    want = [jax.value_and_grad(loss(chain_of_arrays), 1)(X, y) for y in ys]
    values, gradients = batched(X, ys)
    np.testing.assert_allclose(values, [v for v, _ in want], rtol=1e-12)
    np.testing.assert_allclose(gradients, [g for _, g in want], rtol=1e-10)
