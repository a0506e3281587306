"""Fills of local buffers: joined with what uses the buffer first, never late, never less than all of it."""

from __future__ import annotations

import pytest

from qdtrace.interpret.reference import evaluate
from tests.passes.fusion_cases import program, task
from tests.passes.fusion_harness import FULL, ORDER, SHORT, fuse, headed, inputs, joins, same, stays
from tests.passes.harness import assert_same_bits, parsed

LOCAL = "  buffer t: ref[f32,64]\n  buffer u: ref[f32,64x2]\n  buffer l: ref[f32]\n"


def test_a_fill_joins_its_consumer() -> None:
    use = task("v: f32 = load x i; accum[op=add] t v i; w: f32 = load t i; store c w i", FULL)
    joins(program(task("store t 0.0:f32 i", FULL), use, refs=ORDER, buffers=LOCAL))


def test_a_fill_does_not_join_what_adds_anywhere() -> None:
    use = task("q: i32 = load k i; p: i32 = rem q 64:i32; accum[op=add] t 1.0:f32 p", FULL)
    read = task("v: f32 = load t i; store c v i", FULL)
    stays(program(task("store t 0.0:f32 i", FULL), use, read, refs=ORDER, buffers=LOCAL))


def test_a_fill_does_not_join_a_stencil() -> None:
    reads = task("p: i32 = sub 63:i32 i; v: f32 = load t p; store t 5.0:f32 p; store c v i", FULL)
    before = parsed(program(task("store t 0.0:f32 i", FULL), reads, refs=ORDER, buffers=LOCAL))
    same(before, fuse(before))


def test_a_fill_of_more_than_the_consumer_touches() -> None:
    """The rest of the buffer is read later."""
    use = task("v: f32 = load x i; store t v i", SHORT)
    read = task("p: i32 = sub 63:i32 i; v: f32 = load t p; store c v i", FULL)
    before = parsed(program(task("store t 0.0:f32 i", FULL), use, read, refs=ORDER, buffers=LOCAL))
    same(before, fuse(before))


def test_a_second_fill_is_no_first_one() -> None:
    """It stores over what is there, also for a task between them."""
    tasks = [
        task("store t 1.0:f32 i", FULL),
        task("v: f32 = load t 0:i32; store y v i", SHORT),
        task("store t 0.0:f32 i", FULL),
        task("v: f32 = load t i; store c v i", SHORT),
        task("p: i32 = sub 63:i32 i; v: f32 = load t p; store z v i", FULL),
    ]
    before = parsed(program(*tasks, refs=ORDER, buffers=LOCAL))
    same(before, fuse(before))


def test_a_fill_that_only_some_iterations_do() -> None:
    """Bounds of the fill that are not those of the buffer: the rest has to be stored by others."""
    tasks = [
        task("store t 1.0:f32 i", "0:i32 : 20:i32"),
        task("store t 2.0:f32 i", "20:i32 : 64:i32"),
        task("v: f32 = load t i; store c v i", FULL),
    ]
    before = parsed(program(*tasks, refs=ORDER, buffers=LOCAL))
    same(before, fuse(before))


@pytest.mark.parametrize("ends", [20, 64, 0, 1])
def test_a_fill_before_a_range_that_is_known_when_it_runs(ends: int) -> None:
    """Elements beyond the bound are filled as well."""
    head = "e0: i32 = load k 0:i32; e: i32 = min e0 64:i32"
    use = headed(head, "0:i32 : e", "v: f32 = load x i; accum[op=add] t v i")
    read = task("p: i32 = sub 63:i32 i; v: f32 = load t p; store c v i", FULL)
    before = parsed(program(task("store t 7.0:f32 i", FULL), use, read, refs=ORDER, buffers=LOCAL))
    after = fuse(before)
    args = inputs(before)
    args[-1][0] = ends
    for x, y in zip(evaluate(after, args, check_races=True), evaluate(before, args), strict=True):
        assert_same_bits(x, y)
