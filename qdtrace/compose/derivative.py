"""The JAX primitive of a program's derivatives: directional derivatives and adjoints, of any order.

    D(x, v1 .. vk)       the k-th derivative of the program at x along k directions: tangents of results
    R(x, c, v1 .. vk)    the k-th derivative along directions of adjoints of the inputs, for adjoints c of the results

First derivatives also take residuals of the primal (`residuals`).

Derivatives are symmetric in their directions, so these two are closed under all that JAX asks for: a directional
derivative of either has one more direction, `D` transposed in a direction is `R`, and `R` transposed is `D` or `R`. The
graph needs forward mode of any program and reverse mode of the program itself, no more.

A derived program is made when the primitive is lowered, for the machine that it is lowered for, not while JAX traces.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

import jax
from jax.interpreters import ad, batching, mlir, partial_eval

from qdtrace.backend import backend
from qdtrace.compose.call import Origin, call, derivative_p
from qdtrace.compose.derivative_spec import Derivative
from qdtrace.compose.direct import leading, runs_by, zero_tangent
from qdtrace.compose.garbage import paused_garbage_collection
from qdtrace.compose.linearised import linearised, tangents_key
from qdtrace.compose.pass_cache import TANGENTS, kept, keyed
from qdtrace.compose.residuals import call_keeping, derivation, residuals_of, unread_by
from qdtrace.compose.stack_chunk import in_one_chunk
from qdtrace.compose.stacks import derived, stacks_for
from qdtrace.compose.staged_program import StagedProgram, chosen, within
from qdtrace.errors import GradientError, warn
from qdtrace.frozen import frozen
from qdtrace.ir.program import ref_type
from qdtrace.trace import compat
from qdtrace.trace.dtypes import as_jax, kept_by_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from jax import Array
    from jax.core import ShapedArray
    from jax.typing import ArrayLike

    from qdtrace.analysis.machine import Machine
    from qdtrace.compose.pass_cache import GraphKey
    from qdtrace.ir.program import Program

    Mask = tuple[bool, ...]
    Tangents = Sequence[Array | ad.Zero]
    Levels = tuple[tuple[int, tuple[Mask, ...]], ...]


T = TypeVar("T")


def derived_for(spec: Derivative, machine: Machine) -> StagedProgram:
    """Returns the program that computes the derivative on a machine."""
    with jax.enable_x64(spec.x64):
        return _derived(spec, machine)


@in_one_chunk
def _derive(spec: Derivative, machine: Machine) -> StagedProgram:
    """Derives the program: that of JAX's own forward mode, transposed for adjoints."""
    base, own = spec.base, len(spec.program.params)
    at = spec.place
    masks = tuple(mask[:own] for mask in spec.directions)
    if (first := spec.ruled or spec.wrt) is not None:
        masks = (*masks[:at], first, *masks[at:])
    asked = (True,) * sum(spec.out)
    if spec.handed is None:
        # where an adjoint changes along a direction, its change is that of the tangents along all others
        lower = tuple(
            (k + (k >= at), within(spec.out, m[own:])) for k, m in enumerate(spec.directions) if any(m[own:])
        )
        asked += (True,) * sum(sum(out) for _, out in lower)
        if spec.before is not None:
            masks = (spec.before, *masks)
            made = linearised(base, masks, (False,) * len(spec.out), lower=((0, spec.out),))
        else:
            made = linearised(base, masks, spec.out, lower=lower)
    else:
        mask, out = spec.handed
        masks = (mask,)
        made = linearised(base, masks, out, with_primal=True)
        asked = (*[False] * len(base.program.results), *chosen(spec.out, out))
    with base.depth_told():
        stacks = stacks_for(base.options, machine)

        def derive() -> tuple[Program, GraphKey | None]:
            return keyed(derivation().derived(spec, made, masks, asked, stacks, machine), base.options)

        facts = [getattr(spec, f.name) for f in fields(spec) if f.compare and f.name != "base"]
        about = (*facts, own, len(base.program.results), len(made.constants), machine)
        program, key = derived(made, about, stacks, derive)
    for choice in stacks.choices:
        if choice.is_slow:
            warn(f"in reverse mode {choice.reason}\nhelp: {choice.help}", choice.loc)
    return StagedProgram(program, made.options, tuple(stacks.choices), None, made.constants, key)


@functools.lru_cache(maxsize=1024)
def _derived(spec: Derivative, machine: Machine) -> StagedProgram:
    with paused_garbage_collection(), spec.base.progress("differentiating"):
        return _derive(spec, machine)


@frozen(eq=False)
class _Given:
    """A program of tangents, as `derivation.derived` reads it."""

    staged: StagedProgram
    base: StagedProgram
    constants: tuple[ArrayLike, ...] = ()
    lower: tuple[tuple[int, Mask], ...] = ()


def adjoint_of(spec: Derivative, tangents: StagedProgram, machine: Machine) -> Program:
    """Returns the program of a first adjoint, made of a program of tangents that has further known parameters."""
    made = _Given(tangents, spec.base)
    stacks = stacks_for(tangents.options, machine)
    with spec.base.depth_told():
        return derivation().derived(spec, made, (spec.wrt,), (True,) * sum(spec.out), stacks, machine)


def derivative(spec: Derivative, groups: Iterable[Sequence[ArrayLike]]) -> list[Array]:
    """Applies a derivative to groups of operands."""
    operands = compat.with_common_axes([x for group in groups for x in group])
    return derivative_p.bind(*operands, spec=spec)


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero or getattr(tangent, "dtype", None) == jax.dtypes.float0


def has_backward(base: StagedProgram) -> bool:
    """Returns whether a program calls functions with a derivative rule for reverse mode alone."""
    return base.source is not None and base.source.has_backward


def _has_primals_of_rules(base: StagedProgram) -> bool:
    """Returns whether derivative rules of users in a program may return other values than those of their functions."""
    return base.source is not None and base.source.has_primals_of_rules


@kept_by_mode
def reached_by(base: StagedProgram, mask: Mask) -> Mask:
    """Returns the mask of results that change with the parameters of a mask."""
    if base.source is not None:

        def make() -> Mask:
            source = base.source
            assert source is not None
            return tuple(v is not None for v in source.traced.along(mask).results)

        with contextlib.suppress(GradientError):  # it is refused where the derivative is computed
            return kept(TANGENTS, lambda: tangents_key(base), ("reached", mask), base.options, make)
    program = base.program
    found = derivation().active_variables(program, chosen(program.params, mask))
    return tuple(v in found for v in program.results)


def _known(operand: Array) -> Array:
    return ad.instantiate_zeros(ad.Zero(operand.aval)) if ad.is_undefined_primal(operand) else operand


def _direction(tangents: Sequence[Any]) -> tuple[Mask, list[Array]]:
    """Returns the mask and the parts of a direction."""
    mask = tuple(not _is_zero(t) for t in tangents)
    return mask, [t for t in tangents if not _is_zero(t)]


# The rules of JAX.


def jvp_of_call(
    primals: Sequence[Array], tangents: Tangents, *, staged: StagedProgram, origin: Origin | None
) -> tuple[list[Array], list[Array | ad.Zero]]:
    """Returns the results of a call and their tangents, of a batched one by batching the derivative of one call.

    Derivatives of derivatives take no residuals.
    """
    base = staged if origin is None else origin.base
    mask, direction = _direction(tangents)
    one, levels, givens = one_of(base, mask, (True,) * len(primals))
    reached = reached_by(one, mask)
    keeps = origin is not None or not _has_primals_of_rules(one)
    after = origin if keeps else Origin(base, tuple(range(len(reached))), mask)
    residuals = residuals_of(base, mask, reached) if origin is None and one is base and any(reached) else ()
    if residuals:
        outs, kept = call_keeping(base, primals, mask, reached, residuals, after)
    else:
        outs, kept = call(staged, primals, after), []
    before = None if origin is None else origin.before
    handed = (mask, reached) if residuals else None
    if origin is None and any(reached) and any(absent := unread_by(one, mask, reached, with_primal=bool(residuals))):
        given = tuple(not a for a in absent)
        primals = list(chosen(primals, given))
        one, levels, givens = one_of(base, mask, given)
    else:
        absent = ()
    spec = Derivative(
        one, (mask,), reached, residuals=residuals, before=before, handed=handed, absent=absent, levels=levels
    )
    known = tangents_of_call(spec, givens, [*primals, *kept], direction)
    numbers = range(len(outs)) if origin is None else origin.numbers
    return outs, [known[k] if k in known else zero_tangent(x) for k, x in zip(numbers, outs, strict=True)]


def tangents_of_call(
    spec: Derivative, givens: Sequence[Mask], operands: Sequence[ArrayLike], direction: Sequence[ArrayLike]
) -> dict[int | None, Array]:
    """Returns the tangents of a call by the numbers of results; `givens` are the masks of results that have axes."""
    found = derivative(spec, [operands, [], direction]) if any(spec.out) else []
    numbers = [k for k, wanted in enumerate(spec.out) if wanted]
    # a derivative has the axes of all batches, the outermost first; a result those of the batches it differs in
    indices = [tuple(slice(None) if given[k] else 0 for given in givens) for k in numbers]
    return {k: x[index] if index else x for k, x, index in zip(numbers, found, indices, strict=True)}


def one_of(base: StagedProgram, mask: Mask, known: Mask) -> tuple[StagedProgram, Levels, list[Mask]]:
    """Returns the program of one call; for each batch, the innermost first, masks of the `known` operands and of those
    with a part in `mask`; and for each, the outermost first, the mask of results that have its axis."""
    levels: Levels = ()
    givens: list[Mask] = []
    one = base.unbatched
    while one is not None:
        levels = ((one.size, (tuple(chosen(one.mask, known)), (), tuple(chosen(one.mask, mask)))), *levels)
        givens.append(one.given)
        base, one = one.staged, one.staged.unbatched
    return base, levels, givens


def _jvp_of_derivative(operands: Sequence[Array], tangents: Tangents, *, spec: Derivative) -> object:
    outs = derivative_p.bind(*operands, spec=spec)
    return outs, tangents_of_derivative(spec, operands, tangents) or list(map(zero_tangent, outs))


def tangents_of_derivative(spec: Derivative, operands: Sequence[Array], tangents: Sequence[Any]) -> list[Array]:
    """Returns the tangents of a derivative, or none if all are zero.

    It is linear in operands that JAX does not know: parameters among them are `absent`, others are taken as zero.
    """
    groups, changes = spec.split(operands), spec.split(tangents)
    terms: list[list[Array]] = []
    # Residuals are functions of the parameters, so their changes are part of the derivative by those. So are those of
    # adjoints where a rule for reverse mode need not be linear in them.
    own = sum(spec.given)
    is_joint = spec.wrt is not None and any(not _is_zero(t) for t in changes[1]) and has_backward(spec.base)
    linear = 2 if is_joint else 1

    def parts(groups: Sequence[Sequence[T]]) -> list[T]:
        return [*groups[0][:own], *(x for group in groups[1:linear] for x in group)]

    found, direction = _direction(parts(changes))
    mask = (*spec.of_given(found[:own]), *found[own:])
    axes = iter([list(chosen(parts(masks), found)) for _, masks in spec.levels])
    point, *others = groups[0][:own], *(list(map(_known, group)) for group in groups[1:])
    if any(map(ad.is_undefined_primal, groups[0])):
        read = [not ad.is_undefined_primal(x) for x in point]
        absent = tuple(not r for r in spec.of_given(read))
        levels = spec.regrouped(lambda masks: [list(chosen(masks[0][:own], read)), *masks[1:]])
        spec = replace(spec, absent=absent, residuals=(), handed=None, levels=levels)
        point = groups[0] = list(chosen(point, read))
    if any(found):
        levels = spec.regrouped(lambda masks: [masks[0][: len(point)], *masks[1:], next(axes)])
        more = replace(spec, directions=(*spec.directions, mask), residuals=(), handed=None, levels=levels)
        terms.append(derivative(more, [point, *others, direction]))
    for k in range(linear, len(groups)):
        # It is linear in each other group, or refused: the same derivative with the tangent in its place.
        if all(map(_is_zero, changes[k])):
            continue
        given = [jax.numpy.zeros_like(x) if _is_zero(t) else t for x, t in zip(others[k - 1], changes[k], strict=True)]
        number = k - 2 + (spec.wrt is not None and k - 2 >= spec.place) + (spec.before is not None)
        has_rules = spec.base.source is not None and spec.base.source.may_have_rules
        same = replace(spec, moving=spec.moving | {number}) if k > 1 and has_rules else spec
        terms.append(derivative(same, [groups[0], *others[: k - 1], given, *others[k:]]))
    return [functools.reduce(jax.numpy.add, parts) for parts in zip(*terms, strict=True)]


def _abstract_eval(*operands: ShapedArray, spec: Derivative) -> list[ShapedArray]:
    sizes = spec.sizes()
    return [compat.array_type((*sizes, *ref_type(v).shape), v.dtype.numpy, operands) for v in spec.results()]


def _run_on(name: str) -> Callable[..., object]:
    def run(*operands: Array, spec: Derivative) -> list[Array]:
        made = derived_for(spec, backend(name).machine)
        return call(made, [*operands, *map(as_jax, made.constants)])

    return mlir.lower_fun(run, multiple_results=True)


def _batch(operands: Sequence[Array], dims: Sequence[int | None], *, spec: Derivative) -> object:
    moved, mask, size = leading(operands, dims)
    more = replace(spec, levels=(*spec.levels, (size, tuple(map(tuple, spec.split(mask))))))
    outs = derivative_p.bind(*moved, spec=more)
    return outs, [0] * len(outs)


def _without_unused(used: list[bool], *rest: Any) -> tuple[list[bool], Any]:
    """Removes unused results from a derivative; `rest` ends with its equation."""
    eqn = rest[-1]
    if not any(used):
        return [False] * len(eqn.invars), None
    outvars, less = list(chosen(eqn.outvars, used)), eqn.params["spec"].of_some(used)
    return [True] * len(eqn.invars), eqn.replace(outvars=outvars, params={"spec": less})


derivative_p.def_abstract_eval(_abstract_eval)
_eager = runs_by(derivative_p, "spec", _run_on)
ad.primitive_jvps[derivative_p] = _jvp_of_derivative
batching.primitive_batchers[derivative_p] = _batch
partial_eval.dce_rules[derivative_p] = _without_unused
