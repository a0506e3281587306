"""Gives regions the jaxprs of their bodies: what stands between markers of a flat jaxpr becomes one equation.

Markers are matched by nesting. `jit` helpers that hold markers or take a handle are inlined (their variables renamed);
`lax` control flow stays one equation, whose inner jaxprs can be restructured in the same way. On the way every rule
that a flat trace cannot check is checked: no value leaves its loop, no handle is used as a value or changed by a loop
carry, nothing stays open.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from jax.core import Tracer

from qdtrace.errors import QdError, TraceTypeError, TraceValueError, UnsupportedError
from qdtrace.trace import compat, hooks, markers
from qdtrace.trace.breakpoints import MOST, showing
from qdtrace.trace.compat import JaxprEqn, Literal, Var
from qdtrace.trace.context import is_dead, new_uid
from qdtrace.trace.diagnosis.dropped import check_dropped
from qdtrace.trace.diagnosis.old_rows import warn_of_old_rows
from qdtrace.trace.diagnosis.precedence import check_order_of_operators
from qdtrace.trace.diagnosis.same import constants
from qdtrace.trace.diagnosis.second_trips import first_trips
from qdtrace.trace.diagnosis.shared_keys import warn_of_shared_keys
from qdtrace.trace.diagnosis.statements import Inlined, reads_only
from qdtrace.trace.equal_values import History
from qdtrace.trace.forwarding import forwarded_handles, handle_inputs, is_control
from qdtrace.trace.inlined_rules import RULED, without_tangents
from qdtrace.trace.nesting import deepest_named
from qdtrace.trace.own_indices import check_indices
from qdtrace.trace.placement import check_cell, check_jump, check_maker, placed
from qdtrace.trace.pruning import prune
from qdtrace.trace.pushes.places import place_pushes
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.structure import NAMES, OpenBody, closed_over, has_arrays, shown
from qdtrace.trace.tree import Root

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from qdtrace.trace.compat import Jaxpr
    from qdtrace.trace.jaxprs import AnyJaxpr, Atom


def restructure(closed_jaxpr: AnyJaxpr, *, is_function: bool = False, has_refs: bool = False) -> Root:
    """Returns the equations of a traced function, or of a jaxpr inside of `lax` control flow, with those of regions in
    their bodies. Where references of JAX have become values, a statement whose value is dropped may do something."""
    jaxpr = compat.open_jaxpr(closed_jaxpr)
    root = Root(tuple(jaxpr.invars))
    build = _Builder(root, is_function)
    for var in jaxpr.invars:
        build.define(var, None)
    for var, value in zip(jaxpr.constvars, compat.constants_of(closed_jaxpr), strict=True):
        build.add_constant(var, value, _first_user(jaxpr, var) if is_dead(value) else None)
    build.handles.update(jaxpr.invars[k] for k in handle_inputs(jaxpr))
    env: dict[Var, Atom] = {}
    build.run(jaxpr, env, root.constants)
    if build.region is not build.outermost:
        raise _unbalanced(build.region, None)
    root.results = tuple(build.result(atom, env) for atom in jaxpr.outvars)
    with deepest_named(build.region.items):
        items = check_indices(build.region.items) if is_function else build.region.items
        eqns = [*compat.all_eqns(items)]
        check_dropped(eqns, build.calls, is_function=is_function and not has_refs)
        if is_function:
            check_order_of_operators(eqns)
            warn_of_old_rows(eqns)
            warn_of_shared_keys(items)
        root.items = prune(items, root.results, build.checked_loads)
        if is_function:
            place_pushes(root)
    return root


def _first_user(jaxpr: Jaxpr, var: Var) -> JaxprEqn | None:
    return next((e for e in jaxpr.eqns if any(a is var for a in e.invars)), None)


class _Builder:
    """Walks a jaxpr once, keeping the innermost open region."""

    def __init__(self, root: Root, is_function: bool) -> None:
        self.root = root
        self.region = self.outermost = OpenBody("root", is_function=is_function)
        self.homes: dict[Var, OpenBody] = {}
        self.makers: dict[Var, JaxprEqn] = {}
        self.handles: set[Var] = set()
        self.history = History(self.makers, root.constants)
        self.time = 0
        self.forwards: dict[Var, Atom] = {}
        """Results of control flow that are a handle passed through."""
        self.checked: dict[int, object] = {}
        """Inner jaxprs without dead values, by identity."""
        self.promoted: dict[Var, Var] = {}
        """Value -> the buffer made of it."""
        self.checked_loads: set[Var] = set()
        """Loads of `b[i] += v`, whose index the accumulation checks."""
        self.calls: list[Inlined] = []

    def define(self, var: Var, eqn: JaxprEqn | None) -> None:
        self.homes[var] = self.region
        if eqn is not None:
            self.makers[var] = eqn

    def add_constant(self, var: Var, value: Any, eqn: JaxprEqn | None) -> None:
        if is_dead(value):
            name = "" if eqn is None else f" `{eqn.params.get('name', eqn.primitive.name)}`"
            raise TraceValueError(
                f"a function{name} cached by jax.jit holds a buffer or value of an earlier trace",
                loc=None if eqn is None else eqn_loc(eqn),
                notes=(f"the value: {value.dtype}{list(value.shape)}",),
                help="pass it to the function as an argument, or drop the jax.jit around the function",
            )
        self.homes[var] = self.outermost
        self.root.constants[var] = value

    # -- one jaxpr ----------------------------------------------------------------------------------------------

    def run(self, jaxpr: Jaxpr, env: dict[Var, Atom], values: Mapping[Var, object]) -> None:
        for eqn in first_trips(jaxpr.eqns, values, env):
            self.equation(eqn, env)

    def equation(self, eqn: JaxprEqn, env: dict[Var, Atom]) -> None:
        self.time += 1
        primitive = eqn.primitive
        if primitive in markers.ENDS:
            self.close(eqn)
            return
        if hooks.is_breakpoint(eqn):
            eqn = showing(eqn, [self.is_seen(self.resolve(a, env)) for a in eqn.invars])
        inputs: list[Atom] = []
        takes_handle = False
        as_named = not env and not self.forwards  # nothing is renamed: the usual case, and the fast one
        for operand in eqn.invars:
            atom = operand if as_named else self.resolve(operand, env)
            inputs.append(atom)
            if not isinstance(atom, Literal):
                self.check_scope(atom, eqn)
                takes_handle |= atom in self.handles
        inner = compat.called_jaxpr(eqn)
        if inner is not None and (takes_handle or compat.has_markers(compat.open_jaxpr(inner).effects)):
            self.inline(eqn, inner, inputs, env)
            return
        eqn = self.renamed(eqn, inputs, env)
        if primitive in markers.MARKERS:
            self.marker(eqn)
        else:
            if takes_handle:
                eqn = self.other_use(eqn)
            self.check_constants(eqn)
            self.append(eqn)

    def resolve(self, atom: Atom, env: dict[Var, Atom]) -> Atom:
        if isinstance(atom, Literal) or (atom not in env and atom not in self.forwards):
            return atom
        atom = env.get(atom, atom)
        while not isinstance(atom, Literal) and atom in self.forwards:
            atom = self.forwards[atom]
        return atom

    def is_handle(self, atom: Atom) -> bool:
        return not isinstance(atom, Literal) and atom in self.handles

    def renamed(self, eqn: JaxprEqn, inputs: list[Atom], env: dict[Var, Atom]) -> JaxprEqn:
        """Returns the equation on resolved operands; results bound already (of a body inlined twice) get new names."""
        outputs: list[Var] | None = None
        for k, var in enumerate(eqn.outvars):
            if var in self.homes:
                outputs = list(eqn.outvars) if outputs is None else outputs
                outputs[k] = env[var] = compat.new_var(var)
            elif env:
                env.pop(var, None)
        same = outputs is None and all(map(operator.is_, inputs, eqn.invars))
        outputs = list(eqn.outvars) if outputs is None else outputs
        return eqn if same else eqn.replace(invars=inputs, outvars=outputs)

    def append(self, eqn: JaxprEqn) -> None:
        self.region.items.append(eqn)
        for var in eqn.outvars:
            self.define(var, eqn)

    def inline(self, eqn: JaxprEqn, inner: AnyJaxpr, inputs: list[Atom], env: dict[Var, Atom]) -> None:
        jaxpr = compat.open_jaxpr(inner)
        opened, has_rule = self.region, eqn.primitive.name in RULED
        local: dict[Var, Atom] = dict(zip(jaxpr.invars, inputs[len(inputs) - len(jaxpr.invars) :], strict=True))
        for var, value in zip(jaxpr.constvars, compat.constants_of(inner), strict=True):
            local[var] = own = compat.new_var(var)
            self.add_constant(own, value, eqn)
        self.run(jaxpr, local, constants(inner))
        if self.region is not opened:
            raise _unbalanced(self.region, eqn)
        for var, atom in zip(eqn.outvars, jaxpr.outvars, strict=True):
            env[var] = found = self.resolve(atom, local)
            if has_rule and not isinstance(found, Literal) and found not in self.handles:
                self.check_scope(found, eqn)
                kept = without_tangents(eqn, found)
                self.append(kept)
                (env[var],) = kept.outvars
        if eqn.outvars and reads_only(jaxpr.eqns):
            self.calls.append(Inlined(eqn, tuple(env[var] for var in eqn.outvars)))

    # -- markers ------------------------------------------------------------------------------------------------

    def marker(self, eqn: JaxprEqn) -> None:
        primitive = eqn.primitive
        if primitive in markers.BEGINS:
            self.open(eqn)
            return
        if primitive is markers.while_test_p:
            region = self.region
            region.tests.append(closed_over(region.items, results=eqn.invars))
            # what the condition computes belongs to it
            tested = OpenBody(region.kind, region.eqn)
            self.homes.update((v, tested) for e in region.items for v in e.outvars)
            region.items = []
            return
        if primitive in (markers.break_p, markers.continue_p):
            check_jump(eqn, self.region)
        elif primitive is markers.check_p or primitive in markers.MAKERS:
            if primitive in markers.MAKERS:
                check_maker(eqn, self.region)
                self.handles.add(eqn.outvars[0])
            if any(map(self.is_handle, eqn.invars)):
                eqn = self.other_use(eqn)
        else:
            if not self.is_handle(eqn.invars[0]):
                eqn = eqn.replace(invars=[self.promote(eqn), *eqn.invars[1:]])
            handle: Any = eqn.invars[0]
            eqn = placed(eqn, in_arrays=has_arrays(self.region))
            if any(self.is_handle(a) for a in eqn.invars[1:]):
                eqn = self.other_use(eqn, skip=1)
            if primitive in markers.CELL_ACCESSES:
                check_cell(eqn, self.region, self.homes[handle], self.makers.get(handle))
            if primitive is markers.update_p:
                eqn = self.update(eqn)
            if eqn.primitive in markers.READS:
                self.history.reads[eqn.outvars[0]] = (self.region, self.time)
            else:
                self.note_write(handle)
        self.append(eqn)

    def note_write(self, handle: Var) -> None:
        """Notes a write of a handle; inside of control flow, two inputs of one type may be the same buffer."""
        self.history.writes[handle] = self.time
        if not self.outermost.is_function and handle in self.root.params:
            for other in self.root.params:
                if other in self.handles and other.aval == handle.aval:
                    self.history.writes[other] = self.time

    def promote(self, eqn: JaxprEqn) -> Var:
        """Makes a value that is used as memory (`jax.tree.map` over buffers gives such) a buffer where it was made."""
        value: Any = eqn.invars[0]
        if eqn.primitive is markers.push_p:
            raise TraceValueError(
                "a push needs a qd.append of the same function, got one of a function around it",
                loc=eqn_loc(eqn),
                help="a function of qd.vmap has memory of its own, and so has a qd.jit function that is called between "
                "loops: return what shall be pushed, and push it in a loop",
            )
        if isinstance(value, Literal) or self.homes[value] is not self.outermost:
            raise TraceTypeError(f"`{shown(eqn)}` needs a buffer, got a value", loc=eqn_loc(eqn))
        if eqn.primitive not in markers.READS and isinstance(self.root.constants.get(value), Tracer):
            raise TraceValueError(
                "a store to a buffer of the function around would be lost: a function of qd.jit or qd.vmap has a copy",
                loc=eqn_loc(eqn),
                help="take the buffer as an argument, return it, and keep what is returned; or leave out the qd.jit: a "
                "plain function changes the buffer in place",
            )
        if value not in self.promoted:
            handle = self.promoted[value] = compat.new_var(value)
            make = eqn.replace(
                primitive=markers.buffer_p,
                invars=[value],
                outvars=[handle],
                params={"uid": new_uid()},
                effects={compat.QD},
            )
            self.outermost.items.append(make)
            self.homes[handle] = self.outermost
            self.makers[handle] = make
            self.handles.add(handle)
        return self.promoted[value]

    def update(self, eqn: JaxprEqn) -> JaxprEqn:
        """Records `b[i] += v`: an accumulation if the sum goes back to the element that was loaded, else a store.

        In a statement of this form v may write the element as well: both changes count. Elsewhere (`t += v`, later
        `b[i] = t`) a write in between makes it a store, as Python has it.
        """
        atoms: list[Any] = list(eqn.invars)
        handle, loaded, total, delta, *indices = atoms
        slices, in_place = eqn.params["slices"], eqn.params["in_place"]
        primitive, operands, params = markers.store_p, [handle, total, *indices], {"slices": slices}
        region, is_present = self.history.read(loaded)
        load = None if region is None else self.makers[loaded]
        if (in_place and load is None) or (load is not None and load.invars[0] is handle):
            old: list[Atom] = [] if load is None else list(load.invars[1:])
            same_form = load is not None and load.params["slices"] == slices
            same = same_form and self.history.all_equal(old, indices)
            if in_place:
                same = same and region is self.region
                if not same and not (same_form and _differ(old, indices)):
                    raise _another_place(eqn, load)
            if same and (in_place or (is_present and region is self.region)):
                primitive, operands = markers.accum_p, [handle, delta, *indices]
                if in_place:  # else a jump may stand between the two
                    self.checked_loads.add(loaded)
                params["op"] = eqn.params["op"]
        return eqn.replace(primitive=primitive, invars=operands, params=params, effects={compat.QD})

    def open(self, eqn: JaxprEqn) -> None:
        self.region = OpenBody(markers.REGIONS[markers.BEGINS[eqn.primitive]], eqn, self.region)
        for var in eqn.outvars:
            self.define(var, eqn)

    def close(self, eqn: JaxprEqn) -> None:
        region = self.region
        if region.parent is None or region.kind != markers.REGIONS[markers.ENDS[eqn.primitive]]:
            raise _unbalanced(region, eqn)
        self.region = region.parent
        self.region.items.append(region.closed())

    # -- checks -------------------------------------------------------------------------------------------------

    def check_scope(self, atom: Var, eqn: JaxprEqn | None) -> None:
        home = self.homes[atom]
        if home is not self.region and not self.is_known(atom):  # the first alone is quick
            raise self.leak(atom, home, eqn)

    def is_known(self, atom: Var) -> bool:
        """Returns whether the open region, or one around it, has made the value."""
        return any(body is self.homes[atom] for body in self.region.outward())

    def is_seen(self, atom: Atom) -> bool:
        """Returns whether a breakpoint at this place can show the value."""
        return isinstance(atom, Literal) or (
            self.is_known(atom) and atom not in self.handles and atom.aval.size <= MOST
        )

    def leak(self, var: Var, home: OpenBody, user: JaxprEqn | None) -> QdError:
        maker = self.makers.get(var)
        where = NAMES[home.kind]
        what = "an index" if maker is home.eqn else "a value"
        if maker is not None and maker.primitive is markers.local_p:
            what = "a qd.local"
        verb = "returned from the function" if user is None else "used outside of it"
        notes = [f"the {where} is at {home.loc}"]
        if maker is not None and maker is not home.eqn:
            notes.append(f"made by `{shown(maker)}` at {eqn_loc(maker)}")
        if user is not None:
            notes.append(f"used by `{shown(user)}`")
        return TraceValueError(
            f"{what} made inside the {where} is {verb}",
            loc=(eqn_loc(maker) if maker is not None else home.loc) if user is None else eqn_loc(user),
            notes=notes,
            help="store it in a buffer, or in a qd.local made before the loop or condition",
        )

    def result(self, atom: Atom, env: dict[Var, Atom]) -> Atom:
        atom = self.resolve(atom, env)
        if not isinstance(atom, Literal):
            self.check_scope(atom, None)
        return atom

    def other_use(self, eqn: JaxprEqn, skip: int = 0) -> JaxprEqn:
        """Handles a buffer as operand of what is no marker: control flow forwards it, the rest reads it."""
        if is_control(eqn):
            for k, operand in forwarded_handles(eqn, self.handles, eqn_loc(eqn)).items():
                self.forwards[eqn.outvars[k]] = operand
            for atom in self.handles.intersection(a for a in eqn.invars if not isinstance(a, Literal)):
                self.note_write(atom)
            return eqn
        if not has_arrays(self.region):
            raise TraceTypeError(
                f"`{shown(eqn)}` needs values, got a whole buffer or a qd.local",
                loc=eqn_loc(eqn),
                help="give an element, `x[i]`, or what a qd.local holds, `c.value`; or use the whole array outside of "
                "the loop",
            )
        inputs: list[Atom] = list(eqn.invars)
        for k, atom in enumerate(inputs):
            if k >= skip and self.is_handle(atom):
                inputs[k] = content = compat.new_var(atom)
                read = eqn.replace(
                    primitive=markers.read_p, invars=[atom], outvars=[content], params={}, effects={compat.QD}
                )
                self.history.reads[content] = (self.region, self.time)
                self.append(read)
        return eqn.replace(invars=inputs)

    def check_constants(self, eqn: JaxprEqn) -> None:
        """Refuses dead tracers and stray jumps in jaxprs that are not inlined, once a jaxpr."""
        if not eqn.params:
            return
        for inner in compat.inner_jaxprs(eqn):
            if id(inner) in self.checked:
                continue
            for value in compat.constants_of(inner):
                if is_dead(value):
                    self.add_constant(compat.open_jaxpr(inner).constvars[0], value, eqn)
            jaxpr = compat.open_jaxpr(inner)
            if compat.has_markers(jaxpr.effects):
                if compat.called_jaxpr(eqn) is None and not is_control(eqn):
                    raise UnsupportedError(
                        f"`{eqn.primitive.name}` cannot hold loops or stores of this package",
                        loc=eqn_loc(eqn),
                        help="use lax.cond, lax.while_loop, lax.fori_loop or lax.scan, or qd.range and qd.when",
                    )
                restructure(inner)
            else:
                for item in jaxpr.eqns:
                    self.check_constants(item)
                self.checked[id(inner)] = inner


def _differ(first: Sequence[Atom], second: Sequence[Atom]) -> bool:
    """Returns whether two lists of indices surely name different elements: they differ in a constant."""
    pairs = zip(first, second, strict=True)
    return any(isinstance(a, Literal) and isinstance(b, Literal) and a.val != b.val for a, b in pairs)


def _another_place(eqn: JaxprEqn, load: JaxprEqn | None) -> TraceValueError:
    return TraceValueError(
        "`b[k] += v` needs to store to the element that it loads: this index changes while v is computed, or comes out "
        "in another way the second time",
        loc=eqn_loc(eqn),
        notes=() if load is None else (f"the element is loaded at {eqn_loc(load)}",),
        help="take the index before: `k = cell.value`, then `b[k] += v`; a store of a sum is written out: "
        "`b[k] = b[j] + v`",
    )


def _unbalanced(region: OpenBody, eqn: JaxprEqn | None) -> TraceValueError:
    where = NAMES[region.kind]
    if region.kind == "root":
        where = "loop or condition"
    return TraceValueError(
        f"the body of a {where} must begin and end in the same function, it was left early",
        loc=region.loc if eqn is None else eqn_loc(eqn),
        notes=() if region.loc is None else (f"the {where} is at {region.loc}",),
        help="a traced body runs once for all iterations: leave a loop with qd.break_if(condition), or put the rest "
        "of the body under `with qd.when(condition):`",
    )
