#!/usr/bin/env bash
# jax and jaxlib 0.10.2 (CPU), numpy 2.2.6.
# The guess: `jnp.sort` of finite float32 numbers returns them in ascending order, as `np.sort` does, and `jnp.unique` keeps
# numbers that differ. Only NaN and the sign of zero need care.
# The behaviour: on a CPU XLA's comparisons run with denormals as zeros. All numbers below the smallest normal one (1.2e-38)
# are then equal to each other and to zero, also a negative and a positive one: a stable sort leaves them where they are,
# `argsort` is the identity, and `unique` keeps one of them. Sorting the bits as integers is not affected.
# Seen: "jax [3.e-40, 1.e-40, 2.e-40, -1.e-40] argsort [0, 1, 2, 3] unique 1", "numpy [-1.e-40, 1.e-40, 2.e-40, 3.e-40]
# argsort [3, 1, 2, 0] unique 4" (shortened).
# Exits non-zero if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2 numpy==2.2.6
cat > "$folder/program.py" <<'PROGRAM'
import jax.numpy as jnp
import numpy as np

x = np.array([3e-40, 1e-40, 2e-40, -1e-40], np.float32)
print("jax", np.asarray(jnp.sort(x)), "argsort", jnp.argsort(x).tolist(), "unique", len(jnp.unique(x)))
print("numpy", np.sort(x), "argsort", np.argsort(x).tolist(), "unique", len(np.unique(x)))
assert np.array_equal(np.asarray(jnp.sort(x)), x)
assert jnp.argsort(x).tolist() == [0, 1, 2, 3]
assert len(jnp.unique(x)) == 1
assert np.argsort(x).tolist() == [3, 1, 2, 0]
assert len(np.unique(x)) == 4
PROGRAM
JAX_PLATFORMS=cpu "$folder/env/bin/python" "$folder/program.py"
