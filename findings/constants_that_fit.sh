#!/bin/sh
# jax 0.10.2 (and 0.12.0.1): a Python number beside an array of a narrow or unsigned type, without x64.
#
# Guess: a Python number takes the type of the array beside it, as in NumPy 2: what the type holds is right, what it does
# not hold is an error, and comparisons are those of the numbers. So `h * 0x9E3779B9` of a uint32, the line that most
# hashes have, is a uint32; `int8 + 300` is refused; `uint8(50) < 300` is True.
# Behaviour: the other way round. A number is held against int32, whatever stands beside it: operators, comparisons and
# `jnp.where` of a uint32 and 0x9E3779B9 raise OverflowError, with jit and without, although the type holds it. What fits
# int32 and not the type wraps without a word: `jnp.int8(3) + 300` is 47, `jnp.uint8(50) < 300` is False, and
# `jnp.clip(x, 0, 300)`, which should change no uint8, makes 44 of 200. Functions that are told the type
# (`jnp.full(2, c, jnp.uint32)`) take the large number.
#
# Output seen:
#   NumPy: [3668340011, 'OverflowError', True, 200]
#   JAX: ['OverflowError', 47, False, 44]
#   JAX under jit: ['OverflowError', 47, False, 44]
#   jnp.full: 2654435769
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -qq jax==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'EOF'
import jax
import jax.numpy as jnp
import numpy as np

LARGE = 0x9E3779B9
CASES = [
    ("uint32", 3, lambda xp, x: x * LARGE),
    ("int8", 3, lambda xp, x: x + 300),
    ("uint8", 50, lambda xp, x: x < 300),
    ("uint8", 200, lambda xp, x: xp.clip(x, 0, 300)),
]


def values(xp, change):
    found = []
    for dtype, number, function in CASES:
        try:
            found.append(np.asarray(change(lambda x, f=function: f(xp, x))(xp.asarray(number, dtype))).item())
        except OverflowError as error:
            found.append(type(error).__name__)
    return found


with np.errstate(over="ignore"):
    by_numpy = values(np, lambda f: f)
eager, jitted = values(jnp, lambda f: f), values(jnp, jax.jit)
told = int(jnp.full(1, LARGE, jnp.uint32)[0])
print(f"NumPy: {by_numpy}\nJAX: {eager}\nJAX under jit: {jitted}\njnp.full: {told}")
assert by_numpy == [3 * LARGE % 2**32, "OverflowError", True, 200]
assert eager == jitted == ["OverflowError", 47, False, 44]
assert told == LARGE
EOF
