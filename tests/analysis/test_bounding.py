"""Which references of a program bound its loops."""

from qdtrace.analysis.bounding import bounding
from qdtrace.ir.parser import parse_program


def test_references_that_bound_loops() -> None:
    program = parse_program("""
program p(a: ref[i32,9], b: ref[i32,9], c: ref[i32,9], d: ref[i32,9], e: ref[i32,9], f: ref[i32,9], g: ref[i32])
  buffer x: ref[i32,9] = 0:i32
  range_for i in 0:i32 : 9:i32
    head
      last: i32 = load g
    place: cell[i32] = cell[dtype=i32, shape=()]
    v0: i32 = load a i
    v1: i32 = load b v0
    store place v1
    v2: i32 = load place
    v3: i32 = load c i
    v4: i32 = load f i
    for k in v2 : last : 1:i32
      v5: i32 = load d k
      v6: i32 = add v5 v4
      store x v6 k
    v7: i32 = while carry q = 0:i32
      v8: bool = lt q v3
      test v8
      v9: i32 = load e q
      v10: i32 = add q v9
      yield v10
    store x v7 i
  return x
""")
    found = bounding(program)
    assert [v.hint for v in program.params if v in found] == ["b", "c", "e", "g"]
