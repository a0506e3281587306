#!/usr/bin/env bash
# jax 0.10.2.
# The guess: `jax.linear_transpose` refuses a function that is not linear, as it does for products, comparisons, `max`,
# `floor` and `sign` ("Transpose rule ... not implemented").
# The behaviour: a term that does not depend on the argument is dropped, and a step through integers is taken for zero,
# both without an error or a warning: g -> g + 1 has the transpose of g -> g, and g -> float(int(g)) that of g -> 0.
# <y, f(x)> = <transpose(y), x>, which defines a transpose, holds for neither. `jnp.floor` of the same g is refused.
# Seen: both sides 9.0 and 6.0 for g + 1, 6.0 and 0.0 for float(int(g)), with y = 1 and g = (1, 2, 3).
# Exits non-zero if that has changed. Needs Python 3.11 or newer, and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
newer() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
for python in python3 python3.11 python3.12 python3.13 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[123].*/bin/python; do
  if newer "$python"; then break; fi
done
newer "$python" || { echo "needs Python 3.11 to 3.13" >&2; exit 1; }
"$python" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q jax==0.10.2
JAX_PLATFORMS=cpu "$folder/env/bin/python" -W error - <<'PROGRAM'
import jax
import jax.numpy as jnp

g, y = jnp.array([1.0, 2.0, 3.0]), jnp.ones(3)
like = jax.ShapeDtypeStruct(g.shape, g.dtype)


def both_sides(f):
    (back,) = jax.linear_transpose(f, like)(y)
    return float(y @ f(g)), float(back @ g)


affine = both_sides(lambda g: g + 1)
whole = both_sides(lambda g: g.astype(jnp.int32).astype(jnp.float32))
print("g + 1: <y, f(g)>, <transpose(y), g> =", *affine)
print("float(int(g)): <y, f(g)>, <transpose(y), g> =", *whole)
assert both_sides(lambda g: 2 * g + jnp.roll(g, 1)) == (18.0, 18.0)  # of a linear function they are equal
assert affine == (9.0, 6.0), affine
assert whole == (6.0, 0.0), whole
for f in (jnp.floor, jnp.sign, lambda g: jnp.maximum(g, 0)):
    try:
        jax.linear_transpose(f, like)(y)
    except NotImplementedError:
        continue
    raise AssertionError("is transposed now")
PROGRAM
