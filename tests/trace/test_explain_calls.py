"""A wrong call of a function of the user's is Python's error, also where the function has a name of this package."""

from typing import Any

import jax.numpy as jnp
import pytest

import qdtrace as qd


def local(a: Any) -> Any:
    return a


def test_a_function_of_the_user_with_our_name_is_the_users() -> None:
    @qd.jit
    def calls(x: Any) -> Any:
        for i in qd.range(3):
            x[i] = local()  # type: ignore[call-arg]
        return x

    with pytest.raises(TypeError, match=r"^local\(\) missing 1") as caught:
        calls(jnp.zeros(3))
    assert not isinstance(caught.value, qd.QdError)
