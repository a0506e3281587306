"""A second meaning of programs, by JAX: one array operation of JAX for each equation, control flow by Python.

Eager JAX values have concrete primals, so `jax.jvp` and `jax.vjp` of this function are derivatives of a run of the
program, by rules that are not ours.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.interpret.numpy_rules import apply_scalar
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, ref_type

_NAMES = {"log2": jnp.log2, "round_even": jnp.round, "trunc": jnp.trunc, "select": lambda c, a, b: lax.select(c, a, b)}
_COMBINE = {"add": lax.add, "mul": lax.mul, "min": lax.min, "max": lax.max}


def run(program: Program, args: Sequence[Any]) -> list[Any]:
    """Contents of the results."""
    memory: dict[Any, Any] = {}
    for ref, arg in zip(program.params, args, strict=True):
        memory[ref] = _elements(jnp.asarray(arg))
    for ref in program.buffers:
        shape, dtype = ref_type(ref).shape, ref.dtype.numpy
        start = program.initial[ref].value if ref in program.initial else np.zeros((), dtype)
        memory[ref] = _elements(jnp.full(shape, start, dtype))
    for task in program.tasks:
        env = dict(memory)
        _block(task.head, env)
        if task.index is None:
            _block(task.body.eqns, env)
            continue
        for i in range(int(_read(env, task.start)), int(_read(env, task.stop))):
            inner = {**env, task.index: task.index.dtype.numpy.type(i)}
            _block(task.body.eqns, inner)
    return [_array(memory[r], ref_type(r).shape, r.dtype.numpy) for r in program.results]


def _elements(array: Any) -> Any:
    return {at: array[at] for at in np.ndindex(*array.shape)}


def _array(elements: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if not elements:
        return jnp.zeros(shape, dtype)
    return jnp.stack([jnp.asarray(elements[at], dtype) for at in np.ndindex(*shape)]).reshape(shape)


def _read(env: dict[Any, Any], atom: Atom) -> Any:
    return atom.value if isinstance(atom, Literal) else env[atom]


def _block(eqns: Sequence[Eqn], env: dict[Any, Any]) -> None:
    for eqn in eqns:
        _eqn(eqn, env)


def _results(block: Block, env: dict[Any, Any], values: Sequence[Any] = ()) -> list[Any]:
    env.update(zip(block.params, values, strict=True))
    _block(block.eqns, env)
    return [_read(env, r) for r in block.results]


def _eqn(eqn: Eqn, env: dict[Any, Any]) -> None:
    name = eqn.primitive.name
    match name:
        case "cell":
            env[eqn.outvar] = {}
            return
        case "load" | "store" | "accum":
            elements, at = env[eqn.invars[0]], tuple(int(_read(env, a)) for a in indices_of(eqn))
            if name == "load":
                env[eqn.outvar] = elements[at]
                return
            value = _read(env, values_of(eqn)[0])
            if name == "accum":
                value = _COMBINE[eqn.params["op"]](elements[at], jnp.asarray(value))
            elements[at] = value
            return
        case "if":
            branch = eqn.blocks[0 if bool(_read(env, eqn.invars[0])) else 1]
            env.update(zip(eqn.outvars, _results(branch, env), strict=True))
            return
        case "for":
            start, stop, step = (int(_read(env, a)) for a in eqn.invars[:3])
            carries = [_read(env, a) for a in eqn.invars[3:]]
            dtype = eqn.blocks[0].params[0].dtype.numpy
            for k in range(start, stop, step) if step else ():
                carries = _results(eqn.blocks[0], env, [dtype.type(k), *carries])
            env.update(zip(eqn.outvars, carries, strict=True))
            return
        case "while":
            carries = [_read(env, a) for a in eqn.invars]
            while bool(_results(eqn.blocks[0], env, carries)[0]):
                carries = _results(eqn.blocks[1], env, carries)
            env.update(zip(eqn.outvars, carries, strict=True))
            return
        case "bound" | "check":
            env.update(zip(eqn.outvars, [_read(env, eqn.invars[0])], strict=False))
            return
        case _:
            env[eqn.outvar] = _scalar(eqn, [_read(env, a) for a in eqn.invars])


def _scalar(eqn: Eqn, values: list[Any]) -> Any:
    name = eqn.primitive.name
    if not any(a.dtype.is_float for a in (*eqn.invars, eqn.outvar)):
        return apply_scalar(name, [np.asarray(v)[()] for v in values], dict(eqn.params))
    values = [jnp.asarray(v, a.dtype.numpy) for v, a in zip(values, eqn.invars, strict=True)]
    match name:
        case "convert":
            return lax.convert_element_type(values[0], eqn.outvar.dtype.numpy)
        case "integer_pow":
            return lax.integer_pow(values[0], eqn.params["y"])
        case "fma":
            return values[0] * values[1] + values[2]
        case _:
            return _NAMES.get(name, getattr(lax, name, None))(*values)
