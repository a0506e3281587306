"""Errors and NaN of programs near the limits of roots, logarithms and divisions are those of JAX: see `limits`."""

import pytest

from . import limits


@pytest.mark.sample(5, full=3)
@pytest.mark.parametrize("program", limits.PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.full
def test_errors_near_limits_are_those_of_jax(program):
    missed = [row for row in limits.rows(program) if not row.is_right()]
    assert not missed
