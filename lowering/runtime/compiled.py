"""What a compiled program is for JAX: a foreign call."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.runtime import late
from lowering.runtime.faults import SHARED
from qdtrace.errors import BackendError
from qdtrace.failures import watch
from qdtrace.ir.program import Program, ref_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.runtime.layout import Layout


@dataclass(frozen=True)
class CompiledProgram:
    """A program that JAX can call."""

    target_name: str
    """The foreign-function target, named by content: the same in every process."""
    address: int
    """The handler."""
    layout: Layout
    tasks_address: int = 0
    """The handler's table of tasks, where it has one."""

    @property
    def program(self) -> Program:
        """The graph."""
        return self.layout.program

    @property
    def scratch_bytes(self) -> int:
        """Memory of buffers that are not returned."""
        return self.layout.scratch_bytes

    def call(self, *operands: Any, shared: bool = False) -> tuple[Any, ...]:
        """Contents of `program.results` for contents of `program.params`: arrays or tracers, in order. `shared`: of a
        program that several devices run together; what fails on one of them is told later."""
        layout = self.layout
        params = layout.program.params
        if len(operands) != len(params):
            raise BackendError(f"`{layout.program.name}` needs {len(params)} operands, got {len(operands)}")
        constants = (np.frombuffer(layout.constants, np.uint8),) if layout.passes_constants else ()
        attributes: dict[str, Any] = {}
        if shared:
            attributes[SHARED] = True
            watch(late.failure, late.memory)
        outs = dict(zip(layout.written, self._ffi_call(*operands, *constants, **attributes), strict=False))
        given = dict(zip(params, operands, strict=True))
        return tuple(outs[v] if v in outs else jnp.asarray(given[v]) for v in layout.program.results)

    @functools.cached_property
    def _ffi_call(self) -> Callable[..., Any]:
        layout = self.layout
        results = [jax.ShapeDtypeStruct(ref_type(v).shape, v.dtype.numpy) for v in layout.written]
        if layout.scratch_bytes:
            results.append(jax.ShapeDtypeStruct((layout.scratch_bytes,), jnp.uint8))
        if not results:
            return lambda *operands, **attributes: ()
        return jax.ffi.ffi_call(
            self.target_name,
            tuple(results),
            input_output_aliases=dict(layout.aliases),
            vmap_method="sequential",
            has_side_effect=layout.must_run,
        )
