#!/bin/sh
# jax 0.10.2 (and 0.12.0.1): the gradient of jax.scipy.linalg.solve(a, b, assume_a="pos") with a complex matrix.
#
# Guess: `assume_a` says by which factors a system is solved, and nothing about derivatives. The cotangent of b is the
# solution of a.T x = c for each of the kinds, as that of jnp.linalg.solve is.
# Behaviour: for "pos" JAX builds lax.custom_linear_solve(..., symmetric=True), whose transpose solves with `a` itself.
# A Hermitian matrix is equal to its transpose only if it is real, so cotangents of b, and of a, are those of the
# conjugated matrix: without a warning, and of the right size. Forward mode is right, so jax.jvp and jax.vjp of one
# function contradict each other. "her" and "gen" are right.
#
# Output seen (norm of the error of the cotangent, over its own):
#   gen: 0.0000
#   her: 0.0000
#   pos: 1.1457
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -qq jax==0.10.2
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import linalg

a = jnp.array([[3.0, 1j, 0.5], [-1j, 2.0, 1.0], [0.5, 1.0, 4.0]])
b, c = jnp.array([1.0, 2.0, 3j]), jnp.array([1.0, 1j, -1.0])
assert np.linalg.eigvalsh(a).min() > 0
errors = {}
for kind in ("gen", "her", "pos"):
    solve = lambda b, kind=kind: linalg.solve(a, b, assume_a=kind)
    assert jnp.allclose(a @ solve(b), b)
    (found,) = jax.vjp(solve, b)[1](c)
    want = jnp.linalg.solve(a.T, c)
    errors[kind] = float(jnp.linalg.norm(found - want) / jnp.linalg.norm(want))
    tangent = jax.jvp(solve, (b,), (jnp.ones(3, b.dtype),))[1]
    assert jnp.allclose(jnp.sum(c * tangent), jnp.sum(want)), "forward mode agrees with the right cotangent"
    print(f"{kind}: {errors[kind]:.4f}")
assert errors["gen"] < 1e-12 and errors["her"] < 1e-12 and errors["pos"] > 0.1
EOF
