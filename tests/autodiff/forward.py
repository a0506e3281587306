"""Forward mode: a program that computes directional derivatives beside the values.

Every active variable gets a tangent of its own type: a scalar beside a scalar, memory of the same shape beside memory.
Equations of the program stay as they are, and behind each stand those of its tangent; loops carry tangents beside
values, branches give them. So a tangent is computed in the iteration, on the path and at the index of its value, and
nothing is added where nothing was computed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from qdtrace.autodiff.activity import active_variables
from qdtrace.errors import old_value_refused
from qdtrace.ir.builder import Builder
from qdtrace.ir.carries import carries_of
from qdtrace.ir.custom import Part
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var, literal
from tests.autodiff.partials import partials


def forward(program: Program, inputs: Sequence[Var]) -> tuple[Program, Mapping[Var, Var]]:
    """The program with tangents, and the reference that holds the tangent of each active reference.

    Tangents of `inputs`, which are parameters, are new parameters behind the others, in order. The results are the
    tangents of the active results, in order, and nothing else. Raises GradientError for an atomic of floats whose
    old value is used.
    """
    active = active_variables(program, inputs, program.results)
    given = {v: Var(v.type, f"{v.hint}_t") for v in inputs}
    known = (v for v in (*program.params, *program.buffers) if v in active)
    tangents = {v: given.get(v) or Var(v.type, f"{v.hint}_t") for v in known}
    made = [v for v in tangents if v not in inputs]
    tasks = tuple(_Task(active, tangents).task(t) for t in program.tasks)
    initial = dict(program.initial)
    for var in made:
        if var in program.params or var in program.initial:
            initial[tangents[var]] = literal(0, var.dtype)
    results = [v for v in program.results if v in tangents]
    buffers = (*program.buffers, *(tangents[v] for v in made))
    params = (*program.params, *given.values())
    found = replace(
        program,
        params=params,
        buffers=buffers,
        tasks=tasks,
        results=tuple(tangents[v] for v in results),
        initial=initial,
        donated_from={},
    )
    return found, tangents


class _Task:
    """Tangents of the values of one task."""

    def __init__(self, active: frozenset[Var], references: Mapping[Var, Var]) -> None:
        self.active = active
        self.tangents: dict[Var, Atom] = dict(references)
        self.builder = Builder()

    def task(self, task: Task) -> Task:
        """The task with tangents."""
        with self.builder.block() as head:
            self.equations(task.head)
        return replace(task, head=tuple(head.eqns), body=self.block(task.body, ()))

    def tangent(self, atom: Atom) -> Atom:
        """The tangent of a value; 0 when it is not active."""
        found = self.tangents.get(atom) if isinstance(atom, Var) else None
        return literal(0, atom.dtype) if found is None else found

    def block(self, block: Block, results: Iterable[Atom], params: Sequence[Var] = ()) -> Block:
        """A block with tangents; `results` are those whose tangents it gives too, `params` tangents that it takes."""
        with self.builder.block((*block.params, *params)) as opened:
            self.equations(block.eqns)
            return opened.close((*block.results, *(self.tangent(a) for a in results)))

    def equations(self, eqns: Iterable[Eqn]) -> None:
        """Emits equations, each followed by its tangent."""
        for eqn in eqns:
            self.builder.loc = eqn.loc
            match eqn.primitive.name:
                case "load":
                    self._load(eqn)
                case "store" | "accum":
                    self._write(eqn)
                case "atomic":
                    self._atomic(eqn)
                case "cell":
                    self._cell(eqn)
                case "for" | "while" | "if":
                    self._structured(eqn)
                case _:
                    self._scalar(eqn)

    def _keep(self, eqn: Eqn) -> None:
        self.builder.current.eqns.append(eqn)

    def _scalar(self, eqn: Eqn) -> None:
        self._keep(eqn)
        if not any(v in self.active for v in eqn.outvars):
            return
        total: Atom | None = None
        if eqn.primitive.name == "select":
            which, first, second = eqn.invars
            total = self.builder("select", which, self.tangent(first), self.tangent(second))
        else:
            for atom, part in zip(eqn.invars, partials(self.builder, eqn, eqn.invars, eqn.outvar), strict=True):
                if part is not None and atom in self.tangents:
                    term = part(self.tangent(atom))
                    total = term if total is None else self.builder("add", total, term)
        if total is not None:
            self.tangents[eqn.outvar] = total

    def _load(self, eqn: Eqn) -> None:
        self._keep(eqn)
        ref = self.tangents.get(eqn.invars[0])  # type: ignore[arg-type]
        if ref is not None:
            self.tangents[eqn.outvar] = self.builder("load", ref, *eqn.invars[1:])

    def _write(self, eqn: Eqn) -> None:
        self._keep(eqn)
        ref = self.tangents.get(eqn.invars[0])  # type: ignore[arg-type]
        if ref is None:
            return
        (value,) = values_of(eqn)
        op = eqn.params.get("op")
        if op not in (None, "add"):
            part = self.builder("custom", self.tangent(value), value, rule=Part(op), result=0)
            self.builder.accum(ref, part, *indices_of(eqn))
        elif op is None or value in self.tangents:
            self.builder.emit(eqn.primitive, ref, self.tangent(value), *indices_of(eqn), **eqn.params)

    def _atomic(self, eqn: Eqn) -> None:
        if eqn.invars[0] in self.tangents:
            raise old_value_refused(eqn.params["op"], eqn.loc)
        self._keep(eqn)

    def _cell(self, eqn: Eqn) -> None:
        self._keep(eqn)
        if eqn.outvar in self.active:
            (self.tangents[eqn.outvar],) = self.builder.emit("cell", hint=f"{eqn.outvar.hint}_t", **eqn.params)

    def _structured(self, eqn: Eqn) -> None:
        # a loop may need the tangent of what it carries, and nobody that of the result
        carries = carries_of(eqn)
        carried = [k for k, c in enumerate(carries) if not self.active.isdisjoint((c.outvar, *c.params))]
        more = [eqn.outvars[k] for k in carried]
        outs = tuple(Var(v.type, f"{v.hint}_t") for v in more)
        if eqn.primitive.name == "if":
            blocks = tuple(self.block(b, [b.results[k] for k in carried]) for b in eqn.blocks)
            invars = eqn.invars
        else:
            first = 3 if eqn.primitive.name == "for" else 0
            start = 1 if first else 0
            *tests, body = eqn.blocks
            blocks = (
                *(self._carrying(b, 0, carried, ()) for b in tests),
                self._carrying(body, start, carried, carried),
            )
            invars = (*eqn.invars, *(self.tangent(eqn.invars[first + k]) for k in carried))
        self._keep(replace(eqn, invars=invars, outvars=(*eqn.outvars, *outs), blocks=blocks))
        self.tangents.update(zip(more, outs, strict=True))

    def _carrying(self, block: Block, start: int, carried: Sequence[int], given: Sequence[int]) -> Block:
        """A test or a body of a loop that carries tangents too, and gives those of the results `given`."""
        params = [block.params[start + k] for k in carried]
        new = [Var(p.type, f"{p.hint}_t") for p in params]
        self.tangents.update(zip(params, new, strict=True))
        return self.block(block, [block.results[k] for k in given], new)
