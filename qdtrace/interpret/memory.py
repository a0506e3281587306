"""Memory of an interpreted run: a reference is a flat list of NumPy scalars, None where nothing was stored.

Each function compiles one memory equation to a closure over an environment (a list of slots).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.errors import InterpreterError
from qdtrace.interpret.names import element_name, name_of
from qdtrace.ir.combining import combining
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import Effect
from qdtrace.ir.program import Eqn, Var, is_global, ref_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from qdtrace.interpret.compiler import Compiler, Env, Step
    from qdtrace.interpret.numpy_rules import Function
    from qdtrace.ir.program import Atom

    Memory = list[np.generic | None]
    Locate = Callable[[Env], int]


def _locator(compiler: Compiler, eqn: Eqn, ref: Var, indices: Sequence[Atom]) -> Locate:
    shape = ref_type(ref).shape
    slots = [compiler.slot(a) for a in indices]

    def refuse(index: Sequence[int]) -> None:
        axis = next(k for k, (i, n) in enumerate(zip(index, shape, strict=True)) if not 0 <= i < n)
        written = ", ".join(map(str, index))
        raise InterpreterError(
            f"index {index[axis]} is out of bounds for axis {axis} of `{name_of(ref)}` with shape {shape}",
            loc=eqn.loc,
            notes=[f"`{eqn.primitive.name}` of `{name_of(ref)}` at ({written})"],
            help="keep indices between 0 and the length of the axis minus 1, or guard the access with a condition",
        )

    if not slots:
        return lambda env: 0
    if len(slots) == 1:
        (slot,), (size,) = slots, shape

        def locate_1(env: Env) -> int:
            i = int(env[slot])
            if not 0 <= i < size:
                refuse((i,))
            return i

        return locate_1

    def locate(env: Env) -> int:
        flat = 0
        for slot, n in zip(slots, shape, strict=True):
            i = int(env[slot])
            if not 0 <= i < n:
                refuse([int(env[s]) for s in slots])
            flat = flat * n + i
        return flat

    return locate


def _unset(eqn: Eqn, ref: Var, flat: int) -> InterpreterError:
    return InterpreterError(
        f"{element_name(ref, flat)} is read before anything is stored there; its shape is {ref_type(ref).shape}",
        loc=eqn.loc,
        notes=[f"`{eqn.primitive.name}` needs the content of `{name_of(ref)}`"],
        help="store a value first, or start from zeros",
    )


def _watched(compiler: Compiler, eqn: Eqn, ref: Var, locate: Locate) -> Locate:
    races = compiler.races
    if races is None or not is_global(ref):
        return locate
    slot = compiler.slot(ref)
    effects = eqn.primitive.effects
    kind = "accum" if Effect.ACCUM in effects else "atomic" if len(effects) == 2 else eqn.primitive.name

    def locate_and_tell(env: Env) -> int:
        flat = locate(env)
        races.access(kind, ref, slot, flat, eqn)
        return flat

    return locate_and_tell


def _access(compiler: Compiler, eqn: Eqn) -> tuple[int, Locate, Var]:
    ref = eqn.invars[0]
    assert isinstance(ref, Var)
    locate = _watched(compiler, eqn, ref, _locator(compiler, eqn, ref, indices_of(eqn)))
    return compiler.slot(ref), locate, ref


def compile_load(compiler: Compiler, eqn: Eqn) -> Step:
    """Compiles `a = load ref i...`."""
    memory, locate, ref = _access(compiler, eqn)
    out = compiler.slot(eqn.outvar)

    def load(env: Env) -> None:
        flat = locate(env)
        value = env[memory][flat]
        if value is None:
            raise _unset(eqn, ref, flat)
        env[out] = value

    return load


def compile_store(compiler: Compiler, eqn: Eqn) -> Step:
    """Compiles `store ref a i...`."""
    memory, locate, _ = _access(compiler, eqn)
    value = compiler.slot(eqn.invars[1])

    def store(env: Env) -> None:
        env[memory][locate(env)] = env[value]

    return store


def _combine(compiler: Compiler, eqn: Eqn, ref: Var) -> Function:
    """Returns the function that an accumulation applies to the old and the new value."""
    return compiler.function(eqn, combining(str(eqn.params["op"]), ref.dtype).name, (ref.dtype, ref.dtype), {})


def compile_accum(compiler: Compiler, eqn: Eqn) -> Step:
    """Compiles `accum[op] ref a i...`."""
    memory, locate, ref = _access(compiler, eqn)
    value = compiler.slot(eqn.invars[1])
    combine = _combine(compiler, eqn, ref)

    def accum(env: Env) -> None:
        flat = locate(env)
        old = env[memory][flat]
        if old is None:
            raise _unset(eqn, ref, flat)
        env[memory][flat] = combine(old, env[value])

    return accum


def _exchange(old: np.generic, new: np.generic) -> np.generic:
    return new


def compile_atomic(compiler: Compiler, eqn: Eqn) -> Step:
    """Compiles `old = atomic[op] ref a i...`, or `old = atomic[op=cas] ref expected a i...`."""
    op = str(eqn.params["op"])
    memory, locate, ref = _access(compiler, eqn)
    out = compiler.slot(eqn.outvar)
    value = compiler.slot(eqn.invars[-1 - ref_type(ref).ndim])
    expected = compiler.slot(eqn.invars[1])
    if op == "exchange":
        combine = _exchange
    elif op == "cas":
        combine = None
    else:
        combine = _combine(compiler, eqn, ref)

    def atomic(env: Env) -> None:
        flat = locate(env)
        cells = env[memory]
        old = cells[flat]
        if old is None:
            raise _unset(eqn, ref, flat)
        if combine is not None:
            cells[flat] = combine(old, env[value])
        elif old.tobytes() == env[expected].tobytes():  # by bits: NaN can be exchanged, 0.0 is not -0.0
            cells[flat] = env[value]
        env[out] = old

    return atomic


def compile_cell(compiler: Compiler, eqn: Eqn) -> Step:
    """Compiles `c = cell[dtype, shape]`, which makes new memory each time it runs."""
    out, size = compiler.slot(eqn.outvar), ref_type(eqn.outvar).size

    def cell(env: Env) -> None:
        env[out] = [None] * size

    return cell
