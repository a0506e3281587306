"""A traced program with its options: the parameter of the primitive `call`, and the graph for each machine."""

from __future__ import annotations

import functools
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar

from qdtrace.analysis.machine import CPU
from qdtrace.batching.batch import batch, batched_references
from qdtrace.compose.depth import depth_told
from qdtrace.compose.pass_cache import graph_key, optimised, pipelines
from qdtrace.errors import warn
from qdtrace.frozen import frozen
from qdtrace.ir.custom import without_rules
from qdtrace.ir.faults import checks_of
from qdtrace.ir.platforms import asks_platform
from qdtrace.ir.primitives import CUSTOM
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Literal, Stage, ref_type
from qdtrace.ir.tells import with_records, without_memory
from qdtrace.ir.walk import blocks_of
from qdtrace.progress import doing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from jax.typing import ArrayLike

    from qdtrace.analysis.machine import Machine
    from qdtrace.autodiff.loops.policy import StorageChoice
    from qdtrace.compose.pass_cache import GraphKey
    from qdtrace.compose.source import Source
    from qdtrace.compose.source_on_disk import FoundSource
    from qdtrace.config import Options
    from qdtrace.errors import Loc
    from qdtrace.ir.custom import Rule
    from qdtrace.ir.program import Program

    Mask = tuple[bool, ...]

T = TypeVar("T")

LEFT_OUT = (
    "`jax.debug.print` and `jax.debug.callback` in a derivative rule of a function in a loop are left out\n"
    'help: run it with `qd.jit(f, options={"debug": True})`'
)


def chosen(values: Iterable[T], mask: Iterable[bool]) -> Iterator[T]:
    """Returns the values in a mask."""
    return (v for v, wanted in zip(values, mask, strict=True) if wanted)


def within(mask: Iterable[bool], of_chosen: Iterable[bool]) -> Mask:
    """Returns the mask of some of the values in a mask, from one that has an entry for each of these alone."""
    left = iter(of_chosen)
    return tuple(wanted and next(left) for wanted in mask)


@frozen(eq=False)
class Unbatched:
    """The program of one call, which a batched program runs for each element of its batch."""

    staged: StagedProgram
    mask: Mask
    """Mask of parameters that have the axis of the batch."""
    size: int
    given: Mask
    """Mask of results that have the axis."""


@frozen(eq=False)
class StagedProgram:
    """A traced program with its compile options, in a form that JAX can hash and compare.

    Two are equal if the keys of their graphs and sources are, and their rules. A graph is printed for that only if
    another one of equal hash turns up: most are traced once, and printing one takes as long as a pass over it. The hash
    includes constants and shapes: programs of a function that repeats itself, or is called at many lengths, often
    differ in nothing else.
    """

    with_rules: Program
    """The graph with the derivative rules of users and libraries."""
    options: Options
    stacks: tuple[StorageChoice, ...] = ()
    """Storage choices of loops, if this is a program of adjoints."""
    source: Source | FoundSource | None = None
    """The source that its derivatives are made of, if it has one."""
    constants: tuple[ArrayLike, ...] = ()
    """Values of the last parameters."""
    known_key: GraphKey | None = None
    """The key of the graph, if the program was found on disk."""
    unbatched: Unbatched | None = None
    """The program of one call, if this one is batched and its derivatives are made of that."""
    _made: dict[Machine, Program] = field(default_factory=dict["Machine", "Program"], init=False, repr=False)
    _on: dict[str, StagedProgram] = field(default_factory=dict["str", "StagedProgram"], init=False, repr=False)
    _batched: dict[tuple[Mask, int], tuple[StagedProgram, Mask]] = field(
        default_factory=dict["tuple[Mask, int]", "tuple[StagedProgram, Mask]"], init=False, repr=False
    )

    @functools.cached_property
    def program(self) -> Program:
        """The graph without derivative rules."""
        return without_rules(self._recording)

    @functools.cached_property
    def _recording(self) -> Program:
        if self.options.debug:
            return self.with_rules  # it tells at once
        if (lost := without_memory(self.with_rules)) is not None:
            warn(LEFT_OUT, lost.loc)
        return with_records(self.with_rules)

    @functools.cached_property
    def key(self) -> GraphKey:
        """The key of the graph before any pass, in this process and on disk."""
        with self.depth_told():
            return self.known_key or graph_key(self._recording)

    @property
    def has_known_source(self) -> bool:
        """Returns whether there is a source, and the meaning of its variables is known."""
        return self.source is not None and self.source.unknown is None

    @property
    def has_primal(self) -> bool:
        """Returns whether there is a source, and each result has a variable."""
        return self.source is not None and self.source.has_primal

    @functools.cached_property
    def rules(self) -> tuple[Rule | str, ...]:
        """The derivative rules in the graph, in order."""
        if self.program is self.with_rules:
            return ()
        return tuple(e.params["rule"] for e in self.with_rules.all_eqns if e.primitive is CUSTOM)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, StagedProgram) and self.options == other.options and self._is_same(other)

    def _is_same(self, other: StagedProgram) -> bool:
        is_one = self.rules == other.rules and self.key.digest == other.key.digest
        return is_one and self._derived_from() == other._derived_from()

    def _derived_from(self) -> object:
        if (one := self.unbatched) is not None:
            return one.mask, one.size, one.staged._derived_from()
        return self.source and (self.source.key.digest, self.source.key.locs)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        program = self.program
        constants = (a for e in program.all_eqns for a in e.invars if a.__class__ is Literal)
        shapes = tuple([ref_type(v).shape for v in program.params])
        return hash((program.name, len(program.tasks), shapes, self.options, *constants))

    def printed(self) -> str:
        """Returns the text of the graph, before any pass."""
        with self.depth_told():
            return print_program(self.program)

    def depth_told(self) -> AbstractContextManager[None]:
        """Returns a block in which recursion too deep for Python becomes an error that names this program."""
        return depth_told(self.program.name, lambda: _deepest_equation(self.program))

    def __repr__(self) -> str:
        return f"<{self.program.name}: {len(self.program.tasks)} tasks>"

    def on(self, platform: str) -> StagedProgram:
        """Returns the program specialised for a platform. Raises UnsupportedError if it does not support it."""
        made = self._on.get(platform)
        if made is None:
            made = self
            if asks_platform(self.with_rules):
                with self.depth_told():
                    program = pipelines().ChoosePlatform(platform)(self.with_rules)
                made = StagedProgram(program, self.options, self.stacks)
            self._on[platform] = made
        return made

    def progress(self, what: str) -> AbstractContextManager[object]:
        """Returns a block that shows progress on a terminal: "`what` program", if it takes long."""
        return doing(what, self.program.name, options=self.options)

    def optimised_for(self, machine: Machine) -> Program:
        """Returns the graph after all passes."""
        made = self._made.get(machine)
        if made is None:
            with self.depth_told():
                # the same code for arrays with other limits
                program = replace(self.program, limits={}) if self.program.limits else self.program
                key = (lambda: self.key) if program is self._recording else None
                made = self._made[machine] = optimised(program, self.options, machine=machine, key=key)
        return made

    @functools.cached_property
    def joined(self) -> Program:
        """The graph that differentiation takes: with joined tasks, before machine-specific passes."""
        with self.depth_told():
            return self._optimised_until(Stage.JOINED)

    def unrolled_for(self, machine: Machine, joined: Program) -> Program:
        """Returns a joined graph for a machine. If reverse loops run in segments, short inner loops are unrolled."""
        if machine.reverse.steps == 1:
            return joined
        with self.depth_told():
            return pipelines().unrolled(joined, self.options, machine)

    @functools.cached_property
    def canonical(self) -> Program:
        """The graph with its tasks as the user wrote them."""
        with self.depth_told():
            return self._optimised_until(Stage.CANONICAL)

    def _optimised_until(self, stage: Stage) -> Program:
        return optimised(self._recording, self.options, until=stage, differentiable=True, key=lambda: self.key)

    def batched(self, mask: Mask, size: int) -> tuple[StagedProgram, Mask]:
        """Returns the program for `size` calls at once, whose operands in the mask have a leading axis, and a mask.

        The mask is of results with a leading axis: those that depend on such operands.
        """
        made = self._batched.get((mask, size))
        if made is None:
            with self.depth_told():
                program = batch(self.with_rules, mask, size, all_results=False)
                varying = batched_references(self.with_rules, mask)
            given = tuple(v in varying for v in self.with_rules.results)
            linearised = self.unbatched is not None or self.has_known_source
            unbatched = Unbatched(self, mask, size, given) if linearised else None
            made = self._batched[mask, size] = StagedProgram(program, self.options, unbatched=unbatched), given
        return made

    @property
    def may_fail(self) -> bool:
        """Returns whether a check is left after all passes, or the interpreter makes checks of its own."""
        if self.options.debug:
            return True
        if asks_platform(self.program):  # on which platforms it has run, another program that is equal may know
            return bool(checks_of(self.program.all_eqns))
        programs = tuple(self._made.values()) or (self.optimised_for(CPU),)
        return any(checks_of(program.all_eqns) for program in programs)


def _deepest_equation(program: Program) -> Loc | None:
    """Returns the line of the most deeply nested equation."""
    found, most = None, -1
    work = [(block, 0) for task in program.tasks for block in blocks_of(task)]
    while work:
        block, depth = work.pop()
        if depth > most:
            found, most = next((e.loc for e in block.eqns if e.loc is not None), found), depth
        work += [(inner, depth + 1) for eqn in block.eqns for inner in eqn.blocks]
    return found
