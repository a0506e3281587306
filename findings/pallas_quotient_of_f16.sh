#!/usr/bin/env bash
# jax 0.10.2, Pallas for GPUs (its Triton side).
# The guess: a kernel that divides two f16 or bf16 arrays lowers for CUDA, as one that adds or multiplies them does; it runs in
# the interpreter of Pallas (`interpret=True`), where kernels are tested without a GPU.
# The behaviour: the quotient of short floats has no lowering, so the call fails only when it is lowered for a GPU, with
# NotImplementedError. Sums and products of them lower, and so does the quotient of f32.
# Seen: f32 lowers / + *; f16 and bf16: interpreter gives 0.5, + and * lower, / raises "unsupported types: tensor<16xf16> ...".
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
import operator

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


def lowers(operation, x, y):
    try:
        jax.jit(lambda x, y: call(operation, x, y)).trace(x, y).lower(lowering_platforms=("cuda",))
    except NotImplementedError as error:
        print("   ", str(error).splitlines()[0])
        return False
    return True


for dtype in ("float32", "float16", "bfloat16"):
    x, y = jnp.ones(16, dtype), jnp.full(16, 2, dtype)
    quotient = float(call(operator.truediv, x, y, interpret=True)[0])
    found = {o.__name__: lowers(o, x, y) for o in (operator.add, operator.mul, operator.truediv)}
    print(dtype, "interpreter:", quotient, "lowers for CUDA:", found)
    assert quotient == 0.5
    assert found == {"add": True, "mul": True, "truediv": dtype == "float32"}
PROGRAM
