"""The shim over JAX versions: the same answers on each."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import qdtrace as qd
from qdtrace import errors, tracebacks
from qdtrace.trace import compat, source

X = np.ones(4, np.float32)


def equations(function, *args):
    return compat.open_jaxpr(jax.make_jaxpr(function)(*args)).eqns


def test_effect_values_are_equal() -> None:
    assert compat.QdEffect() == compat.QD
    assert hash(compat.QdEffect()) == hash(compat.QD)
    assert compat.has_markers({compat.QD})
    assert not compat.has_markers(set())
    assert not compat.QdEffect() > compat.QD


def test_scan_counts() -> None:
    (eqn,) = equations(lambda x, y, c: lax.scan(lambda c, v: (c + y + v, v), c, x), X, 1.0, 2.0)
    assert compat.scan_counts(eqn.params) == (1, 1)


def test_inner_jaxprs_and_constants() -> None:
    (eqn,) = equations(lambda x: lax.cond(x[0] > 0, lambda: x, lambda: -x), X)[-1:]
    assert len(list(compat.inner_jaxprs(eqn))) == 2
    closed = jax.make_jaxpr(lambda x: x + np.arange(4.0, dtype=np.float32))(X)
    assert len(compat.constants_of(closed)) == len(compat.open_jaxpr(closed).constvars) == 1


def test_called_jaxprs() -> None:
    @jax.custom_jvp
    def f(x):
        return x * 2

    f.defjvp(lambda p, t: (f(*p), t[0]))

    @jax.custom_vjp
    def g(x):
        return x * 2

    g.defvjp(lambda x: (g(x), None), lambda r, ct: (ct,))
    for call in (jax.jit(jnp.sin), jax.checkpoint(jnp.sin), f, g):
        (eqn,) = equations(lambda x, call=call: call(x), X)
        inner = compat.open_jaxpr(compat.called_jaxpr(eqn))
        assert len(inner.invars) == 1
        assert len(inner.outvars) == 1
    (eqn,) = equations(lambda x: jnp.linalg.norm(x) if False else lax.sin(x), X)
    assert compat.called_jaxpr(eqn) is None


def test_hijax_primitives_are_lowered() -> None:
    def plain(jaxpr):
        for eqn in compat.open_jaxpr(jaxpr).eqns:
            if eqn.primitive.name == "call_hi_primitive" or type(eqn.primitive).__name__ == "HiPrimitive":
                lowered = compat.lower_hijax(eqn)
                assert len(compat.open_jaxpr(lowered).invars) == len(eqn.invars)
                plain(lowered)
            for inner in compat.inner_jaxprs(eqn):
                plain(inner)

    plain(jax.make_jaxpr(lambda x: jnp.searchsorted(x, 0.5))(X))


def test_markers_in_every_kind_of_call(tree) -> None:
    def body(x):
        @jax.custom_jvp
        def stores(v):
            x[0] = v
            return v

        stores.defjvp(lambda p, t: (p[0], t[0]))

        @jax.custom_vjp
        def loads(v):
            return v * x[1]

        loads.defvjp(lambda v: (v, None), lambda r, ct: (ct,))
        for i in qd.range(4):
            stores(x[i])
            jax.checkpoint(lambda v: x.at[2].set(v).shape and v)(1.0)
            x[i] = loads(x[i])
        return x

    assert tree(body, X) == "buffer\nfor\n  load\n  store\n  store\n  load\n  load\n  store\nread"


def test_places_in_the_source() -> None:
    (eqn,) = equations(lambda x: lax.sin(x), X)
    loc = source.eqn_loc(eqn)
    assert (loc.file, loc.function) == (__file__, "test_places_in_the_source.<locals>.<lambda>")
    assert loc.line == test_places_in_the_source.__code__.co_firstlineno + 1
    assert errors.user_loc().line == test_places_in_the_source.__code__.co_firstlineno + 5
    assert tracebacks.is_hidden(jax.__file__)
    assert tracebacks.is_hidden(source.__file__)
    assert not tracebacks.is_hidden(__file__)


def test_equal_code_in_two_files_has_two_places() -> None:
    made, files = [], ["one.py", "two.py", "one.py"]
    for file in files[:2]:
        names = {"lax": lax}
        exec(compile("def f(x):\n    return lax.sin(x)\n", file, "exec"), names)
        made.append(names["f"])
    assert made[0].__code__ == made[1].__code__
    places = [source.eqn_loc(eqn) for f in (*made, made[0]) for eqn in equations(f, X)]
    assert [(loc.file, loc.line) for loc in places] == [(file, 2) for file in files]
