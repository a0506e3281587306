"""Settings of all tests: no time limits, the machine may be busy; those that need a GPU are skipped without one."""

import jax
import pytest
from hypothesis import settings

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    try:
        jax.devices("gpu")
    except RuntimeError:
        pytest.skip("needs a GPU")
