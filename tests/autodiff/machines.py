"""Programs of derivatives that are made for another machine than this one: what is kept of loops is apart from
what emits code."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import jax

from lowering.backend import CpuBackend
from lowering.gpu.backend import GpuBackend
from qdtrace.analysis.machine import CPU, GPU, Machine
from qdtrace.autodiff.loops.policy import Stacks


def limited(machine: Machine, **limits: Any) -> Machine:
    """A machine with other limits of reverse mode."""
    return replace(machine, reverse=replace(machine.reverse, **limits))


MACHINES = {
    "every state": CPU,
    "short stacks": limited(CPU, stack_bytes=0, open_stack_bytes=0),
    "segments": GPU,
    "short segments": limited(GPU, steps=2),
    "segments in short stacks": limited(GPU, steps=4, stack_bytes=0, open_stack_bytes=0),
}


def stacks_of(machine: Machine) -> Stacks:
    """Stacks without a budget."""
    return Stacks(limits=machine.reverse)


made_for = jax.make_user_context()
"""Context that JAX's caches are keyed by, which know the platform only."""


@contextmanager
def programs_for(machine: Machine) -> Iterator[None]:
    """Programs are made for another machine than the one that runs them, its final passes included."""
    with (
        made_for(machine),
        mock.patch.object(CpuBackend, "machine", machine),
        mock.patch.object(GpuBackend, "machine", machine),
    ):
        yield
