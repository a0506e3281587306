"""One of several processes that compute together: `machine_child.py ADDRESS COUNT NUMBER`; prints JSON."""

import json
import sys
from functools import partial

import jax

address, count, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(coordinator_address=address, num_processes=count, process_id=number)

import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import qdtrace as qd

mesh = jax.make_mesh((jax.device_count(),), ("lanes",), axis_types=(AxisType.Auto,))
split, whole = NamedSharding(mesh, PartitionSpec("lanes")), NamedSharding(mesh, PartitionSpec())
rows = 8
everything = np.linspace(1.0, 4.0, rows, dtype=np.float32)
mine = everything.reshape(count, -1)[number]
starts = jax.make_array_from_process_local_data(split, mine)
rate = jax.device_put(np.float32(0.5), whole)


def end(rate, start):
    return jax.lax.while_loop(lambda y: y > 1.0, lambda y: y * rate, start)


@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("lanes")), out_specs=PartitionSpec())
def mean(rate, starts):
    return jax.lax.pmean(qd.vmap(end, (None, 0))(rate, starts).mean(), "lanes")


@partial(jax.jit, out_shardings=whole)
def mean_of_arrays(rate, starts):
    return qd.vmap(end, (None, 0))(rate, starts).mean()


@qd.jit
def picked(x, k):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = x[i + k[i]]
    return out


@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("lanes"), out_specs=PartitionSpec())
def total(x):
    own = jax.lax.axis_index("lanes") == count - 1  # only the last one is outside of its array
    return jax.lax.psum(picked(x, jnp.where(own, 1, 0) * jnp.ones(x.shape, jnp.int32)).sum(), "lanes")


slope = jax.jit(jax.grad(mean))
found = {"devices": jax.device_count(), "mean": float(mean(rate, starts)), "slope": float(slope(rate, starts))}
found["arrays"] = float(mean_of_arrays(rate, starts))
found["slope of arrays"] = float(jax.jit(jax.grad(mean_of_arrays), out_shardings=whole)(rate, starts))
try:
    qd.block_until_ready(total(starts))  # once: one more would wait for the process that failed
    found["fault"] = ""
except Exception as error:
    found["fault"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
