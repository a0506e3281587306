"""A process with four devices, for `test_sharded_arrays`: calls over sharded arrays, with what XLA makes of them.

Prints as JSON, by name: the largest difference to the unsharded call, relative to its values, the numbers of
collectives by kind, and the axes that results are sharded along.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import qdtrace as qd

P = PartitionSpec
DEVICES = np.array(jax.devices())
ROW = Mesh(DEVICES, ("d",))
SQUARE = Mesh(DEVICES[[2, 0, 3, 1]].reshape(2, 2), ("a", "b"))
KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute")
found: dict[str, object] = {}


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(0.5, 2, shape).astype(np.float32)


def difference(got: Any, want: Any) -> float:
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)) / (1 + np.abs(b)))) for a, b in pairs)


def run(
    name: str, f: Callable[..., Any], args: Sequence[Any], specs: Sequence[Any], mesh: Mesh = ROW, **given: Any
) -> None:
    """Runs a function over arrays that are sharded, and notes what became of it."""
    want = jax.jit(given.pop("oracle", f))(*args)
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(args, specs, strict=True)]
    compiled = jax.jit(lambda *xs: f(*xs), **given).lower(*placed).compile()
    text = compiled.as_text()
    counts = {kind: len(re.findall(rf"= [^=\n]* {kind}(?:-start)?\(", text)) for kind in KINDS}
    got = compiled(*placed)
    axes = [[str(n) for n in x.sharding.spec] for x in jax.tree.leaves(got)]
    found[name] = [difference(got, want), {kind: n for kind, n in counts.items() if n}, axes]


def halved(x, y):
    """Each lane with its own number of steps, and a plain result."""
    return jax.lax.while_loop(lambda s: s > 0.1, lambda s: s * 0.5, x + y), x * y


def looked_up(x, k, table, p):
    def step(s, _):
        return jnp.sin(s * table[k] * p[0]), s * p[1]

    s, ys = jax.lax.scan(step, x, None, length=3)
    return s + ys.sum()


def cases() -> None:
    """Runs all cases."""
    x, y, table, p = values(8), values(8), values(16), values(2)
    k, d = np.arange(8) % 5, P("d")
    f = qd.vmap(halved)
    run("lanes", f, (x, y), (d, d))
    run("one of two", f, (x, y), (d, P()))
    run(
        "in the middle",
        qd.vmap(lambda x, y: (x * y[0], x @ x + y.sum()), (1, 2), (1, 0)),
        (values(3, 8), values(2, 3, 8)),
        (P(None, "d"), P(None, None, "d")),
    )
    run("two axes of a mesh", f, (x, y), (P(("b", "a")), P(("b", "a"))), SQUARE)
    run("half of a mesh", f, (x, y), (P("b"), P("b")), SQUARE)
    run("another axis", qd.vmap(lambda x: jnp.sin(x).sum()), (values(8, 4),), (P(None, "d"),))
    run(
        "not divisible",
        lambda x: qd.vmap(jnp.sin)(jax.lax.with_sharding_constraint(x, NamedSharding(ROW, d))),
        (values(6),),
        (P(),),
    )
    run("few lanes", qd.vmap(jnp.sin), (values(2),), (P(),))
    run("lanes of lanes", qd.vmap(qd.vmap(halved)), (values(8, 3), values(8, 3)), (d, d))
    run("inner lanes", jax.vmap(f), (values(3, 8), values(3, 8)), (P(None, "d"), P(None, "d")))
    run("donated", qd.vmap(lambda x: x * 2), (x,), (d,), donate_argnums=0)
    run(
        "nested",
        lambda x, y: jax.lax.scan(lambda c, _: (jax.jit(f)(c, y)[1], None), x, None, length=3)[0],
        (x, y),
        (d, d),
    )
    lanes = qd.vmap(looked_up, (0, 0, None, None))
    gradient = jax.grad(lambda *xs: (lanes(*xs) ** 2).sum(), (0, 2, 3))
    of_jax = jax.grad(lambda *xs: (jax.vmap(looked_up, (0, 0, None, None))(*xs) ** 2).sum(), (0, 2, 3))
    run("gradient", gradient, (x, k, table, p), (d, d, P(), P()), oracle=of_jax)
    run("gradient on a square", gradient, (x, k, table, p), (P("a"), P("a"), P(), P("b")), SQUARE, oracle=of_jax)
    run("Jacobian", jax.jacfwd(lambda x, p: qd.vmap(lambda x: jnp.sin(x * p).sum())(x), 1), (x, p), (d, P()))
    run(
        "keys",
        lambda k, x: qd.vmap(lambda k, x: x + jax.random.normal(k))(jax.random.wrap_key_data(k), x),
        (np.arange(16, dtype=np.uint32).reshape(8, 2), x),
        (d, d),
    )

    @qd.jit
    def numbered(x):
        for i in qd.range(x.shape[0]):
            x[i] *= i
        return x

    @qd.jit(options={"deterministic": True})
    def summed(x):
        total = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            total[()] += x[i]
        return total

    run("deterministic", summed, (x,), (d,))
    run("the number of a lane", numbered, (x,), (d,))

    @qd.jit
    def scaled(x):
        total, out = qd.zeros((), x.dtype), qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            total[()] += x[i]
        for i in qd.range(x.shape[0]):
            out[i] = x[i] / total[()]
        return out

    run("a sum that lanes read", scaled, (x,), (d,))
    tripled = qd.jit(lambda x: qd.vmap(lambda v: v * 3)(x), options={"portable": True})
    placed = jax.device_put(x, NamedSharding(ROW, d))
    saved = serialize(jax.jit(tripled).lower(placed).compile())
    found["saved"] = difference(deserialize_and_load(*saved)(placed), 3 * x)
    try:
        jax.jit(qd.jit(lambda x: f(x, x)[0], options={"codegen": "triton"}))(placed)
    except qd.BackendError as error:
        found["refused"] = str(error).splitlines()[0]


def drawn(seed: int) -> None:
    """Runs a function of random arrays, axes and shardings, and its gradient."""
    rng = np.random.default_rng(seed)
    mesh, count = (ROW, SQUARE)[rng.integers(2)], int(rng.choice([4, 6, 8]))
    args, axes, specs = [], [], []
    for n in range(int(rng.integers(1, 4))):
        shape = [int(rng.choice([2, 4])) for _ in range(rng.integers(0, 3))]
        axis = int(rng.integers(len(shape) + 1)) if n == 0 or rng.integers(3) else None
        if axis is not None:
            shape.insert(axis, count)
        free = list(mesh.axis_names)
        spec = []
        for side in shape:
            fits = [name for name in free if side % mesh.shape[name] == 0]
            spec.append(fits[rng.integers(len(fits))] if fits and rng.integers(3) else None)
            free = [name for name in free if name != spec[-1]]
        args.append(values(*shape))
        axes.append(axis)
        specs.append(P(*spec))

    def lane(*xs):
        total = sum(jnp.sin(x).sum() for x in xs)
        return jax.lax.fori_loop(0, 3, lambda _, s: jnp.sin(s) + total, total), xs[0] * total

    out = int(rng.integers(args[0].ndim))
    mapped, of_jax = (m(lane, axes, (0, out)) for m in (qd.vmap, jax.vmap))

    def both(g: Callable[..., Any]) -> Callable[..., Any]:
        return jax.value_and_grad(lambda *xs: sum((y**2).sum() for y in g(*xs)), tuple(range(len(args))))

    run(f"drawn {seed}", both(mapped), args, specs, mesh, oracle=both(of_jax))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for number in range(*map(int, sys.argv[1:])):
            drawn(number)
    else:
        cases()
    print(json.dumps(found))
