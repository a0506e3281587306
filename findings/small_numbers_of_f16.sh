#!/bin/sh
# jax 0.10.2 (and 0.12.0.1): lax.reduce_precision to the format of f16, and a conversion to f16 and back, on the CPU.
#
# Guess: reduce_precision(x, 5, 10) is x.astype(float16).astype(float32), as its documentation names the bits of the
# format; and numbers of f32 below the smallest normal one are the only ones that XLA may take for zeros.
# Behaviour: numbers that f16 has as subnormal ones (6e-8 to 6.1e-5), which are normal in f32, become zeros; the
# conversion keeps them. Who tests training in f16 by rounding in f32 loses gradients that f16 would have.
#
# Output seen:
#   converted: [1.0013580322265625e-05, -1.0013580322265625e-05, 6.198883056640625e-05]
#   reduced: [0.0, -0.0, 6.198883056640625e-05]
#   reduced under jax.jit: [0.0, -0.0, 6.198883056640625e-05]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -qq jax==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import numpy as np

x = jnp.array([1e-5, -1e-5, 6.2e-5], jnp.float32)
converted = x.astype(jnp.float16).astype(jnp.float32)
reduced = jax.lax.reduce_precision(x, 5, 10)
compiled = jax.jit(lambda x: jax.lax.reduce_precision(x, 5, 10))(x)
for name, found in (("converted", converted), ("reduced", reduced), ("reduced under jax.jit", compiled)):
    print(f"{name}: {np.asarray(found).tolist()}")
assert np.all(np.asarray(converted) != 0)
for found in (reduced, compiled):
    assert np.asarray(found)[:2].tolist() == [0, 0]
    assert np.signbit(np.asarray(found)).tolist() == [False, True, False]
EOF
