#!/usr/bin/env bash
# jax 0.10.2 (0.12.0.1 does the same).
# The guess: an array of 64 bits that was made in a block of `jax.enable_x64(True)` has 64 bits for good, as types follow
# from operands; or else whatever reads it outside of the block narrows it.
# The behaviour: it depends on the function, eagerly and under `jax.jit`. `jnp.sin(x)`, `x * x`, `jnp.add(x, x)`,
# `jnp.zeros_like(x)`, `x[0]`, `x.at[0].set(...)` and derivatives keep 64 bits. With a Python number beside it (`x + 1`,
# `jnp.where(x > 0, x, 0.0)`, `jnp.clip(x, 0, 1)`) the result has 32 bits, without a warning; so has `jnp.sum(x)`, and so
# has `x.astype(x.dtype)`, which warns. `jax.eval_shape` of a `ShapeDtypeStruct` of float64 says float32, of the array
# float64; a loop that carries `s * 2` is refused, as its carry changes type.
# Seen: the lines that the program prints.
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
JAX_PLATFORMS=cpu "$folder/env/bin/python" -W ignore - <<'PROGRAM'
import jax
import jax.numpy as jnp
import numpy as np

with jax.enable_x64(True):
    x = jnp.array([0.1, 0.2])

calls = {
    "float64": {
        "sin": jnp.sin, "x * x": lambda x: x * x, "add": lambda x: jnp.add(x, x), "zeros_like": jnp.zeros_like,
        "x[0]": lambda x: x[0], "at": lambda x: x.at[0].set(x[1]), "gradient": jax.grad(lambda x: (x * x)[0]),
    },
    "float32": {
        "x + 1": lambda x: x + 1, "where": lambda x: jnp.where(x > 0, x, 0.0), "clip": lambda x: jnp.clip(x, 0, 1),
        "sum": jnp.sum, "astype": lambda x: x.astype(x.dtype),
    },
}
for dtype, functions in calls.items():
    for name, f in functions.items():
        print(name, f(x).dtype, jax.jit(f)(x).dtype)
        assert f(x).dtype == jax.jit(f)(x).dtype == dtype
shape = jax.ShapeDtypeStruct((2,), np.float64)
print("eval_shape", *(jax.eval_shape(lambda x: x, a).dtype for a in (shape, x)))
assert [jax.eval_shape(lambda x: x, a).dtype for a in (shape, x)] == ["float32", "float64"]
try:
    jax.lax.fori_loop(0, 3, lambda i, s: s * 2, x)
except TypeError as error:
    print("fori_loop", type(error).__name__)
else:
    raise AssertionError("the loop is taken")
PROGRAM
