"""The order of a loop's equations around its running sums, against the definition: always the first that is ready."""


from collections.abc import Sequence

import numpy as np

from lowering.simd.inner.scans import scheduled
from qdtrace.ir.parser import parse_program
from qdtrace.ir.primitives import LOAD
from qdtrace.ir.program import Block, Eqn, Var

HEADER = """program p(x: ref[f32,9], y: ref[f32,9])
  range_for i in 0:i32 : 1:i32
    p: f32, q: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = 0.0:f32, d = 0.0:f32
"""


def body_of(seed: int) -> Block:
    """Draws a body of sums, loads and stores, whose two carries any equation may read."""
    rng = np.random.default_rng(seed)
    values, lines = ["c", "d", "1.0:f32"], list[str]()
    for n in range(rng.integers(2, 12)):
        a, b = values[rng.integers(len(values))], values[rng.integers(len(values))]
        match int(rng.integers(4)):
            case 0:
                lines.append(f"store {'xy'[rng.integers(2)]} {a} k")
            case 1:
                lines.append(f"v{n}: f32 = load {'xy'[rng.integers(2)]} k")
                values.append(f"v{n}")
            case _:
                lines.append(f"v{n}: f32 = add {a} {b}")
                values.append(f"v{n}")
    lines += [f"s: f32 = add c {values[rng.integers(2, len(values))]}", f"t: f32 = max d {values[-1]}", "yield s, t"]
    text = HEADER + "".join(f"      {line}\n" for line in lines) + "    store y p i\n    store x q i\n  return x, y\n"
    return parse_program(text).tasks[0].body.eqns[0].blocks[0]


def by_definition(eqns: Sequence[Eqn], scans: dict[Eqn, Var]) -> list[Eqn] | None:
    """Returns the equations, each time the first of those left that none of those left has to precede."""

    def precedes(a: Eqn, b: Eqn) -> bool:
        made = (*a.outvars, *([scans[a]] if a in scans else []))
        if any(v is r and r is not scans.get(b) for v in made for r in b.invars):
            return True
        same = a.primitive.is_access and b.primitive.is_access and a.invars[0] is b.invars[0]
        return same and not (a.primitive is LOAD and b.primitive is LOAD) and eqns.index(a) < eqns.index(b)

    left, order = list(eqns), list[Eqn]()
    while left:
        ready = next((e for e in left if not any(precedes(a, e) for a in left)), None)
        if ready is None:
            return None
        left.remove(ready)
        order.append(ready)
    return order


def test_order():
    found = list[bool]()
    for seed in range(200):
        block = body_of(seed)
        first, second = block.eqns[-2:]
        scans = {first: block.params[1], second: block.params[2]}
        order = scheduled(block.eqns, scans)
        expected = by_definition(block.eqns, scans)
        assert order == (None if expected is None else tuple(expected)), seed
        found.append(expected is None)
    assert {True, False} <= set(found)
