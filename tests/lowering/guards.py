"""Memory of programs with known bytes on both sides of each array, so that a store beside one is seen."""


from collections.abc import Sequence

import numpy as np

from lowering.llvm.options import EmitOptions
from qdtrace.ir.program import Program, Var, ref_type

GUARD = 0xA5
GUARD_BYTES = 128
"""On each side."""
STRICT = EmitOptions(fast_math=False)


def guarded(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A copy with a guard of known bytes on both sides, so that a store beside the array is seen."""
    raw = np.full(array.nbytes + 2 * GUARD_BYTES, GUARD, np.uint8)
    inside = raw[GUARD_BYTES : GUARD_BYTES + array.nbytes]
    inside[:] = np.frombuffer(array.tobytes(), np.uint8)
    return raw, inside.view(array.dtype).reshape(array.shape)


def guarded_memory(program: Program, args: Sequence[np.ndarray]) -> tuple[list[np.ndarray], dict[Var, np.ndarray]]:
    """The references of a program: the bytes with guards, and the arrays inside."""
    raws: list[np.ndarray] = []
    memory: dict[Var, np.ndarray] = {}
    given = dict(zip(program.params, args, strict=True))
    for ref in (*program.params, *program.buffers):
        kind = ref_type(ref)
        first = program.initial[ref].value if ref in program.initial else 0
        raw, memory[ref] = guarded(np.asarray(given.get(ref, np.full(kind.shape, first, kind.dtype.numpy))))
        raws.append(raw)
    return raws, memory


def untouched(raw: np.ndarray) -> None:
    """The guards of an array are what they were."""
    assert (raw[:GUARD_BYTES] == GUARD).all()
    assert (raw[-GUARD_BYTES:] == GUARD).all()
