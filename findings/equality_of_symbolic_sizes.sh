#!/usr/bin/env bash
# jax 0.10.2.
# The guess: in a function that is exported with a symbolic size n, `if x.shape[0] == 1000` is an error, as
# `if x.shape[0] >= 1000` is (InconclusiveDimensionOperation), because the answer depends on the size.
# The behaviour: it is False, without an error or a warning. The exported function runs at 1000 and takes the branch of
# other sizes; the assumption is not checked when it is called.
# Seen: 2000.0 from the function itself for 1000 ones, 1000.0 from the exported one.
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
from jax import export

(n,) = export.symbolic_shape("n")
of_any_size = jax.ShapeDtypeStruct((n,), jnp.float32)


@jax.jit
def total(x):
    return x.sum() * (2 if x.shape[0] == 1000 else 1)


x = jnp.ones(1000)
direct, exported = float(total(x)), float(export.export(total)(of_any_size).call(x))
print("total of 1000 ones:", direct, "exported with a symbolic size:", exported)
assert (direct, exported) == (2000.0, 1000.0), (direct, exported)
try:
    export.export(jax.jit(lambda x: x.sum() * (2 if x.shape[0] >= 1000 else 1)))(of_any_size)
except Exception as error:
    assert "InconclusiveDimensionOperation" in type(error).__name__, error
else:
    raise AssertionError("an order is decided now")
PROGRAM
