"""The JAX primitive that runs one program: `call(params...) -> results`.

It is pure: operands are the contents of the program's parameters, results those of its result references. The
compiler runs when the primitive is lowered, so `jax.jit(...).lower(...)` and cross compilation need no device.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from typing import TYPE_CHECKING, Any

import jax
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir

from qdtrace.compose.collector import collector_at_rest
from qdtrace.compose.debug import run_checked
from qdtrace.compose.depth import deepest_equation, depth_told
from qdtrace.errors import BackendError, GradientError
from qdtrace.ir.primitives import Effect
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Literal, ref_type
from qdtrace.ir.walk import walk_program
from qdtrace.passes.pipelines import optimise
from qdtrace.trace.compat import Primitive

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from qdtrace.config import Options
    from qdtrace.ir.program import Program


@dataclass(frozen=True, eq=False)
class StagedProgram:
    """A traced program with the options it is to be compiled with, as JAX can hash and compare it.

    Two are equal when their printed graphs are. A graph is printed only when another one of equal hash turns up: most
    are traced once, and printing one takes as long as a pass over it. The constants tell apart the programs of a
    function that repeats itself.
    """

    program: Program
    options: Options

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, StagedProgram) and self.options == other.options and self.text == other.text

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        program = self.program
        constants = (a for e in walk_program(program) for a in e.invars if a.__class__ is Literal)
        return hash((program.name, len(program.tasks), len(program.params), self.options, *constants))

    @functools.cached_property
    def text(self) -> str:
        """The printed graph, before any pass."""
        with self.depth_told():
            return print_program(self.program)

    def depth_told(self) -> AbstractContextManager[None]:
        """A block in which this program, nested too deep to be walked, is refused."""
        return depth_told(self.program.name, lambda: deepest_equation(self.program))

    def __repr__(self) -> str:
        return f"<{self.program.name}: {len(self.program.tasks)} tasks>"

    @functools.cached_property
    def optimised(self) -> Program:
        """The graph after all passes."""
        with self.depth_told():
            return optimise(self.program, self.options)

    @functools.cached_property
    def may_fail(self) -> bool:
        """Whether a check is left after all passes; a run in the interpreter waits for its end anyway."""
        if self.options.debug:
            return False
        return any(Effect.CHECK in eqn.primitive.effects for eqn in walk_program(self.optimised))


_BACKENDS = "qdtrace.backends"

call_p = Primitive("qd_call")
call_p.multiple_results = True

_compiled: dict[tuple[str, StagedProgram], Any] = {}
_lock = threading.Lock()


def call(staged: StagedProgram, operands: Sequence[Any]) -> list[Any]:
    """Runs the program on arrays (or tracers); gives the contents of its results in order."""
    return call_p.bind(*operands, staged=staged)


@functools.cache
def backend(name: str) -> Any:
    """The backend registered under that name in the entry-point group `qdtrace.backends`, our own before others."""
    try:
        own = distribution("qdtrace").entry_points.select(group=_BACKENDS, name=name)
    except PackageNotFoundError:
        own = ()
    for entry in own:  # first, because a look at every installed package takes much longer
        return entry.load()()
    found = {e.name: e for e in entry_points(group=_BACKENDS)}
    if name not in found:
        have = ", ".join(sorted(found)) or "none; is the package installed?"
        raise BackendError(f"needs a backend for {name!r}, found {have}", help="run on the CPU: JAX_PLATFORMS=cpu")
    return found[name].load()()


def compiled_for(staged: StagedProgram, name: str) -> Any:
    """The compiled program of a backend; compiled once per content and options."""
    if staged.options.codegen == "triton":
        raise BackendError(
            f"{staged.program.name}: needs codegen 'auto' or 'llvm' on {name}, got 'triton'", help="leave codegen out"
        )
    key = (name, staged)
    with _lock, collector_at_rest(), staged.depth_told():
        if key not in _compiled:
            _compiled[key] = backend(name).compile(staged.optimised, staged.options)
        return _compiled[key]


def _abstract_eval(*operands: Any, staged: StagedProgram) -> list[ShapedArray]:
    axes: frozenset[str] = frozenset().union(*(getattr(a, "vma", frozenset()) for a in operands))
    out = [ShapedArray(ref_type(v).shape, v.dtype.numpy) for v in staged.program.results]
    return [a.update(vma=axes) for a in out] if axes else out


@functools.cache
def _eager(staged: StagedProgram) -> Any:
    return jax.jit(functools.partial(call_p.bind, staged=staged))


def _call_now(*operands: Any, staged: StagedProgram) -> Any:
    """Runs at once. Where JAX looks for NaN it runs a program again piece by piece; ours is one piece."""
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        outs = _eager(staged)(*operands)
    for wanted, test in (("nan", jax.numpy.isnan), ("inf", jax.numpy.isinf)):
        if getattr(jax.config, f"jax_debug_{wanted}s") and any(
            jax.numpy.issubdtype(x.dtype, jax.numpy.inexact) and test(x).any() for x in outs
        ):
            raise FloatingPointError(f"invalid value ({wanted}) encountered in {staged.program.name}")
    return outs


def _run_on(name: str) -> Any:
    def run(*operands: Any, staged: StagedProgram) -> list[Any]:
        if staged.options.debug:
            return run_checked(staged, operands)
        return compiled_for(staged, name).call(*operands)

    return mlir.lower_fun(run, multiple_results=True)


def _no_backend(ctx: Any, *operands: Any, staged: StagedProgram) -> Any:
    platforms = ", ".join(ctx.module_context.platforms)
    raise BackendError(
        f"{staged.program.name}: needs the cpu platform, got {platforms}", help="run under JAX_PLATFORMS=cpu"
    )


def _jvp(primals: Any, tangents: Any, *, staged: StagedProgram) -> Any:
    raise GradientError(
        f"{staged.program.name}: differentiation of a qd.jit function is not supported by this version",
        help="differentiate a pure scalar function inside the loop body with jax.grad",
    )


def _batch(operands: Sequence[Any], dims: Sequence[int | None], *, staged: StagedProgram) -> Any:
    """Runs the batch one after the other: right for every program, each call parallel within itself."""
    axes = {i: d for i, d in enumerate(dims) if d is not None}
    moved = tuple(jax.numpy.moveaxis(operands[i], d, 0) for i, d in axes.items())

    def one(values: tuple[Any, ...]) -> tuple[Any, ...]:
        full = list(operands)
        for i, v in zip(axes, values, strict=True):
            full[i] = v
        return tuple(call(staged, full))

    outs = jax.lax.map(one, moved)
    return list(outs), [0] * len(outs)


call_p.def_abstract_eval(_abstract_eval)
call_p.def_impl(_call_now)
mlir.register_lowering(call_p, _no_backend)
mlir.register_lowering(call_p, _run_on("cpu"), platform="cpu")
ad.primitive_jvps[call_p] = _jvp
batching.primitive_batchers[call_p] = _batch
