"""Keys of tangents: equal for equal functions wherever they stand, others for all that JAX's rules may depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import ad

import qdtrace as qd
from qdtrace.compose import source_key
from qdtrace.compose.linearised import tangents_key
from qdtrace.compose.source import Source
from qdtrace.compose.source_key import LARGE, Description
from qdtrace.errors import Loc
from qdtrace.ir.printer import print_program
from qdtrace.ir.types import DType
from qdtrace.trace import compat
from tests.compose.traces import forget

X = np.linspace(0.1, 1, 6)


@pytest.fixture(autouse=True)
def no_import_rules(monkeypatch):
    """Other tests of this process leave some."""
    monkeypatch.setattr(source_key, "TAUGHT", {})


BODY = """
def f(x):
    y = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        y[i] = {value}
    for i in qd.range(x.shape[0]{hints}):
        with qd.when(y[i] {test} 0):
            x[i] = y[(i + 1) % x.shape[0]] * {last}
    return x
"""
PLAIN = {"value": "jnp.sin(x[i])", "hints": "", "test": ">", "last": "x[i]"}


def _function(above: str = "", captured=2.0, **changed):
    names = {"qd": qd, "jnp": jnp, "lax": lax, "jax": jax, "c": captured, "part": _part, "ruled": ruled}
    exec(compile(above + BODY.format(**{**PLAIN, **changed}), "body.py", "exec"), names)
    return names["f"]


def _part(v):
    return jnp.where(v > 0, v, 2 * v)


def _staged(f, x=X):
    jaxpr = jax.make_jaxpr(qd.jit(f))(x).jaxpr
    (staged,) = [e.params["staged"] for e in compat.all_eqns(jaxpr.eqns) if "staged" in e.params]
    return staged


def _key(*args, x=X, **changed):
    return tangents_key(_staged(_function(*args, **changed), x))


def test_equal_functions_have_one_key():
    for changed in ({}, {"value": "part(x[i]) + c"}, {"last": "lax.fori_loop(0, 3, lambda k, v: v * c, x[i])"}):
        key, moved = _key(**changed), _key("\n# above\n\n", **changed)
        assert key.reason == ""
        assert key.digest == moved.digest
        lines, others = [loc.line for loc in key.locs], [loc.line for loc in moved.locs]
        assert {b - a for a, b in zip(lines, others, strict=True)} - {0} == {3}  # `part` stays


OTHERS = {
    "no derivative": {"value": "lax.stop_gradient(jnp.sin(x[i]))"},
    "function": {"value": "jnp.cos(x[i])"},
    "power": {"value": "jnp.sin(x[i]) ** 3"},
    "constant": {"value": "jnp.sin(x[i]) * 3.0"},
    "captured number": {"value": "jnp.sin(x[i]) * c"},
    "captured array": {"value": "jnp.sin(x[i]) * c[i]", "captured": jnp.arange(6.0)},
    "captured array of NumPy": {"value": "jnp.sin(x[i]) * jnp.asarray(c)[i]", "captured": np.arange(6.0)},
    "condition": {"test": "<"},
    "hint": {"hints": ", block_dim=64"},
    "sides of a tie": {"value": "jnp.maximum(x[i], c)"},
    "other sides of a tie": {"value": "jnp.where(x[i] > c, x[i], c)"},
    "branches": {"value": "lax.cond(x[i] > 0, jnp.sin, jnp.cos, x[i])"},
    "exchanged branches": {"value": "lax.cond(x[i] > 0, jnp.cos, jnp.sin, x[i])"},
    "loop": {"value": "lax.fori_loop(0, 3, lambda k, v: jnp.sin(v), x[i])"},
    "longer loop": {"value": "lax.fori_loop(0, 4, lambda k, v: jnp.sin(v), x[i])"},
    "helper": {"value": "part(x[i])"},
}


@pytest.mark.full
def test_others_have_other_keys():
    keys = {name: _key(**changed) for name, changed in OTHERS.items()}
    keys |= {"plain": _key(), "float16": _key(x=X.astype(np.float16)), "shape": _key(x=X[1:])}
    with jax.default_matmul_precision("highest"):
        keys["setting"] = _key()
    with jax.numpy_dtype_promotion("strict"):
        keys["promotion"] = _key()
    assert {key.reason for key in keys.values()} == {""}
    assert len({key.digest for key in keys.values()}) == len(keys)


def test_content_of_a_parameter_is_no_part_of_a_key():
    value = "jnp.sin(x[i]) * c[i]"
    one, other = (_key(value=value, captured=jnp.arange(6.0).at[3].set(k)) for k in (3.0, -3.0))
    assert one.digest == other.digest


def test_a_graph_alone_does_not_decide_its_derivative():
    """Otherwise the key of the graph would do."""
    one, other = (_staged(_function(value=v)) for v in ("jnp.sin(x[i])", "lax.stop_gradient(jnp.sin(x[i]))"))
    assert print_program(one.program) == print_program(other.program)
    assert one.source.key.digest != other.source.key.digest
    assert one.key.digest == other.key.digest
    assert one != other


def test_equal_programs_are_of_equal_sources():
    """Known values and lines count in this process, too; what has no faithful description is told by its identity."""
    one, same = _staged(_function(value="ruled(x[i])")), _staged(_function(value="ruled(x[i])"))
    assert (one.key.digest, one.rules) == (same.key.digest, same.rules)
    assert one == one
    assert one != same  # each trace of the rule is an object of its own
    assert _staged(_function()) == _staged(_function())
    assert _staged(_function()) != _staged(_function("\n"))
    for changed in ({"value": "x[i] * c", "captured": v} for v in (2.0, 3.0, np.float32(2), jnp.arange(6.0)[2])):
        assert _staged(_function(**changed)) == _staged(_function(**changed))
    two, three = (_staged(_function(value="x[i] * c", captured=v)) for v in (2.0, 3.0))
    assert two != three


@jax.custom_jvp
def ruled(v):
    return v * v


ruled.defjvp(lambda x, t: (ruled(x[0]), 3.0 * x[0] * t[0]))


@jax.custom_vjp
def pulled(v):
    return v * v


pulled.defvjp(lambda v: (pulled(v), v), lambda v, g: (3.0 * v * g,))


@pytest.mark.parametrize("what", ["custom_jvp", "custom_vjp", "custom_jvp in jit"])
def test_what_has_no_faithful_description_has_no_key(what):
    functions = {
        "custom_jvp": lambda x: ruled(x),
        "custom_vjp": lambda x: pulled(x),
        "custom_jvp in jit": jax.jit(lambda v: ruled(v)),
    }
    g = functions[what]

    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] = g(x[i])
        return x

    key = tangents_key(_staged(f))
    assert key.reason == f"primitive {what.split(' ')[0]}_call"
    assert (key.digest, key.locs) == ("", ())


VALUES = [0.0, -0.0, 0, False, None, "0", b"0", 1 + 0j, np.float32(0), np.float64(0), np.zeros(1), np.zeros((1, 1))]
VALUES += [jnp.float32(0), (), [], (0,), [0], {}, {"a": 0}, {"a": 1}, np.dtype("f4"), np.dtype(">f4"), np.float32]
VALUES += [np.arange(100), np.arange(100).astype(">i8"), np.arange(100)[::-1], Loc("a.py", 1), Loc("a.py", 2)]
VALUES += [jnp.zeros(1, jnp.bfloat16), np.zeros(1, np.float16), np.zeros(1, np.uint16), DType.f32]
VALUES += [lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP]


def test_values_that_differ_are_described_apart():
    description = Description()
    texts = [repr(description.value(v)) for v in VALUES]
    assert len(set(texts)) == len(texts)
    assert texts == [repr(description.value(v)) for v in VALUES]


def test_values_without_a_description():
    for value, reason in (
        (lambda: 0, "function in an equation"),
        (object(), "object in an equation"),
        (np.ones(LARGE + 1, np.uint8), "large array"),
        (jax.random.key(0), "array of key<fry>"),
        ({1, 2}, "set in an equation"),
    ):
        description = Description()
        assert description.value(value) == ("object", id(value))
        assert description.reason == reason


def test_rules_of_users_that_import_are_no_part_of_a_key(monkeypatch):
    monkeypatch.setattr(source_key, "TAUGHT", {"own_of_a_test": lambda v: v})
    assert _key().reason == "import rule of the user"


def test_a_rule_of_jax_that_was_replaced_has_no_key(monkeypatch):
    assert _key().reason == ""
    monkeypatch.setitem(ad.primitive_jvps, lax.sin_p, lambda x, t: (lax.sin_p.bind(*x), t[0]))
    assert _key().reason == "primitive sin"


@pytest.mark.full
def test_a_second_process_does_not_ask_jax_for_tangents(tmp_path, monkeypatch):
    def gradient(x):
        return jax.jit(jax.grad(lambda x: qd.jit(_function(value="part(x[i]) * c", captured=2.5))(x).sum()))(x)

    kept = {"offline_cache_passes": True, "offline_cache_dir": tmp_path}
    with qd.options(offline_cache=True, **kept):
        want = gradient(X)
        forget()

        def refused(*args):
            raise AssertionError("JAX is asked for tangents")

        monkeypatch.setattr(Source, "_made_along", refused)
        before = qd.stats()
        np.testing.assert_array_equal(gradient(X), want)
        assert (qd.stats() - before).misses == {}
