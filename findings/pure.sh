#!/bin/sh
# jax 0.10.2: which static arguments of jax.jit share a trace.
#
# Guess: static values are compared by == and hash, so 1, 1.0 and True share a trace (as in functools.lru_cache); or else
# by type as well, so that none do.
# Behaviour: the type of a static value counts, but not that of what it holds; and equal values of one type share a trace
# whatever their bits are. 1 and True are traced apart, (1,) and (True,) are not, and -0.0 gets the program of 0.0: a
# function that asks for the type of an element or the sign of a zero gives the result of an earlier call, in silence.
#
# Output seen:
#   static 1, True: [3.0, 2.0]
#   static (1,), (True,): [3.0, 3.0], run without jit [3.0, 2.0]
#   static 0.0, -0.0: [1.0, 1.0], run without jit [1.0, -1.0]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -qq jax==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'EOF'
import math

import jax
import jax.numpy as jnp


def by_type(x, s):
    return x * (2.0 if type(s[0] if isinstance(s, tuple) else s) is bool else 3.0)


def by_sign(x, s):
    return x * math.copysign(1.0, s)


def both(f, *statics):
    compiled = jax.jit(f, static_argnums=1)
    x = jnp.ones(())
    return [float(compiled(x, s)) for s in statics], [float(f(x, s)) for s in statics]


plain, eager = both(by_type, 1, True)
print(f"static 1, True: {plain}")
assert plain == eager == [3.0, 2.0]
held, eager = both(by_type, (1,), (True,))
print(f"static (1,), (True,): {held}, run without jit {eager}")
assert (held, eager) == ([3.0, 3.0], [3.0, 2.0])
signs, eager = both(by_sign, 0.0, -0.0)
print(f"static 0.0, -0.0: {signs}, run without jit {eager}")
assert (signs, eager) == ([1.0, 1.0], [1.0, -1.0])
EOF
