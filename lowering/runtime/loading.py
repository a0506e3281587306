"""The handler of a program that a call carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.runtime.saved import layout_key, read
from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowering.runtime.compiled import CompiledProgram
    from qdtrace.config import Options
    from qdtrace.ir.program import Program


def load(
    attributes: Mapping[str, str], machine: str, compiler: Callable[[Program, Options], CompiledProgram]
) -> tuple[int, bool]:
    """Returns the address of the handler, and whether several devices run the program together.

    Raises BackendError for a program that is damaged, or of another version or machine.
    """
    program, options, layout, shared = read(attributes, machine)
    compiled = compiler(program, options)
    if layout_key(compiled.layout) != layout:
        raise BackendError("a saved program is called in another way than this version does", help="save it again")
    if shared:
        compiled.tells_late()
    return compiled.address, shared
