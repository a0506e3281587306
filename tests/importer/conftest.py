"""The oracle of these tests is XLA without optimisation."""

import pytest

from tests.oracle import optimisation


@pytest.fixture(scope="module", autouse=True)
def unoptimised_oracle():
    with optimisation(False):
        yield
