"""A process that runs with JAX's cache on disk; prints what came out, and how often the cache had it, as JSON."""

import json

import jax
import jax.numpy as jnp

import qdtrace as qd

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
hits: list[str] = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
x = jnp.arange(1.0, 3.0)


@jax.jit
def double(x):
    return qd.vmap(lambda a: 2 * a)(x)


value, slope = double(x).tolist(), jax.jit(jax.grad(lambda x: double(x).sum()))(x).tolist()
print(json.dumps({"value": value, "grad": slope, "hits": len(hits)}))
