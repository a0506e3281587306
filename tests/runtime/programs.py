"""Small hand-built graphs, and a compiler that keeps nothing on disk, for the tests of the runtime."""


from collections.abc import Callable

from lowering.backend import CpuBackend
from lowering.runtime.compiled import CompiledProgram
from qdtrace.config import Options, options_from
from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.program import Atom, Program, Task, Var, literal, ref_type
from qdtrace.ir.types import DType

F32 = DType.f32
I32 = DType.i32


def uncached(**values: object) -> Options:
    """Options without the cache on disk."""
    return options_from({"offline_cache": False, **values}, Options())


def compiled(program: Program, **values: object) -> CompiledProgram:
    """The program, compiled for the host without the cache on disk."""
    return CpuBackend().compile(program, uncached(**values))


def range_for(
    body: Callable[[Builder, Var], None], stop: int, bounds: Callable[[Builder], tuple[Atom, Atom]] | None = None
) -> Task:
    """A parallel task over `0:stop`, or over bounds computed in the head."""
    builder = Builder()
    start, end = bounds(builder) if bounds else (literal(0, I32), literal(stop, I32))
    index = scalar_var(I32, "i")
    with builder.block() as block:
        body(builder, index)
    return Task("range_for", index, start, end, block.close(), tuple(builder.current.eqns))


def serial(body: Callable[[Builder], None]) -> Task:
    """A task of one thread."""
    builder = Builder()
    with builder.block() as block:
        body(builder)
    return Task("serial", None, literal(0, I32), literal(1, I32), block.close())


def affine_task(out: Var, source: Var, factor: float, offset: float = 0.0, dtype: DType = F32) -> Task:
    """out[i] = source[i] * factor + offset."""

    def body(b: Builder, i: Var) -> None:
        product = b("mul", b.load(source, i), literal(factor, dtype))
        b.store(out, b("add", product, literal(offset, dtype)), i)

    return range_for(body, ref_type(out).size)


def affine(n: int, factor: float = 2.0, offset: float = 1.0, name: str = "affine", dtype: DType = F32) -> Program:
    """A new array x * factor + offset."""
    x, y = ref_var(dtype, (n,), "x"), ref_var(dtype, (n,), "y")
    return Program(name, (x,), (y,), (affine_task(y, x, factor, offset, dtype),), (y,))


def saxpy(n: int) -> Program:
    """y += a * x, in place."""
    a, x, y = ref_var(F32, (), "a"), ref_var(F32, (n,), "x"), ref_var(F32, (n,), "y")

    def body(b: Builder, i: Var) -> None:
        b.store(y, b("add", b.load(y, i), b("mul", b.load(a), b.load(x, i))), i)

    return Program("saxpy", (a, x, y), (), (range_for(body, n),), (y,))


def chain(n: int) -> Program:
    """Three tasks over two scratch buffers: x becomes 8 x + 7, in place."""
    x, y, z = (ref_var(F32, (n,), hint) for hint in "xyz")
    tasks = (affine_task(y, x, 2.0, 1.0), affine_task(z, y, 2.0, 1.0), affine_task(x, z, 2.0, 1.0))
    return Program("chain", (x,), (y, z), tasks, (x,))


def part(n: int) -> Program:
    """x[lo:hi] += 1, with bounds that are arguments."""
    lo, hi, x = ref_var(I32, (), "lo"), ref_var(I32, (), "hi"), ref_var(F32, (n,), "x")

    def body(b: Builder, i: Var) -> None:
        b.store(x, b("add", b.load(x, i), literal(1.0, F32)), i)

    task = range_for(body, n, lambda b: (b.load(lo), b.load(hi)))
    return Program("part", (lo, hi, x), (), (task,), (x,))


def total(n: int) -> Program:
    """The sum of an array."""
    x, out = ref_var(F32, (n,), "x"), ref_var(F32, (), "out")
    return Program("total", (x, out), (), (range_for(lambda b, i: b.accum(out, b.load(x, i)), n),), (out,))
