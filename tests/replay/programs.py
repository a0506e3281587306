"""The programs whose texts are compared: each has a name, and gives its staged programs for a machine.

Functions are traced with their arguments and differentiated in reverse; graphs stand for themselves. A program that the
package refuses raises a `QdError`, whose message is its text then.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from qdtrace.analysis.machine import Machine
from qdtrace.compose.staged_program import StagedProgram
from qdtrace.config import Options
from qdtrace.ir.program import Program
from qdtrace.lowered import find_programs
from tests.autodiff import bounded_loops
from tests.autodiff import programs as float_programs
from tests.autodiff import test_bodies as derivatives
from tests.autodiff.derive import derive
from tests.autodiff.machines import stacks_of
from tests.differential import corpus, index_programs, task_programs
from tests.importer.bodies import BODIES
from tests.replay import bench_programs, random_calls
from tests.replay.bench_programs import WALKS

Make = Callable[[Machine], Sequence[StagedProgram]]

RANDOM = 20
"""Programs of each random generator."""


def function(f: Callable[..., Any], *arguments: Any, x64: bool = False) -> Make:
    """The programs that a function calls; it is traced once for all machines."""

    @functools.cache
    def traced() -> Any:
        return jax.make_jaxpr(f)(*arguments)

    def programs(machine: Machine) -> Sequence[StagedProgram]:
        with jax.enable_x64(x64):
            return find_programs(traced(), machine)

    return programs


def reverse(f: Callable[..., Any], *arguments: Any, x64: bool = False) -> Make:
    """The programs of adjoints: of all results that are floats, by all arguments that are."""

    def adjoints(*given: Any) -> Any:
        leaves, tree = jax.tree.flatten(given)
        at = [k for k, a in enumerate(leaves) if jnp.issubdtype(a.dtype, jnp.inexact)]

        def of(*varied: Any) -> Any:
            now = dict(zip(at, varied, strict=True))
            results = f(*jax.tree.unflatten(tree, [now.get(k, a) for k, a in enumerate(leaves)]))
            return [r for r in jax.tree.leaves(results) if jnp.issubdtype(r.dtype, jnp.inexact)]

        results, back = jax.vjp(of, *(leaves[k] for k in at))
        return back([jnp.ones(r.shape, r.dtype) for r in results])

    return function(adjoints, *arguments, x64=x64)


def graph(make: Callable[[], Program], **options: Any) -> Make:
    """A program that nothing was traced for."""
    return lambda machine: [StagedProgram(make(), Options(offline_cache=False, **options))]


def adjoints_of(make: Callable[[], Program]) -> Make:
    """The adjoints of such a program, of its results by its floats."""

    def programs(machine: Machine) -> Sequence[StagedProgram]:
        program = make()
        floats = [v.dtype.is_float for v in program.params]
        made = derive(program, [], [True] * len(program.results), floats, stacks=stacks_of(machine))
        return [StagedProgram(made, Options(offline_cache=False))]

    return programs


def _both(name: str, f: Callable[..., Any], *arguments: Any, x64: bool = False) -> Iterator[tuple[str, Make]]:
    yield name, function(f, *arguments, x64=x64)
    yield f"{name}.reverse", reverse(f, *arguments, x64=x64)


def _bodies() -> Iterator[tuple[str, Make]]:
    for name, (body, arguments) in BODIES.items():
        given = [np.asarray(a, np.float32) if a.dtype.kind == "f" else a for a in arguments]
        yield from _both(f"body.{name}", qd.jit(functools.partial(body, qd)), *given)
    for name, (make, arguments, bounds, _) in derivatives.CASES.items():
        ours = make()
        ours = ours if name == "one_array_as_two_arguments" else qd.jit(ours, options={"bounds": bounds})
        given = [np.asarray(a, np.float64 if isinstance(a, float) else None) for a in arguments]
        yield from _both(f"derivative.{name.replace(' ', '_')}", ours, *given, x64=True)


def _graphs() -> Iterator[tuple[str, Make]]:
    for name, case in {name.split("-")[0]: case for name, case in corpus.replay()}.items():
        yield f"corpus.{name}", graph(lambda case=case: case.program)
    for seed in range(RANDOM):
        yield f"random.index.{seed}", graph(lambda seed=seed: index_programs.index_case(seed).program)
        yield f"random.tasks.{seed}", graph(lambda seed=seed: task_programs.random_case(seed).program)
        for kind, made in (("floats", float_programs.random_program), ("loops", bounded_loops.random_loops)):
            made = functools.cache(functools.partial(made, seed))
            yield f"random.{kind}.{seed}", graph(made)
            yield f"random.{kind}.{seed}.reverse", adjoints_of(made)


def collected() -> dict[str, Make]:
    """All programs by their names."""
    made = [("bench.links", function(*WALKS))]  # what takes longest comes first, so that processes end together
    made += [p for name, f, given in bench_programs.functions() for p in _both(f"bench.{name}", f, *given)]
    made += [*_bodies(), *_graphs()]
    made += [(f"random.calls.{seed}", function(f, *given)) for seed, f, given in random_calls.functions(RANDOM)]
    found = dict(made)
    assert len(found) == len(made), "two programs of one name"
    return found
