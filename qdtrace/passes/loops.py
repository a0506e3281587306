"""Loops that count: a `while` that a counter ends is a `for`; what a `for` counts beside its index follows from that.

    k: i32, j: i32, v: f32 = while carry a = 0:i32, b = s, c = x     k: i32 = max 0:i32 n
      p: bool = lt a n                                               j: i32 = add k s
      test p                                                         v: f32 = for a in 0:i32 : n : 1:i32 carry c = x
      ...                                                 becomes      b: i32 = add a s
      a_1: i32 = add a 1:i32                                           ...
      b_1: i32 = add b 1:i32                                           yield c_1
      yield a_1, b_1, c_1

So all that comes later asks for `for` only. All rules are exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.index.induction import controlling_counter, raised_by
from qdtrace.ir.carries import carries_of, with_carries
from qdtrace.ir.primitives import ADD, CONVERT, FOR
from qdtrace.ir.program import Eqn, Literal, Var
from qdtrace.rules.table import RuleTable

if TYPE_CHECKING:
    from qdtrace.passes.rewrite import Rewriter

TABLE = RuleTable()


@TABLE.rule("while", stage="before")
def while_counts(w: Rewriter, eqn: Eqn) -> Eqn | None:
    """A `while` that a counter alone ends is a `for`"""
    counter = controlling_counter(eqn, lambda atom: w.ranges.of(w.atom(atom)))
    if counter is None:
        return None
    number, loop = counter
    start, stop = w.atoms((loop.start, loop.stop))
    carries = carries_of(eqn)
    index, result = carries[number].params[1], carries.pop(number).outvar
    made = with_carries(eqn, carries)
    w.env[result] = w.op("max", start, stop)
    body = replace(made.blocks[1], params=(index, *made.blocks[1].params))
    return replace(made, primitive=FOR, invars=(start, stop, loop.step, *made.invars), blocks=(body,))


@TABLE.rule("for", stage="before")
def carry_counts(w: Rewriter, eqn: Eqn) -> Eqn | None:
    """A carry that rises by one like the index of its loop is the index plus a number"""
    start, stop, step = eqn.bounds
    rises = raised_by(eqn) if isinstance(step, Literal) and step.value == 1 else {}
    counting = [c for c in carries_of(eqn) if c.params[0] in rises and rises[c.params[0]].value == 1]
    if not counting:
        return None
    (body,) = eqn.blocks
    first: list[Eqn] = []
    for carry in counting:
        (param,), initial = carry.params, carry.initial
        assert initial is not None
        distance = w.op("sub", initial, w.convert(start, param.dtype))
        w.env[carry.outvar] = w.op("add", w.convert(w.op("max", start, stop), param.dtype), distance)
        index = eqn.index
        if param.dtype is not index.dtype:
            index = Var(param.type, index.hint)
            first.append(Eqn(CONVERT, (eqn.index,), (index,), {"dtype": param.dtype}, (), eqn.loc))
        first.append(Eqn(ADD, (index, distance), (param,), {}, (), eqn.loc))
    made = with_carries(eqn, [c for c in carries_of(eqn) if c.outvar not in w.env])
    return replace(made, blocks=(replace(made.blocks[0], eqns=(*first, *body.eqns)),))
