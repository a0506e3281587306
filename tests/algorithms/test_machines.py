"""What algorithms are on other machines, and in the interpreter, which looks for races and memory that nothing set."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.algorithms.sorted import LEAST

X = np.random.default_rng(0).normal(size=LEAST).astype(np.float32)


def everything(x: Any) -> Any:
    return qd.sort(x, x), qd.argsort(x), qd.compact(x > 0, x), qd.scan(jnp.maximum, x)


@pytest.mark.full
def test_gpus_of_other_machines_run_operations_of_xla() -> None:
    traced = jax.jit(everything).trace(X)
    texts = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cuda", "rocm", "cpu")}
    assert [name for name, text in texts.items() if "custom_call" in text] == ["cpu"]
    assert [name for name, text in texts.items() if "stablehlo.sort" in text] == ["cuda", "rocm"]


@pytest.mark.full
def test_tasks_have_no_races_and_read_what_was_stored() -> None:
    with qd.options(debug=True):
        (keys, values), order, (kept, count), largest = everything(X)
    np.testing.assert_array_equal(keys, np.sort(X))
    np.testing.assert_array_equal(values, np.sort(X))
    np.testing.assert_array_equal(order, np.argsort(X, kind="stable"))
    np.testing.assert_array_equal(kept[: int(count)], X[X > 0])
    np.testing.assert_array_equal(largest, np.maximum.accumulate(X))


@pytest.mark.full
def test_a_comprehension_may_hold_what_runs_as_tasks() -> None:
    """Loops of this package are no loops of the function that calls it: nothing of that is watched."""
    sizes = [LEAST, LEAST]
    found = [qd.sort(X[:size]) for size in sizes] + list(map(qd.sort, [X]))
    assert sum(int(qd.compact(x > 0, x)[1]) for x in found) == 3 * int((X > 0).sum())
    assert {k: qd.segments(jnp.zeros(3, jnp.int32), k).tolist()[-1] for k in (1, 2)} == {1: 3, 2: 3}
