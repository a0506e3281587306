"""Long functions in parts: stretches of their equations become functions of their own.

LLVM's instruction selection, register allocation and motion out of loops take time that grows faster than the
function they work on. So in a function of more than about `WHOLE` instructions, stretches of `PART` become functions.
Vectors of numbers cross through memory (`crossings`), all else as arguments and results. An equation stays together
with its blocks, unless these are long enough for parts of their own.

Measured on 4000 steps of `v * v + c`, CPU time of code generation: 0.97 s in one piece, 0.25 s in parts; run time
1.02 to 1.15 of that in one piece; 2000 checked gathers: 51 s and 3.0 s (in parts of 1000). Shorter functions stay
whole, as values that cross a border go through memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.borders import Scope, fetch, reads
from qdtrace.ir.primitives import CELL, Effect
from qdtrace.ir.program import Block, Var
from qdtrace.ir.types import RefType
from qdtrace.ir.walk import bound_in_block, walk_eqns, walk_inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lowering.llvm.frame import EmitEqns, Frame
    from qdtrace.ir.program import Eqn

PART = 400
"""The fewest instructions of a stretch.

A step of a robot of eight links in parts of 400, 1000 and 2500: 0.187, 0.212 and 0.223 ms; its gradient 0.68, 0.75 and
0.76 ms."""
WHOLE = 4000
"""The most instructions of a function that stays in one piece."""


def is_long(f: Frame, block: Block) -> bool:
    """Returns whether a function with this block should be emitted in parts."""
    return _length(f, block) > WHOLE


def _length(f: Frame, block: Block) -> int:
    return f.vectors * sum(eqn.primitive.instructions for eqn in walk_eqns(block))


def stretches(lengths: Sequence[int], divided: Sequence[bool], may_end: Sequence[bool]) -> Iterator[tuple[slice, bool]]:
    """Yields consecutive stretches of equations of these lengths, and whether each becomes a part.

    An equation that is divided itself is a stretch alone, in no part; a part ends after an equation that `may_end`
    allows.
    """
    start = length = 0
    for n, own in enumerate(lengths):
        length += own
        if divided[n]:
            yield slice(start, n), False
            yield slice(n, n + 1), False
        elif length >= PART and may_end[n]:
            yield slice(start, n + 1), True
        else:
            continue
        start, length = n + 1, 0
    yield slice(start, len(lengths)), False


def emit_in_parts(f: Frame, eqns: Sequence[Eqn], may_end: Sequence[bool], emit: EmitEqns) -> None:
    """Emits the equations of one block of a long function; `emit` emits a stretch of them."""
    lengths = [_length(f, Block((), (eqn,), ())) for eqn in eqns]
    divided = [any(_length(f, block) >= PART for block in eqn.blocks) for eqn in eqns]
    found = [(s, is_part) for s, is_part in stretches(lengths, divided, may_end) if s.start < s.stop]
    scope = Scope(f, eqns, [eqn for s, is_part in found if is_part or any(divided[s]) for eqn in eqns[s]])
    for stretch, is_part in found:
        if is_part:
            _emit_part(f, eqns[stretch], scope, emit)
        else:
            _emit_here(f, eqns[stretch], scope, emit, is_divided=any(divided[stretch]))
        scope.leave(stretch.stop)
    scope.close()


def _emit_here(f: Frame, eqns: Sequence[Eqn], scope: Scope, emit: EmitEqns, *, is_divided: bool) -> None:
    """Emits a stretch in the function itself. A divided equation loads its operands here; its blocks load the rest."""
    fetched: list[Var] = []
    for eqn in eqns:
        results = [a for block in eqn.blocks for a in block.results]
        for v in [*eqn.invars, *results] if is_divided else reads(f, eqn):
            if isinstance(v, Var) and v in f.crossings and v not in f.env:
                fetch(f, v)
                fetched.append(v)
    emit(f, eqns)
    scope.place(_made(eqns))
    for v in fetched:  # so that registers are live only here
        del f.env[v]


def emit_rare(f: Frame, eqn: Eqn, emit: EmitEqns) -> None:
    """Emits an equation without results that hardly ever runs, as a function.

    It does not use `preserve_allcc`: LLVM clears the upper halves of vectors at the end of such a function.
    """
    _emit_part(f, (eqn,), None, emit)


def _emit_part(f: Frame, eqns: Sequence[Eqn], scope: Scope | None, emit: EmitEqns) -> None:
    """Emits a function of these equations, and its call; without a scope nothing outside reads their results."""
    text, module, crossings = f.text, f.text.module, f.crossings
    cells = [eqn for eqn in eqns if eqn.primitive is CELL]
    emit(f, cells)  # later stretches may use them
    read_later = [] if scope is None else _given(f, eqns)
    handed_over = frozenset(v for v in read_later if scope is not None and scope.takes(v))
    given = [v for v in read_later if v not in handed_over]
    leaves = any(_may_leave(f, e) for eqn in eqns for e in (eqn, *walk_inside(eqn)))
    kinds = ["i1"] * leaves + [f.ops(v).type(v.dtype) for v in given for _ in range(f.registers(v))]
    result = f"{{ {', '.join(kinds)} }}" if kinds else "void"
    leave = ", ".join(["i1 true", *(f"{kind} poison" for kind in kinds[1:])])
    symbol, number = f"qd_part{len(module.parts)}", len(module.parts)
    module.parts.append("")
    awaited, taken = _taken(f, eqns)
    if f.stop and not any(e.primitive.loops for e in walk_eqns(Block((), tuple(eqns), ()))):
        taken.pop(f.stop, None)  # only loops poll it
    if awaited or handed_over:
        taken[crossings.pointer] = "ptr noalias"
    arguments = ", ".join(f"{kind} {register}" for register, kind in taken.items())
    held = {v: f.env.pop(v) for v in awaited if v in f.env}
    for v in read_later:
        if scope is not None and v in handed_over:
            scope.open(v)
    with text.apart() as render, f.apart(f"ret {result} {{ {leave} }}"), crossings.within(awaited, handed_over):
        emit(f, [eqn for eqn in eqns if eqn.primitive is not CELL])
        whole = "poison" if kinds else ""
        values = ["false"] * leaves + [register for v in given for register in f.operands(v, v)]
        for n, (kind, value) in enumerate(zip(kinds, values, strict=True)):
            whole = text.op(f"insertvalue {result} {whole}, {kind} {value}, {n}")
        text.do(f"ret {result} {whole}")
        header = f"define internal fastcc {result} @{symbol}({arguments}) noinline{' cold' if scope is None else ''}"
        module.parts[number] = render(header)
    for v in (*awaited, *_made(eqns)):  # registers of the part mean nothing here
        f.env.pop(v, None)
    f.env.update(held)
    call = f"call fastcc {result} @{symbol}({arguments})"
    if not kinds:
        text.do(call)
        return
    whole = text.op(call)
    found = [text.op(f"extractvalue {result} {whole}, {n}") for n in range(len(kinds))]
    if leaves:
        left, stays = text.fresh_label("leave"), text.fresh_label("stay")
        text.branch(found.pop(0), left, stays)
        text.begin(left)
        text.do(f.leave)
        text.begin(stays)
    registers = iter(found)
    for v in given:
        f.bind(v, [next(registers) for _ in range(f.registers(v))])


def _may_leave(f: Frame, eqn: Eqn) -> bool:
    """Returns whether an equation may leave the function."""
    return Effect.CHECK in eqn.primitive.effects or (bool(f.stop) and eqn.primitive.loops)


def _made(eqns: Sequence[Eqn]) -> list[Var]:
    """Returns the values that a stretch defines."""
    return [v for eqn in eqns for v in eqn.outvars if not isinstance(v.type, RefType)]


def _given(f: Frame, eqns: Sequence[Eqn]) -> list[Var]:
    """Returns the values of a stretch that something outside of it reads."""
    inside, everywhere = f.facts.readers_in(Block((), tuple(eqns), ())), f.facts.readers
    return [v for v in _made(eqns) if everywhere[v] > inside[v]]


def _taken(f: Frame, eqns: Sequence[Eqn]) -> tuple[list[Var], dict[str, str]]:
    """Returns the values with places that a stretch may read, and the registers of others with their types."""
    nested = {v for eqn in eqns for block in eqn.blocks for v in bound_in_block(block)}
    read = [v for v in f.facts.readers_in(Block((), tuple(eqns), ())) if v not in nested]
    made = {v for eqn in eqns for v in eqn.outvars}
    found = f.implicit([v for v in read if isinstance(v.type, RefType)])
    for v in read:
        if v not in made and v not in f.crossings and not isinstance(v.type, RefType):
            found |= f.held(v)
    registers = {register: kind for register, kind in found.items() if register.startswith("%")}
    return [v for v in read if v in f.crossings], registers
