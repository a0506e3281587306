"""A compiled program as JAX sees it: a foreign call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.runtime import late
from lowering.runtime.faults import SHARED
from lowering.runtime.saved import TARGET, attributes_of
from qdtrace.errors import BackendError
from qdtrace.failures import watch
from qdtrace.frozen import frozen
from qdtrace.ir.program import Program, ref_type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lowering.runtime.layout import Layout
    from qdtrace.backend import Carried
    from qdtrace.config import Options


@frozen
class CompiledProgram:
    """A compiled program that JAX can call."""

    target_name: str
    """Name of the foreign-function target, by content: the same in every process."""
    address: int
    """Address of the handler."""
    layout: Layout
    made_of: tuple[Program, Options] | None = None
    """Program and options that were compiled, for calls that carry them."""

    @property
    def program(self) -> Program:
        """The graph of the program."""
        return self.layout.program

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the scratch result, which holds buffers that are not returned."""
        return self.layout.scratch_bytes

    def call(
        self, *operands: Any, shared: bool = False, carried: Carried = None, needed: Collection[int] = ()
    ) -> tuple[Any, ...]:
        """Returns the contents of `program.results` for those of `program.params`: arrays or tracers, in order.

        `shared`: several devices run the program together, so failures on one of them are reported later. `carried` and
        `needed`: see `Compiled`.
        """
        layout = self.layout
        params = layout.program.params
        if len(operands) != len(params):
            raise BackendError(f"`{layout.program.name}` needs {len(params)} operands, got {len(operands)}")
        constants = (np.frombuffer(layout.constants, np.uint8),) if layout.passes_constants else ()
        attributes: dict[str, Any] = {}
        if shared:
            attributes[SHARED] = True
            self.tells_late()
        fresh, target = self.layout.renewed.intersection(needed), self.target_name
        if carried is not None:
            if self.made_of is None:
                raise BackendError(
                    f"`{layout.program.name}`: programs of GPUs are not saved",
                    help="export it for processors, platforms=['cpu'], or leave out the option `portable`",
                )
            machine = self.target_name.rpartition("_")[2] if carried == "executable" else ""
            attributes = dict(attributes_of(*self.made_of, layout, machine, shared=shared))
            target = TARGET
        call = self._call_of(target, fresh)
        outs = dict(zip(layout.written, call(*operands, *constants, **attributes), strict=False))
        given = dict(zip(params, operands, strict=True))
        return tuple(outs[v] if v in outs else jnp.asarray(given[v]) for v in layout.program.results)

    def tells_late(self) -> None:
        """Makes calls look for failures that an earlier call left on one of several devices."""
        watch(late.failure, late.memory)

    def _call_of(self, target: str, fresh: frozenset[int]) -> Callable[..., Any]:
        """Returns the foreign call, whose results have memory of their own for the operands `fresh`."""
        layout = self.layout
        results = [jax.ShapeDtypeStruct(ref_type(v).shape, v.dtype.numpy) for v in layout.written]
        if layout.scratch_bytes:
            results.append(jax.ShapeDtypeStruct((layout.scratch_bytes,), jnp.uint8))
        if not results:
            return lambda *operands, **attributes: ()
        return jax.ffi.ffi_call(
            target,
            tuple(results),
            input_output_aliases={k: result for k, result in layout.aliases.items() if k not in fresh},
            vmap_method="sequential",
            has_side_effect=layout.must_run,
        )
