#!/usr/bin/env bash
# jax 0.10.2, Pallas for GPUs (its Triton side).
# The guess: `jnp.maximum(x, y)` in a kernel is NaN where x or y is, as `jnp.maximum` is everywhere else in JAX, on all machines,
# and as the same kernel gives in the interpreter of Pallas (`interpret=True`), where kernels are tested without a GPU.
# The behaviour: for CUDA it is lowered to `arith.maxnumf`, whose result is the number if one operand is NaN; `arith.maximumf`
# would be NaN. So `jnp.maximum`, `jnp.minimum`, `jnp.clip` and `jax.nn.relu` of NaN give numbers there.
# Seen: interpreter nan; the lowered kernel has maxnumf and minnumf, no maximumf or minimumf. On an H200 (jax 0.11.2)
# relu(nan) was 0.0 and clip(nan, -1, 1) was -1.0 in a kernel, nan under jax.jit.
# Exits non-zero if that has changed. Needs Python 3.11 or newer, and a package index; no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
newer() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
for python in python3 python3.11 python3.12 python3.13 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[123].*/bin/python; do
  if newer "$python"; then break; fi
done
newer "$python" || { echo "needs Python 3.11 to 3.13" >&2; exit 1; }
"$python" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/env/bin/python" - <<'PROGRAM'
import re

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton


def call(operation, x, y, interpret=False):
    def kernel(a, b, out):
        out[...] = operation(a[...], b[...])

    params = triton.CompilerParams(num_warps=1)
    return pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=interpret, compiler_params=params
    )(x, y)


x, y = jnp.full(16, jnp.nan), jnp.ones(16)
for operation, word in ((jnp.maximum, "max"), (jnp.minimum, "min")):
    interpreted = float(call(operation, x, y, interpret=True)[0])
    lowered = jax.jit(lambda x, y, f=operation: call(f, x, y)).trace(x, y).lower(lowering_platforms=("cuda",)).as_text()
    found = sorted(set(re.findall(rf"{word}(?:num|imum)f", lowered)))
    print(operation.__name__, "jit:", float(jax.jit(operation)(x, y)[0]), "interpreter:", interpreted, "lowered:", found)
    assert interpreted != interpreted
    assert found == [f"{word}numf"]
PROGRAM
