"""Programs that leave their memory when an argument says so.

`checked(program)` puts a check in front of most accesses of a valid program. The index that it checks is far outside
when the new argument `site` has the number of the check (and, at some of them, an index around has some value). So at
most one place can fail for each value of that argument, the error is known to the letter, and with 0 the results are
those of the program as it was.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qdtrace.errors import BoundsError, CheckError, VerifyError
from qdtrace.interpret.reference import evaluate
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var, literal, ref_type
from qdtrace.ir.types import DType, ScalarType
from qdtrace.ir.verify import verify_program

Outcome = list[np.ndarray] | str

MEMORY = frozenset({"load", "store", "accum", "atomic"})
I32 = DType.i32


@dataclass
class Checked:
    """A program with checks, and how many places may fail."""

    program: Program
    sites: int


def checked(program: Program, seed: int) -> Checked:
    """The program with checks; `site` is its last argument."""
    site = ref_var(I32, (), "site")
    for heads in (True, False):
        adder = _Adder(random.Random(seed), site, heads)
        tasks = tuple(map(adder.task, program.tasks))
        made = Checked(replace(program, params=(*program.params, site), tasks=tasks), adder.count)
        try:
            verify_program(made.program)
        except VerifyError:
            continue  # a head may not hand on what the task writes: now more depends on it
        return made
    raise AssertionError("not valid, though heads have no checks and give nothing new")


def outcome(run: Callable[[], Sequence[np.ndarray]]) -> Outcome:
    """The results, or the error of the check that failed."""
    try:
        return list(run())
    except (BoundsError, CheckError) as error:
        return str(error)


def meaning(program: Program, args: Sequence[np.ndarray], site: int) -> Outcome:
    """What the interpreter gives."""
    return outcome(lambda: evaluate(program, [*args, np.asarray(np.int32(site))]))


@dataclass
class _Adder:
    random: random.Random
    site: Var
    heads: bool
    count: int = 0
    chosen: Atom = field(init=False)
    """The value of `site` in this task."""

    def task(self, task: Task) -> Task:
        builder = Builder()
        self.chosen = builder.load(self.site, hint="chosen")
        head = self.eqns(task.head, []) if self.heads else task.head
        around = [*(_integers(task.head) if self.heads else ()), *([task.index] if task.index is not None else [])]
        return replace(task, head=(*builder.current.eqns, *head), body=self.block(task.body, around))

    def block(self, block: Block, around: list[Var]) -> Block:
        inside = [*around, *(p for p in block.params if _is_integer(p))]
        return replace(block, eqns=self.eqns(block.eqns, inside))

    def eqns(self, eqns: Sequence[Eqn], around: list[Var]) -> tuple[Eqn, ...]:
        builder, seen = Builder(), list(around)
        for eqn in eqns:
            name = eqn.primitive.name
            if eqn.blocks:
                eqn = replace(eqn, blocks=tuple([self.block(b, seen) for b in eqn.blocks]))
            elif name in MEMORY and (indices := _indices(eqn)) and self.random.random() < 0.8:
                builder.loc = eqn.loc
                safe = [self.index(builder, eqn, k, index, seen) for k, index in enumerate(indices)]
                eqn = replace(eqn, invars=(*eqn.invars[: len(eqn.invars) - len(indices)], *safe))
            builder.current.eqns.append(eqn)
            seen += _integers([eqn])
        return tuple(builder.current.eqns)

    def index(self, b: Builder, eqn: Eqn, axis: int, index: Atom, around: list[Var]) -> Atom:
        one, shape = self.random, ref_type(eqn.invars[0]).shape
        if one.random() < 0.2:
            return index
        self.count += 1
        size, dtype = shape[axis], index.dtype
        outside = [-1, size, size + 7, -size - 1, 2 ** (dtype.bits - 1) - 1, -(2 ** (dtype.bits - 1))]
        if dtype is DType.i64:
            outside += [2**32, 2**32 + size - 1, -(2**32), 2**40, 2**31, 2**31 - 1]
        far = literal(one.choice(outside), dtype)
        when: Atom = b("eq", self.chosen, literal(self.count, I32))
        if around and one.random() < 0.6:
            v = one.choice(around[-4:])
            name = one.choice(("eq", "eq", "lt", "gt"))
            when = b("and", when, b(name, v, literal(one.choice((0, 1, 2, 3, 5, 11)), v.dtype)))
        drawn = b("select", when, far, index)
        names: dict[str, Any] = {"axis": axis, "buffer": f"site{self.count}", "shape": shape}
        kind = one.random()
        if kind < 0.15:
            low, high = b("ge", drawn, literal(0, dtype)), b("lt", drawn, literal(size, dtype))
            b.emit("check", b("and", low, high), message=f"check {self.count}")
        if kind < 0.7:
            return b("bound", drawn, size=size, **names)
        first = b("bound", drawn, size=size, **names)
        return b("bound", drawn if kind < 0.85 else first, size=size + one.randint(0, 3), **names)


def _indices(eqn: Eqn) -> tuple[Atom, ...]:
    return eqn.invars[len(eqn.invars) - ref_type(eqn.invars[0]).ndim :]


def _is_integer(var: Var) -> bool:
    return isinstance(var.type, ScalarType) and var.dtype in (DType.i32, DType.i64)


def _integers(eqns: Sequence[Eqn]) -> list[Var]:
    return [v for e in eqns for v in e.outvars if _is_integer(v)]
