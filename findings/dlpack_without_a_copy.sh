#!/usr/bin/env bash
# jax 0.10.2 (0.12.0.1 does the same).
# The guess: `jax.dlpack.from_dlpack(x, copy=False)` is an array on the memory of `x`, of its dtype, or it raises.
# The behaviour: outside of the x64 mode an array of 64 bits is taken, and the result is another array of 32 bits, without
# a warning: 2^40 + 7 becomes 7, and what is written into `x` afterwards is not seen. `copy=False` is asked of the buffer
# that DLPack hands over; the narrowing comes after it. With arrays of 32 bits the memory is that of `x`.
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
JAX_PLATFORMS=cpu "$folder/env/bin/python" -W error - <<'PROGRAM'
import jax
import numpy as np


def aligned(values, dtype):
    """An array at an address that XLA can use without a copy."""
    memory = np.empty(64 + 8 * len(values), np.uint8)
    first = -memory.ctypes.data % 64
    x = memory[first : first + np.dtype(dtype).itemsize * len(values)].view(dtype)
    x[:] = values
    return x


for dtype, values, narrow, is_same in (
    ("float32", [0.1, 0.2], "float32", True),
    ("float64", [0.1, 0.2], "float32", False),
    ("int32", [7, 8], "int32", True),
    ("int64", [2**40 + 7, 8], "int32", False),
):
    x = aligned(values, dtype)
    y = jax.dlpack.from_dlpack(x, copy=False)
    shared = y.unsafe_buffer_pointer() == x.ctypes.data
    print(dtype, "->", y.dtype, "same memory" if shared else "other memory", y.tolist())
    assert (y.dtype, shared) == (narrow, is_same)
    assert dtype != "int64" or y.tolist() == [7, 8]
PROGRAM
