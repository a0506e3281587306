"""Imports a JAX function of one element into a program over a batch and evaluates it with the reference interpreter."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Program, Task, Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.verify import verify_program
from qdtrace.trace.importer import Importer, MemoryArray


def _physical(aval: Any) -> tuple[tuple[int, ...], np.dtype]:
    if not isinstance(aval.dtype, np.dtype):
        return (*aval.shape, 2), np.dtype(np.uint32)
    if aval.dtype.kind == "c":
        return (*aval.shape, 2), np.dtype(f"f{aval.dtype.itemsize // 2}")
    return tuple(aval.shape), aval.dtype


def to_physical(x: Any) -> np.ndarray:
    """Keys and complex numbers with a trailing axis of 2."""
    if isinstance(x, jax.Array) and not isinstance(x.dtype, np.dtype):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    return np.stack([x.real, x.imag], -1) if x.dtype.kind == "c" else x


@dataclass
class Imported:
    """A function as a program."""

    program: Program
    hoisted: list[np.ndarray] = field(default_factory=list)
    out_avals: list[Any] = field(default_factory=list)

    def count(self, *names: str) -> int:
        """Equations of these primitives (of all, without a name)."""
        found = Counter(e.primitive.name for e in self.program.all_eqns)
        return sum(found[n] for n in names) if names else sum(found.values())

    def __call__(self, *args: Any, **options: Any) -> list[np.ndarray]:
        operands = [to_physical(a) for a in args] + self.hoisted
        size = operands[0].shape[0]
        outs = []
        for aval in self.out_avals:
            shape, dtype = _physical(aval)
            outs.append(np.zeros((size, *shape), dtype))
        results = evaluate(self.program, [*operands, *outs], **options)
        return [
            np.ascontiguousarray(r).view(a.dtype)[..., 0] if getattr(a.dtype, "kind", "") == "c" else r
            for r, a in zip(results, self.out_avals, strict=True)
        ]


def imported(fn: Any, *args: Any, hoist: bool = True, budget: int = 256) -> Imported:
    """The program that applies `fn` to each row of the arguments."""
    size = args[0].shape[0]
    rows = [jax.eval_shape(lambda a: a[0], a) for a in args]
    closed = jax.make_jaxpr(lambda *xs: fn(*xs))(*rows)
    builder = Builder()
    params: list[Var] = []
    constants: list[tuple[Var, np.ndarray]] = []

    def hoisted(array: Any) -> Var:
        content = to_physical(array)
        var = ref_var(DType.of(content.dtype), content.shape, "c")
        constants.append((var, content))
        return var

    index = scalar_var(DType.i32, "i")
    with builder.block() as body:
        importer = Importer(builder, hoist=hoisted if hoist else None, scalar_budget=budget)
        values = []
        for row in rows:
            shape, dtype = _physical(row)
            ref = ref_var(DType.of(dtype), (size, *shape), "x")
            params.append(ref)
            values.append(
                importer.build(shape, ref.dtype, lambda k, ref=ref: importer.load_at(ref, [index, *k]), unroll=True)
            )
        outs = importer.jaxpr(closed, values)
        results = []
        out_avals = [v.aval for v in closed.jaxpr.outvars]
        for out, aval in zip(outs, out_avals, strict=True):
            shape, dtype = _physical(aval)
            ref = ref_var(DType.of(dtype), (size, *shape), "y")
            results.append(ref)
            if isinstance(out, MemoryArray):
                importer.loop_nest(
                    out.shape, lambda k, out=out, ref=ref: importer.store_at(ref, importer.element(out, k), [index, *k])
                )
            else:
                for k in np.ndindex(*shape):
                    builder.store(ref, out[k], index, *(literal(j, DType.i32) for j in k))
    stop = literal(size, DType.i32)
    task = Task("range_for", index, literal(0, DType.i32), stop, body.close())
    all_params = (*params, *(v for v, _ in constants), *results)
    program = Program("imported", all_params, (), (task,), tuple(results))
    verify_program(program)
    return Imported(program, [c for _, c in constants], out_avals)


def check(fn: Any, *args: Any, rtol: float = 0.0, atol: float = 0.0, exact: bool = False, **options: Any) -> Imported:
    """Compares the imported function with jax.vmap of it."""
    program = imported(fn, *args, **options)
    got = program(*args)
    leaves = jax.tree.leaves(jax.jit(jax.vmap(fn))(*args))
    want = [np.asarray(x) if isinstance(x.dtype, np.dtype) else to_physical(x) for x in leaves]
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        if exact or w.dtype.kind not in "fcV":
            np.testing.assert_array_equal(g, w)
        else:
            np.testing.assert_allclose(g, w, rtol=rtol or tolerance(w.dtype), atol=atol or tolerance(w.dtype))
    return program


def tolerance(dtype: Any) -> float:
    """A few roundings: sums are taken in another order than XLA's, functions differ in the last bits."""
    import ml_dtypes

    return 64 * float(ml_dtypes.finfo(dtype).eps) if np.dtype(dtype).kind != "c" else 64 * float(np.finfo(dtype).eps)
