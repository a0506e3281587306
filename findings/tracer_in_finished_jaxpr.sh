#!/usr/bin/env bash
# jax 0.12.0.1 with equinox 0.13.8, lineax 0.1.1, optimistix 0.1.0.
# The guess: what `jax.make_jaxpr` returns is closed, so every constant of it, and of the jaxprs in its equations'
# parameters, is an array; two traces of one function can be compared constant by constant.
# The behaviour: the gradient of a root finder has a `linear_solve` equation (Lineax, through Equinox's primitives) whose
# parameter `static` is a tuple with a closed jaxpr in it, and that jaxpr has a *tracer* of the finished trace among its
# constants: two traces hold two tracers, which never are equal, and to compute with one is a leaked-tracer error. With jax
# 0.10.2 the same equation holds none.
# Seen: linear_solve static ['DynamicJaxprTracer']
# Exits non-zero if that has changed. Needs Python 3.12 or 3.13, and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
newer() { "$1" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
for python in python3 python3.13 python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[23].*/bin/python; do
  if newer "$python"; then break; fi
done
newer "$python" || { echo "needs Python 3.12 or 3.13" >&2; exit 1; }
"$python" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q jax==0.12.0.1 equinox==0.13.8 lineax==0.1.1 optimistix==0.1.0
"$folder/env/bin/python" - <<'PROGRAM'
import jax
import optimistix as ox


def root(a):
    bounds = {"lower": 0.0, "upper": 4.0}
    return ox.root_find(lambda y, a: y**3 + y - a, ox.Bisection(1e-6, 1e-6), 0.5, args=a, options=bounds).value


def jaxprs(value):
    if hasattr(value, "eqns"):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from jaxprs(one)


def held(jaxpr):
    """Yields (primitive, parameter, types of constants) of the jaxprs in parameters that have constants."""
    for eqn in jaxpr.eqns:
        for name, value in eqn.params.items():
            for inner in jaxprs(value):
                if kinds := [type(c).__name__ for c in getattr(inner, "consts", ())]:
                    yield eqn.primitive.name, name, kinds
                yield from held(getattr(inner, "jaxpr", inner))


closed = jax.make_jaxpr(jax.grad(root))(0.7)
found = [one for one in held(getattr(closed, "jaxpr", closed)) if any("Tracer" in kind for kind in one[2])]
for one in found:
    print(*one)
assert ("linear_solve", "static", ["DynamicJaxprTracer"]) in found
PROGRAM
