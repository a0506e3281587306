"""Fixtures that choose a platform and place the arrays of a test on it."""

from collections.abc import Callable
from typing import Any

import jax
import pytest


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request) -> str:
    """A platform of JAX: a processor, and a GPU where there is one."""
    return request.param


@pytest.fixture
def put(device) -> Callable[[Any], Any]:
    """Puts the arrays of a pytree on its first device."""
    return lambda tree: jax.device_put(tree, jax.devices(device)[0])
