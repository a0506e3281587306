"""From a flat jaxpr with markers to a tree of regions.

Markers are matched by nesting. `jit` helpers that hold markers or take a handle are inlined (their variables renamed);
`lax` control flow stays one equation, whose inner jaxprs can be restructured in the same way. On the way every rule
that a flat trace cannot check is checked: no value leaves its loop, no handle is used as a value or changed by a loop
carry, nothing stays open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qdtrace.errors import QdError, TraceTypeError, TraceValueError, UnsupportedError
from qdtrace.trace import compat, markers
from qdtrace.trace.compat import JaxprEqn, Literal, Var
from qdtrace.trace.context import is_dead
from qdtrace.trace.forwarding import forwarded_handles, handle_inputs
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qdtrace.ir.program import Loc

_NAMES = {"for": "qd.range", "while": "qd.while_", "when": "qd.when", "root": "function"}


@dataclass(eq=False)
class Region:
    """A body: of the function (`root`), of a loop (`for`, `while`) or of a condition (`when`).

    `eqn` is the begin marker: its operands are the bounds or the predicate, its result is the loop index.
    """

    kind: str
    eqn: JaxprEqn | None = None
    parent: Region | None = None
    items: list[JaxprEqn | Region] = field(default_factory=list)
    test: tuple[int, Any] | None = None
    """Of a `while`: the first n items compute the condition, which is the atom."""
    loc: Loc | None = None
    hints: dict[str, Any] = field(default_factory=dict)
    params: tuple[Var, ...] = ()
    """Of a root: the variables of the arguments."""
    constants: dict[Var, Any] = field(default_factory=dict)
    """Of a root: variables of captured arrays, with their values."""
    results: tuple[Any, ...] = ()
    """Of a root: the atoms that are returned."""

    def walk(self) -> Iterator[JaxprEqn]:
        """All equations of the tree, in order, begin markers included."""
        for item in self.items:
            if isinstance(item, Region):
                if item.eqn is not None:
                    yield item.eqn
                yield from item.walk()
            else:
                yield item


def is_parallel(region: Region) -> bool:
    """True for a range whose iterations are threads: it is in no other range and not made serial."""
    outer = region.parent
    while outer is not None:
        if outer.kind == "for":
            return False
        outer = outer.parent
    return region.kind == "for" and not region.hints.get("serial", False)


def restructure(closed_jaxpr: Any, *, handles: Iterable[Var] = ()) -> Region:
    """The region tree of a jaxpr. `handles`: its inputs that are memory, where that cannot be seen from their use."""
    jaxpr = compat.open_jaxpr(closed_jaxpr)
    root = Region("root", params=tuple(jaxpr.invars))
    build = _Builder(root)
    for var in jaxpr.invars:
        build.define(var, None)
    for var, value in zip(jaxpr.constvars, compat.constants_of(closed_jaxpr), strict=True):
        build.add_constant(var, value, None)
    build.handles.update(handles, (jaxpr.invars[k] for k in handle_inputs(jaxpr)))
    build.run(jaxpr, {})
    if build.region is not root:
        raise _unbalanced(build.region, None)
    root.results = tuple(build.result(atom) for atom in jaxpr.outvars)
    prune(root)
    return root


class _Builder:
    """Walks a jaxpr once, keeping the innermost open region."""

    def __init__(self, root: Region) -> None:
        self.root = root
        self.region = root
        self.homes: dict[Var, Region] = {}
        self.makers: dict[Var, JaxprEqn] = {}
        self.handles: set[Var] = set()
        self.loads: dict[Var, tuple[Region, int]] = {}
        """Result of a load -> its region and time."""
        self.writes: dict[Var, int] = {}
        """Handle -> time of the last equation that may have written it."""
        self.time = 0
        self.forwards: dict[Var, Any] = {}
        """Results of control flow that are a handle passed through."""

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
                notes=(f"the value: {_type_of(value)}",),
                help="pass it to the function as an argument, or drop the jax.jit around the function",
            )
        self.homes[var] = self.root
        self.root.constants[var] = value

    # -- one jaxpr ----------------------------------------------------------------------------------------------

    def run(self, jaxpr: Any, env: dict[Var, Any]) -> None:
        for eqn in jaxpr.eqns:
            self.equation(eqn, env)

    def equation(self, eqn: JaxprEqn, env: dict[Var, Any]) -> None:
        self.time += 1
        primitive = eqn.primitive
        if primitive in markers.ENDS:
            self.close(eqn)
            return
        inputs = [self.resolve(atom, env) for atom in eqn.invars]
        for atom in inputs:
            self.check_scope(atom, eqn)
        inner = compat.called_jaxpr(eqn)
        takes_handle = any(self.is_handle(a) for a in inputs)
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

    def resolve(self, atom: Any, env: dict[Var, Any]) -> Any:
        if isinstance(atom, Literal):
            return atom
        atom = env.get(atom, atom)
        while not isinstance(atom, Literal) and atom in self.forwards:
            atom = self.forwards[atom]
        return atom

    def is_handle(self, atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in self.handles

    def renamed(self, eqn: JaxprEqn, inputs: list[Any], env: dict[Var, Any]) -> JaxprEqn:
        """The equation on resolved operands; results that are bound already (a body inlined twice) get new names."""
        outputs = list(eqn.outvars)
        for k, var in enumerate(outputs):
            if var in self.homes:
                outputs[k] = env[var] = compat.new_var(var)
            else:
                env.pop(var, None)
        return eqn.replace(invars=inputs, outvars=outputs)

    def append(self, eqn: JaxprEqn) -> None:
        self.region.items.append(eqn)
        for var in eqn.outvars:
            self.define(var, eqn)

    def inline(self, eqn: JaxprEqn, inner: Any, inputs: list[Any], env: dict[Var, Any]) -> None:
        jaxpr = compat.open_jaxpr(inner)
        opened = self.region
        local: dict[Var, Any] = dict(zip(jaxpr.invars, inputs[len(inputs) - len(jaxpr.invars) :], strict=True))
        for var, value in zip(jaxpr.constvars, compat.constants_of(inner), strict=True):
            local[var] = compat.new_var(var)
            self.add_constant(local[var], value, eqn)
        self.run(jaxpr, local)
        if self.region is not opened:
            raise _unbalanced(self.region, eqn)
        for var, atom in zip(eqn.outvars, jaxpr.outvars, strict=True):
            env[var] = self.resolve(atom, local)

    # -- markers ------------------------------------------------------------------------------------------------

    def marker(self, eqn: JaxprEqn) -> None:
        primitive = eqn.primitive
        if primitive in markers.BEGINS:
            self.open(eqn)
            return
        if primitive is markers.while_test_p:
            self.region.test = (len(self.region.items), eqn.invars[0])
            return
        if primitive in (markers.break_p, markers.continue_p):
            self.check_jump(eqn)
        elif primitive in markers.MAKERS:
            for operand in eqn.invars:
                if self.is_handle(operand):
                    eqn = self.other_use(eqn)
                    break
            self.handles.add(eqn.outvars[0])
        else:
            handle = eqn.invars[0]
            if not self.is_handle(handle):
                raise AssertionError(f"{eqn}: not a handle")
            if any(self.is_handle(a) for a in eqn.invars[1:]):
                eqn = self.other_use(eqn, skip=1)
            if primitive in markers.CELL_ACCESSES:
                self.check_cell(handle, eqn)
            if primitive is markers.update_p:
                eqn = self.update(eqn)
            if eqn.primitive is markers.load_p:
                self.loads[eqn.outvars[0]] = (self.region, self.time)
            elif primitive not in markers.READS:
                self.writes[handle] = self.time
        self.append(eqn)

    def update(self, eqn: JaxprEqn) -> JaxprEqn:
        """`b[i] += v`: an accumulation when the value loaded before is the present one, else a store of the sum."""
        handle, loaded, total, delta, *indices = eqn.invars
        slices = eqn.params["slices"]
        load = self.makers.get(loaded) if not isinstance(loaded, Literal) else None
        region, time = self.loads.get(loaded, (None, 0)) if load is not None else (None, 0)
        same = (
            load is not None
            and region is self.region
            and time > self.writes.get(handle, 0)
            and load.params["slices"] == slices
            and _same_atoms(load.invars, [handle, *indices])
        )
        effects = {compat.QD}
        if same:
            params = {"slices": slices, "op": eqn.params["op"]}
            return eqn.replace(
                primitive=markers.accum_p, invars=[handle, delta, *indices], params=params, effects=effects
            )
        return eqn.replace(
            primitive=markers.store_p, invars=[handle, total, *indices], params={"slices": slices}, effects=effects
        )

    def open(self, eqn: JaxprEqn) -> None:
        region = Region(markers.BEGINS[eqn.primitive], eqn, self.region, loc=eqn.params["loc"])
        region.hints = dict(eqn.params.get("hints", ()))
        self.region.items.append(region)
        self.region = region
        for var in eqn.outvars:
            self.define(var, eqn)

    def close(self, eqn: JaxprEqn) -> None:
        region = self.region
        if region.eqn is None or region.kind != markers.ENDS[eqn.primitive] or region.parent is None:
            raise _unbalanced(region, eqn)
        self.region = region.parent

    def check_jump(self, eqn: JaxprEqn) -> None:
        region: Region | None = self.region
        while region is not None and region.kind == "when":
            region = region.parent
        if region is None or region.kind == "root":
            name = "qd.break_if" if eqn.primitive is markers.break_p else "qd.continue_if"
            raise TraceValueError(
                f"{name} needs its loop in the same function, not outside of a lax loop or condition",
                loc=eqn.params["loc"],
                help="write the loop with qd.range or qd.while_, or use lax.while_loop with a flag in its carry",
            )

    def check_cell(self, cell: Var, eqn: JaxprEqn) -> None:
        """A cell belongs to one thread: no parallel range may stand between its making and its use."""
        region, home = self.region, self.homes[cell]
        while region is not home and region.parent is not None:
            if region.kind == "for" and is_parallel(region):
                raise TraceValueError(
                    "a qd.local made outside of a parallel qd.range cannot be used in it",
                    loc=eqn_loc(eqn),
                    notes=(f"the qd.range is at {region.loc}", f"the cell is made at {eqn_loc(self.makers[cell])}"),
                    help="make it inside the loop, use a buffer, or run the loop in one thread: "
                    "`qd.range(n, serial=True)`",
                )
            region = region.parent

    # -- checks -------------------------------------------------------------------------------------------------

    def check_scope(self, atom: Any, eqn: JaxprEqn | None) -> None:
        if isinstance(atom, Literal):
            return
        home = self.homes[atom]
        region: Region | None = self.region
        while region is not None and region is not home:
            region = region.parent
        if region is None:
            raise self.leak(atom, home, eqn)

    def leak(self, var: Var, home: Region, user: JaxprEqn | None) -> QdError:
        maker = self.makers.get(var)
        where = _NAMES[home.kind]
        what = "index" if maker is home.eqn else "value"
        if maker is not None and maker.primitive is markers.local_p:
            what = "qd.local"
        verb = "returned from the function" if user is None else "used outside of it"
        notes = [f"the {where} is at {home.loc}"]
        if maker is not None and maker is not home.eqn:
            notes.append(f"made by `{_shown(maker)}` at {eqn_loc(maker)}")
        if user is not None:
            notes.append(f"used by `{_shown(user)}`")
        return TraceValueError(
            f"a {what} made inside the {where} is {verb}",
            loc=(eqn_loc(maker) if maker is not None else home.loc) if user is None else eqn_loc(user),
            notes=notes,
            help="store it in a buffer, or in a qd.local made before the loop or condition",
        )

    def result(self, atom: Any) -> Any:
        atom = self.resolve(atom, {})
        self.check_scope(atom, None)
        return atom

    def other_use(self, eqn: JaxprEqn, skip: int = 0) -> JaxprEqn:
        """A handle as operand of something else than a marker: control flow forwards it, the rest reads it."""
        if eqn.primitive.name in ("while", "scan", "cond"):
            for k, operand in forwarded_handles(eqn, self.handles, eqn_loc(eqn)).items():
                self.forwards[eqn.outvars[k]] = operand
            for atom in eqn.invars:
                if self.is_handle(atom):
                    self.writes[atom] = self.time
            return eqn
        if not self.has_arrays():
            raise TraceTypeError(
                f"`{_shown(eqn)}` needs values, got a whole buffer",
                loc=eqn_loc(eqn),
                help="index it: `x[i]`, or use the whole array outside of the loop",
            )
        inputs = list(eqn.invars)
        for k, atom in enumerate(inputs):
            if k >= skip and self.is_handle(atom):
                inputs[k] = compat.new_var(atom)
                read = eqn.replace(
                    primitive=markers.read_p, invars=[atom], outvars=[inputs[k]], params={}, effects={compat.QD}
                )
                self.append(read)
        return eqn.replace(invars=inputs)

    def has_arrays(self) -> bool:
        region: Region | None = self.region
        while region is not None and region.kind == "while":
            region = region.parent
        return region is self.root

    def check_constants(self, eqn: JaxprEqn) -> None:
        """Dead tracers and stray jumps inside jaxprs that are not inlined."""
        for inner in compat.inner_jaxprs(eqn):
            for value in compat.constants_of(inner):
                if is_dead(value):
                    self.add_constant(compat.open_jaxpr(inner).constvars[0], value, eqn)
            jaxpr = compat.open_jaxpr(inner)
            if compat.has_markers(jaxpr.effects):
                if compat.called_jaxpr(eqn) is None and eqn.primitive.name not in ("while", "scan", "cond"):
                    raise UnsupportedError(
                        f"`{eqn.primitive.name}` cannot hold loops or stores of this package",
                        loc=eqn_loc(eqn),
                        help="use lax.cond, lax.while_loop, lax.fori_loop or lax.scan, or qd.range and qd.when",
                    )
                restructure(inner)
            else:
                for item in jaxpr.eqns:
                    self.check_constants(item)


def _same_atoms(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(_same_atom(x, y) for x, y in zip(a, b, strict=True))


def _same_atom(x: Any, y: Any) -> bool:
    if isinstance(x, Literal) and isinstance(y, Literal):
        return x.val == y.val and x.aval == y.aval
    return x is y


def _shown(eqn: JaxprEqn) -> str:
    name = eqn.primitive.name
    return f"qd.{name[3:]}" if name.startswith("qd_") else name


def _type_of(value: Any) -> str:
    aval = getattr(value, "aval", None)
    return aval.str_short() if hasattr(aval, "str_short") else str(aval)


def _unbalanced(region: Region, eqn: JaxprEqn | None) -> TraceValueError:
    where = _NAMES[region.kind]
    if region.kind == "root":
        where = "loop or condition"
    return TraceValueError(
        f"the body of a {where} must begin and end in the same function, it was left early",
        loc=region.loc if eqn is None else eqn_loc(eqn),
        notes=() if region.loc is None else (f"the {where} is at {region.loc}",),
        help="a traced body runs once for all iterations: leave a loop with qd.break_if(condition), or put the rest "
        "of the body under `with qd.when(condition):`",
    )


def prune(root: Region) -> None:
    """Removes equations without effect whose results are not used, among them the loads of accumulations."""
    used = {a for a in root.results if not isinstance(a, Literal)}
    _prune(root, used)


def _prune(region: Region, used: set[Var]) -> None:
    kept: list[JaxprEqn | Region] = []
    tests = 0
    if region.test is not None and not isinstance(region.test[1], Literal):
        used.add(region.test[1])
    for position in range(len(region.items) - 1, -1, -1):
        item = region.items[position]
        if isinstance(item, Region):
            _prune(item, used)
            if item.kind in ("when",) and not item.items:
                continue
            eqn = item.eqn
        else:
            eqn = item
            free = not eqn.effects or eqn.primitive in markers.READS
            if free and not any(v in used for v in eqn.outvars):
                continue
        if eqn is not None:
            used.update(a for a in eqn.invars if not isinstance(a, Literal))
        kept.append(item)
        if region.test is not None and position < region.test[0]:
            tests += 1
    region.items = kept[::-1]
    if region.test is not None:
        region.test = (tests, region.test[1])
