"""Elements of memory: addresses, and loads, stores and accumulations of the active lanes.

The address of an element is an affine form of variables if `analysis/index/affine` finds one: then the split of a flat
index into rows and columns cancels, and Triton sees that neighbouring lanes access neighbours. Triton may assign lanes
to threads differently for each access, so a barrier separates accesses of one iteration that have an order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import SMALL_FLOATS
from lowering.triton.types import NAME
from qdtrace.ir.combining import combining
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import LOAD
from qdtrace.ir.program import Literal, Var, is_global, ref_type
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lowering.triton.frame import Frame
    from qdtrace.ir.program import Atom, Block, Eqn

_I32 = 1 << 31


def offset(f: Frame, ref: Var, indices: Sequence[Atom]) -> tuple[str, bool]:
    """Returns code of an element's number, empty for the first one, and whether it is a block of lanes."""
    kind = ref_type(ref)
    if kind.size < _I32:
        form = f.facts.forms.address(kind, indices)
        terms = [t for t in form.terms if isinstance(t, Var) and t in f.env]
        if len(terms) == len(form.terms):
            parts = [_term(f, t, form.terms[t]) for t in terms]
            constant = _wrapped(form.constant)
            return _sum([*parts, *([str(constant)] if constant else [])]), any(map(f.is_block, terms))
    wide = "tl.int32" if kind.size < _I32 else "tl.int64"
    stride, parts = 1, list[str]()
    for index, size in zip(reversed(indices), reversed(kind.shape), strict=True):
        if not isinstance(index, Literal):
            parts.append(_scaled(f"{f.env[index]}.to({wide})", stride))
        elif int(index.value):
            parts.append(str(int(index.value) * stride))
        stride *= size
    return _sum(parts[::-1]), any(map(f.is_block, indices))


def _wrapped(value: int) -> int:
    """Wraps a number to i32; forms are exact modulo 2**32."""
    return (value + _I32) % (1 << 32) - _I32


def _term(f: Frame, var: Var, factor: int) -> str:
    return _scaled(f.env[var] if var.dtype is DType.i32 else f"{f.env[var]}.to(tl.int32)", _wrapped(factor))


def _scaled(name: str, factor: int) -> str:
    return name if factor == 1 else f"{name} * {factor}"


def _sum(parts: Sequence[str]) -> str:
    return " + ".join(parts) if len(parts) < 2 else f"({' + '.join(parts)})"


def element(f: Frame, ref: Var, indices: Sequence[Atom], *, block: bool) -> str:
    """Returns code of an element's address: a scalar, or a block of addresses if `block`."""
    at, spread = offset(f, ref, indices)
    text = f"{f.env[ref]} + {at}" if at else f.env[ref]
    return text if spread or not block else f"{text} + {_zeros(f)}"


def in_range(f: Frame, ref: Var, indices: Sequence[Atom]) -> list[str]:
    """Returns conditions that the variable indices of an element are in range; literal ones are known to be."""
    pairs = zip(indices, ref_type(ref).shape, strict=True)
    return [f"({f.env[a]} >= 0) & ({f.env[a]} < {size})" for a, size in pairs if isinstance(a, Var)]


def pointer(f: Frame, eqn: Eqn, *, block: bool) -> str:
    """Returns code of the address of a memory equation's element."""
    return element(f, reference(eqn), indices_of(eqn), block=block)


def _zeros(f: Frame) -> str:
    return f"tl.full(({f.size},), 0, tl.int32)"


def _masked(f: Frame, *, block: bool) -> str:
    """Returns the mask argument of an access. A scalar one needs no mask of a block: some lane is active."""
    return f", mask={f.mask}" if f.mask and (block or not f.mask_is_block) else ""


def from_memory(dtype: DType, loaded: str) -> str:
    """Converts code of a loaded value to the type that variables have."""
    if dtype is DType.bool:
        return f"({loaded} != 0)"
    return f"{loaded}.to(tl.float32)" if dtype in SMALL_FLOATS else loaded


def to_memory(dtype: DType, value: str) -> str:
    """Converts code of a value to its type in memory; f16 and bf16 are rounded."""
    if dtype is DType.bool:
        return f"{value}.to(tl.int8)"
    return f"{value}.to(tl.{NAME[dtype]})" if dtype in SMALL_FLOATS else value


def load(f: Frame, eqn: Eqn) -> None:
    """Emits `load`."""
    out, ref = eqn.outvars[0], reference(eqn)
    _fence(f, ref)
    block = f.is_block(out)
    f.bind(out, from_memory(ref.dtype, f"tl.load({pointer(f, eqn, block=block)}{_masked(f, block=block)})"))


def store(f: Frame, eqn: Eqn) -> None:
    """Emits `store`."""
    ref = reference(eqn)
    _fence(f, ref)
    block = bool(f.size)
    value = to_memory(ref.dtype, f.typed(eqn.invars[1]))
    f.text.line(f"tl.store({pointer(f, eqn, block=block)}, {value}{_masked(f, block=block)})")


_OPERATORS = {"add": "+", "mul": "*", "and": "&", "or": "|", "xor": "^"}


def combined(f: Frame, op: str, dtype: DType, a: str, b: str) -> str:
    """Returns code of `a op b` for an accumulation."""
    name = combining(op, dtype).name
    if name in _OPERATORS:
        return f"({a} {_OPERATORS[name]} {b})"
    return f"{f.module.helper(f'combine_{name}')}({a}, {b})"


def accumulate(f: Frame, eqn: Eqn) -> None:
    """Emits `accum` into elements that no other iteration touches."""
    ref, op = reference(eqn), str(eqn.params["op"])
    _fence(f, ref)
    block = bool(f.size)
    at = f.text.let("at", pointer(f, eqn, block=block))
    masked = _masked(f, block=block)
    old = f.text.let("old", from_memory(ref.dtype, f"tl.load({at}{masked})"))
    new = combined(f, op, ref.dtype, old, f.typed(eqn.invars[1]))
    f.text.line(f"tl.store({at}, {to_memory(ref.dtype, new)}{masked})")


def accumulate_atomically(f: Frame, eqn: Eqn) -> None:
    """Emits an atomic `accum` into elements that other iterations accumulate into too."""
    at = pointer(f, eqn, block=True)
    value = f.typed(eqn.invars[1])
    f.text.line(f'tl.atomic_{eqn.params["op"]}({at}, {value}{_masked(f, block=True)}, sem="relaxed")')


def accumulate_sum(f: Frame, eqn: Eqn) -> None:
    """Emits `accum` into an element that all iterations share, as a sum per lane."""
    total, ref = f.sums[eqn], reference(eqn)
    new = combined(f, str(eqn.params["op"]), ref.dtype, total, f.typed(eqn.invars[1]))
    f.text.line(f"{total} = tl.where({f.mask}, {new}, {total})" if f.mask else f"{total} = {new}")


def count(f: Frame, eqn: Eqn) -> None:
    """Emits `accum` of a constant into a small array, as a histogram of the lanes' elements."""
    total, ref = f.sums[eqn], reference(eqn)
    index, spread = offset(f, ref, indices_of(eqn))
    if not spread:
        index = f"{index} + {_zeros(f)}" if index else _zeros(f)
    mask = f", mask={f.mask}" if f.mask else ""
    f.text.line(f"{total} += tl.histogram({index}, {bins_of(ref)}{mask})")


def bins_of(ref: Var) -> int:
    """Returns the number of bins for a buffer's histogram, a power of two."""
    return max(64, 1 << (ref_type(ref).size - 1).bit_length())


def ordered_refs(body: Block, separate: Collection[Eqn]) -> frozenset[Var]:
    """Returns references whose accesses in one iteration have an order: several, or one in a loop, with a write.

    `separate` are accumulations that are not done in memory, or are atomic.
    """
    accesses: dict[Var, list[tuple[bool, bool]]] = {}

    def look(block: Block, *, loop: bool) -> None:
        for eqn in block.eqns:
            if eqn.primitive.values is not None and is_global(eqn.invars[0]) and eqn not in separate:
                accesses.setdefault(reference(eqn), []).append((eqn.primitive is not LOAD, loop))
            for inner in eqn.blocks:
                look(inner, loop=loop or eqn.primitive.loops)

    look(body, loop=False)
    return frozenset(
        ref
        for ref, found in accesses.items()
        if any(w for w, _ in found) and (len(found) > 1 or any(loop for _, loop in found))
    )


def _fence(f: Frame, ref: Var) -> None:
    if ref in f.ordered:
        if ref in f.touched or f.loops:
            f.text.line("tl.debug_barrier()")
        f.touched.add(ref)
