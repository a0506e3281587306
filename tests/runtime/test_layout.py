"""The memory that holds each reference in a call: an argument, a result, or scratch."""

from dataclasses import replace

import numpy as np

from lowering.runtime.layout import Place, plan_layout, with_kernel_scratch
from qdtrace.ir.builder import ref_var
from qdtrace.ir.memory import written
from qdtrace.ir.program import Program
from tests.runtime.programs import F32, affine, affine_task, chain, saxpy


def test_written_parameters_are_aliased_and_read_ones_are_not():
    program = saxpy(8)
    a, x, y = program.params
    layout = plan_layout(program)
    assert set(written(program.all_eqns)) == {y}
    assert layout.written == (y,)
    assert layout.aliases == {2: 0}
    assert layout.places == {a: Place(0), x: Place(1), y: Place(3)}
    assert layout.slot_count == 4
    assert layout.scratch_bytes == 0


def test_a_written_parameter_that_is_not_returned_is_a_result_too():
    program = replace(saxpy(8), results=())
    layout = plan_layout(program)
    assert layout.written == (program.params[2],)
    assert layout.aliases == {2: 0}


def test_a_returned_parameter_that_is_only_read_is_no_result():
    program = affine(8)
    (x,), (y,) = program.params, program.buffers
    layout = plan_layout(replace(program, results=(x, y, x, y)))
    assert layout.written == (y,)
    assert layout.aliases == {}


def test_buffers_used_at_the_same_time_get_different_scratch():
    program = chain(100)
    y, z = program.buffers
    layout = plan_layout(program)
    assert {layout.places[y].offset, layout.places[z].offset} == {0, 448}
    assert layout.places[y].slot == layout.places[z].slot == 2
    assert layout.scratch_bytes == 896


def test_buffers_used_one_after_the_other_share_scratch():
    x, out = ref_var(F32, (100,)), ref_var(F32, (100,))
    big, small, late = ref_var(F32, (100,)), ref_var(F32, (100,)), ref_var(F32, (100,))
    tasks = (affine_task(big, x, 1.0), affine_task(small, big, 1.0), affine_task(late, small, 1.0))
    tasks += (affine_task(out, late, 1.0),)
    layout = plan_layout(Program("p", (x,), (big, small, late, out), tasks, (out,)))
    assert layout.scratch_bytes == 896
    assert layout.places[big] == layout.places[late]
    assert layout.places[small] != layout.places[big]


def test_an_unused_buffer_takes_no_scratch():
    program = affine(8)
    layout = plan_layout(replace(program, buffers=(*program.buffers, ref_var(F32, (1000,)))))
    assert layout.scratch_bytes == 0


def test_constants_are_memory_of_the_program_or_its_last_operand():
    program = chain(100)
    (x,), (y, _) = program.params, program.buffers
    first, second = ref_var(F32, (3,)), ref_var(F32, (1,))
    constants = {first: np.array([1, 2, 3], np.float32), second: np.array([4], np.float32)}
    own, passed = plan_layout(program, constants), plan_layout(program, constants, pass_constants=True)
    assert own.constants == passed.constants
    assert np.frombuffer(own.constants, np.float32)[[0, 1, 2, 16]].tolist() == [1, 2, 3, 4]
    assert (own.operand_count, own.slot_count) == (1, 3)
    assert (passed.operand_count, passed.slot_count) == (2, 4)
    assert [own.places[v] for v in (x, y, first, second)] == [Place(1), Place(2), Place(3), Place(3, 64)]
    assert [passed.places[v] for v in (x, y, first, second)] == [Place(2), Place(3), Place(1), Place(1, 64)]
    assert own.aliases == passed.aliases == {0: 0}
    assert not plan_layout(program, pass_constants=True).passes_constants


def test_kernels_have_scratch_behind_that_of_buffers():
    layout = plan_layout(chain(100))
    more, place = with_kernel_scratch(layout, 10)
    assert (place, more.scratch_bytes, more.slot_count) == (Place(2, 896), 906, 3)
    assert with_kernel_scratch(layout, 0)[0] is layout
    more, place = with_kernel_scratch(plan_layout(affine(8)), 10)
    assert (place, more.scratch_bytes, more.slot_count) == (Place(2), 10, 3)
