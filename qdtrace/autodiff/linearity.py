"""Tells whether a program is a linear function of some of its parameters, equation by equation.

Each operation on a value that depends on these parameters must be linear: products of two such values, decisions and
indices are not. What is added to one must not be a number other than 0; a known value counts as zero, as in JAX, since
only a run knows it. Memory counts as one variable: an array that may hold a dependent element is dependent.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.index.definite_stores import filled_by
from qdtrace.autodiff.partials import is_linear
from qdtrace.autodiff.zeros import zeros_of
from qdtrace.errors import GradientError
from qdtrace.ir.carries import carries_of
from qdtrace.ir.custom import Part, operands_of, without_rules
from qdtrace.ir.dataflow import flows, reached
from qdtrace.ir.memory import indices_of, values_of, written
from qdtrace.ir.primitives import CUSTOM, STORE, WHILE
from qdtrace.ir.program import Block, Literal, Program, Task, Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_inside
from qdtrace.passes.dead_code import DeadCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from qdtrace.errors import Loc
    from qdtrace.ir.custom import Rule
    from qdtrace.ir.program import Atom, Eqn

    Refused = Callable[[Program, str, Loc | None], GradientError]


def refuse_moving(program: Program, direction: Sequence[Var], zeros: Sequence[Var], rule: str, loc: Loc | None) -> None:
    """Raises GradientError if tangents are no linear function of a direction, which its change then cannot replace.

    `zeros` are parameters that are zero, `rule` and `loc` name a function with a rule that need not be linear.
    """

    def refused(program: Program, what: str, line: Loc | None) -> GradientError:
        return GradientError(
            f"{program.name}: the derivative of jax.jvp by its direction needs rules that are linear in tangents, "
            f"got {what} in that of `{rule}`",
            loc=line or loc,
            help="make the jax.custom_jvp rule linear in its tangents, or take a direction that does not depend on the "
            "variable",
        )

    refuse_nonlinear(program, direction, refused)
    _refuse_terms(program, (*direction, *zeros), refused)


def refuse_rules_along(program: Program, *, moves: bool) -> None:
    """Raises GradientError for derivatives of backward functions that are not zero where the direction is.

    JAX asks no rule for tangents of a direction that is zero. Where a direction `moves`, its change replaces it, so
    derivatives must be linear in it, too.
    """
    for found in dict.fromkeys(e.params["rule"] for e in program.all_eqns if e.primitive is CUSTOM):
        if isinstance(found, str | Part):
            continue
        rule: Rule = found

        def refused(program: Program, what: str, line: Loc | None, rule: Rule = rule) -> GradientError:
            return GradientError(
                f"{program.name}: a derivative of the backward function of `{rule}` needs rules that are linear in "
                f"tangents, got {what} in one",
                loc=line or rule.loc,
                help="make the jax.custom_jvp rules that it calls linear in their tangents",
            )

        for block, direction, results in rule.tangents():
            if any(isinstance(a, Literal) and a.value != 0 for a in results):
                raise refused(program, "a term without them", None)
            task = Task("serial", None, literal(0, DType.i32), literal(1, DType.i32), Block(eqns=block.eqns))
            outs = tuple(a for a in results if isinstance(a, Var))
            along = Program(program.name, block.params, (), (task,), outs)
            if moves:
                refuse_nonlinear(along, direction, refused)
            _refuse_terms(along, direction, refused)


def _refuse_terms(program: Program, zeros: Sequence[Var], refused: Refused) -> None:
    """Raises the error if a result need not be zero where these parameters are."""
    made = {v for e in program.all_eqns for v in (*_targets(e), *e.outvars)}
    zero = zeros_of(program, zeros, frozenset(made.union(program.params, program.buffers)))
    if not zero.issuperset(program.results):
        raise refused(program, "a term without them", None)


def refuse_nonlinear(program: Program, unknown: Sequence[Var], refused: Refused | None = None) -> None:
    """Raises GradientError, with the line, if the results are no linear function of the `unknown` parameters.

    `refused` makes the error.
    """
    refused = refused or not_linear_in
    for var in unknown:
        if not var.dtype.is_float:
            raise refused(program, f"the integers `{var.hint}`", None)
    live = dependent_variables(program, unknown)
    for task in program.tasks:
        if not live.isdisjoint((task.start, task.stop)):
            raise refused(program, "a range that one of them decides", task.loc)
    for eqn in program.all_eqns:
        if live.isdisjoint(_targets(eqn)):
            continue
        if found := _nonlinear(eqn, live):
            raise refused(program, found, eqn.loc)
        if any(isinstance(a, Literal) and a.value != 0 for a in _added(eqn, live)):
            raise refused(program, f"`{eqn.primitive.name}` of a number other than 0", eqn.loc)
    filled = {v for v, value in program.initial.items() if value.value != 0 and v in live}
    for var in filled.difference(_overwritten(program, filled)):
        raise refused(program, f"elements of `{var.hint}` that keep {program.initial[var].value}", None)


def reads_none(program: Program, unknown: Sequence[Var]) -> Program:
    """Returns the program of a derivative without parameters that it does not read.

    Raises GradientError if it reads one: the function is not linear in it.
    """
    made = DeadCode()(without_rules(program))
    used = {ref for task in made.tasks for ref in task.refs}
    if read := next((v for v in unknown if v in used), None):
        raise not_linear_in(program, f"a derivative that depends on `{read.hint}`", None)
    return replace(program, params=tuple(v for v in program.params if v not in unknown))


def not_linear_in(program: Program, what: str, loc: Loc | None) -> GradientError:
    """Returns the error for a function that is not linear; `what` says what was found."""
    return GradientError(
        f"{program.name}: needs a linear function of the unknown operands to be transposed, got {what}",
        loc=loc,
        help="leave out what is not linear, or transpose jax.linearize(f, x)[1], the derivative at a point x",
    )


def dependent_variables(program: Program, unknown: Sequence[Var]) -> frozenset[Var]:
    """Returns the variables that depend on the unknown parameters and that a result depends on."""
    after: defaultdict[Var, list[Var]] = defaultdict(list)
    before: defaultdict[Var, list[Var]] = defaultdict(list)

    def add(source: Atom, target: Var) -> None:
        if isinstance(source, Var):
            after[source].append(target)
            before[target].append(source)

    for task in program.tasks:
        for ref in written(task.all_eqns):
            add(task.start, ref)
            add(task.stop, ref)
        for eqn in task.all_eqns:
            for source, target in flows(eqn) if eqn.blocks else ():
                add(source, target)
            for source in _operands(eqn):
                for target in _targets(eqn):
                    add(source, target)
    return frozenset(reached(unknown, after.__getitem__) & reached(program.results, before.__getitem__))


def _targets(eqn: Eqn) -> tuple[Var, ...]:
    """Returns what an equation, or its control of others, gives a value."""
    if not eqn.blocks:
        return (*eqn.outvars, *written((eqn,)))
    carried = [p for c in carries_of(eqn) for p in c.params]
    return (*eqn.outvars, *carried, *written(walk_inside(eqn)))


def _operands(eqn: Eqn) -> Sequence[Atom]:
    """Returns what the targets depend on, besides the flow of carries."""
    if eqn.blocks:
        return (*eqn.control, *(eqn.blocks[0].results if eqn.primitive is WHILE else ()))
    # a rule has the transpose of a function, whose value is made step by step
    return operands_of(eqn) if eqn.primitive is CUSTOM else eqn.invars


def _nonlinear(eqn: Eqn, live: AbstractSet[Atom]) -> str:
    """Returns what is not linear about an equation with a dependent result, or nothing."""
    prim = eqn.primitive
    if eqn.blocks:
        return f"`{prim.name}` that one of them decides" if not live.isdisjoint(_operands(eqn)) else ""
    if prim.is_access:
        if not live.isdisjoint(indices_of(eqn)):
            return "an index that one of them decides"
        if not prim.writes or prim is STORE or (eqn.params["op"] == "add" and live.isdisjoint(eqn.outvars)):
            return ""
        return f"`{prim.name}` {eqn.params['op']}"
    if prim is CUSTOM:
        return "" if len(eqn.invars) > 1 else f"`{eqn.params['rule']}` of one"
    changing = [a in live for a in eqn.invars]
    if eqn.outvar.dtype.is_float and is_linear(prim, changing):
        return ""
    return f"`{prim.name}` of {'two values that depend' if sum(changing) > 1 else 'a value that depends'} on them"


def _overwritten(program: Program, wanted: Collection[Var]) -> Iterator[Var]:
    """Yields the references in `wanted` whose first content nothing reads, as a task stores every element first."""
    left = set(wanted)
    for task in program.tasks if left else ():
        met = left.intersection(task.refs)
        read = {e.invars[0] for e in task.all_eqns if e.primitive.is_access and e.primitive is not STORE}
        yield from (met & filled_by(task)).difference(read) if met else ()
        left -= met


def _added(eqn: Eqn, live: AbstractSet[Atom]) -> Sequence[Atom]:
    """Returns the operands of which each alone is a term, or one of the values, of a dependent result."""
    if eqn.blocks:
        return [a for c in carries_of(eqn) if c.outvar in live for a in (c.initial, *c.results) if a is not None]
    if eqn.primitive.is_access:
        return values_of(eqn)
    match eqn.primitive.name:
        case "add" | "sub":
            return eqn.invars
        case "select":
            return eqn.invars[1:]
        case "fma":
            return eqn.invars[2:]
        case _:
            return ()
