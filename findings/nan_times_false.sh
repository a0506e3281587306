#!/bin/sh
# jax 0.10.2 (and 0.12.0.1): a product of floats and a mask of bools on the CPU.
#
# Guess: NaN * False and inf * False are NaN, as in NumPy and by IEEE 754, since the mask becomes 0.0 and 1.0; and code
# under jax.jit gives what the same lines give without it.
# Behaviour: XLA takes a product with a converted bool for a choice, so NaN and infinity times False are 0.0, and -2.0
# times False is 0.0 without its sign. `x * mask` does so without jit as well, as jnp.multiply converts and multiplies in
# one compiled function; `x * mask.astype(x.dtype)` gives NaN line by line and 0.0 under jax.jit. Who masks NaN out by a
# product sees it work in JAX and fail in NumPy, and between two lines of a notebook.
#
# Output seen:
#   NumPy: [nan, nan, -0.0]
#   jnp, x * mask: [0.0, 0.0, 0.0]
#   jnp, mask converted in a line of its own: [nan, nan, -0.0]
#   the same under jax.jit: [0.0, 0.0, 0.0]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -qq jax==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import numpy as np


def masked(x, mask):
    return x * mask.astype(x.dtype)


def shown(values):
    return str(np.asarray(values).tolist())


x, mask = np.array([np.nan, np.inf, -2.0], np.float32), np.zeros(3, bool)
with np.errstate(invalid="ignore"):
    by_numpy = shown(x * mask)
a, m = jnp.asarray(x), jnp.asarray(mask)
found = [by_numpy, shown(a * m), shown(masked(a, m)), shown(jax.jit(masked)(a, m))]
names = ["NumPy", "jnp, x * mask", "jnp, mask converted in a line of its own", "the same under jax.jit"]
for name, values in zip(names, found, strict=True):
    print(f"{name}: {values}")
kept, zeros = "[nan, nan, -0.0]", "[0.0, 0.0, 0.0]"
assert found == [kept, zeros, kept, zeros]
EOF
