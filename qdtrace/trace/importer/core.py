"""The importer: environments, dispatch on primitives, inlined jaxprs, source lines, constants."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.core import Tracer

from qdtrace.errors import TraceValueError, UnsupportedError
from qdtrace.frozen import mutable
from qdtrace.ir.types import DType
from qdtrace.trace import compat
from qdtrace.trace.dtypes import is_key
from qdtrace.trace.importer.bodies import Bodies, body_of, copy_of, operands_of
from qdtrace.trace.importer.elements import length_of, per_element
from qdtrace.trace.importer.implementations import implementation_of, is_foreign
from qdtrace.trace.importer.memory import MemoryOps
from qdtrace.trace.importer.registry import DERIVATIVES, ITEMS, RULES, TAUGHT, decomposition_of, load_rules, traced_rule
from qdtrace.trace.importer.scalars import constant
from qdtrace.trace.importer.uses import uses_of_items, uses_of_jaxpr
from qdtrace.trace.importer.values import (
    ArrayRef,
    MemoryArray,
    Value,
    array_of,
    hold,
    is_static,
    join_pairs,
    rank0,
    split_pairs,
)
from qdtrace.trace.physical import PLAIN, is_pair
from qdtrace.trace.regions import restructure
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any

    from jax.core import ShapedArray
    from jax.typing import ArrayLike

    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Var
    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import Jaxpr, JaxprEqn
    from qdtrace.trace.importer.bodies import Key, Operands
    from qdtrace.trace.importer.uses import Uses
    from qdtrace.trace.importer.values import Element, Env
    from qdtrace.trace.jaxprs import AnyJaxpr, Params, Shaped

LARGE_CONSTANT = 64
"""Constants of more elements are kept in memory from the start."""


@mutable(eq=False)
class LoopFlow:
    """Flags of the innermost loop of markers: it was left by a break; the rest of this iteration is skipped."""

    broken: Var | None = None
    skip: Var | None = None


class Importer(MemoryOps):
    """Emits graph equations for jaxpr equations into the open block of a builder; see README.md.

    `hoist(array)` gives a read-only global reference with the content of an array. Importers that share `bodies` import
    a called function once between them. `bounds` is the option of that name: see `bounds.py`.
    """

    def __init__(
        self,
        builder: Builder,
        *,
        hoist: Callable[[ArrayLike], Var] | None = None,
        index_dtype: DType = DType.i32,
        scalar_budget: int = 256,
        bodies: Bodies | None = None,
        bounds: str = "raise",
        in_place: bool = True,
    ) -> None:
        load_rules()
        super().__init__(builder, hoist, index_dtype, scalar_budget, in_place)
        self.bodies = Bodies() if bodies is None else bodies
        self.bounds = bounds
        self.calls = 0
        """Number of called functions around the current equation."""
        self.zeros_vanish = False
        """True in a decomposition in which a product with a constant zero is nothing, whatever the other factor is."""
        self.flow: list[LoopFlow] = []
        self.iteration: Atom | None = None
        """Index of the outermost loop around the current equation; None outside of loops."""
        self._constants: dict[int, tuple[object, Value]] = {}

    def another(self, builder: Builder) -> Importer:
        """Returns an importer of code apart, for instance of a derivative rule."""
        return Importer(builder, index_dtype=self.index_dtype, scalar_budget=self.scalar_budget, bounds=self.bounds)

    @contextmanager
    def in_iteration(self, index: Atom) -> Generator[None]:
        """Says what the index of a loop is, whose body is imported inside."""
        before = self.iteration
        self.iteration = index if before is None else before
        yield
        self.iteration = before

    def body(self, items: Sequence[JaxprEqn], env: Env) -> None:
        """Imports the equations of a body in order; regions become `for`, `while` and `if` equations.

        A `continue_if` among them ends the thread's work on this element.
        """
        ITEMS["body"](self, items, env)

    def eqn(self, eqn: JaxprEqn, env: Env) -> None:
        """Imports one equation and puts its results into `env`, pairs with a trailing axis of 2."""
        self.import_eqn(eqn, env)
        for var in eqn.outvars:
            value = env.get(var)
            if isinstance(value, np.ndarray) and is_pair(var.aval):
                env[var] = split_pairs(value)

    def jaxpr(self, closed: AnyJaxpr, values: Sequence[Value]) -> list[Value]:
        """Inlines a closed jaxpr; pairs have a trailing axis of 2 in operands and results."""
        jaxpr = compat.open_jaxpr(closed)
        operands = [_logical(x, v.aval) for v, x in zip(jaxpr.invars, values, strict=True)]
        results = self.inline(closed, operands)
        return [
            split_pairs(x) if isinstance(x, np.ndarray) and is_pair(v.aval) else x
            for v, x in zip(jaxpr.outvars, results, strict=True)
        ]

    def items(self, items: Sequence[JaxprEqn], env: Env, results: Sequence[jaxprs.Atom] = ()) -> None:
        """Imports equations and regions in order. One that guards what follows it imports that too."""
        uses, held = uses_of_items(items, results), {}
        for position, item in enumerate(items):
            kind = item.primitive
            if kind not in ITEMS:
                self._import_counted(position, item, env, uses, held)
            elif ITEMS[kind](self, item, items[position + 1 :], env):
                return

    def _import_counted(
        self, position: int, eqn: JaxprEqn, env: Env, uses: Uses, held: dict[jaxprs.Var, Value]
    ) -> None:
        """Imports one equation; arrays in memory that it is the last to read may be updated in place."""
        shown = uses.release(position, eqn, held) if held else ()
        self.importing = uses, eqn
        self.import_eqn(eqn, env)
        for value in shown:
            hold(value, -1)
        for var in eqn.outvars:
            value = env[var]
            if isinstance(value, MemoryArray):
                held[var] = value
                hold(value)

    def read(self, env: Env, atom: jaxprs.Atom) -> Value:
        """Returns the value of a jaxpr variable or literal."""
        if isinstance(atom, compat.Literal):
            aval = atom.aval
            if not aval.shape and aval.dtype in PLAIN:
                return rank0(constant(np.asarray(atom.val, aval.dtype)[()]))
            return self.constant_value(atom.val, aval)
        try:
            value = env[atom]
        except KeyError:
            raise TraceValueError(
                "a value made inside a loop or branch is used outside of it",
                loc=self.here(),
                help="keep it in a qd.local() made before the loop, or in a buffer",
            ) from None
        if type(value) is np.ndarray and not value.ndim:  # most values
            return value
        if (joined := _logical(value, atom.aval)) is not value:
            env[atom] = joined
        return joined

    def constant_value(self, content: ArrayLike, aval: ShapedArray) -> Value:
        """Returns a literal or a captured constant."""
        if isinstance(content, bool | int | float | complex | np.generic):
            return rank0(_element(np.asarray(content, aval.dtype)[()]))
        known = self._constants.get(id(content))
        if known is None:
            known = self._constants[id(content)] = (content, self._constant_array(content, aval))
        return known[1]

    def _constant_array(self, content: ArrayLike, aval: ShapedArray) -> Value:
        pair = is_pair(aval)
        self.dtype_of(aval)
        if is_key(aval):
            content = jax.random.key_data(content)
        if isinstance(content, Tracer):
            return self._captured(content, aval, pair)
        array: Any = np.asarray(content, aval.dtype if isinstance(aval.dtype, np.dtype) else None)
        if array.dtype.kind == "c":
            array = np.stack([array.real, array.imag], -1)
        if array.size > LARGE_CONSTANT and self.hoist is not None:
            return ArrayRef(self.hoist(array), pair)
        self.dtype_of(array)
        out = array_of(map(constant, array.reshape(-1)), array.shape)
        return join_pairs(out) if pair else out

    def _captured(self, tracer: jax.Array, aval: ShapedArray, pair: bool) -> Value:
        """Returns a value of an outer trace that a jaxpr closed over."""
        if self.hoist is None:
            raise TraceValueError(
                f"a traced value of an outer function is used in a loop body: {aval.str_short()}",
                loc=self.here(),
                help="pass it as an argument",
            )
        ref = ArrayRef(self.hoist(tracer), pair)
        return self.scalars(ref) if ref.size == 1 else ref

    def locate(self) -> None:
        """Looks the source line of the current equation up; most equations emit nothing and need none."""
        if self.unlocated is not None:
            self.loc = eqn_loc(self.unlocated) or self.loc
            self.unlocated = None

    def import_eqn(self, eqn: JaxprEqn, env: Env) -> None:
        """Imports one equation; elements of keys and complex numbers are pairs."""
        if not self.calls:
            self.unlocated = eqn
        if _has_no_elements(eqn):  # so that no rule needs to know arrays without elements as its results
            env.update((v, array_of((), v.aval.shape)) for v in eqn.outvars)
            return
        primitive = eqn.primitive
        name = primitive.name
        values: list[Value] = [self.read(env, v) for v in eqn.invars]
        found = RULES.get(name)
        results: Any
        if name not in TAUGHT and is_foreign(primitive):
            results = self._implemented(eqn, values)
        elif found is not None and name not in TAUGHT:
            if eqn.params or found.needed:
                results = found.run(self, eqn, *values, **found.keywords(self, eqn))
            else:
                results = found.run(self, eqn, *values)
        else:
            results = self._without_rule(eqn, values)
        if primitive.multiple_results:
            env.update(zip(eqn.outvars, results, strict=True))
        else:
            env[eqn.outvars[0]] = results

    def _without_rule(self, eqn: JaxprEqn, values: list[Value]) -> Value | list[Value]:
        name = eqn.primitive.name
        fn, params, vanish, each = TAUGHT.get(name), eqn.params, False, False
        if fn is None:
            found = decomposition_of(name)
            if found is not None:
                fn, params = found.run, found.keywords(self, eqn)
                vanish, each = found.zeros_vanish, found.of_elements
        if fn is not None:
            outside, self.zeros_vanish = self.zeros_vanish, vanish
            try:
                with compat.settings_of(eqn):
                    if each:
                        return self.each(fn, eqn, params, values)
                    results = self.decomposed(fn, [v.aval for v in eqn.invars], params, values)
            finally:
                self.zeros_vanish = outside
            return results if eqn.primitive.multiple_results else results[0]
        raise self._no_rule(eqn)

    def _implemented(self, eqn: JaxprEqn, values: list[Value]) -> Value | list[Value]:
        contents = [_content(v, x.aval) for v, x in zip(values, eqn.invars, strict=True)]
        with compat.settings_of(eqn):
            inner = implementation_of(eqn, contents)
        if inner is None:
            raise self._no_rule(eqn)
        ties = DERIVATIVES["transposed"] if compat.is_linear(eqn.primitive) else None
        results = self.call(inner, values) if ties is None else ties(self, eqn, values, inner, values)
        return results if eqn.primitive.multiple_results else results[0]

    def _no_rule(self, eqn: JaxprEqn) -> UnsupportedError:
        name = eqn.primitive.name
        said = f"the JAX primitive `{name}` has no import rule"
        help = f"compute it outside of the loop, or teach it: qd.def_import_rule({name!r}, jnp_function)"
        if name.startswith("qd_"):  # of a function that a `jax.jit` around it has traced before, outside of loops
            said = "a program of its own, of a function of qd.jit that was traced before, is called in a loop or lane"
            help = "call it outside, for all elements at once, or, if it makes no buffers, without a jax.jit around it"
        return UnsupportedError(said, loc=eqn_loc(eqn, self.here()), help=help)

    def decomposed(
        self, fn: Callable[..., object], avals: Sequence[Shaped], params: Params, values: list[Value]
    ) -> list[Value]:
        """Returns results of a jnp function, inlined; what it refuses is refused at the user's line."""
        return self.call(self._traced(fn, avals, params), values)

    def _traced(self, fn: Callable[..., object], avals: Sequence[Shaped], params: Params) -> AnyJaxpr:
        for aval in avals:
            self.dtype_of(aval)
        try:
            return traced_rule(fn, avals, params)
        except UnsupportedError as error:
            raise UnsupportedError(error.rule, loc=self.here(), notes=error.notes, help=error.help) from None

    def each(self, fn: Callable[..., object], eqn: JaxprEqn, params: Params, values: Sequence[Value]) -> Value:
        """Returns the result of an equation that a jnp function of elements computes."""
        closed = self._traced(fn, [jax.ShapeDtypeStruct((), v.aval.dtype) for v in eqn.invars], params)
        one = lambda *elements: self.call_on_scalars(closed, elements)[0]  # noqa: E731
        return per_element(self, one, eqn.outvars[0].aval, *values, length=length_of(closed))

    def call_on_scalars(self, closed: AnyJaxpr, elements: Sequence[Element]) -> list[Any]:
        """Returns the elements that a function of scalars gives."""
        return [self.element(x, ()) for x in self.call(closed, [rank0(e) for e in elements])]

    def call(self, closed: AnyJaxpr, values: Sequence[Value]) -> list[Value]:
        """Inlines a called function; its equations keep the line of the call. See `bodies`."""
        jaxpr = compat.open_jaxpr(closed)
        operands = None
        if len(jaxpr.eqns) > 1 and not jaxpr.effects:
            operands = operands_of(values, self.ranges)
        if operands is None:
            return self._inside_call(closed, values)
        key = (id(closed), (*operands.kind, self.zeros_vanish, self.scalar_budget))
        body = self.bodies.get(key)
        if body is None:
            return self._first_call(closed, values, key, operands)
        if body.eqns is None:
            return self._inside_call(closed, values)
        same = (key, *map(id, operands.variables))
        known = self.shared(same)
        if known is not None:
            return list(known)
        self.private_bytes += body.private_bytes
        eqns, arrays = copy_of(body, operands.variables, self.here())
        self.current.eqns += eqns
        self.definitions.made.update((id(e.outvars[0]), e) for e in eqns if not (e.blocks or e.primitive.effects))
        self.share(same, tuple(arrays))
        return list(arrays)

    def _first_call(self, closed: AnyJaxpr, values: Sequence[Value], key: Key, operands: Operands) -> list[Value]:
        """Inlines a body and keeps what it became. Nothing is known of the equations around it."""
        emitted = self.current.eqns
        position, before = len(emitted), self.private_bytes
        scopes, self._scopes = self._scopes, 1
        spilled, self._spilled = self._spilled, {}
        try:
            with self.apart():
                results = self._inside_call(closed, values)
            # a copy would write an operand to memory again, where calls that are inlined find it there
            alone = not any(id(v) in self._spilled for v in values)
        finally:
            self._scopes, self._spilled = scopes, spilled
        alive = (closed, values)
        body = self.bodies[key] = body_of(
            operands, emitted[position:] if alone else None, results, self.private_bytes - before, alive
        )
        if body.eqns is not None:
            self.share((key, *map(id, operands.variables)), tuple(results))
        return results

    def _inside_call(self, closed: AnyJaxpr, values: Sequence[Value]) -> list[Value]:
        self.calls += 1
        try:
            return self.inline(closed, values)
        finally:
            self.calls -= 1

    def inline(self, closed: AnyJaxpr, values: Sequence[Value]) -> list[Value]:
        """Imports a jaxpr on these operands; returns its results.

        Private arrays are counted: an operand read for the last time may be updated in place.
        """
        jaxpr = compat.open_jaxpr(closed)
        if has_markers(jaxpr):
            return self._marked(closed, values)
        env: Env = {}
        for var, content in zip(jaxpr.constvars, compat.constants_of(closed), strict=True):
            env[var] = self.constant_value(content, var.aval)
        env.update(zip(jaxpr.invars, values, strict=True))
        held: dict[jaxprs.Var, Value] = {v: x for v, x in env.items() if isinstance(x, MemoryArray)}
        for value in held.values():
            hold(value)
        uses = uses_of_jaxpr(jaxpr)
        for position, eqn in enumerate(uses.eqns):
            self._import_counted(position, eqn, env, uses, held)
        results = [self.read(env, v) for v in jaxpr.outvars]
        for value in held.values():
            hold(value, -1)
        return results

    def _marked(self, closed: AnyJaxpr, values: Sequence[Value]) -> list[Value]:
        root = restructure(closed)
        env: Env = {v: self.constant_value(c, v.aval) for v, c in root.constants.items()}
        env.update(zip(root.params, values, strict=True))
        for value in values:
            hold(value)
        self.items(root.items, env, root.results)
        return [self.read(env, atom) for atom in root.results]


def has_markers(jaxpr: Jaxpr) -> bool:
    """Returns whether a jaxpr holds markers and so must be restructured."""
    return bool(jaxpr.effects) and compat.has_markers(jaxpr.effects)


def _element(value: Any) -> Element:
    """Returns a constant; a pair of the parts for a complex number."""
    return (constant(value.real), constant(value.imag)) if value.dtype.kind == "c" else constant(value)


def _content(value: Value, aval: Shaped) -> np.ndarray | None:
    """Returns the array of a value whose elements are all constants; None for any other."""
    if not isinstance(value, np.ndarray) or is_pair(aval) or not all(map(is_static, value.ravel().tolist())):
        return None
    return np.array([e.value for e in value.ravel().tolist()], aval.dtype).reshape(value.shape)


def _logical(value: Any, aval: Shaped) -> Any:
    """Returns a value with pairs in place of a trailing axis of 2 that JAX's type has not."""
    if type(value) is np.ndarray and value.ndim and value.ndim != len(aval.shape):
        return join_pairs(value)
    if type(value) is ArrayRef and value.ndim != len(aval.shape):
        return ArrayRef(value.var, pair=True)
    return value


def _has_no_elements(eqn: JaxprEqn) -> bool:
    """Returns whether an equation has results, no element in any of them, and no effect."""
    return bool(eqn.outvars) and all(0 in v.aval.shape for v in eqn.outvars) and not eqn.effects
