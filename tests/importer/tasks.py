"""Runs a traced function: array code by JAX, each outermost `qd.range` as a program on the reference interpreter."""

from typing import Any

import jax
import numpy as np

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Program, Task, Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from qdtrace.trace import compat
from qdtrace.trace.importer import ArrayRef, Importer, RefValue
from qdtrace.trace.markers import for_p
from qdtrace.trace.trace import trace_function
from qdtrace.trace.tree import body_of, bounds_of
from tests.importer.harness import to_physical


def run_traced(f: Any, *args: Any, programs: list[Program] | None = None) -> Any:
    """The function's result."""
    traced = trace_function(f, args)
    root = traced.root
    env: dict[Any, Any] = dict(root.constants)
    env.update(zip(root.params, map(np.asarray, jax.tree.leaves(args)), strict=True))
    handles: set[Any] = set()
    for item in root.items:
        if item.primitive is for_p:
            program = _task(item, env, handles, programs)
            if programs is not None:
                programs.append(program)
            continue
        values = [_read(env, v) for v in item.invars]
        name = item.primitive.name
        if name == "qd_alloc":
            fill = values[0] if values else 0
            out = np.full(item.outvars[0].aval.shape, fill, item.outvars[0].aval.dtype)
        elif name in ("qd_buffer", "qd_read"):
            out = np.array(values[0])
        elif name == "qd_assign":
            values[0][...] = values[1]
            continue
        else:
            bound = item.primitive.get_bind_params(item.params)
            subfuns, params = bound if isinstance(bound, tuple) and len(bound) == 2 else ((), bound)
            outs = item.primitive.bind(*subfuns, *values, **params)
            env.update(zip(item.outvars, outs if item.primitive.multiple_results else [outs], strict=True))
            continue
        env[item.outvars[0]] = out
        if name in ("qd_alloc", "qd_buffer"):
            handles.add(item.outvars[0])
    return jax.tree.unflatten(traced.out_tree, [np.asarray(_read(env, v)) for v in root.results])


def _read(env: dict[Any, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, compat.Literal) else env[atom]


def _task(region: Any, env: dict[Any, Any], handles: set[Any], programs: Any) -> Program:
    iteration = body_of(region)
    index_var = iteration.invars[0]
    builder = Builder()
    operands: list[tuple[Var, np.ndarray]] = []

    def param(content: Any) -> Var:
        content = to_physical(content)
        var = ref_var(DType.of(content.dtype), content.shape, "p")
        operands.append((var, content))
        return var

    buffers: list[tuple[Var, Any]] = []
    inside: dict[Any, Any] = {}
    index = scalar_var(DType.of(index_var.aval.dtype), "i")
    with builder.block() as body:
        for v in iteration.invars[1:]:
            var = param(env[v])
            if v in handles:
                buffers.append((var, v))
                inside[v] = RefValue(var)
            elif var.type.size <= 4:  # type: ignore[union-attr]
                content = to_physical(env[v])
                out = np.empty(content.shape, object)
                for k in np.ndindex(*content.shape):
                    out[k] = builder.load(var, *(literal(j, DType.i32) for j in k))
                inside[v] = out
            else:
                inside[v] = ArrayRef(var)
        start, stop, step = (int(_read(env, v)) for v in bounds_of(region))
        at = np.empty((), object)
        one, offset = literal(step, index.dtype), literal(start, index.dtype)
        at[()] = builder("add", builder("mul", index, one), offset)
        inside[index_var] = at
        Importer(builder, hoist=param).body(iteration.eqns, inside)
    count = literal(len(range(start, stop, step)), index.dtype)
    task = Task("range_for", index, literal(0, index.dtype), count, body.close())
    program = Program("task", tuple(v for v, _ in operands), (), (task,), tuple(v for v, _ in buffers))
    verify_program(program)
    results = evaluate(program, [c for _, c in operands])
    for (_, v), result in zip(buffers, results, strict=True):
        env[v][...] = result
    return program
