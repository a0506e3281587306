"""Transposes of calls and of derivatives: what JAX asks for where some operands are unknown.

A call that is linear in its unknown operands is the derivative in their direction, which reads nothing of them
(`Derivative.absent`): its transpose is that of the derivative, an adjoint. See docs/design/0042-transpose-of-calls.md.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
from jax.interpreters import ad

from qdtrace.analysis.machine import CPU
from qdtrace.compose.derivative import (
    derivative,
    derived_for,
    has_backward,
    one_of,
    reached_by,
    tangents_of_call,
    tangents_of_derivative,
)
from qdtrace.compose.derivative_spec import Derivative
from qdtrace.compose.direct import zero_tangent
from qdtrace.compose.residuals import derivation
from qdtrace.compose.staged_program import chosen
from qdtrace.errors import GradientError
from qdtrace.trace.dtypes import mode_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax import Array

    from qdtrace.compose.call import Origin
    from qdtrace.compose.staged_program import StagedProgram

    Mask = tuple[bool, ...]
    Given = Sequence[Array | ad.Zero]
    Cotangent = Array | ad.Zero | None


def transpose_of_call(
    cotangents: Given, *operands: Array, staged: StagedProgram, origin: Origin | None
) -> list[Cotangent]:
    """Returns the cotangents of the operands that are unknown, None for the others.

    Raises GradientError if a result that has a cotangent is no linear function of them.
    """
    base, numbers = (staged, range(len(cotangents))) if origin is None else (origin.base, origin.numbers)
    pairs = zip(numbers, cotangents, strict=True)  # residuals have no cotangents
    given = {k: c for k, c in pairs if k is not None and type(c) is not ad.Zero}
    unknown = _unknown(operands)
    asked = tuple(k in given for k in range(len(base.program.results)))
    is_known = tuple(not u for u in unknown)
    one, levels, givens = one_of(base, unknown, is_known)
    if given:
        _refuse_nonlinear(base, unknown, asked)
        _refuse_rules(one, unknown)
    out = tuple(a and r for a, r in zip(asked, reached_by(one, unknown), strict=True))
    spec = Derivative(one, (unknown,), out, absent=unknown, levels=levels)
    known = list(chosen(operands, is_known))

    def along(*direction: Array) -> list[Array]:
        found = tangents_of_call(spec, givens, known, direction)
        return [found[k] for k in given if k in found]

    return _transposed(along, operands, unknown, [c for k, c in given.items() if out[k]])


def _unknown(operands: Sequence[object]) -> Mask:
    return tuple(map(ad.is_undefined_primal, operands))


def _transposed(
    function: Callable[..., list[Array]], operands: Sequence[Array], moved: Mask, cotangents: Given
) -> list[Cotangent]:
    """Returns the cotangents of the operands in `moved` from those of a function of a direction for each of them."""
    types = [x.aval for x in chosen(operands, moved)]
    with mode_for(t.dtype for t in types):
        found = iter(jax.linear_transpose(function, *types)(list(cotangents)) if cotangents else map(ad.Zero, types))
    return [next(found) if m else None for m in moved]


@functools.lru_cache(maxsize=1024)
def _refuse_nonlinear(staged: StagedProgram, unknown: Mask, asked: Mask) -> None:
    """Raises GradientError if the results of a program that are asked for are not linear in the unknown operands."""
    program = staged.with_rules
    program = replace(program, results=tuple(chosen(program.results, asked)))
    with staged.depth_told():
        derivation().refuse_nonlinear(program, tuple(chosen(program.params[: len(unknown)], unknown)))


@functools.lru_cache(maxsize=1024)
def _refuse_rules(base: StagedProgram, unknown: Mask) -> None:
    """Raises GradientError if an unknown operand of a program passes a function with a derivative rule of its own."""
    found = base.source and base.source.traced.rule_along(unknown)
    if found:
        raise derivation().not_linear_in(base.program, f"`{found[0]}` with a derivative of its own", found[1])


def _of_linear_derivative(cotangents: Given, operands: Sequence[Array], spec: Derivative) -> list[Cotangent]:
    """Transposes a derivative that is linear in the point where it is taken, as the gradient of a quadratic form."""
    unknown = _unknown(operands)
    asked = [type(c) is not ad.Zero for c in cotangents]
    spec = spec.of_some(asked)
    if any(asked):
        _refuse_nonlinear(derived_for(spec, CPU), unknown, (True,) * sum(asked))
        _refuse_rules(spec.base, spec.of_given(unknown[: sum(spec.given)]))

    # residuals are functions of the parameters, whose cotangents have what changes with them
    first, behind = sum(spec.given), spec.groups()[0]
    moved = tuple(u and not first <= k < behind for k, u in enumerate(unknown))

    def along(*direction: Array) -> list[Array]:
        left = iter(direction)
        none = [ad.Zero(x.aval) if u else zero_tangent(x) for u, x in zip(unknown, operands, strict=True)]
        return tangents_of_derivative(
            spec, operands, [next(left) if m else zero for m, zero in zip(moved, none, strict=True)]
        )

    return _transposed(along, operands, moved, list(chosen(cotangents, asked)))


def transpose_of_derivative(cotangents: Given, *operands: Array, spec: Derivative) -> list[Cotangent]:
    """Returns the cotangents of the operands that are unknown, None for the others."""
    groups = spec.split(operands)
    if any(map(ad.is_undefined_primal, groups[0])):
        return _of_linear_derivative(cotangents, operands, spec)
    at = next(k for k, group in enumerate(groups) if any(map(ad.is_undefined_primal, group)))
    given = [ad.instantiate_zeros(c) for c in cotangents]
    unknown = [ad.is_undefined_primal(x) for x in groups[at]]
    # the adjoint along no direction is transposed to the derivative itself
    is_again = spec.wrt is not None or spec.before is not None
    if (spec.wrt is not None and spec.directions) or (is_again and has_backward(spec.base)):
        _need_symmetry(spec)
    j = at - 2
    others = [k for k in range(2, len(groups)) if k != at]
    if spec.wrt is None:
        # D in a direction: the adjoint of the inputs in its mask, along the other directions.
        levels = spec.regrouped(lambda masks: [masks[0], (True,) * len(given), *(masks[k] for k in others)])
        rest = tuple(m for k, m in enumerate(spec.directions) if k != j)
        ruled = None if rest or not has_backward(spec.base) else spec.directions[j]
        made = replace(spec, directions=rest, wrt=spec.directions[j], ruled=ruled, place=j, levels=levels)
        found = derivative(made, [groups[0], given, *(groups[k] for k in others)])
    elif at == 1:
        # R in the adjoints: one more direction, the cotangents of the adjoints that R gives.
        levels = spec.regrouped(lambda masks: [masks[0], (), *masks[2:], (True,) * len(given)])
        made = replace(spec, directions=(*spec.directions, spec.wrt), wrt=None, place=0, levels=levels)
        found = derivative(made, [groups[0], [], *groups[2:], given])
    else:
        # R in a direction: the roles of that direction and of the inputs asked for change places.
        levels = spec.regrouped(lambda masks: [*masks[:at], (True,) * len(given), *masks[at + 1 :]])
        directions = (*spec.directions[:j], spec.wrt, *spec.directions[j + 1 :])
        made = replace(spec, directions=directions, wrt=spec.directions[j], levels=levels)
        found = derivative(made, [*groups[:at], given, *groups[at + 1 :]])
    shared = [masks[at] for _, masks in reversed(spec.levels)]
    placed = [
        _summed(f, tuple(axis for axis, mask in enumerate(shared) if not mask[k])) if u else None
        for k, (f, u) in enumerate(zip(found, unknown, strict=True))
    ]
    return [p for k, group in enumerate(groups) for p in (placed if k == at else [None] * len(group))]


def _summed(value: Array, axes: tuple[int, ...]) -> Array:
    with mode_for([value.dtype]):
        return value.sum(axes) if axes else value


def _need_symmetry(spec: Derivative) -> None:
    """Refuses reverse mode over reverse mode if a user's rule need not be a derivative."""
    if spec.base.source is not None and (rules := spec.base.source.traced.rules()):
        raise GradientError(
            f"{spec.program.name}: reverse mode over reverse mode needs derivatives that are symmetric, "
            f"and the rule of `{rules[0]}` need not be one",
            help="use forward mode over reverse mode: jax.jacfwd or jax.jvp of jax.grad (as jax.hessian does)",
        )
