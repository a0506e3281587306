"""A process with four devices, for `test_several_devices`: runs calls that fail on some of them, and prints as JSON
what each raised. The last failure is for the warning at the end of the process."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import qdtrace as qd

P = PartitionSpec
MESH = Mesh(np.array(jax.devices()), ("d",))
X = np.arange(16, dtype=np.float32)
GOOD, BAD = np.zeros(4, np.int32), np.array([0, 0, 3, 0], np.int32)
ALL_BAD = np.array([9, 9, 3, 9], np.int32)
ROWS = X.reshape(4, 4)


def shift(x, k):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = x[i + k]
    return out


def positive(x, k):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        qd.check(k == 0, "k is zero")
        out[i] = x[i]
    return out


def mapped(f, behind: str, **settings: Any):
    """The function over shards, with something behind it."""
    ends = {
        "sum": lambda y: jax.lax.psum(jnp.sum(y), "d"),
        "twice": lambda y: jax.lax.psum(jnp.sum(f(y - jax.lax.pmean(y, "d"), jnp.int32(0)) + y), "d"),
        "nothing": lambda y: y,
        "turned": lambda y: jax.lax.ppermute(y, "d", [(k, (k + 1) % 4) for k in range(4)]),
    }
    result = P("d") if behind in ("nothing", "turned") else P()
    run = lambda x, k: ends[behind](f(x, k[0]))  # noqa: E731
    return jax.jit(jax.shard_map(run, mesh=MESH, in_specs=(P("d"), P("d")), out_specs=result, **settings))


def outcome(call: Callable[[], Any]) -> str:
    """What a call raises, or that it raises nothing."""
    try:
        jax.block_until_ready(call())
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "nothing"


def cases() -> dict[str, Callable[[], Any]]:
    """Calls that fail, by name; each is made twice, and once rightly in between."""
    f, checked = qd.jit(shift), qd.jit(positive)
    debugged = qd.jit(shift, options={"debug": True})
    behind = {f"shard_map, {name}": mapped(f, name) for name in ("sum", "nothing", "turned", "twice")}
    behind |= {"check": mapped(checked, "sum"), "debug": mapped(debugged, "sum", check_vma=False)}
    behind["pmap"] = jax.pmap(lambda x, k: jax.lax.psum(f(x, k), "d"), axis_name="d")
    behind["in a loop"] = jax.jit(
        jax.shard_map(
            lambda x, k: jax.lax.fori_loop(0, 5, lambda _, y: jax.lax.psum(f(x, k[0]), "d"), x),
            mesh=MESH, in_specs=(P("d"), P("d")), out_specs=P(), check_vma=False,
        )
    )  # fmt: skip
    behind["gradient"] = jax.jit(
        jax.shard_map(
            lambda x, k: jax.grad(lambda y: jax.lax.psum(jnp.sum(f(y, k[0]) ** 2), "d"))(x),
            mesh=MESH, in_specs=(P("d"), P("d")), out_specs=P("d"),
        )
    )  # fmt: skip
    given: dict[str, Callable[[Any], Any]] = {
        name: (lambda k, g=g, x=ROWS if name == "pmap" else X: g(x, k)) for name, g in behind.items()
    }
    spread = NamedSharding(MESH, P("d"))
    x, outside = jax.device_put(X, spread), jax.jit(lambda x, k: jnp.sum(f(x, k.max())))
    given["sharded arrays"] = lambda k: outside(x, jax.device_put(k, spread))
    given["sharded arrays, directly"] = lambda k: f(x, jax.device_put(k, spread).max())
    given["compiled ahead"] = mapped(f, "sum").lower(X, GOOD).compile()
    given["compiled ahead"] = partial(given["compiled ahead"], X)
    given["one device"] = lambda k: jax.jit(f)(X, int(k.max()))
    return given


def main() -> None:
    """Runs all cases."""
    found: dict[str, object] = {}
    for name, call in cases().items():
        first = outcome(lambda: call(BAD))  # noqa: B023
        right = outcome(lambda: call(GOOD))  # noqa: B023
        second = outcome(lambda: call(BAD))  # noqa: B023
        found[name] = [first, right, second]
    g = mapped(qd.jit(shift), "sum")
    found["right after all"] = float(g(X, GOOD))
    try:
        g(X, ALL_BAD)
    except qd.BoundsError as error:
        found["several"] = [str(error).splitlines()[0], *getattr(error, "__notes__", ())]
    # JAX's own looks take the place of ours: then the next look is ours
    jax.config.update("jax_debug_nans", True)
    jax.config.update("jax_debug_nans", False)
    found["without a hook"] = [float(g(X, BAD)) >= 0, outcome(lambda: qd.block_until_ready(jnp.ones(2)))]
    g(X, BAD)
    found["next call"] = [outcome(lambda: qd.jit(shift)(X, 0)), outcome(lambda: qd.jit(shift)(X, 0))]
    print(json.dumps(found), flush=True)
    jax.block_until_ready(g(X, BAD))  # by JAX, which asks for no failure; what has not run by the end tells nothing


if __name__ == "__main__":
    main()
