"""`if`, `for` and `while`: scalar branches where all lanes go together, masks where they part.

A divergent loop keeps a live mask; a lane that has left keeps its carries (they are blended), and the loop ends when
no lane is left. What an inactive lane computes is never used and never harmful.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.carries import Carries, Phis, merge
from lowering.llvm.spread import count
from lowering.llvm.types import REGISTER
from lowering.llvm.vectors import Mask, Value
from qdtrace.analysis.work import operations, trip_count
from qdtrace.ir.primitives import FUNCTIONS
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.types import RefType
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Atom, Block, Eqn

    EmitBlock = Callable[[Frame, Block], None]
    _Enters = Callable[[str, str, str], str]
    _GoesOn = Callable[[str, str, str, str], str]

FLATTEN_COST = 24
"""Branches of at most this cost are evaluated both and selected."""
QUIET_COST = 32
"""A pure `while` of at most this cost asks only every `QUIET_STEPS` steps whether a lane is left."""
QUIET_STEPS = 8
_LOUD = ("load", "store", "accum", "atomic", "cell", "for", "while", "bound", "check")


# if


def emit_if(f: Frame, eqn: Eqn, emit: EmitBlock) -> None:
    """`if`."""
    condition = eqn.invars[0]
    if isinstance(condition, Literal) or f.is_uniform(condition):
        _uniform_if(f, eqn, emit)
    elif all(_is_cheap(f, block) for block in eqn.blocks) and sum(map(operations, eqn.blocks)) <= FLATTEN_COST:
        _flat_if(f, eqn, emit)
    else:
        _masked_if(f, eqn, emit)


def _uniform_if(f: Frame, eqn: Eqn, emit: EmitBlock) -> None:
    text = f.text
    labels = [text.fresh_label("then"), text.fresh_label("else")]
    join = text.fresh_label("join")
    text.branch(f.scalar_of(eqn.invars[0]), *labels)
    values: list[list[list[str]]] = []
    ends: list[str] = []
    for label, block in zip(labels, eqn.blocks, strict=True):
        text.begin(label)
        with f.region():
            emit(f, block)
            values.append([_operands(f, out, a) for out, a in zip(eqn.outvars, block.results, strict=True)])
        ends.append(text.label)
        text.jump(join)
    text.begin(join)
    for n, out in enumerate(eqn.outvars):
        uniform = f.is_uniform(out)
        type_ = (f.scalar if uniform else f.vector).type(out.dtype)
        registers = [
            text.op(f"phi {type_} [ {a}, %{ends[0]} ], [ {b}, %{ends[1]} ]")
            for a, b in zip(values[0][n], values[1][n], strict=True)
        ]
        f.env[out] = Value(out.dtype, scalar=registers[0]) if uniform else Value(out.dtype, vectors=registers)


def _operands(f: Frame, out: Var, atom: Atom) -> list[str]:
    return [f.scalar_of(atom)] if f.is_uniform(out) else [f.vector_of(atom, v) for v in range(f.vectors)]


def _is_cheap(f: Frame, block: Block) -> bool:
    """Nothing but arithmetic and loads that a mask can hold back."""
    for eqn in walk_eqns(block):
        name = eqn.primitive.name
        if name in ("store", "accum", "atomic", "cell", "for", "while") or name in FUNCTIONS:
            return False
        if name == "load" and not _is_safe_load(f, eqn):
            return False
    return True


def _is_safe_load(f: Frame, eqn: Eqn) -> bool:
    """Masked lane by lane, or at a place that certainly exists."""
    ref, indices = eqn.invars[0].type, eqn.invars[1:]
    assert isinstance(ref, RefType)
    if all(isinstance(i, Literal) for i in indices):
        return all(0 <= int(i.value) < n for i, n in zip(indices, ref.shape, strict=True))  # type: ignore[union-attr]
    return not all(isinstance(i, Literal) or f.is_uniform(i) for i in indices)


def _flat_if(f: Frame, eqn: Eqn, emit: EmitBlock) -> None:
    """Both sides, then a choice lane by lane; loads take the mask of their side."""
    conditions = [f.vector_of(eqn.invars[0], v) for v in range(f.vectors)]
    for block, negate in zip(eqn.blocks, (False, True), strict=True):
        loads = any(e.primitive.name in ("load", "if", "bound", "check") for e in block.eqns)
        mask = f.narrowed(f.mask, conditions, negate=negate) if loads else Mask(f.mask.vectors, nonempty=False)
        with f.region(mask):
            emit(f, block)
    then, other = eqn.blocks
    for out, a, b in zip(eqn.outvars, then.results, other.results, strict=True):
        f.env[out] = f.each(
            out.dtype,
            lambda v, a=a, b=b, d=out.dtype: f.vector.select(
                conditions[v], f.vector.type(d), f.vector_of(a, v), f.vector_of(b, v)
            ),
        )


def _masked_if(f: Frame, eqn: Eqn, emit: EmitBlock) -> None:
    """Each side runs under its mask, and only when some lane goes there."""
    conditions = [f.vector_of(eqn.invars[0], v) for v in range(f.vectors)]
    sides: list[list[list[str]]] = []
    for block, negate in zip(eqn.blocks, (False, True), strict=True):
        sides.append(_side(f, eqn, block, f.narrowed(f.mask, conditions, negate=negate) if block.eqns else None, emit))
    for n, out in enumerate(eqn.outvars):
        f.env[out] = f.each(
            out.dtype,
            lambda v, n=n, d=out.dtype: f.vector.select(
                conditions[v], f.vector.type(d), sides[0][n][v], sides[1][n][v]
            ),
        )


def _side(f: Frame, eqn: Eqn, block: Block, mask: Mask | None, emit: EmitBlock) -> list[list[str]]:
    """Results of one side as vectors; zeros when no lane went there."""
    if mask is None:
        return [[f.vector_of(a, v) for v in range(f.vectors)] for a in block.results]
    assert mask.vectors is not None
    text = f.text
    label, join, before = text.fresh_label("side"), text.fresh_label("join"), text.label
    text.branch(f.any(mask.vectors), label, join)
    before = text.label
    text.begin(label)
    with f.region(Mask(mask.vectors)):
        emit(f, block)
        results = [[f.vector_of(a, v) for v in range(f.vectors)] for a in block.results]
    end = text.label
    text.jump(join)
    text.begin(join)
    return [
        [text.op(f"phi {f.vector.type(out.dtype)} [ zeroinitializer, %{before} ], [ {r}, %{end} ]") for r in registers]
        for out, registers in zip(eqn.outvars, results, strict=True)
    ]


# for


def emit_for(f: Frame, eqn: Eqn, emit: EmitBlock) -> None:
    """`for`."""
    step = eqn.invars[2]
    if isinstance(step, Literal) and int(step.value) == 0:
        for out, initial in zip(eqn.outvars, eqn.invars[3:], strict=True):
            f.env[out] = Value(out.dtype, vectors=_operands(f, out, initial))
            if f.is_uniform(out):
                f.env[out] = Value(out.dtype, scalar=f.scalar_of(initial))
    elif not f.is_scalar and eqn in f.facts.uniformity.divergent:
        _divergent_for(f, eqn, emit)
    else:
        _uniform_for(f, eqn, emit)


def _uniform_for(f: Frame, eqn: Eqn, emit: EmitBlock) -> None:
    """A counted loop with the test at its end; the last index plus the step is never computed where it may wrap."""
    text, body = f.text, eqn.blocks[0]
    start, stop, step = eqn.invars[:3]
    kind = REGISTER[start.dtype]
    first, last, by = map(f.scalar_of, (start, stop, step))
    enters, goes_on = _tests(f, eqn, f.scalar)
    carries = Carries(f, eqn, eqn.invars[3:], body.params[1:])
    loop, done = text.fresh_label("for"), text.fresh_label("done")
    trips = trip_count(start, stop, step)
    runs = bool(trips)
    if trips == 0:
        carries.finish(carries.flat_initial())
        return
    if runs:
        text.jump(loop)
    else:
        text.branch(enters(first, last, by), loop, done)
    before = text.label
    text.begin(loop)
    phis = Phis(f, before)
    index = phis.add(kind, first)
    carries.open(phis)
    with f.region():
        f.env[body.params[0]] = Value(start.dtype, scalar=index)
        carries.bind(body.params[1:])
        emit(f, body)
        carries.step(body, Mask())
        following = text.op(f"add {kind} {index}, {by}")
        again = goes_on(index, following, last, by)
    latch = text.label
    text.branch(again, loop, done, _unroll(f, eqn))
    phis.close([following, *carries.flat()], latch)
    text.begin(done)
    if runs:
        carries.finish(carries.flat())
    else:
        merge(f, carries, before, latch, carries.flat())


def _unroll(f: Frame, eqn: Eqn) -> str:
    """The user's wish to unroll, for LLVM."""
    times = eqn.params.get("unroll")
    if not isinstance(times, int) or isinstance(times, bool) or times < 2:
        return ""
    module = f.text.module
    count = module.node(f'!{{!"llvm.loop.unroll.count", i32 {times}}}')
    name = f"!{len(module.metadata)}"
    module.node(f"distinct !{{{name}, {count}}}")
    return f", !llvm.loop {name}"


def _tests(f: Frame, eqn: Eqn, o: Ops) -> tuple[_Enters, _GoesOn]:
    """Two functions that emit "the loop is entered" and "there is a further iteration" for lanes of `o`."""
    step = eqn.invars[2]
    d = step.dtype
    t = o.type(d)
    zero = o.constant(0, d)

    def up(a: str, b: str) -> str:
        return o.compare("icmp slt", t, a, b)

    def more(a: str, b: str, by: str) -> str:
        # the distance left as an unsigned number: exact, as a < b
        return o.compare("icmp ugt", t, o.binary("sub", t, b, a), by)

    if isinstance(step, Literal) and int(step.value) > 0:
        if int(step.value) == 1:
            return (lambda a, b, by: up(a, b)), (lambda a, following, b, by: up(following, b))
        return (lambda a, b, by: up(a, b)), (lambda a, following, b, by: more(a, b, by))
    if isinstance(step, Literal):
        size = o.constant(-int(step.value), d)
        return (lambda a, b, by: up(b, a)), (lambda a, following, b, by: more(b, a, size))

    def enters(a: str, b: str, by: str) -> str:
        rising = o.binary("and", o.bits, o.compare("icmp sgt", t, by, zero), up(a, b))
        falling = o.binary("and", o.bits, o.compare("icmp slt", t, by, zero), up(b, a))
        return o.binary("or", o.bits, rising, falling)

    def goes_on(a: str, following: str, b: str, by: str) -> str:
        rising = o.compare("icmp sgt", t, by, zero)
        return o.select(rising, o.bits, more(a, b, by), more(b, a, o.binary("sub", t, zero, by)))

    return enters, goes_on


def _divergent_for(f: Frame, eqn: Eqn, emit: EmitBlock) -> None:
    """Lanes have trip counts of their own."""
    text, body, d = f.text, eqn.blocks[0], eqn.invars[0].dtype
    start, stop, step = eqn.invars[:3]
    o, each = f.vector, range(f.vectors)
    enters, goes_on = _tests(f, eqn, o)
    counter = f.is_uniform(body.params[0])
    lasts, steps = [f.vector_of(stop, v) for v in each], [f.vector_of(step, v) for v in each]
    firsts = [f.vector_of(start, v) for v in each]
    carries = Carries(f, eqn, eqn.invars[3:], body.params[1:])
    live = f.narrowed(f.mask, [enters(firsts[v], lasts[v], steps[v]) for v in each])
    assert live.vectors is not None
    loop, done = text.fresh_label("for"), text.fresh_label("done")
    text.branch(f.any(live.vectors), loop, done)
    before = text.label
    text.begin(loop)
    phis = Phis(f, before)
    masks = tuple(phis.add(o.bits, m) for m in live.vectors)
    kind = REGISTER[d]
    indices = [phis.add(kind, f.scalar_of(start))] if counter else [phis.add(o.type(d), r) for r in firsts]
    carries.open(phis)
    with f.region(Mask(masks)):
        f.env[body.params[0]] = Value(d, scalar=indices[0]) if counter else Value(d, vectors=indices)
        carries.bind(body.params[1:])
        count(f, eqn, masks)
        emit(f, body)
        carries.step(body, Mask(masks))
        if counter:
            following = [text.op(f"add {kind} {indices[0]}, {f.scalar_of(step)}")]
            now, then = f.spread(kind, indices[0]), f.spread(kind, following[0])
            again = [goes_on(now, then, lasts[v], steps[v]) for v in each]
        else:
            following = [o.binary("add", o.type(d), indices[v], steps[v]) for v in each]
            again = [goes_on(indices[v], following[v], lasts[v], steps[v]) for v in each]
        left = f.narrowed(Mask(masks), again)
        assert left.vectors is not None
        condition = f.any(left.vectors)
    latch = text.label
    text.branch(condition, loop, done)
    phis.close([*left.vectors, *following, *carries.flat()], latch)
    text.begin(done)
    merge(f, carries, before, latch, carries.flat())


# while


def emit_while(f: Frame, eqn: Eqn, emit: EmitBlock) -> None:
    """`while`."""
    if f.is_scalar or eqn not in f.facts.uniformity.divergent:
        _uniform_while(f, eqn, emit)
    else:
        _divergent_while(f, eqn, emit)


def _uniform_while(f: Frame, eqn: Eqn, emit: EmitBlock) -> None:
    text, (test, body) = f.text, eqn.blocks
    carries = Carries(f, eqn, eqn.invars, body.params)
    loop, inside, done = text.fresh_label("while"), text.fresh_label("body"), text.fresh_label("done")
    before = text.label
    text.jump(loop)
    text.begin(loop)
    phis = Phis(f, before)
    carries.open(phis)
    with f.region():
        carries.bind(test.params)
        emit(f, test)
        held = carries.flat()
        text.branch(f.scalar_of(test.results[0]), inside, done)
        text.begin(inside)
        carries.bind(body.params)
        emit(f, body)
        carries.step(body, Mask())
    latch = text.label
    text.jump(loop)
    phis.close(carries.flat(), latch)
    text.begin(done)
    carries.finish(held)


def _divergent_while(f: Frame, eqn: Eqn, emit: EmitBlock) -> None:
    """A live mask narrows until no lane is left.

    Parts of the condition that are the same in all lanes are scalar branches. Quiet loops ask only now and then
    whether a lane is left: what they compute for nobody costs less than asking.
    """
    text, (test, body) = f.text, eqn.blocks
    quiet, each = is_quiet(eqn), range(f.vectors)
    carries = Carries(f, eqn, eqn.invars, body.params)
    loop, inside, done = text.fresh_label("while"), text.fresh_label("body"), text.fresh_label("done")
    before = text.label
    text.jump(loop)
    text.begin(loop)
    phis = Phis(f, before)
    counter = phis.add("i32", "0") if quiet else ""
    masks = tuple(phis.add(f.vector.bits, f.mask_of(f.mask, v)) for v in each)
    carries.open(phis)
    with f.region(Mask(masks, nonempty=not quiet)):
        carries.bind(test.params)
        emit(f, test)
        held = carries.flat()
        common, own = _conjuncts(f, test)
        live = Mask(masks, nonempty=False)
        for condition in own:
            live = f.narrowed(live, [f.vector_of(condition, v) for v in each])
        assert live.vectors is not None
        goes_on = [f.scalar_of(c) for c in common] + ([] if quiet else [f.any(live.vectors)])
        tested = text.label
        text.branch(_all(f, goes_on), inside, done)
        text.begin(inside)
        with f.region(Mask(live.vectors, nonempty=not quiet)):
            count(f, eqn, live.vectors)
            carries.bind(body.params)
            emit(f, body)
            carries.step(body, live)
            after = [*live.vectors, *carries.flat()]
    if not quiet:
        phis.close(after, text.label)
        text.jump(loop)
        text.begin(done)
        carries.finish(held)
        return
    steps = text.op(f"add i32 {counter}, 1")
    latch, asks = text.label, text.fresh_label("asks")
    text.branch(text.op(f"icmp eq i32 {text.op(f'and i32 {steps}, {QUIET_STEPS - 1}')}, 0"), asks, loop)
    text.begin(asks)
    text.branch(f.any(live.vectors), loop, done)
    phis.close([steps, *after], latch, asks)
    text.begin(done)
    found: list[str] = []
    for type_, first, value in zip(carries.flat_types(), held, carries.flat(), strict=True):
        found.append(text.op(f"phi {type_} [ {first}, %{tested} ], [ {value}, %{asks} ]"))
    carries.finish(found)


def _all(f: Frame, conditions: list[str]) -> str:
    """All scalar conditions hold."""
    if not conditions:
        return "true"
    total = conditions[0]
    for other in conditions[1:]:
        total = f.text.op(f"and i1 {total}, {other}")
    return total


def _conjuncts(f: Frame, test: Block) -> tuple[list[Atom], list[Atom]]:
    """The parts of a condition joined by `and`: those that are the same in all lanes, and the others."""
    made = {e.outvars[0]: e for e in test.eqns if e.primitive.name == "and"}
    common: list[Atom] = []
    own: list[Atom] = []
    left = [test.results[0]]
    while left:
        atom = left.pop()
        if atom in made:
            left += made[atom].invars
        elif isinstance(atom, Literal) or f.is_uniform(atom):
            common.append(atom)
        else:
            own.append(atom)
    return common, own


def is_quiet(eqn: Eqn) -> bool:
    """Light, and nothing in it touches memory or loops: lanes that have left may run on for a few steps."""
    if eqn.primitive.name != "while":
        return False
    names = {e.primitive.name for block in eqn.blocks for e in walk_eqns(block)}
    if not names.isdisjoint(_LOUD) or not names.isdisjoint(FUNCTIONS):
        return False
    return sum(map(operations, eqn.blocks)) <= QUIET_COST
