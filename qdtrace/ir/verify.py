"""Verifies the rules of the graph, which every pass may rely on and must preserve.

The rules, by the name an error begins with:

- `binding`: every variable is bound once, before its uses and in a block around them.
- `typing`: operands, parameters and results obey the typing rule of the primitive.
- `reference`: buffers are global; references are never carried, yielded or chosen, so that it is always known which
  memory an equation means.
- `initial`: an initial value is a literal of its buffer's dtype; parameters have none.
- `memory`: what may take over the memory of a parameter is a returned buffer of its type, one for each parameter.
- `limits`: a parameter with limits has integers, and no task writes it.
- `task`: kinds, bounds and index fit; a body has no parameters and no results.
- `head`: a head writes no buffer, and the body uses no cell of it and no value of it that depends on a load from a
  buffer the task writes (each thread may evaluate the head anew, while others write). A check of the head may depend
  on such a load only if the bounds do: then the head is evaluated before.
- `result`: a result is a parameter or a buffer.
- `stage`: a program before the final stage has nothing that only the passes of one machine write, and a final one
  nothing that still depends on the platform (`verify_stage`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from qdtrace.errors import VerifyError
from qdtrace.ir.custom import Part
from qdtrace.ir.memory import written
from qdtrace.ir.primitives import LOAD, PLATFORM, PRIMITIVES, QUOTIENT, Effect
from qdtrace.ir.printer import Printer, print_eqn
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Stage, Task, Var, is_local, ref_type
from qdtrace.ir.type_rules import IrTypeError
from qdtrace.ir.types import DType, RefType, ScalarType, Space
from qdtrace.ir.walk import free_vars, used_vars, walk_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.limits import Limits

_OPTIONAL = frozenset({"unroll", "most", "rare", "told"})
_INDEX = (DType.i32, DType.i64)


def verify_program(program: Program) -> None:
    """Raises VerifyError, with the rule broken and the equation, unless the program is right."""
    _Verifier(program).run()


def verify_stage(program: Program) -> None:
    """Raises VerifyError unless the program is right, and has only what its stage allows."""
    verify_program(program)
    # A quotient has no derivative and no batched form; a choice of platforms is decided before the passes of a machine.
    wrong = QUOTIENT if program.stage < Stage.FINAL else PLATFORM
    for eqn in program.all_eqns:
        if eqn.primitive is wrong:
            what = f"`{eqn.primitive.name}` stands in a program of stage {program.stage.name.lower()}"
            raise VerifyError(f"stage: {what}", loc=eqn.loc, notes=(f"in `{program.name}`",))


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.bound: set[Var] = set()
        self.visible: set[Var] = set()

    def run(self) -> None:
        program = self.program
        for var in (*program.params, *program.buffers):
            self._check_buffer(var)
            self._bind(var, None)
        buffers = set(program.buffers)
        for var, value in program.initial.items():
            if var not in buffers:
                raise self._error("initial", f"{self._name(var)} has an initial value but is no buffer")
            self._check_initial(var, value)
        self._check_donations()
        for var, limits in program.limits.items():
            self._check_limits(var, limits)
        for task in program.tasks:
            before = set(self.visible)
            self._task(task)
            self.visible = before
        for var in program.results:
            if var not in self.visible:
                raise self._error("result", f"{self._name(var)} is no parameter and no buffer of the program")

    # Messages.

    def _printer(self) -> Printer:
        printer = Printer()
        printer.program(self.program)
        return printer

    def _name(self, atom: Atom) -> str:
        return f"`{self._printer().atom(atom)}`"

    def _error(self, rule: str, what: str, eqn: Eqn | None = None, task: Task | None = None) -> VerifyError:
        notes = [f"in `{self.program.name}`"]
        if task is not None:
            notes = [f"in task {self.program.tasks.index(task)} of `{self.program.name}`"]
        if eqn is not None:
            notes.insert(0, f"in `{print_eqn(eqn, self._printer())}`")
        loc = eqn.loc if eqn is not None else task.loc if task is not None else None
        return VerifyError(f"{rule}: {what}", loc=loc, notes=notes)

    # Bindings.

    def _bind(self, var: Var, eqn: Eqn | None) -> None:
        if var in self.bound:
            raise self._error("binding", f"{self._name(var)} is bound twice", eqn)
        self.bound.add(var)
        self.visible.add(var)

    def _use(self, atoms: Sequence[Atom], eqn: Eqn | None, task: Task | None = None) -> None:
        for atom in atoms:
            if isinstance(atom, Literal):
                kind: Any = atom.type  # which a graph made by hand may have wrong
                if not isinstance(kind, ScalarType) or atom.value.dtype != atom.dtype.numpy:
                    what = f"the literal {atom.value!r} is no {atom.type}"
                    raise self._error("typing", what, eqn, task)
            elif atom not in self.visible:
                known = "is bound, but not in a block around this use" if atom in self.bound else "is not bound before"
                raise self._error("binding", f"{self._name(atom)} {known}", eqn, task)

    # Buffers and tasks.

    def _check_buffer(self, var: Var) -> None:
        kind = var.type
        if not isinstance(kind, RefType) or kind.space is not Space.GLOBAL:
            raise self._error("reference", f"{self._name(var)} needs a `ref[...]` type, got {kind}")
        lengths: tuple[Any, ...] = kind.shape
        if any(not isinstance(n, int) or n < 0 for n in lengths):
            raise self._error("reference", f"{self._name(var)} needs lengths of 0 and up, got {kind.shape}")

    def _check_initial(self, var: Var, value: Atom) -> None:
        if not isinstance(value, Literal) or value.type != ScalarType(var.dtype):
            raise self._error("initial", f"{self._name(var)} needs a literal of {var.dtype.value}, got {value!r}")
        self._use((value,), None)

    def _check_limits(self, var: Var, limits: Limits) -> None:
        if var not in self.program.params or not var.dtype.is_integer or len(limits.steps) != ref_type(var).ndim:
            what = "has limits, which a parameter of integers has, with a step for each axis"
            raise self._error("limits", f"{self._name(var)} {what}")
        if any(var in written(task.all_eqns) for task in self.program.tasks):
            raise self._error("limits", f"{self._name(var)} has limits and is written")

    def _check_donations(self) -> None:
        program, taken = self.program, set[Var]()
        for var, param in program.donated_from.items():
            if param not in program.params:
                raise self._error("memory", f"{self._name(param)} is no parameter of the program")
            if var not in program.buffers or var not in program.results:
                raise self._error("memory", f"{self._name(var)} is no buffer that is returned")
            if var.type != param.type:
                raise self._error("memory", f"{self._name(var)} needs the type {param.type} of {self._name(param)}")
            if param in taken:
                raise self._error("memory", f"{self._name(param)} is taken over twice")
            taken.add(param)

    def _task(self, task: Task) -> None:
        if task.kind not in ("range_for", "serial"):
            raise self._error("task", f"needs the kind range_for or serial, got {task.kind!r}", task=task)
        self._eqns(task.head)
        if (task.index is None) != (task.kind == "serial"):
            raise self._error("task", "a range_for has an index, a serial task has none", task=task)
        if task.index is not None:
            self._bounds(task, task.index)
            self._bind(task.index, None)
        if task.body.params or task.body.results:
            raise self._error("task", "a body has no parameters and no results", task=task)
        self._check_head(task)
        self._block(task.body, None)

    def _bounds(self, task: Task, index: Var) -> None:
        self._use((task.start, task.stop), None, task)
        if not isinstance(index.type, ScalarType) or index.dtype not in _INDEX:
            raise self._error("task", f"the index needs i32 or i64, got {index.type}", task=task)
        if not task.start.type == task.stop.type == index.type:
            what = f"bounds need the type {index.type} of the index, got {task.start.type} and {task.stop.type}"
            raise self._error("task", what, task=task)

    def _check_head(self, task: Task) -> None:
        if not task.head:
            return
        changed = set(written(task.all_eqns))
        for eqn in walk_all(task.head):
            if eqn.primitive.writes and not is_local(eqn.invars[0]):
                raise self._error("head", "a head writes no buffer", eqn)
        tainted, checks = _tainted(task.head, changed)
        if checks and tainted.isdisjoint((task.start, task.stop)):
            what = "a check depends on a load from a buffer the task writes, and the bounds do not"
            raise self._error("head", what, checks[0])
        made = {v for e in task.head for v in e.outvars}
        for var in free_vars(task.body):
            if var in made and isinstance(var.type, RefType):
                raise self._error("head", f"the body uses the cell {self._name(var)} of the head", task=task)
            if var in tainted:
                what = f"the body uses {self._name(var)}, which depends on a load from a buffer the task writes"
                raise self._error("head", what, task=task)

    # Equations.

    def _block(self, block: Block, eqn: Eqn | None) -> None:
        bound_here = list(block.params)
        for param in block.params:
            if isinstance(param.type, RefType):
                raise self._error("reference", f"{self._name(param)} carries a reference", eqn)
            self._bind(param, eqn)
        self._eqns(block.eqns)
        self._use(block.results, eqn)
        for atom in block.results:
            if isinstance(atom.type, RefType):
                raise self._error("reference", f"{self._name(atom)} leaves its block", eqn)
        for inner in block.eqns:
            bound_here += inner.outvars
        self.visible.difference_update(bound_here)

    def _eqns(self, eqns: Sequence[Eqn]) -> None:
        for eqn in eqns:
            self._use(eqn.invars, eqn)
            self._check_params(eqn)
            for block in eqn.blocks:
                self._block(block, eqn)
            self._check_types(eqn)
            for var in eqn.outvars:
                self._bind(var, eqn)

    def _check_params(self, eqn: Eqn) -> None:
        prim = eqn.primitive
        if PRIMITIVES.get(prim.name) is not prim:
            raise self._error("typing", f"`{prim.name}` is no primitive of the graph", eqn)
        if len(eqn.blocks) != prim.blocks:
            what = f"`{prim.name}` needs {prim.blocks} blocks, got {len(eqn.blocks)}"
            raise self._error("typing", what, eqn)
        for name in prim.param_names:
            if name not in eqn.params and name not in _OPTIONAL:
                raise self._error("typing", f"`{prim.name}` needs the parameter `{name}`", eqn)
        for name, value in eqn.params.items():
            if name not in prim.param_names:
                raise self._error("typing", f"`{prim.name}` has no parameter `{name}`", eqn)
            if not _fits(name, value):
                raise self._error("typing", f"`{prim.name}` has the wrong `{name}`: {value!r}", eqn)

    def _check_types(self, eqn: Eqn) -> None:
        prim = eqn.primitive
        if prim.structured:
            for atom in eqn.invars:
                if isinstance(atom.type, RefType):
                    raise self._error("reference", f"{self._name(atom)} is carried by `{prim.name}`", eqn)
        try:
            types = prim.type_rule([a.type for a in eqn.invars], eqn.params, [b.type for b in eqn.blocks])
        except IrTypeError as e:
            raise self._error("typing", f"`{prim.name}` {e}", eqn) from None
        if tuple(v.type for v in eqn.outvars) != tuple(types):
            want = ", ".join(map(str, types)) or "no results"
            got = ", ".join(str(v.type) for v in eqn.outvars) or "none"
            raise self._error("typing", f"`{prim.name}` gives {want}, but the results are {got}", eqn)


def _fits(name: str, value: object) -> bool:
    match name:
        case "dtype":
            return isinstance(value, DType)
        case "shape":
            lengths = cast("tuple[object, ...]", value)
            return isinstance(value, tuple) and all(isinstance(n, int) and n >= 0 for n in lengths)
        case "y":
            return isinstance(value, int)
        case "op" | "buffer" | "message" | "told" | "names" | "refused" | "help":
            return isinstance(value, str)
        case "rule":  # see `ir/custom`; a graph that was read from its text has the name
            return isinstance(value, str | Part) or callable(getattr(value, "adjoints_of", None))
        case _:
            return isinstance(value, bool | int | None)


def _tainted(eqns: Sequence[Eqn], changed: set[Var]) -> tuple[set[Atom], list[Eqn]]:
    """Returns the variables and the checks of a head that depend on a load of `changed` references, or via cells."""
    tainted: set[Atom] = set()
    checks: list[Eqn] = []
    for eqn in eqns:
        deep = list(walk_all((eqn,)))
        loads = any(e.primitive is LOAD and e.invars[0] in changed and not is_local(e.invars[0]) for e in deep)
        if loads or any(v in tainted for v in used_vars(eqn)):
            tainted.update(eqn.outvars)
            tainted.update(written(deep))
            checks += [e for e in deep if Effect.CHECK in e.primitive.effects]
    return tainted, checks
