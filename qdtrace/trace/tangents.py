"""Items of a traced function with tangents beside their values, by JAX's own rules.

JAX differentiates equations forward, bodies of regions by a rule of regions, so ties, custom rules, signs of zero and
implicit functions are JAX's. What JAX does not know is memory: a buffer or a cell that holds something with a tangent
has a *twin*, another one with the tangents. The rules of markers on twins are `jvp` rules as well (`TWIN_RULES`), in
force while `along` runs. The result is items again, so derivatives of any order
are made by going over them once more.
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from qdtrace.errors import GradientError, QdError, old_value_refused
from qdtrace.frozen import mutable
from qdtrace.trace import compat, markers
from qdtrace.trace.context import new_uid
from qdtrace.trace.importer.registry import TAUGHT
from qdtrace.trace.inlined_rules import RULED, refused_rule
from qdtrace.trace.rules_along import rule_along
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.structure import closed_over, named, on_operands, region_of, with_bodies
from qdtrace.trace.tree import bounds_of, captured, equations_in

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from jax.typing import ArrayLike

    from qdtrace.trace.compat import Jaxpr, JaxprEqn, Primitive, Var
    from qdtrace.trace.jaxprs import Atom

    Operands = Sequence[jax.Array]
    Tangents = Sequence[jax.Array | ad.Zero]
    Params = dict[str, Any]
    Both = tuple[object, object]
    """Results and their tangents."""

WRITES = (markers.store_p, markers.lset_p, markers.assign_p, markers.accum_p, markers.accum_along_p)

SUMMED = ("add", "min", "max")
"""Atomics that are accumulations."""

_twins: ContextVar[set[int] | None] = ContextVar("qdtrace_twins", default=None)
"""Uids of allocations that have a twin, while tangents are made."""


def has_tangent(var: Atom) -> bool:
    """Returns whether a variable is a real or complex float: nothing else has a derivative."""
    return bool(jnp.issubdtype(var.aval.dtype, jnp.inexact))


@mutable
class Along:
    """The walk over items in one direction; `tangents` has the tangent of each variable that has one."""

    tangents: dict[Var, Var]
    uses: Counter[Var]
    """Number of reads of each variable, in all items."""
    renamed: dict[Var, Atom] = field(default_factory=dict["Var", "Atom"])
    """Variable -> the variable that replaces it by now."""
    constants: dict[Var, ArrayLike] = field(default_factory=dict["Var", "ArrayLike"])
    """New variables of known values."""

    def equations(self, eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
        """Returns the equations with tangents, in order."""
        read = list(dict.fromkeys(v for e in eqns for v in e.invars if not isinstance(v, compat.Literal)))
        makes = {e.params["uid"] for e in eqns if e.primitive in markers.MAKERS}
        if not any(v in self.tangents for v in read) and makes.isdisjoint(_twins.get() or ()):
            return [on_operands(e, self.renamed) for e in eqns]
        if len(eqns) == 1 and eqns[0].primitive in markers.REGIONS:
            return [self._region(eqns[0])]
        defined = dict.fromkeys(v for e in eqns for v in e.outvars)
        here = Counter(_reads(eqns))
        invars = [v for v in read if v not in defined]
        outvars = [v for v in defined if self.uses[v] > here[v]]
        made, constants, nonzero = _tangents_of(invars, outvars, eqns, self.tangents)
        operands = named(invars, self.renamed) + [self.tangents[v] for v in invars if v in self.tangents]
        env = dict(zip(made.invars, operands, strict=True))
        self.constants.update(zip(made.constvars, constants, strict=True))
        out = [on_operands(e, env) for e in made.eqns]
        results = iter(named(made.outvars, env))
        for var in outvars:
            self.renamed[var] = next(results)
        for var, is_nonzero in zip(outvars, nonzero, strict=True):
            if is_nonzero:
                self.tangents[var] = self._variable(next(results))
        return out

    def _region(self, eqn: JaxprEqn) -> JaxprEqn:
        """Returns a region whose body has tangents, as JAX makes it of the rule of regions, without a trace of it."""
        names = captured(eqn.params)
        given = {v: self.tangents[v] for v in names if v in self.tangents}
        values = dict(zip(names, named(names, self.renamed), strict=True))
        params, env, constants = _region_along(eqn.params, values, given)
        self.constants.update(constants)
        made = region_of(eqn, bounds_of(eqn), params["jaxprs"])
        return on_operands(made, {**self.renamed, **env})

    def _variable(self, atom: Atom) -> Var:
        if not isinstance(atom, compat.Literal):
            return atom
        aval = atom.aval
        value = np.asarray(atom.val, aval.dtype)
        var = compat.new_scalar(value.dtype)
        self.constants[var] = value
        return var


def _tangents_of(
    invars: Sequence[Var], outvars: Sequence[Var], eqns: Sequence[JaxprEqn], given: Container[Var]
) -> tuple[Jaxpr, Sequence[Any], Sequence[bool]]:
    """Returns what `compat.jvp_of` returns of equations, for those of `invars` that are `given` a tangent.

    Raises GradientError where JAX has no tangents.
    """
    try:
        return compat.jvp_of(compat.jaxpr_of(eqns, invars, outvars), [v in given for v in invars])
    except (NotImplementedError, ValueError) as error:  # the latter for a call of Python
        loc = next((loc for e in eqns if (loc := eqn_loc(e)) is not None), None)
        calls = [e for e in compat.all_eqns(eqns) if e.primitive.name in RULED and compat.has_markers(e.effects)]
        if calls and isinstance(error, QdError):
            raise refused_rule(calls[0], loc) from None
        help_ = "give the function a jax.custom_jvp rule, or lax.stop_gradient its operands"
        raise GradientError(f"JAX has no derivative here: {error}", loc=loc, help=help_) from None


def along(
    groups: Sequence[Sequence[JaxprEqn]], tangents: dict[Var, Var], handles: Iterable[Var], results: Iterable[Var]
) -> tuple[list[list[JaxprEqn]], Along]:
    """Returns each group of items with tangents, given those of variables from outside.

    `handles` are the buffers from outside; those that get a tangent stored have a twin among the tangents afterwards.
    `results` are read behind the items. Raises GradientError where JAX has no tangents.
    """
    uses = Counter(results)
    for items in groups:
        uses.update(_reads(items))
    groups = [_with_sums(items, uses) for items in groups]
    outside = dict.fromkeys(handles)
    within = reached([item for items in groups for item in items], set(tangents), dict(outside))
    for var in outside:
        if var in within and var not in tangents:
            tangents[var] = compat.new_var(var)
    walk = Along(tangents, uses)
    token = _twins.set({v for v in within if isinstance(v, int)})
    try:
        return [walk.equations(items) for items in groups], walk
    finally:
        _twins.reset(token)


def _with_sums(items: Iterable[JaxprEqn], uses: Counter[Var]) -> list[JaxprEqn]:
    """Returns the items with accumulations in the place of atomics whose old value nobody reads."""
    made: list[JaxprEqn] = []
    for item in items:
        if item.primitive is markers.atomic_p and not uses[item.outvars[0]] and item.params["op"] in SUMMED:
            params = {name: item.params[name] for name in ("op", "slices")}
            made.append(item.replace(primitive=markers.accum_p, outvars=[], params=params))
        else:
            made.append(with_bodies(item, partial(_with_sums, uses=uses)))
    return made


def _reads(items: Iterable[JaxprEqn]) -> Iterator[Var]:
    return (v for e in equations_in(items) for v in e.invars if not isinstance(v, compat.Literal))


def reached(items: list[JaxprEqn], found: set[Var | int], memory: dict[Var, None]) -> set[Var | int]:
    """Returns the variables that may have a tangent if those `found` have one, and uids of the allocations among them.

    Adds to `memory` the buffers and cells that are made here.
    """
    eqns = list(equations_in(items))
    memory.update((eqn.outvars[0], None) for eqn in eqns if eqn.primitive in markers.MAKERS)
    for eqn in compat.all_eqns(items):
        if eqn.primitive.name in TAUGHT and eqn.primitive not in TWIN_RULES:
            TWIN_RULES[eqn.primitive] = _tangents_of_taught
            _either(eqn.primitive, _tangents_of_taught)
    found = set(found)
    grown = True
    while grown:
        before = len(found)
        for eqn in eqns:
            _spread(eqn, found, memory)
        grown = len(found) > before
    return found


def _spread(eqn: JaxprEqn, found: set[Var | int], memory: dict[Var, None]) -> None:
    primitive, operands = eqn.primitive, [v for v in eqn.invars if not isinstance(v, compat.Literal)]
    if primitive in WRITES:
        count = 1 << eqn.params.get("directions", 0)
        handles, values = eqn.invars[:count], eqn.invars[count : 2 * count]
        if any(v in found for v in (*handles, *values) if not isinstance(v, compat.Literal)):
            found.update(handles)  # type: ignore[arg-type]
        return
    if primitive is markers.atomic_p:
        if any(v in found for v in operands):
            raise old_value_refused(eqn.params["op"], eqn_loc(eqn))
        return
    if primitive in markers.MAKERS and eqn.outvars[0] in found:
        found.add(eqn.params["uid"])
    if primitive is compat.stop_gradient_p or not any(v in found for v in operands):
        return
    inside = primitive not in markers.MARKERS and compat.has_markers(eqn.effects)
    for var in (*eqn.outvars, *(v for v in operands if inside and v in memory)):
        if has_tangent(var):
            found.add(var)
    if inside:
        found.update(_allocations(eqn))


def _allocations(eqn: JaxprEqn) -> Iterator[int]:
    """Yields the uids of allocations inside of control flow."""
    for inner in compat.inner_jaxprs(eqn):
        for one in compat.open_jaxpr(inner).eqns:
            if one.primitive in markers.MAKERS and has_tangent(one.outvars[0]):
                yield one.params["uid"]
            yield from _allocations(one)


# The rules of markers on twins.


def _twin_of_maker(primitive: Primitive, primals: Operands, tangents: Tangents, params: Params) -> Both:
    out = primitive.bind(*primals, **params)
    if params["uid"] not in (_twins.get() or ()):
        return out, ad.Zero(compat.tangent_type(out))
    more = [ad.instantiate_zeros(t) for t in tangents]
    return out, primitive.bind(*more, **{**params, "uid": new_uid()})


def _twin_of_read(primitive: Primitive, primals: Operands, tangents: Tangents, params: Params) -> Both:
    out = primitive.bind(*primals, **params)
    if type(tangents[0]) is ad.Zero:
        return out, ad.Zero(compat.tangent_type(out))
    return out, primitive.bind(tangents[0], *primals[1:], **params)


def _twin_of_reach(primitive: Primitive, primals: Operands, tangents: Tangents, params: Params) -> Both:
    return primitive.bind(*primals, **params), []


def _twin_of_write(primitive: Primitive, primals: Operands, tangents: Tangents, params: Params) -> Both:
    handle, value = tangents[:2]
    if params.get("op", "add") != "add" and type(handle) is not ad.Zero:
        # all of its handles have a twin: see `_spread`
        _accumulation_along(primals, tangents, **params)
        return [], []
    primitive.bind(*primals, **params)
    adds_nothing = primitive is markers.accum_p and type(value) is ad.Zero
    if type(handle) is not ad.Zero and not adds_nothing:
        primitive.bind(handle, ad.instantiate_zeros(value), *primals[2:], **params)
    return [], []


def _accumulation_along(primals: Operands, tangents: Tangents, directions: int = 0, **params: object) -> None:
    """Differentiates an accumulation by `max`, `min` or `mul` along one more direction."""
    count = 1 << directions
    handles, values, indices = primals[:count], primals[count : 2 * count], primals[2 * count :]
    twins, changes = (map(ad.instantiate_zeros, part) for part in (tangents[:count], tangents[count : 2 * count]))
    params["directions"] = directions + 1
    markers.accum_along_p.bind(*handles, *twins, *values, *changes, *indices, **params)


def _twin_of_atomic(primitive: Primitive, primals: Operands, tangents: Tangents, params: Params) -> Both:
    out = primitive.bind(*primals, **params)
    if all(type(t) is ad.Zero for t in tangents):
        return out, ad.Zero(compat.tangent_type(out))
    # Inside of `lax` control flow: see `_spread`. An atomic whose old value is read is refused when that is known.
    if params["op"] != "add":
        raise old_value_refused(params["op"], None)
    handle, value = map(ad.instantiate_zeros, tangents[:2])
    return out, primitive.bind(handle, value, *primals[2:], **params)


def _region_along(
    params: Params, values: Mapping[Var, Any], given: Mapping[Var, Any]
) -> tuple[Params, dict[Var, Any], dict[Var, Any]]:
    """Returns parameters of a region whose body has tangents, what its free variables stand for, and known values.

    `values` are those of what the region takes from outside, `given` the tangents. Nothing is differentiated through
    the condition of a loop.
    """
    own, (body, *tests) = params["own"], params["jaxprs"]
    outside = body.invars[own:]
    made, constants, _ = _tangents_of(body.invars, (), body.eqns, given)
    operands = [*(values[v] for v in outside), *(given[v] for v in outside if v in given)]
    env = {**values, **dict(zip(made.invars[own:], operands, strict=True))}
    jaxprs = closed_over(made.eqns, made.invars[:own]), *tests
    return {**params, "jaxprs": jaxprs}, env, dict(zip(made.constvars, constants, strict=True))


def _tangents_of_region(primitive: Primitive, primals: Operands, tangents: Tangents, params: Params) -> Both:
    count, names = params["bounds"], captured(params)
    values: dict[Var, Any] = dict(zip(names, primals[count:], strict=True))
    given = {v: t for v, t in zip(names, tangents[count:], strict=True) if type(t) is not ad.Zero}
    params, env, constants = _region_along(params, values, given)
    env |= constants
    primitive.bind(*primals[:count], *(env[v] for v in captured(params)), **params)
    return [], []


def _tangents_of_transposed(primitive: Primitive, primals: Operands, tangents: Tangents, params: Params) -> Both:
    """Returns results and tangents of a linear function of which only the transpose is known.

    Both are results of one equation, as its transpose needs the cotangents of both.
    """
    count, results = params["num_res"], len(params["out_avals"])
    given = [k for k, t in enumerate(tangents) if type(t) is not ad.Zero]
    changing, moving = [k for k in given if k < count], [k - count for k in given if k >= count]
    if not given:
        outs = primitive.bind(*primals, **params)
        return outs, [ad.Zero(compat.tangent_type(out)) for out in outs]
    behind = [tangents[count + k] for k in moving]
    more = rule_along(params, changing, moving)
    found = primitive.bind(*primals[:count], *(tangents[k] for k in changing), *primals[count:], *behind, **more)
    return found[:results], found[results:]


def _tangents_of_taught(primitive: Primitive, primals: Operands, tangents: Tangents, params: Params) -> Both:
    """Returns value and tangent of the function that a user taught the importer."""
    run = partial(TAUGHT[primitive.name], **params)
    return jax.jvp(run, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))


def _either(primitive: Primitive, twin: Callable[..., object]) -> None:
    usual = ad.primitive_jvps.get(primitive)

    def rule(primals: Operands, tangents: Tangents, **params: object) -> object:
        if _twins.get() is None:
            if usual is None:
                raise GradientError(f"needs a rule of forward mode, got `{primitive}`")
            return usual(primals, tangents, **params)
        return twin(primitive, primals, tangents, params)

    ad.primitive_jvps[primitive] = rule


TWIN_RULES: dict[Primitive, Callable[..., Both]] = {
    **dict.fromkeys(markers.MAKERS, _twin_of_maker),
    **dict.fromkeys(markers.READS, _twin_of_read),
    **dict.fromkeys(WRITES, _twin_of_write),
    markers.atomic_p: _twin_of_atomic,
    markers.reach_p: _twin_of_reach,
    **dict.fromkeys(markers.REGIONS, _tangents_of_region),
    compat.custom_lin_p: _tangents_of_transposed,
}
for _primitive, _rule in TWIN_RULES.items():
    _either(_primitive, _rule)
compat.Maker.takes_tangents = staticmethod(lambda uid, **_: uid in (_twins.get() or ()))
