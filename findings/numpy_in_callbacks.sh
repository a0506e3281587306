#!/usr/bin/env bash
# jax and jaxlib 0.10.2 (CPU), numpy 2.2.6.
# The guess: NumPy computes in the function of `jax.pure_callback` what it computes elsewhere, and a pool of threads that the
# function starts is as any other pool.
# The behaviour: XLA runs the call with the processor's modes for small numbers (flush to zero, denormals as zeros) set, and
# does not restore them for the function. NumPy and SciPy take numbers below the smallest normal one for zeros there, also
# float64. A thread inherits the modes of the one that starts it: a pool whose thread begins in the function keeps them
# for its life, outside of any call of JAX, too. The thread that called JAX has its own modes back.
# Seen: "in the call [0.0, 0.0] its thread, later [0.0, 0.0] a new thread, later [1e-40, 1e-310] the caller, later
# [1e-40, 1e-310]" (shortened).
# Exits non-zero if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2 numpy==2.2.6
cat > "$folder/program.py" <<'PROGRAM'
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

pool, seen = ThreadPoolExecutor(1), {}


def products():
    """One times a subnormal number, in both precisions."""
    x = np.full(1, 1e-40, np.float32) * np.float32(1), np.full(1, 1e-310) * 1.0
    return [float(f"{v[0]:.3g}") for v in x]


def function(x):
    seen["in the call"] = products()
    pool.submit(products).result()  # starts the thread
    return x


result = jax.ShapeDtypeStruct((), jnp.float32)
jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(function, result, x))(1.0))
seen["its thread, later"] = pool.submit(products).result()
seen["a new thread, later"] = ThreadPoolExecutor(1).submit(products).result()
seen["the caller, later"] = products()
print(*(f"{where} {found}" for where, found in seen.items()))
flushed, kept = [0.0, 0.0], [1e-40, 1e-310]
assert list(seen.values()) == [flushed, flushed, kept, kept]
PROGRAM
JAX_PLATFORMS=cpu "$folder/env/bin/python" "$folder/program.py"
