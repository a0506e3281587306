"""What is written of a trace, and when: the program with its compiling, the key of its equations with a derivative."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import ad

import qdtrace as qd
from qdtrace.compose import pass_cache, source
from tests.compose.traces import HEAD, LOOP, X, forget, is_found, module, plain, reasons, run, same

TEXT = (
    HEAD + "def how(v):\n    return jnp.sin(v)\ndef f(x):\n" + LOOP + "x[i] = how(x[i]) * x[i] * W[i % 3]\n    return x"
)
WEIGHTS = np.array([1.0, 2.0, 3.0], np.float32)


def made(text=TEXT, **names):
    return module(text, **{"W": jnp.array(WEIGHTS), **names})


def gradient(f, *transforms, at=X):
    """The gradient as a process has it that has derived nothing, and how many functions were traced for it."""
    forget()
    before = qd.stats()
    g = qd.jit(f)
    for transform in transforms:
        g = transform(g)
    result = np.asarray(jax.grad(lambda x: g(x).sum())(at))
    return result, qd.stats() - before


def test_a_call_makes_no_key_of_equations(kept_traces, monkeypatch):
    monkeypatch.setattr(source, "equations_key", lambda *_: pytest.fail("equations are described"))
    run(made().f, X)
    _, work = run(made().f, X)
    assert is_found(work)


def test_the_graph_is_printed_once(kept_traces, monkeypatch):
    printed = []
    monkeypatch.setattr(
        pass_cache, "print_program", lambda p, own=pass_cache.print_program: printed.append(p) or own(p)
    )
    run(made().f, X)
    assert len(printed) == 1
    run(made().f, X)
    assert len(printed) == 1


def test_a_function_is_kept_when_it_is_compiled(kept_traces):
    lowered = qd.jit(made().f).lower(X)
    assert list(kept_traces.iterdir()) == []
    lowered.compile()
    _, work = run(made().f, X)
    assert is_found(work)


def test_what_is_kept_holds_no_tracer(kept_traces):
    for k in range(2):
        with jax.checking_leaks():
            _, work = run(made().f, X)
            jax.jit(qd.jit(made().f))(X)
            gradient(made().f)
        assert is_found(work) == bool(k)


USES = {
    "jit": lambda g: jax.jit(lambda x: g(x) + 1)(X),
    "vmap": lambda g: jax.vmap(g)(jnp.stack([X, X])),
    "jit of vmap": lambda g: jax.jit(jax.vmap(g))(jnp.stack([X, X])),
    "jit of vmap of vmap": lambda g: jax.jit(jax.vmap(jax.vmap(g)))(jnp.stack([X, X])[None]),
    "scan": lambda g: jax.lax.scan(lambda c, _: (g(c), None), X, None, 2),
    "jvp": lambda g: jax.jvp(g, (X,), (X,)),
    "grad": lambda g: jax.jit(jax.grad(lambda x: g(x).sum()))(X),
    "gradients of many": lambda g: jax.vmap(jax.grad(lambda x: g(x).sum()))(jnp.stack([X, X])),
    "gradient of many": lambda g: jax.grad(lambda x: jax.vmap(g)(x).sum())(jnp.stack([X, X])),
    "checkpoint": lambda g: jax.grad(lambda x: jax.checkpoint(g)(x).sum())(X),
    "executable": lambda g: jax.jit(g).lower(X).compile(),
}


@pytest.mark.parametrize("use", USES)
def test_a_function_is_kept_whatever_it_is_used_for(kept_traces, use):
    forget()
    USES[use](qd.jit(made().f))
    _, work = run(made().f, X)
    assert is_found(work)


def test_a_program_that_equals_another_is_kept(kept_traces):
    """It is not compiled: its code is that of the other."""
    text = HEAD + "def f(x, n):\n" + LOOP + "x[i] = x[i] * (3 if n else 3)\n    return x"
    for k in range(2):
        before = qd.stats()
        g = qd.jit(module(text).f, static_argnums=1)
        assert np.array_equal(g(X, 2), g(X, 5))
        assert (qd.stats() - before).traces == (0 if k else 2)


def test_what_is_compiled_without_its_limits_is_kept(kept_traces):
    """Code is the same for arrays with other limits, so its key is another one."""
    text = HEAD + "ROW = jnp.array([0, 2, 5])\ndef f(x):\n" + LOOP.replace("x.shape[0]", "2")
    text += "for k in qd.range(ROW[i], ROW[i + 1]):\n            x[i] += x[k + 2]\n    return x"
    for k in range(2):
        result, work = run(module(text).f, X)
        assert is_found(work) == bool(k)
        assert same(result, plain(module(text).f, X))


def test_programs_of_the_interpreter_are_not_kept(kept_traces):
    expected = plain(made().f, X)
    for _ in range(2):
        result, work = run(made().f, X, options={"debug": True})
        assert (work.traces, reasons(work), work.hits) == (1, set(), {})
        assert np.allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("transform", [None, jax.jit, jax.vmap])
def test_the_first_derivative_traces_and_the_next_does_not(kept_traces, transform):
    transforms, at = (transform,) if transform else (), jnp.stack([X, 2 * X]) if transform is jax.vmap else X
    with qd.options(offline_cache=False):
        expected, _ = gradient(made().f, *transforms, at=at)
    run(made().f, X)
    for k in range(3):
        result, work = gradient(made().f, *transforms, at=at)
        assert np.allclose(result, expected, rtol=1e-6)
        assert (work.traces, work.derivations, work.hits["traces"]) == (int(k == 0), int(k == 0), 1)


def test_a_derivative_in_the_process_that_traces(kept_traces):
    for k in range(2):
        _, work = gradient(made().f)
        assert (work.traces, work.derivations) == ((1, 1) if k == 0 else (0, 0))


def test_a_key_of_equations_that_is_damaged_is_made_anew(kept_traces):
    gradient(made().f)
    want, work = gradient(made().f)
    assert work.traces == 0
    for file in kept_traces.iterdir():
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    result, work = gradient(made().f)
    assert (work.traces, work.derivations) == (1, 1)
    assert same(result, want)


def test_an_array_that_is_changed_in_place_before_its_program_is_written(kept_traces):
    """An array of NumPy is shared with the trace, so it would be written with what it holds then."""
    weights = np.arange(4096.0, dtype=np.float32)
    text = TEXT.replace("W[i % 3]", "jnp.asarray(W)[i % 3]")
    changed = weights.copy()
    lowered = qd.jit(made(text, W=changed).f).lower(X)
    changed[:] = 7
    lowered.compile()
    result, work = run(made(text, W=weights).f, X)
    assert work.traces == 1
    assert same(result, plain(made(text, W=weights).f, X))


def test_an_array_that_is_changed_in_place_before_a_derivative(kept_traces):
    text = TEXT.replace("W[i % 3]", "(W[:3] * x[i])[1]")
    changed = WEIGHTS.copy()
    g = qd.jit(made(text, W=changed).f)
    g(X)
    changed[:] = 7
    jax.grad(lambda x: g(x).sum())(X)
    result, _ = gradient(made(text, W=WEIGHTS.copy()).f)
    with qd.options(offline_cache=False):
        assert same(result, gradient(made(text, W=WEIGHTS.copy()).f)[0])


def test_a_function_that_changed_before_its_program_was_written_is_told(kept_traces):
    m = made()
    lowered = qd.jit(m.f).lower(X)
    m.how = jnp.cos
    before = qd.stats()
    lowered.compile()
    assert reasons(qd.stats() - before) == {"changed since it was traced"}
    result, work = run(made().f, X)
    assert work.traces == 1
    assert same(result, plain(made().f, X))


def test_a_derivative_of_another_function_with_the_same_graph_is_refused(kept_traces):
    """The graph does not show `stop_gradient`."""
    run(made(how=None).f, X)
    m = made()
    g = qd.jit(m.f)
    g(X)
    m.how = module(HEAD + "def how(v):\n    return jax.lax.stop_gradient(jnp.sin(v))").how
    with pytest.raises(qd.TraceValueError, match="is another one now"):
        jax.grad(lambda x: g(x).sum())(X)


def test_batches_of_equal_graphs_with_other_derivatives(kept_traces):
    """Both programs are found, and so have no equations to compare."""
    texts = [TEXT, TEXT.replace("return jnp.sin(v)", "return jax.lax.stop_gradient(jnp.sin(v))")]
    many = jnp.stack([X, 2 * X])
    with qd.options(offline_cache=False):
        expected = [gradient(made(t).f, jax.vmap, at=many)[0] for t in texts]
    for text in texts:
        gradient(made(text).f)
    forget()
    functions = [qd.jit(made(t).f) for t in texts]
    staged = [next(e for e in jax.make_jaxpr(g)(X).eqns[0].params["jaxpr"].eqns).params["staged"] for g in functions]
    one, other = (s.batched((True,), 2)[0] if len(s.program.params) == 1 else s for s in staged)
    assert one.text == other.text
    assert one != other
    results = [np.asarray(jax.grad(lambda x, g=g: jax.vmap(g)(x).sum())(many)) for g in functions]
    for result, want in zip(results, expected, strict=True):
        assert np.allclose(result, want, rtol=1e-6)


PRODUCT = HEAD + "def f(x):\n" + LOOP
PRODUCT += "x[i] = (jnp.array([[x[i], 1.0]]) @ jnp.array([x[i], x[i]]))[0]\n    return x"


def pull_back(f):
    """What pulls a cotangent back, of a call under another setting than that under which it is called."""
    forget()
    with jax.default_matmul_precision("highest"):
        return jax.vjp(qd.jit(f), X)[1]


def test_a_derivative_is_made_under_the_settings_of_the_call(kept_traces):
    with jax.default_matmul_precision("highest"):
        run(module(PRODUCT).f, X)
    for k in range(2):
        before = qd.stats()
        (result,) = pull_back(module(PRODUCT).f)(jnp.ones_like(X))
        work = qd.stats() - before
        assert np.allclose(result, 2 * X + 1, rtol=1e-6)
        assert (work.traces, work.derivations, work.hits["traces"]) == (int(k == 0), int(k == 0), 1)


def test_other_equations_under_the_settings_of_the_derivative_are_refused(kept_traces):
    """What the derivative reaches was kept, and the derivative itself was not, so that the trace is a late one."""
    pull_back(module(PRODUCT).f)
    pull = pull_back(module(PRODUCT).f)
    with pytest.raises(qd.TraceValueError, match="is another one now"):
        pull(jnp.ones_like(X))


STOPPED = HEAD + "def f(x):\n    y = qd.zeros(x.shape, x.dtype)\n" + LOOP
STOPPED += "y[i] = jax.lax.stop_gradient(x[i])\n" + LOOP + "x[i] = y[i] * x[i]\n    return x, y"


def test_results_without_tangents_are_known_of_a_found_program(kept_traces):
    with qd.options(offline_cache=False):
        expected, _ = gradient(module(STOPPED).f, lambda g: lambda x: g(x)[0] + 3 * g(x)[1])
    for k in range(2):
        result, work = gradient(module(STOPPED).f, lambda g: lambda x: g(x)[0] + 3 * g(x)[1])
        assert same(result, expected)
        assert (work.traces, work.derivations) == ((1, 1) if k == 0 else (0, 0))


def test_a_rule_of_jax_that_is_replaced_after_a_derivative_was_kept(kept_traces, monkeypatch):
    for _ in range(2):
        gradient(made().f)
    with monkeypatch.context() as patch:
        patch.setitem(ad.primitive_jvps, lax.sin_p, lambda x, t, **how: (lax.sin_p.bind(*x, **how), 100 * t[0]))
        with qd.options(offline_cache=False):
            expected, _ = gradient(made().f)
        result, _ = gradient(made().f)
    assert same(result, expected)
    result, work = gradient(made().f)
    assert work.derivations == 0
    assert not same(result, expected)


def test_functions_with_rules_of_jax_are_found(kept_traces):
    """Their rules have no faithful description, so a process that wants a derivative traces."""
    text = HEAD + "def f(x):\n" + LOOP + "x[i] = jax.nn.relu(x[i] - X[2]) * x[i]\n    return x"
    with qd.options(offline_cache=False):
        expected, _ = gradient(module(text, X=X).f)
    run(module(text, X=X).f, X)
    _, work = run(module(text, X=X).f, X)
    assert is_found(work)
    for _ in range(2):
        result, work = gradient(module(text, X=X).f)
        assert same(result, expected)
        assert (work.traces, work.hits["traces"]) == (1, 1)
