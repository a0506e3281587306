"""Cases of rules that move elements: shapes, indices, scatters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lax import lax as private

from .points import Points, between
from .table import SCALAR, SMALL, array, case

V, W, A = array("n"), array("n"), array(2, "n")
ONE = array()


def indices(count: int, low: int = -6, high: int = 9) -> Any:
    """Operands of indices, some of them out of bounds."""
    points: Points = between(low, high)
    return array(count, dtype=np.int32, points=points, kinds=("argument", "view"))


case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (3, *x.shape), (1,)), V)
case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (40,), ()), ONE, sizes=(SCALAR,))
case("concatenate", lambda x, y: lax.concatenate([x, y, x], 1), A, A)
case("pad", lambda x, p: lax.pad(x, p, [(0, 1, 0), (2, -1, 1)]), A, ONE)
case("reshape", lambda x: x.reshape(-1, 2), A)
case("reshape", lambda x: lax.reshape(x, (x.size,), dimensions=(1, 0)), A)
case("rev", lambda x: lax.rev(x, (0, 1)), A)
case("slice", lambda x: lax.slice(x, (0, 1), x.shape, (1, 2)), array(2, "n+1"))
case("split", lambda x: lax.split(x, (1, x.shape[0] - 1)), array("n+1"))
case("squeeze", lambda x: lax.squeeze(x, (0,)), array(1, "n"))
case("stack", lambda x, y: jnp.stack([x, y], 1), V, W)
case("unstack", lambda x: jnp.unstack(x, axis=0), A)
case("tile", lambda x: lax.tile(x, (2, 3)), A)
case("transpose", lambda x: lax.transpose(x, (1, 0)), A)
case("transpose", lambda x: lax.transpose(x, (2, 0, 1)), array(2, 3, "n"), sizes=SMALL)
case("iota", lambda x: x * lax.iota(np.int32, x.shape[0]).astype(x.dtype), V)
case("empty", lambda x: lax.empty(x.shape, x.dtype).at[...].set(x), V)
case("empty2", lambda x: private.empty2_p.bind(dtype=x.dtype, memory_space=jax.memory.Space.Device) * 0 + x, ONE,
     sizes=(SCALAR,))  # fmt: skip

case("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i[0],), (1,)), array("n+1"), indices(1))
case("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, x.shape[1] // 2)), A, indices(2))
case(
    "dynamic_update_slice", lambda x, u, i: lax.dynamic_update_slice(x, u, (i[0],)), array("n+1"), array(1), indices(1)
)
for _mode in ("clip", "fill", "promise_in_bounds"):
    _low = 0 if _mode == "promise_in_bounds" else -6
    _index = indices(4, _low, 9 if _low else 1)
    case("gather", lambda x, i, m=_mode: x.at[i].get(mode=m), array("n+1"), _index)
    case("gather", lambda x, i, m=_mode: x.at[:, i].get(mode=m), array(2, "n+1"), _index)
for _name in ("set", "add", "subtract", "multiply", "min", "max"):
    _rule = {"set": "scatter", "multiply": "scatter-mul", "subtract": "scatter-sub"}.get(_name, f"scatter-{_name}")
    # which of two updates of one element stays is not said, so a plain one has one index
    _count = 1 if _name == "set" else 4
    case(
        _rule, lambda x, u, i, a=_name: getattr(x.at[i], a)(u), array("n+1"), array(_count), indices(_count)
    )  # fmt: skip
    case(
        _rule, lambda x, u, i, a=_name: getattr(x.at[:, i], a)(u), array(2, "n+1"), array(2, _count), indices(_count)
    )  # fmt: skip
case("scatter", lambda x, i: x.at[i].apply(jnp.sin), array("n+1"), indices(1))
case("scatter-mul", lambda x, u, i: x.at[i].multiply(u, unique_indices=True), array("n+1"), array(1), indices(1))
