"""The reference interpreter, which defines the meaning of a program, one NumPy scalar at a time.

A block is compiled once to a list of closures, which then run in order (`compiler`). `COMPILE` has one entry for each
primitive of the graph.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from qdtrace.errors import InterpreterError
from qdtrace.interpret import memory
from qdtrace.interpret.compiler import Compiler
from qdtrace.interpret.names import element_name, name_of
from qdtrace.interpret.numpy_rules import RULES, quiet, wrapper
from qdtrace.interpret.races import RaceDetector
from qdtrace.ir.faults import fault_of
from qdtrace.ir.platforms import HOST, is_platform
from qdtrace.ir.program import Eqn, Program, Task, Var, ref_type
from qdtrace.ir.tells import sites

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.errors import Loc
    from qdtrace.interpret.compiler import Env, Rule, Step
    from qdtrace.ir.program import Atom
    from qdtrace.ir.types import DType

Order = Literal["forward", "backward", "shuffled"]


def evaluate(
    program: Program,
    args: Sequence[np.ndarray],
    *,
    order: Order = "forward",
    seed: int = 0,
    fuel: int = 10_000_000,
    check_races: bool = False,
    check_nans: bool = False,
    trips: dict[Loc | None, int] | None = None,
) -> list[np.ndarray]:
    """Runs the program on copies of the arguments and returns the content of its results.

    `order` is that of the iterations of a range_for (`seed` is for `shuffled`); `fuel` bounds the iterations of all
    loops together. Raises InterpreterError for undefined behaviour, with the line of the equation; with `check_nans`
    also if an operation, or an accumulation, makes NaN of numbers. `trips` is given the most iterations of loops, by
    line.
    """
    with quiet():
        races = RaceDetector() if check_races else None
        return _Machine(order, seed, fuel, races, check_nans, {} if trips is None else trips).run(program, args)


def _compile_scalar(compiler: Compiler, eqn: Eqn) -> Step:
    function = compiler.function(eqn, eqn.primitive.name, [a.dtype for a in eqn.invars], eqn.params)
    operands = [compiler.slot(a) for a in eqn.invars]
    out = compiler.slot(eqn.outvar)
    match operands:
        case [a]:

            def unary(env: Env) -> None:
                env[out] = function(env[a])

            return unary
        case [a, b]:

            def binary(env: Env) -> None:
                env[out] = function(env[a], env[b])

            return binary
        case [a, b, c]:

            def ternary(env: Env) -> None:
                env[out] = function(env[a], env[b], env[c])

            return ternary
        case _:
            raise AssertionError(f"{eqn.primitive.name} has {len(operands)} operands")


def _compile_for(compiler: Compiler, eqn: Eqn) -> Step:
    start, stop, step, *inits = (compiler.slot(a) for a in eqn.invars)
    (index, *carried), steps, results = compiler.block(eqn.blocks[0])
    outs = [compiler.slot(v) for v in eqn.outvars]
    make, burn, ended, loc = wrapper(eqn.index.dtype), compiler.burn, compiler.ended, eqn.loc

    def loop(env: Env) -> None:
        by = int(env[step])
        carries = [env[i] for i in inits]
        values = range(int(env[start]), int(env[stop]), by) if by else ()
        for i in values:
            burn(loc)
            env[index] = make(i)
            for slot, value in zip(carried, carries, strict=True):
                env[slot] = value
            for run in steps:
                run(env)
            carries = [env[r] for r in results]
        ended(loc, len(values))
        for slot, value in zip(outs, carries, strict=True):
            env[slot] = value

    return loop


def _compile_while(compiler: Compiler, eqn: Eqn) -> Step:
    inits = [compiler.slot(a) for a in eqn.invars]
    tested, test_steps, (truth,) = compiler.block(eqn.blocks[0])
    carried, steps, results = compiler.block(eqn.blocks[1])
    outs = [compiler.slot(v) for v in eqn.outvars]
    burn, ended, loc = compiler.burn, compiler.ended, eqn.loc

    def loop(env: Env) -> None:
        carries = [env[i] for i in inits]
        count = 0
        while True:
            for slot, value in zip(tested, carries, strict=True):
                env[slot] = value
            for run in test_steps:
                run(env)
            if not env[truth]:
                break
            burn(loc)
            count += 1
            for slot, value in zip(carried, carries, strict=True):
                env[slot] = value
            for run in steps:
                run(env)
            carries = [env[r] for r in results]
        ended(loc, count)
        for slot, value in zip(outs, carries, strict=True):
            env[slot] = value

    return loop


def _compile_if(compiler: Compiler, eqn: Eqn) -> Step:
    condition = compiler.slot(eqn.invars[0])
    _, then_steps, then_results = compiler.block(eqn.blocks[0])
    _, else_steps, else_results = compiler.block(eqn.blocks[1])
    outs = [compiler.slot(v) for v in eqn.outvars]

    def branch(env: Env) -> None:
        taken = bool(env[condition])
        for run in then_steps if taken else else_steps:
            run(env)
        for slot, result in zip(outs, then_results if taken else else_results, strict=True):
            env[slot] = env[result]

    return branch


def _compile_custom(compiler: Compiler, eqn: Eqn) -> Step:
    """Compiles `custom`, whose result is its first operand: the others are for derivatives."""
    value, out = compiler.slot(eqn.invars[0]), compiler.slot(eqn.outvar)

    def run(env: Env) -> None:
        env[out] = env[value]

    return run


def _compile_bound(compiler: Compiler, eqn: Eqn) -> Step:
    index, out, size = compiler.slot(eqn.invars[0]), compiler.slot(eqn.outvar), int(eqn.params["size"])

    def bound(env: Env) -> None:
        value = env[index]
        if not 0 <= value < size:
            raise fault_of(eqn, str(value))
        env[out] = value

    return bound


def _compile_check(compiler: Compiler, eqn: Eqn) -> Step:
    condition, *told = map(compiler.slot, eqn.invars)

    def check(env: Env) -> None:
        if not env[condition]:
            raise fault_of(eqn, *(f"{float(v):g}" if a.dtype.is_float else str(int(v)) for a, v in values(env)))

    def values(env: Env) -> list[tuple[Atom, Any]]:
        return [(a, env[slot]) for a, slot in zip(eqn.invars[1:], told, strict=True)]

    return check


def _compile_platform(compiler: Compiler, eqn: Eqn) -> Step:
    out = compiler.slot(eqn.outvar)

    def ask(env: Env) -> None:
        env[out] = np.bool_(is_platform(eqn, HOST))

    return ask


def _compile_tell(compiler: Compiler, eqn: Eqn) -> Step:
    site, values = sites[int(eqn.params["site"])], [compiler.slot(a) for a in eqn.invars]

    def tell(env: Env) -> None:
        site.run(env[v] for v in values)

    return tell


COMPILE: dict[str, Rule] = {
    **dict.fromkeys(RULES, _compile_scalar),
    "load": memory.compile_load,
    "store": memory.compile_store,
    "accum": memory.compile_accum,
    "atomic": memory.compile_atomic,
    "cell": memory.compile_cell,
    "bound": _compile_bound,
    "custom": _compile_custom,
    "check": _compile_check,
    "platform": _compile_platform,
    "tell": _compile_tell,
    "for": _compile_for,
    "while": _compile_while,
    "if": _compile_if,
}


class _Machine:
    """The state of one run of one program."""

    def __init__(
        self,
        order: Order,
        seed: int,
        fuel: int,
        races: RaceDetector | None,
        check_nans: bool,
        trips: dict[Loc | None, int],
    ) -> None:
        if order not in ("forward", "backward", "shuffled"):
            raise InterpreterError(f"order must be forward, backward or shuffled, got {order!r}")
        self.order = order
        self.random = random.Random(seed)
        self.fuel = self.budget = fuel
        self.races = races
        self.check_nans = check_nans
        self.trips = trips

    def ended(self, loc: Loc | None, count: int) -> None:
        """Notes how many iterations a loop had."""
        self.trips[loc] = max(self.trips.get(loc, 0), count)

    def burn(self, loc: Loc | None) -> None:
        """Counts one iteration of a loop."""
        self.fuel -= 1
        if self.fuel < 0:
            raise InterpreterError(
                f"more than {self.budget} loop iterations were run",
                loc=loc,
                help="end the loop, or raise `fuel` when so many are meant",
            )

    def run(self, program: Program, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        contents: dict[Var, memory.Memory] = {}
        _check_count(program, args)
        for position, (param, arg) in enumerate(zip(program.params, args, strict=True)):
            contents[param] = _content(program, position, param, np.asarray(arg))
        for buffer in program.buffers:
            value = program.initial.get(buffer)
            contents[buffer] = [None if value is None else value.value] * ref_type(buffer).size
        for task in program.tasks:
            self._task(task, contents)
        return [_array(program, r, contents[r]) for r in program.results]

    def _task(self, task: Task, contents: dict[Var, memory.Memory]) -> None:
        template: Env = list(contents.values())
        slots = {var: slot for slot, var in enumerate(contents)}
        compiler = Compiler(COMPILE, template, slots, self.burn, self.ended, self.races, self.check_nans)
        head = Compiler(COMPILE, template, slots, self.burn, self.ended, None, self.check_nans).steps(task.head)
        start, stop = compiler.slot(task.start), compiler.slot(task.stop)
        index = compiler.slot(task.index) if task.index is not None else None
        _, steps, _ = compiler.block(task.body)
        env = template  # each iteration sets a slot before it reads it, so iterations cannot see each other's values
        if self.races is not None:
            self.races.start_task(task)
        for run in head:
            run(env)
        if index is None or task.index is None:
            for run in steps:
                run(env)
            return
        make = wrapper(task.index.dtype)
        for i in self._iterations(int(env[start]), int(env[stop])):
            self.burn(task.loc)
            env[index] = make(i)
            if self.races is not None:
                self.races.iteration = i
            for run in steps:
                run(env)

    def _iterations(self, start: int, stop: int) -> Sequence[int]:
        if self.order == "forward":
            return range(start, stop)
        if self.order == "backward":
            return range(start, stop)[::-1]
        if stop - start > self.budget:
            self.fuel = 0
            return range(start, stop)
        shuffled = list(range(start, stop))
        self.random.shuffle(shuffled)
        return shuffled


def _check_count(program: Program, args: Sequence[np.ndarray]) -> None:
    if len(args) != len(program.params):
        raise InterpreterError(f"`{program.name}` needs {len(program.params)} arguments, got {len(args)}")


def _content(program: Program, position: int, param: Var, arg: np.ndarray) -> memory.Memory:
    want = ref_type(param)
    if arg.shape != want.shape or arg.dtype != want.dtype.numpy:
        got = f"{arg.dtype.name} of shape {arg.shape}"
        raise InterpreterError(
            f"argument {position} (`{name_of(param)}`) of `{program.name}` needs "
            f"{want.dtype.numpy.name} of shape {want.shape}, got {got}"
        )
    return list(arg.ravel())


def _array(program: Program, ref: Var, content: memory.Memory) -> np.ndarray:
    for flat, value in enumerate(content):
        if value is None:
            raise InterpreterError(
                f"result {element_name(ref, flat)} of `{program.name}` is never stored",
                loc=next((e.loc for e in program.all_eqns if _stores_to(e, ref)), None),
                help="store every element of what is returned, or start from zeros",
            )
    dtype: DType = ref.dtype
    out = np.empty(len(content), dtype.numpy)
    for flat, value in enumerate(content):
        out[flat] = value
    return out.reshape(ref_type(ref).shape)


def _stores_to(eqn: Eqn, ref: Var) -> bool:
    return eqn.primitive.writes and eqn.invars[0] is ref
