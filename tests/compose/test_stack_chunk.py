"""The stack of Python in one piece: what is called is as before, and no depth of the stack is slow."""

import inspect
import resource

import pytest

from qdtrace.compose.stack_chunk import WORDS, in_one_chunk


def test_arguments_results_and_errors_pass() -> None:
    @in_one_chunk
    def divided(a: int, *, by: int) -> int:
        """One by another."""
        return a // by

    assert divided(7, by=2) == 3
    assert (divided.__name__, divided.__doc__) == ("divided", "One by another.")
    with pytest.raises(ZeroDivisionError):
        divided(7, by=0)


def test_it_may_be_called_again_from_inside() -> None:
    @in_one_chunk
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert factorial(12) == 479001600


def test_the_frame_has_the_room_that_it_asks_for() -> None:
    @in_one_chunk
    def caller() -> int:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        return frame.f_back.f_code.co_stacksize

    assert caller() >= WORDS


def little(a: int) -> int:
    return a + 1


def deep(depth: int) -> int:
    """Memory that calls at that depth ask the system for, in pages."""
    if depth:
        return deep(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for k in range(300):
        little(k)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_no_depth_of_the_stack_is_slow() -> None:
    assert max(in_one_chunk(deep)(depth) for depth in range(300)) < 100
