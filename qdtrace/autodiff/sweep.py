"""Recomputation of a task's body in its reverse: values for the backward walk, without writes that others would see.

`plain` emits equations as they are. `recorded` also leaves every value in scope and lets loops keep their states, so
that a backward walk over the same equations can follow: a branch returns all scalars that it computed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qdtrace.autodiff.loops.slots import each_index
from qdtrace.autodiff.tape import TAPE, Tape
from qdtrace.autodiff.write_once import SAME
from qdtrace.errors import old_value_refused
from qdtrace.ir.builder import Builder, scalar_var
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import ATOMIC, BOUND, CELL, CHECK, IF, LOAD
from qdtrace.ir.program import Block, Eqn, Literal, Var, is_global, literal
from qdtrace.ir.types import SCALARS, DType, ScalarType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from qdtrace.autodiff.volatile import Accesses
    from qdtrace.ir.program import Atom

    Env = dict[Any, Atom]
    """Values in the reverse task, by variable of the task; also by keys of loops and of the tape."""


class Sweep:
    """Emits the equations of one task into its reverse."""

    def __init__(
        self,
        builder: Builder,
        memory: Mapping[Var, Var],
        contents: tuple[Mapping[Var, Var], Mapping[Var, Var]],
        accesses: Accesses,
        zero: Collection[Var] = (),
        *,
        is_checked: bool = False,
    ) -> None:
        """`memory` has the reference to use in place of each global one, `contents` those with its content before the
        task and behind it, where loads find that. Variables in `zero` are zero and not computed. `is_checked` if all
        checks were made."""
        self.builder = builder
        self.memory = memory
        self.accesses = accesses
        self.before, self.behind = contents
        self.zero = zero
        self.is_checked = is_checked
        self.hoisted: list[Eqn] = []
        """Equations that allocate private memory at the start of the iteration."""
        self.tape = Tape(accesses.taped, self.private)
        self.log = accesses.log
        self.loop: Callable[[Eqn, Env, bool], None]
        """Emits a loop that keeps its states."""

    # Names.

    def atom(self, env: Env, atom: Atom) -> Atom:
        """Returns the value of an atom of the task in the reverse task."""
        return atom if isinstance(atom, Literal) else env.get(atom, atom)

    def atoms(self, env: Env, atoms: Iterable[Atom]) -> list[Atom]:
        """Returns the values of atoms of the task in the reverse task."""
        return [self.atom(env, a) for a in atoms]

    def private(self, dtype: DType, shape: tuple[int, ...], hint: str = "", *, is_copied: bool = False) -> Var:
        """Allocates private memory for the whole iteration; with `is_copied` it is zeroed, as copies may read all."""
        with self.builder.block() as block:
            ref = self.builder.cell(dtype, shape, hint)
            if is_copied:
                each_index(self.builder, shape, lambda at: self.builder.store(ref, literal(0, dtype), *at))
        self.hoisted += block.eqns
        return ref

    # Equations.

    def plain(self, eqns: Sequence[Eqn], env: Env, live: bool) -> None:
        """Emits equations; `live` if they run for the first time in this task."""
        for eqn in eqns:
            self._emit(eqn, env, live)

    def recorded(self, eqns: Sequence[Eqn], env: Env, live: bool) -> None:
        """Emits equations so that a backward walk over them can follow."""
        for eqn in eqns:
            prim = eqn.primitive
            if prim is IF:
                self.builder.loc = eqn.loc
                self._recorded_if(eqn, env, live)
            elif prim.loops:
                self.builder.loc = eqn.loc
                self.loop(eqn, env, live)
            else:
                self.log.keep_old(self, eqn, env)
                self._emit(eqn, env, live)

    def _emit(self, eqn: Eqn, env: Env, live: bool) -> None:
        self.builder.loc = eqn.loc
        prim = eqn.primitive
        self.log.record(self, eqn, env)
        if eqn.blocks:
            self._structured(eqn, env, live)
        elif prim.writes and eqn.invars[0] in self.zero:
            pass
        elif eqn.outvars and (eqn.outvar in self.zero or (prim is LOAD and eqn.invars[0] in self.zero)):
            env[eqn.outvar] = literal(0, eqn.outvar.dtype)
        elif prim is CELL:
            if eqn.outvar not in env:
                dtype, shape = eqn.params["dtype"], tuple(eqn.params["shape"])
                env[eqn.outvar] = self.private(dtype, shape, eqn.outvar.hint, is_copied=True)
        elif prim is ATOMIC:
            raise old_value_refused(eqn.params["op"], eqn.loc)
        elif eqn in self.accesses.found:
            self._load_found(eqn, env)
        elif eqn in self.tape.loads:
            self.tape.load(self.builder, eqn, env, live, lambda: self._copy(eqn, env))
        elif prim.writes and (is_global(eqn.invars[0]) or eqn.invars[0] in self.accesses.taped_arrays):
            if live and (eqn.invars[0] in self.accesses.volatile or eqn.invars[0] in self.accesses.taped_arrays):
                self._copy(eqn, env)
        elif prim is CHECK and (self.is_checked or not live):
            pass
        elif prim is BOUND and (self.is_checked or not live):
            env[eqn.outvar] = self.atom(env, eqn.invars[0])
        else:
            self._copy(eqn, env)

    def _load_found(self, eqn: Eqn, env: Env) -> None:
        load, ref, builder = self.accesses.found[eqn], eqn.invars[0], self.builder
        assert isinstance(ref, Var)
        at = self.atoms(env, indices_of(eqn))
        found = lambda memory: builder.load(memory.get(ref, ref), *at)  # noqa: E731
        if load.compared is None:
            env[eqn.outvar] = found(self.behind if load.is_behind else self.before)
            return
        order = load.compared
        index, counter = self.atoms(env, (order.index, order.counter))
        writer = builder.convert(index, counter.dtype)
        if order.sign < 0:
            writer = builder("sub", literal(order.distance, counter.dtype), writer)
        elif order.distance:
            writer = builder("sub", writer, literal(order.distance, counter.dtype))
        if load.is_behind is None:
            builder.emit("check", builder("ne", writer, counter), message=SAME.format(ref.hint or "memory"))
        name = ("le" if load.is_behind else "lt") if order.rises else ("ge" if load.is_behind else "gt")
        is_behind = builder(name, writer, counter)
        blocks: list[Block] = []
        for memory in (self.behind, self.before):
            with builder.block() as opened:
                blocks.append(opened.close((found(memory),)))
        (env[eqn.outvar],) = builder.emit("if", is_behind, blocks=blocks)

    def _copy(self, eqn: Eqn, env: Env) -> None:
        invars = [self.memory.get(a, a) if isinstance(a, Var) else a for a in self.atoms(env, eqn.invars)]
        outs = tuple(Var(v.type, v.hint) for v in eqn.outvars)
        self.builder.current.eqns.append(Eqn(eqn.primitive, tuple(invars), outs, eqn.params, (), eqn.loc))
        env.update(zip(eqn.outvars, outs, strict=True))

    # Control flow.

    def carried(self, eqn: Eqn, env: Env) -> tuple[list[Any], list[Atom]]:
        """Returns keys and initial values of what a loop carries in addition: the number of values on the tape."""
        if self.tape.is_used_in(eqn):
            return [TAPE], [self.tape.count(env)]
        return [], []

    def _structured(self, eqn: Eqn, env: Env, live: bool) -> None:
        keys, initial = self.carried(eqn, env)
        outs = [*(Var(v.type, v.hint) for v in eqn.outvars), *(Var(SCALARS[a.dtype]) for a in initial)]
        if eqn.primitive is IF:
            blocks = [self.block(b, env, live, (), keys) for b in eqn.blocks]
            invars = self.atoms(env, eqn.invars)
        else:
            *tests, body = eqn.blocks
            blocks = [self.block(b, env, live, keys, ()) for b in tests]
            blocks.append(self.block(body, env, live, keys, keys, eqn))
            invars = [*self.atoms(env, eqn.invars), *initial]
        self.builder.current.eqns.append(replace(eqn, invars=tuple(invars), outvars=tuple(outs), blocks=tuple(blocks)))
        env.update(zip((*eqn.outvars, *keys), outs, strict=True))
        self.pass_test(eqn, env, keys)

    def pass_test(self, loop: Eqn, env: Env, keys: Sequence[Any]) -> None:
        """Advances past the values that the condition of a loop put on the tape: in its body, and after the loop."""
        env.update((k, self.tape.behind_test(self.builder, loop, env[k])) for k in keys)

    def block(
        self, block: Block, env: Env, live: bool, taken: Sequence[Any], given: Sequence[Any], loop: Eqn | None = None
    ) -> Block:
        """Returns a plain copy of a block with additional parameters for the keys in `taken` and additional results
        for those in `given`; `loop` is the loop whose body it is."""
        inner = dict(env)
        params = [Var(p.type, p.hint) for p in block.params]
        more = [scalar_var(env[key].dtype if key in env else DType.i32) for key in taken]
        inner.update(zip((*block.params, *taken), (*params, *more), strict=True))
        with self.builder.block((*params, *more)) as opened:
            if loop is not None:
                self.pass_test(loop, inner, taken)
            self.plain(block.eqns, inner, live)
            return opened.close([*self.atoms(inner, block.results), *(self._key(inner, k) for k in given)])

    def _key(self, env: Env, key: Any) -> Atom:
        return self.tape.count(env) if key is TAPE else env[key]

    def _recorded_if(self, eqn: Eqn, env: Env, live: bool) -> None:
        keys, _ = self.carried(eqn, env)
        opened: list[Any] = []
        inner: list[Env] = []
        for block in eqn.blocks:
            values = dict(env)
            with self.builder.block() as branch:
                self.recorded(block.eqns, values, live)
            opened.append(branch)
            inner.append(values)
        # Each scalar that a branch computed becomes a result; the other branch yields 0 for it.
        escaped = [
            {k: a for k, a in values.items() if k not in env and k is not TAPE and isinstance(a.type, ScalarType)}
            for values in inner
        ]
        names = [k for values in escaped for k in values if k not in keys]
        dtypes = [a.dtype for values in escaped for k, a in values.items() if k not in keys]
        blocks: list[Block] = []
        for block, branch, values in zip(eqn.blocks, opened, inner, strict=True):
            own = set(values)
            rest = [values[k] if k in own else literal(0, d) for k, d in zip(names, dtypes, strict=True)]
            results = [*self.atoms(values, block.results), *(self._key(values, k) for k in keys), *rest]
            blocks.append(branch.close(results))
        outs = self.builder.emit("if", *self.atoms(env, eqn.invars), blocks=blocks)
        env.update(zip((*eqn.outvars, *keys, *names), outs, strict=True))
        # Private memory that a branch made lives as long as the iteration.
        for values in inner:
            env.update({k: a for k, a in values.items() if not isinstance(a.type, ScalarType)})
