"""The primitive of array work of all lanes that kernels run on a GPU, a warp a lane, with its derivatives and batches.

It holds the jaxpr of one lane. Derivatives are JAX's of that jaxpr, cut into what the values need and what is linear
in the tangents: each is the primitive again, so reverse mode and higher orders run as groups, too (docs/design/0050).
"""

from __future__ import annotations

import functools
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, mlir

from qdtrace.errors import UnsupportedError
from qdtrace.groups.linearised import linearised
from qdtrace.groups.threads import run_threads
from qdtrace.groups.work import HEAVY, lanes_of
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

group_p = compat.Primitive("qd_group")
"""The jaxpr of one lane, `jaxpr`, for lanes along the first axis of the operands that are `mapped`, and of all results.

With `by_threads`, a thread has each lane (`groups/threads`), and groups have derivatives. With `interpret` its kernel
runs in Pallas's interpreter, on any machine.
"""
group_p.multiple_results = True


def kernels() -> ModuleType:
    """Returns the module `qdtrace.groups.kernel`."""
    # Loaded here: it loads Pallas, which is slow, and only GPUs need it.
    from qdtrace.groups import kernel as module

    return module


def grouped(
    f: Callable[..., Any], mapped: Sequence[bool], *, interpret: bool = False, by_threads: bool = False
) -> Callable[..., list[Any]]:
    """Returns the function of all lanes of a function of one that gives a list of arrays."""

    def run(*xs: Any) -> list[Any]:
        lane = [jax.ShapeDtypeStruct(x.shape[1:] if m else x.shape, x.dtype) for x, m in zip(xs, mapped, strict=True)]
        return _bind(jax.make_jaxpr(f)(*lane), mapped, xs, interpret, by_threads)

    return run


def _bind(
    jaxpr: Any, mapped: Sequence[bool], operands: Sequence[Any], interpret: bool, by_threads: bool = False
) -> list[Any]:
    """Binds the primitive for a closed jaxpr; what is no work for a lane stays outside.

    Results that are operands, literals, or another result again, are not made twice.
    """
    opened = compat.open_jaxpr(jaxpr)
    constants = list(compat.constants_of(jaxpr))
    known = dict(zip(opened.invars, zip(operands, mapped, strict=True), strict=True))
    made = list(dict.fromkeys(v for v in opened.outvars if isinstance(v, compat.Var) and v not in known))
    lanes = lanes_of(operands, mapped)
    found: dict[Any, Any] = {}
    every = [*zip(opened.constvars, constants, [False] * len(constants), strict=True)]
    every += zip(opened.invars, operands, mapped, strict=True)
    for wanted in _apart(opened, made):
        eqns = compat.without_dead_code(compat.jaxpr_of(opened.eqns, [v for v, _, _ in every], wanted)).eqns
        used = {v for eqn in eqns for v in eqn.invars if isinstance(v, compat.Var)} | set(wanted)
        taken = [one for one in every if one[0] in used]
        if not any(is_mapped for _, _, is_mapped in taken):
            taken.append(next(one for one in every if one[2]))  # which says how many lanes there are
        variables, values, flags = zip(*taken, strict=True)
        lane = compat.jaxpr_of(eqns, variables, wanted)
        results = group_p.bind(*values, jaxpr=lane, mapped=tuple(flags), interpret=interpret, by_threads=by_threads)
        found.update(zip(wanted, results, strict=True))

    def result(v: Any) -> Any:
        is_variable = isinstance(v, compat.Var)
        if is_variable and v in found:
            return found[v]
        x, is_mapped = known[v] if is_variable else (v.val, False)
        aval: Any = v.aval
        x = jnp.asarray(x, aval.dtype)
        return x if is_mapped else jnp.broadcast_to(x, (lanes, *x.shape))

    return [result(v) for v in opened.outvars]


def _apart(jaxpr: Any, results: Sequence[Any]) -> list[list[Any]]:
    """Returns results in parts that share no heavy equation: kernels of their own need fewer registers."""
    reads: dict[Any, set[int]] = {}
    for k, eqn in enumerate(jaxpr.eqns):
        before = [reads[v] for v in eqn.invars if isinstance(v, compat.Var) and v in reads]
        heavy = set[int]().union(*before) | ({k} if eqn.primitive.name in HEAVY else set())
        reads.update(dict.fromkeys(eqn.outvars, heavy))
    parts: list[tuple[set[int], list[Any]]] = []
    for v in results:
        own = reads.get(v, set())
        joined = [part for part in parts if not own or not part[0] or part[0] & own]
        parts = [part for part in parts if part not in joined]
        parts.append((own.union(*(p[0] for p in joined)), [w for p in joined for w in p[1]] + [v]))
    return [part for _, part in parts]


def batch_of(jaxpr: Any, mapped: Sequence[bool]) -> Callable[..., list[Any]]:
    """Returns the function of all lanes as JAX maps it, or of the one lane if no operand has lanes."""
    f = compat.function_of(jaxpr)

    def one(*xs: Any) -> list[Any]:
        return list(f(*xs))

    return jax.vmap(one, [0 if m else None for m in mapped]) if any(mapped) else one


def _types(*operands: Any, jaxpr: Any, mapped: Any, interpret: bool, by_threads: bool) -> list[Any]:
    lanes = lanes_of(operands, mapped)
    outs = compat.open_jaxpr(jaxpr).outvars
    return [compat.array_type((lanes, *v.aval.shape), v.aval.dtype, operands) for v in outs]


def by_xla(*operands: Any, jaxpr: Any, mapped: Any, interpret: bool) -> list[Any]:
    """Runs the lanes by XLA's operations on batches."""
    return batch_of(jaxpr, mapped)(*operands)


def _by_kernel(*operands: Any, jaxpr: Any, mapped: Any, interpret: bool) -> list[Any]:
    """Runs the lanes by a kernel, or by XLA where none can be made."""
    kernel = kernels()
    if not kernel.is_left_to_xla(jaxpr):
        with suppress(kernel.RefusedError):
            return kernel.run_groups(jaxpr, mapped, operands, interpret=interpret)
    return by_xla(*operands, jaxpr=jaxpr, mapped=mapped, interpret=interpret)


def by_loop(*operands: Any, jaxpr: Any, mapped: Any, interpret: bool) -> list[Any]:
    """Runs the lanes by a thread each, or by a kernel where the importer of loops refuses something."""
    with suppress(UnsupportedError):
        return run_threads(jaxpr, mapped, operands)
    return _by_kernel(*operands, jaxpr=jaxpr, mapped=mapped, interpret=interpret)


def _on_nvidia(context: Any, *operands: Any, **params: Any) -> Any:
    """Lowers to a kernel; what `jax.export` saves has XLA's operations, as calls of Triton have no stable form."""
    by_threads = params.pop("by_threads")
    run = by_xla if compat.is_export(context) else by_loop if by_threads else _by_kernel
    with warnings.catch_warnings():
        # JAX 0.11 tells whoever lowers a kernel by Triton; users have written none
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        return mlir.lower_fun(run, multiple_results=True)(context, *operands, **params)


def anywhere(*operands: Any, interpret: bool, by_threads: bool, **params: Any) -> list[Any]:
    return (_by_kernel if interpret else by_xla)(*operands, interpret=interpret, **params)


def _tangents(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, mapped: Sequence[bool], interpret: bool, **_: Any
) -> tuple[Any, Any]:
    """Runs JAX's linearisation of one lane, as two groups: of the values, and of what is linear in the tangents."""
    parts = linearised(jaxpr, [type(t) is not ad.Zero for t in tangents])
    lead = [False] * len(parts.constants)
    everything = _bind(parts.values, [*lead, *mapped], [*parts.constants, *primals], interpret)
    count = len(compat.open_jaxpr(jaxpr).outvars)
    outs, residuals = everything[:count], everything[count:]
    kinds = [compat.tangent_type(y) for y in outs]
    dense = [k for k, kind in enumerate(kinds) if kind.dtype != jax.dtypes.float0]

    def linear(*xs: Any) -> list[Any]:
        made = parts.linear(*xs)
        return [made[k] for k in dense]

    given = [(t, m) for t, m in zip(tangents, mapped, strict=True) if type(t) is not ad.Zero]
    flags = [True] * len(residuals) + [m for _, m in given]
    made = dict(
        zip(dense, grouped(linear, flags, interpret=interpret)(*residuals, *(t for t, _ in given)), strict=True)
    )
    return outs, [made.get(k, ad.Zero(kind)) for k, kind in enumerate(kinds)]


def _adjoints(
    adjoints: Sequence[Any], *operands: Any, jaxpr: Any, mapped: Sequence[bool], interpret: bool, **_: Any
) -> list[Any]:
    """Transposes one lane; adjoints of an operand that all lanes share are summed over them."""
    linear = [ad.is_undefined_primal(x) for x in operands]
    moved = [m for m, is_linear in zip(mapped, linear, strict=True) if is_linear]
    held = [m for m, is_linear in zip(mapped, linear, strict=True) if not is_linear]
    types = [v.aval for v, is_linear in zip(compat.open_jaxpr(jaxpr).invars, linear, strict=True) if is_linear]

    def of_lanes(f: Callable[..., Any]) -> Callable[..., list[Any]]:
        def run(*xs: Any) -> list[Any]:
            made = grouped(f, [*held, *[True] * (len(xs) - len(held))], interpret=interpret)(*xs)
            return [y if m else jnp.sum(y, 0) for y, m in zip(made, moved, strict=True)]

        return run

    return transposed(compat.function_of(jaxpr), types, adjoints, operands, of_lanes)


def transposed(
    f: Callable[..., Any],
    types: Sequence[Any],
    adjoints: Sequence[Any],
    operands: Sequence[Any],
    change: Callable[[Callable[..., Any]], Callable[..., Sequence[Any]]],
) -> list[Any]:
    """Returns the adjoints of the operands, of these `types`, in which a function with a list of results is linear.

    `change` returns what runs the transposed function, whose operands are the other ones of `f`, then adjoints.
    """
    linear = [ad.is_undefined_primal(x) for x in operands]
    given = [k for k, ct in enumerate(adjoints) if type(ct) is not ad.Zero]
    if not given:
        return [ad.Zero(x.aval) if is_linear else None for x, is_linear in zip(operands, linear, strict=True)]
    residuals = [x for x, is_linear in zip(operands, linear, strict=True) if not is_linear]
    likes = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]

    def back(*xs: Any) -> list[Any]:
        def applied(*ys: Any) -> list[Any]:
            left, right = iter(ys), iter(xs)
            made = f(*(next(left) if is_linear else next(right) for is_linear in linear))
            return [made[k] for k in given]

        return list(jax.linear_transpose(applied, *likes)(list(xs[len(residuals) :])))

    made = iter(change(back)(*residuals, *(adjoints[k] for k in given)))
    return [next(made) if is_linear else None for is_linear in linear]


def _mapped(operands: Sequence[Any], axes: Sequence[Any], *, mapped: Sequence[bool], **params: Any) -> Any:
    return with_more_lanes(functools.partial(group_p.bind, **params), operands, axes, mapped)


def with_more_lanes(
    bind: Callable[..., list[Any]], operands: Sequence[Any], axes: Sequence[Any], mapped: Sequence[bool]
) -> tuple[list[Any], list[int]]:
    """Makes lanes of the elements of another axis, for a primitive of lanes; returns its results and their axes."""
    more = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
    moved = [x if a is None else jnp.moveaxis(x, a, 0) for x, a in zip(operands, axes, strict=True)]
    lanes = next(x.shape[0 if a is None else 1] for x, a, m in zip(moved, axes, mapped, strict=True) if m)

    def joined(x: Any, is_new: bool, is_mapped: bool) -> Any:
        if not (is_new or is_mapped):
            return x
        x = x if is_new else x[None]
        x = x if is_mapped else x[:, None]
        return jnp.broadcast_to(x, (more, lanes, *x.shape[2:])).reshape(more * lanes, *x.shape[2:])

    new = [a is not None for a in axes]
    whole = map(joined, moved, new, mapped)
    outs = bind(*whole, mapped=tuple(map(max, new, mapped)))
    return [y.reshape(more, lanes, *y.shape[1:]) for y in outs], [0] * len(outs)


compat.define(group_p, _types, _mapped, anywhere)
ad.primitive_jvps[group_p] = _tangents
ad.primitive_transposes[group_p] = _adjoints
mlir.register_lowering(group_p, _on_nvidia, platform="cuda")
