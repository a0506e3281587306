"""A process that loads what another one saved: `saved_child.py FOLDER`; prints what came out as JSON."""

import json
import pickle
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import export
from jax.experimental import serialize_executable

import qdtrace as qd

folder = Path(sys.argv[1])
x, k = jnp.arange(1.0, 5.0), jnp.arange(4)


def load(name: str):
    return export.deserialize(bytearray((folder / name).read_bytes()))


found = {"loaded": sorted(m for m in sys.modules if m == "lowering" or m == "llvmlite")}
roots = load("roots")
found["value"] = roots.call(x).tolist()
found["again"] = jax.jit(lambda x: roots.call(x) + roots.call(x))(x).tolist()
found["grad"] = jax.grad(lambda x: roots.call(x).sum())(x).tolist()
found["grad alone"] = load("grad").call(x).tolist()
found["tasks"] = load("tasks").call(x, k).tolist()
try:
    jax.block_until_ready(load("tasks").call(x, k + 1))
except Exception as error:
    found["fault"] = str(error)
run = serialize_executable.deserialize_and_load(*pickle.loads((folder / "executable").read_bytes()))
found["executable"] = run(x).tolist()
(folder / "damaged").write_bytes((folder / "executable").read_bytes().replace(b"0.1.0", b"0.1.9"))
try:
    serialize_executable.deserialize_and_load(*pickle.loads((folder / "damaged").read_bytes()))
except Exception as error:
    found["damaged"] = str(error)
found["here"] = qd.vmap(lambda a: a * 2)(x).tolist()
print(json.dumps(found))
