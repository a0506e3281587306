"""A fresh process for `test_processes`: compiles programs into a cache folder and prints what happened as JSON.

Arguments: the folder of our artifacts, and one where JAX keeps what XLA compiled.
"""

import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lowering.backend import CpuBackend
from lowering.runtime.keys import compiler_version
from qdtrace.counters import counts
from tests.runtime.programs import affine, chain, total, uncached

SELDOM_NEEDED = ("lowering.simd.emit", "qdtrace.interpret.reference", "optree", "jax.extend")
"""Modules that cost a process much time to load, and that one with a warm cache does without."""


def work() -> dict[str, int]:
    """The pieces of code that were compiled, loaded and linked so far."""
    return {name: counts[name] for name in ("compiled", "loaded", "linked")}


def run(folder: str) -> dict[str, object]:
    """Names, values and counters of two programs."""
    options = uncached(offline_cache=True, offline_cache_dir=folder)
    first = CpuBackend().compile(chain(1000), options)
    values = jax.jit(first.call)(jnp.arange(1000, dtype=jnp.float32))[0]
    after_first = work()
    second = CpuBackend().compile(affine(50, 3.0), options)
    good = np.array_equal(values, np.arange(1000, dtype=np.float32) * 8 + 7)
    good = good and np.array_equal(second.call(np.ones(50, np.float32))[0], np.full(50, 4.0))
    return {
        "names": [first.target_name, second.target_name],
        "good": bool(good),
        "compiler": compiler_version(),
        "first": after_first,
        "both": work(),
        "loaded": [name for name in SELDOM_NEEDED if name in sys.modules],
        "sum": sum_in_threads(options),
        "all": work(),
        "sharded": sharded(chain(400_000)),
    }


def sum_in_threads(options) -> str:
    """The bits of a sum of floats."""
    x = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    (out,) = CpuBackend().compile(total(len(x)), options).call(x, np.float32(0))
    return np.asarray(out).tobytes().hex()


def sharded(program) -> list[object]:
    """Runs a program on every device at once, with threads; whether it is right, and whether anything was gathered."""
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    n = program.params[0].type.size * jax.device_count()
    x = jax.device_put(jnp.arange(n, dtype=jnp.float32) % 1000, jax.sharding.NamedSharding(mesh, spec))
    call = CpuBackend().compile(program, uncached()).call
    step = partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)(lambda part: call(part)[0])
    jitted = jax.jit(step)
    good = all(np.array_equal(jitted(x), np.arange(n, dtype=np.float32) % 1000 * 8 + 7) for _ in range(20))
    return [bool(good), "all-gather" in jitted.lower(x).compile().as_text()]


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", sys.argv[2])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    print(json.dumps(run(sys.argv[1])))
