"""The graph: programs of tasks, tasks of ordered equations, equations with structured blocks.

Everything is frozen; a pass returns new objects. A `Var` is compared by identity and bound once. Order of
equations is the order of effects. Control flow is structured: `for`, `while` and `if` equations own blocks and
carry values in and out of them; there is no jump.
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.frozen import frozen
from qdtrace.ir.types import SCALARS, BlockType, DType, RefType, ScalarType, Space, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from qdtrace.errors import Loc
    from qdtrace.ir.primitives import Primitive
    from qdtrace.limits import Limits


@frozen(eq=False, slots=True)
class Var:
    """A value bound once: by a parameter list, a loop or an equation. Identity is equality."""

    type: Type
    hint: str = ""
    """Preferred name in printed graphs; the printer makes it unique."""

    @property
    def dtype(self) -> DType:
        """Element type of the scalar or of the array referred to."""
        return self.type.dtype

    def __repr__(self) -> str:
        return f"<{self.hint or '_'}: {self.type}>"


@frozen(eq=False, slots=True)
class Literal:
    """A scalar constant. Equal when dtype and bits are equal (so NaN == NaN and 0.0 != -0.0)."""

    value: Any
    """A NumPy scalar of the dtype."""
    type: ScalarType

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def key(self) -> tuple[DType, bytes]:
        """The dtype and bits, which equality and hashing compare."""
        return self.type.dtype, self.value.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"{self.value}:{self.type}"


Atom = Var | Literal


def literal(value: Any, dtype: DType) -> Literal:
    """Returns a constant of the dtype, the same object for equal bits; converted as by NumPy's `astype`."""
    return _interned(dtype, np.asarray(value).astype(dtype.numpy).tobytes())


def number(value: np.generic, dtype: DType) -> Literal:
    """Returns a number of NumPy, which has the dtype, as a constant; the same object for equal bits."""
    return _interned(dtype, value.tobytes())


@lru_cache(maxsize=1 << 14)
def _interned(dtype: DType, bits: bytes) -> Literal:
    return Literal(np.frombuffer(bits, dtype.numpy)[0], SCALARS[dtype])


def same_items(made: Sequence[object], before: Sequence[object]) -> bool:
    """Returns whether two sequences hold the same objects."""
    return made is before or (len(made) == len(before) and all(map(is_, made, before)))


@frozen(slots=True)
class Block:
    """A list of equations with parameters (bound on entry) and results (read on exit).

    May use variables of the enclosing blocks.
    """

    params: tuple[Var, ...] = ()
    eqns: tuple[Eqn, ...] = ()
    results: tuple[Atom, ...] = ()

    @property
    def type(self) -> BlockType:
        """Types of the parameters and of the results."""
        return BlockType(tuple([p.type for p in self.params]), tuple([r.type for r in self.results]))

    def rebuilt(
        self, eqns: Sequence[Eqn], results: tuple[Atom, ...] | None = None, params: tuple[Var, ...] | None = None
    ) -> Block:
        """Returns the block with other parts, or the block itself if they are the same objects."""
        results = self.results if results is None else results
        params = self.params if params is None else params
        if same_items(eqns, self.eqns) and same_items(results, self.results) and same_items(params, self.params):
            return self
        return Block(params, tuple(eqns), results)


@frozen(eq=False, slots=True)
class Eqn:
    """One equation: `outvars = primitive[params] invars {blocks}`."""

    primitive: Primitive
    invars: tuple[Atom, ...]
    outvars: tuple[Var, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    blocks: tuple[Block, ...] = ()
    loc: Loc | None = None

    @property
    def outvar(self) -> Var:
        """The only result."""
        (var,) = self.outvars
        return var

    @property
    def control(self) -> tuple[Atom, ...]:
        """The operands that are not carried: bounds and step of a `for`, the condition of an `if`."""
        return self.invars[: self.primitive.control]

    @property
    def initials(self) -> tuple[Atom, ...]:
        """The values that a loop begins with."""
        return self.invars[self.primitive.control :]

    @property
    def bounds(self) -> tuple[Atom, Atom, Atom]:
        """Start, stop and step of a `for`."""
        start, stop, step = self.control
        return start, stop, step

    @property
    def step(self) -> Atom:
        """The step of a `for`, which is added to the index after an iteration."""
        return self.bounds[2]

    @property
    def index(self) -> Var:
        """The number of the iteration in the body of a `for`."""
        return self.blocks[0].params[0]

    def rebuilt(
        self,
        invars: tuple[Atom, ...] | None = None,
        blocks: tuple[Block, ...] | None = None,
        outvars: tuple[Var, ...] | None = None,
    ) -> Eqn:
        """Returns the equation with other parts, or the equation itself if they are the same objects."""
        invars = self.invars if invars is None else invars
        blocks = self.blocks if blocks is None else blocks
        outvars = self.outvars if outvars is None else outvars
        if same_items(invars, self.invars) and same_items(blocks, self.blocks) and same_items(outvars, self.outvars):
            return self
        return Eqn(self.primitive, invars, outvars, self.params, blocks, self.loc)


def walk_all(eqns: Iterable[Eqn], enters: Callable[[Eqn], bool] = lambda _: True) -> Iterator[Eqn]:
    """Yields each of the equations and, after it, those in the blocks of what it `enters`, in program order."""
    pending = [iter(eqns)]
    while pending:
        for eqn in pending[-1]:
            yield eqn
            if eqn.blocks and enters(eqn):  # most have none
                pending += [iter(inner.eqns) for inner in reversed(eqn.blocks)]
                break
        else:
            pending.pop()


@frozen(eq=False)
class Task:
    """A launch unit.

    `range_for`: the body runs once for each `index` in `start:stop`, unordered and in parallel.
    `serial`: the body runs once, in one thread; `index` is None.

    `head` holds equations evaluated once before the launch. Its values are uniform: bounds and what was moved out
    of the body. What the body (not the bounds) uses of it must not depend on memory that the task writes, because
    every thread may evaluate it anew.
    """

    kind: str
    index: Var | None
    start: Atom
    stop: Atom
    body: Block
    head: tuple[Eqn, ...] = ()
    name: str = ""
    loc: Loc | None = None
    hints: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Launch hints of the user: `block_dim`, `unroll`, `fuse`, `refill`."""

    @cached_property
    def all_eqns(self) -> tuple[Eqn, ...]:
        """Every equation, those in blocks included, head first and in program order."""
        return tuple(walk_all((*self.head, *self.body.eqns)))

    @cached_property
    def definitions(self) -> dict[Var, Eqn]:
        """The equation that binds each variable (those bound by a block or the task are absent)."""
        return {var: eqn for eqn in self.all_eqns for var in eqn.outvars}

    @cached_property
    def refs(self) -> dict[Var, None]:
        """The global references that the task uses, in order of first use."""
        used = (a for eqn in self.all_eqns for a in eqn.invars)
        return dict.fromkeys(a for a in used if a.type.__class__ is RefType and is_global(a))  # type: ignore[misc]

    def rebuilt(
        self,
        body: Block,
        head: Sequence[Eqn] | None = None,
        start: Atom | None = None,
        stop: Atom | None = None,
        index: Var | None = None,
    ) -> Task:
        """Returns the task with other parts, or the task itself if they are the same objects."""
        head = self.head if head is None else head
        bounds = start or self.start, stop or self.stop, index or self.index
        same = body is self.body and same_items(head, self.head)
        if same and same_items(bounds, (self.start, self.stop, self.index)):
            return self
        start, stop, index = bounds
        return replace(self, head=tuple(head), start=start, stop=stop, index=index, body=body)


class Stage(IntEnum):
    """Progress of a program through the passes; `passes/pipelines` lists those between two stages."""

    TRACED = 0
    CANONICAL = 1
    """Cells are values and local rules have run: the same for every machine."""
    JOINED = 2
    """Tasks are fused, and buffers that only pass values between fused tasks are contracted."""
    FINAL = 3
    """The program is fitted to one machine: a backend compiles it."""


@frozen(eq=False)
class Program:
    """Tasks over buffers. Tasks talk to each other only through references, and run in order.

    `params` are references filled by the caller (a scalar argument is a rank-0 reference); `buffers` are
    references local to the call whose content is undefined until stored, unless `initial` has a value for every
    element of them; `results` are the references, out of both, whose content at the end is returned, in order.
    """

    name: str
    params: tuple[Var, ...]
    buffers: tuple[Var, ...]
    tasks: tuple[Task, ...]
    results: tuple[Var, ...]
    initial: Mapping[Var, Literal] = field(default_factory=dict[Var, Literal])
    """Initial value of every element of a buffer; the content of a buffer that is not in it is undefined."""
    donated_from: Mapping[Var, Var] = field(default_factory=dict[Var, Var])
    """Results out of `buffers` that may have the memory of a parameter: nobody needs its content after the call."""
    stage: Stage = Stage.TRACED
    """Stage that the program has reached, which passes keep and printers omit."""
    limits: Mapping[Var, Limits] = field(default_factory=dict["Var", "Limits"])
    """Limits of parameters that no task writes. A program has them until derivatives know the trips of its loops."""

    @cached_property
    def all_eqns(self) -> tuple[Eqn, ...]:
        """Every equation of the tasks, in order."""
        return tuple([eqn for task in self.tasks for eqn in task.all_eqns])

    def rebuilt(self, tasks: Sequence[Task]) -> Program:
        """Returns the program with other tasks, or the program itself if they are the same objects."""
        return self if same_items(tasks, self.tasks) else replace(self, tasks=tuple(tasks))

    def map_tasks(self, change: Callable[[Task], Task | None]) -> Program:
        """Returns the program with `change` applied to each task (None drops it), or itself if none changed."""
        return self.rebuilt([t for t in map(change, self.tasks) if t is not None])


def ref_type(var: Atom) -> RefType:
    """Returns the type of a reference variable; raises TypeError for a scalar."""
    if not isinstance(var.type, RefType):
        raise TypeError(f"{var!r} is not a reference")
    return var.type


def is_local(atom: Atom) -> bool:
    """Returns whether an atom refers to private memory of one iteration: a cell or a private array."""
    return isinstance(atom.type, RefType) and atom.type.space is Space.LOCAL


def is_global(atom: Atom) -> bool:
    """Returns whether an atom refers to memory that all iterations share."""
    return isinstance(atom.type, RefType) and atom.type.space is Space.GLOBAL
