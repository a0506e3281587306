"""`tell` as records in memory, as text, and left out."""

import numpy as np
import pytest

from qdtrace.interpret.reference import evaluate
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.tells import tells_in, with_records, without_tells
from qdtrace.ir.verify import verify_program

TEXT = """\
program p(x: ref[f32,4])
  buffer told: ref[i32] = 0:i32
  buffer ring: ref[u32,2x4] = 0:u32
  range_for i in -1:i32 : 3:i32
    at: i32 = add i 1:i32
    v: f32 = load x at
    tell[number=7, site=0] told ring i v
  return told, ring
"""


def test_records_have_number_index_and_values() -> None:
    x = np.array([0.5, -1.5, 2.0, 3.0], np.float32)
    made = with_records(parse_program(TEXT))
    verify_program(made)
    assert not tells_in(made)
    told, ring = evaluate(made, [x])
    assert told == 4
    assert ring[:, 0].tolist() == [7, 7]
    assert np.ascontiguousarray(ring[:, 1:3]).view(np.int64)[:, 0].tolist() == [-1, 0]
    assert np.ascontiguousarray(ring[:, 3]).view(np.float32).tolist() == [0.5, -1.5]


def test_text_goes_there_and_back() -> None:
    for program in (parse_program(TEXT), with_records(parse_program(TEXT))):
        assert print_program(parse_program(print_program(program))) == print_program(program)
    assert "if[rare=true]" in print_program(with_records(parse_program(TEXT)))


@pytest.mark.parametrize("change", [with_records, without_tells])
def test_a_program_that_tells_nothing_stays_the_same(change) -> None:
    program = without_tells(parse_program(TEXT))
    assert not tells_in(program)
    assert change(program) is program
