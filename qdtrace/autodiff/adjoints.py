"""The backward walk over one task: from the last equation to the first, each adds to the adjoints of its operands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.autodiff.custom import adjoints_of, groups, key_of, residuals_of
from qdtrace.autodiff.loops.slots import each_index
from qdtrace.autodiff.partials import partials
from qdtrace.errors import GradientError
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.primitives import ACCUM, CELL, CUSTOM, IF, LOAD, STORE
from qdtrace.ir.program import Var, literal, ref_type
from qdtrace.ir.rebuild import Copier
from qdtrace.ir.types import ScalarType
from qdtrace.ir.walk import free_vars

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from qdtrace.autodiff.sweep import Env, Sweep
    from qdtrace.ir.program import Atom, Block, Eqn


class Adjoints(dict[Var, "Atom"]):
    """Adjoints of scalars at a point of the walk. A variable that is missing has an adjoint of zero so far."""

    def get_or_zero(self, var: Var) -> Atom:
        """Returns the adjoint of a variable, and keeps it."""
        return self.get(var, literal(0, var.dtype))

    def take(self, var: Var) -> Atom:
        """Returns and removes the adjoint of a variable whose definition the walk has reached."""
        return self.pop(var, literal(0, var.dtype))


class Backward:
    """Emits the backward walk over a task, after `sweep` has computed the values that it needs."""

    def __init__(
        self,
        sweep: Sweep,
        active: frozenset[Var],
        sure: Container[Atom],
        memory: dict[Var, Var],
        contested: Container[Eqn] = (),
    ) -> None:
        """`sure` are variables that are tangents at all times (`partials`). `memory` has the adjoint of each active
        reference. `contested` are stores to elements that other iterations may store to as well."""
        self.sweep = sweep
        self.builder = sweep.builder
        self.active = active
        self.sure = sure
        self.memory = memory
        self.contested = contested
        self.loop: Callable[[Eqn, Env, Adjoints], None]
        """Walks back through a loop."""

    def add(self, adjoints: Adjoints, atom: Atom, term: Atom) -> None:
        """Adds `term` to the adjoint of an operand, if the operand is active."""
        if isinstance(atom, Var) and atom in self.active:
            old = adjoints.get(atom)
            adjoints[atom] = term if old is None else self.builder("add", old, term)

    def walk(self, eqns: Sequence[Eqn], env: Env, adjoints: Adjoints) -> None:
        """Walks back over equations whose values are in `env`."""
        for eqn in eqns:
            if eqn.primitive is CELL and eqn.outvar in self.active:
                self._clear(self._private(eqn))
        ruled = groups(eqns)
        for eqn in reversed(eqns):
            self.builder.loc = eqn.loc
            prim = eqn.primitive
            if prim is CUSTOM:
                # At the first equation of an application, the walk has the adjoints of all its results.
                if ruled[key_of(eqn)][0] is eqn:
                    self._by_rule(ruled[key_of(eqn)], env, adjoints)
            elif prim is IF:
                self._branches(eqn, env, adjoints)
            elif prim.loops:
                self.loop(eqn, env, adjoints)
            elif prim is LOAD:
                self._load(eqn, env, adjoints)
            elif prim in (STORE, ACCUM):
                self._write(eqn, env, adjoints)
            elif eqn.outvars and eqn.outvar in adjoints:
                self._scalar(eqn, env, adjoints)

    def _private(self, eqn: Eqn) -> Var:
        if eqn.outvar not in self.memory:
            shape = tuple(eqn.params["shape"])
            self.memory[eqn.outvar] = self.sweep.private(eqn.outvar.dtype, shape, f"{eqn.outvar.hint}_bar")
        return self.memory[eqn.outvar]

    def _clear(self, ref: Var) -> None:
        zero = literal(0, ref.dtype)
        each_index(self.builder, ref_type(ref).shape, lambda at: self.builder.store(ref, zero, *at))

    def _scalar(self, eqn: Eqn, env: Env, adjoints: Adjoints) -> None:
        given = adjoints.pop(eqn.outvar)
        operands = self.sweep.atoms(env, eqn.invars)
        out = self.sweep.atom(env, eqn.outvar)
        found = partials(self.builder, eqn, operands, out, self.active, self.sure)
        for atom, part in zip(eqn.invars, found, strict=True):
            if part is not None:
                self.add(adjoints, atom, part(given))

    def _by_rule(self, eqns: Sequence[Eqn], env: Env, adjoints: Adjoints) -> None:
        if not any(e.outvar in adjoints for e in eqns):
            return
        operands = eqns[0].invars[1:]
        block = adjoints_of(eqns[0], self.active)
        given = {e.params["result"]: adjoints.pop(e.outvar) for e in eqns if e.outvar in adjoints}
        others = block.params[len(operands) :]
        read = operands[: residuals_of(eqns[0])]
        tangents = [literal(0, a.dtype) for a in operands[len(read) :]]
        cotangents = [given.get(k, literal(0, c.dtype)) for k, c in enumerate(others)]
        values = [*self.sweep.atoms(env, read), *tangents, *cotangents]
        copier = Copier(dict(zip(block.params, values, strict=True)))
        self.builder.current.eqns += copier.rebuild_eqns(block.eqns)
        floats = [a for a in operands if a.dtype.is_float]
        for atom, term in zip(floats, copier.atoms(block.results), strict=True):
            self.add(adjoints, atom, term)

    def _load(self, eqn: Eqn, env: Env, adjoints: Adjoints) -> None:
        ref = self.memory.get(eqn.invars[0])  # type: ignore[arg-type]
        if ref is not None and eqn.outvar in adjoints:
            self.builder.accum(ref, adjoints.pop(eqn.outvar), *self.sweep.atoms(env, indices_of(eqn)))

    def _write(self, eqn: Eqn, env: Env, adjoints: Adjoints) -> None:
        self.sweep.log.restore_old(self.sweep, eqn, env)
        ref = self.memory.get(eqn.invars[0])  # type: ignore[arg-type]
        if ref is None:
            return
        at = self.sweep.atoms(env, indices_of(eqn))
        (value,) = values_of(eqn)
        op = eqn.params.get("op", "")
        if op not in ("", "add"):
            raise GradientError(f"needs accumulation by `add` in reverse mode, got `{op}`", loc=eqn.loc)
        zero = literal(0, ref.dtype)
        if value in self.active and eqn in self.contested:
            self.add(adjoints, value, self._taken(ref, at))
            return
        if value in self.active:
            self.add(adjoints, value, self.builder.load(ref, *at))
        if not op:
            self.builder.store(ref, zero, *at)

    def _taken(self, ref: Var, at: Sequence[Atom]) -> Atom:
        """Exchanges an element with 0 and returns what it was, to the first iteration that comes here.

        The others find 0, and need no atomic operation: one that all iterations make on one element takes long.
        """
        zero = literal(0, ref.dtype)
        with self.builder.block() as then:
            taken = then.close((self.builder("atomic", ref, zero, *at, op="exchange"),))
        with self.builder.block() as other:
            left = other.close((zero,))
        found = self.builder("ne", self.builder.load(ref, *at), zero)
        (value,) = self.builder.emit("if", found, blocks=(taken, left))
        return value

    def outer(self, blocks: Iterable[Block]) -> list[Var]:
        """Returns the active scalars from outside that the blocks use."""
        used = {v: None for block in blocks for v in free_vars(block)}
        return [v for v in used if v in self.active and isinstance(v.type, ScalarType)]

    def _branches(self, eqn: Eqn, env: Env, adjoints: Adjoints) -> None:
        given = [(k, adjoints.pop(v)) for k, v in enumerate(eqn.outvars) if v in adjoints]
        outer = self.outer(eqn.blocks)
        before = [adjoints.get_or_zero(v) for v in outer]
        blocks: list[Block] = []
        for block in eqn.blocks:
            inner = Adjoints(zip(outer, before, strict=True))
            with self.builder.block() as branch:
                for k, adjoint in given:
                    self.add(inner, block.results[k], adjoint)
                self.walk(block.eqns, env, inner)
            blocks.append(branch.close([inner[v] for v in outer]))
        outs = self.builder.emit("if", *self.sweep.atoms(env, eqn.invars), blocks=blocks)
        adjoints.update(zip(outer, outs, strict=True))

    def through_body(
        self, body: Block, carried: Sequence[tuple[Var, Atom]], outer: Sequence[Var], env: Env, given: Sequence[Atom]
    ) -> list[Atom]:
        """Walks back through one iteration whose values are in `env`. `carried` pairs parameters with their values for
        the next iteration; `given` are adjoints of those values, then of the `outer` scalars. Returns the adjoints of
        the parameters, then of the scalars."""
        inner = Adjoints(zip(outer, given[len(carried) :], strict=True))
        for (_, result), adjoint in zip(carried, given, strict=False):
            self.add(inner, result, adjoint)
        self.walk(body.eqns, env, inner)
        return [inner.take(param) for param, _ in carried] + [inner.get_or_zero(v) for v in outer]
