"""Random functions of small arrays: the imported graph against jax.vmap, and the machine code of `qd.vmap`."""

import jax
import numpy as np
import pytest

import qdtrace as qd

from .functions import function, operands
from .harness import check

pytestmark = pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")


@pytest.mark.full
@pytest.mark.sample(3, full=2)
@pytest.mark.parametrize("seed", range(20))
def test_imported(seed: int) -> None:
    made = function(seed)
    check(made, *operands(made, seed), exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 600, 10))
def test_imported_long(seed: int) -> None:
    for k in range(10):
        made = function(seed + k, 15)
        check(made, *operands(made, seed), exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1050))
def test_machine_code(seed: int) -> None:
    made = function(seed)
    args = operands(made, seed)
    for got, want in zip(qd.vmap(made)(*args), jax.jit(jax.vmap(made))(*args), strict=True):
        np.testing.assert_array_equal(got, want)
