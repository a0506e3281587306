"""Faults of drawn programs that are known and wait for a design: they fail no test, and docs/coverage.md names them."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from .compare import Finding


@dataclass(frozen=True)
class Fault:
    """What is wrong, of these rules (or cases of them) in these ways from these sides."""

    rules: Sequence[str]
    why: str
    ways: Sequence[str] = ("value", "jvp", "vjp", "second")
    sides: Sequence[str] = ("outside", "inside")
    dtypes: str = ""
    """How the names of the dtypes begin."""


CANCELLED = (
    "of f32 near zero JAX's second derivative is a difference of numbers a thousand times larger: it has three digits, "
    "and ours has others"
)
AT_ZERO = "of jax 0.10 digamma of zero is NaN; from 0.11 on, and in lanes, it is minus infinity"
FAULTS = (
    Fault(("bessel_i1e",), CANCELLED, ("second",), dtypes="float32"),
    *[Fault(("digamma", "polygamma"), AT_ZERO, ("value",))] * (jax.__version_info__ < (0, 11)),
)


def known(rule: str, found: Finding) -> Fault | None:
    """The fault that a finding is."""
    dtype = found.part.split()[1]
    for fault in FAULTS:
        if (
            not {rule, found.part.split()[0]}.isdisjoint(fault.rules)
            and found.way in fault.ways
            and found.side in fault.sides
            and dtype.startswith(fault.dtypes)
        ):
            return fault
    return None
