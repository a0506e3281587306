# ruff: noqa: B007, B023, C416, E731, F821, F841, SIM108
"""Questions about compiled code, against code whose answers are plain to see."""

import dis

import pytest

from qdtrace.trace.diagnosis.bytecode import CodeMap


def loop_of(function):
    codes = CodeMap(function.__code__)
    loop = next(k for k in range(len(codes.instructions)) if codes.opname(k) == "FOR_ITER")
    return codes, loop


def line(codes, position, function):
    return None if position is None else codes.line(position) - function.__code__.co_firstlineno


def straight(n):
    for i in n:
        a = b
        c = a
        b = c
    return c


def branches(n):
    for i in n:
        if i:
            a = 1
        print(a)
        if i:
            b = 1
        else:
            b = 2
        print(b)


def inner_loop(n):
    for i in n:
        for k in n:
            a = k
        print(a, k)


def closure(n):
    a = b = 0
    for i in n:
        f = lambda: a
        a = 1
        b = 1
        g = lambda: b


def comprehension(n):
    for i in n:
        s = [a for a in n]
        a = 1


def comprehension_then_read(n):
    for i in n:
        s = [a for a in n]
        print(a)


@pytest.mark.parametrize(
    ("function", "name", "expected"),
    [
        (straight, "a", None),
        (straight, "b", 2),
        (straight, "c", None),
        (branches, "a", 4),
        (branches, "b", None),
        (branches, "i", None),
        (inner_loop, "a", 4),
        (inner_loop, "k", 4),
        (closure, "a", 3),
        (closure, "b", None),
        (comprehension, "a", None),
        (comprehension_then_read, "a", 3),
    ],
)
def test_first_read_in_a_loop(function, name, expected) -> None:
    codes, loop = loop_of(function)
    assert line(codes, codes.first_read(name, loop + 1), function) == expected


@pytest.mark.parametrize(("name", "expected"), [("c", 5), ("a", None), ("i", None)])
def test_first_read_after_a_loop(name, expected) -> None:
    codes, loop = loop_of(straight)
    assert line(codes, codes.first_read(name, codes.target(loop)), straight) == expected


def test_long_jumps() -> None:
    body = "\n".join(f"        x = x + {k} * n[{k}]" for k in range(400))
    space: dict = {}
    exec(f"def long(n, x, w):\n    for i in n:\n        with w:\n            pass\n{body}\n    return x", space)
    codes, loop = loop_of(space["long"])
    assert codes.opname(codes.target(loop)) in ("END_FOR", "LOAD_FAST")
    assert all(i.opname != "EXTENDED_ARG" for i in codes.instructions)
    assert any(i.opname == "EXTENDED_ARG" for i in dis.get_instructions(space["long"].__code__))
    assert line(codes, codes.first_read("x", loop + 1), space["long"]) == 4


def test_inlined_comprehension_is_told_from_a_loop() -> None:
    codes, loop = loop_of(inner_loop)
    assert not codes.is_comprehension(loop)

    def has_comprehension_inside(n):
        for i in n:
            print([a for a in n], [*n, i])

    codes, loop = loop_of(has_comprehension_inside)
    assert not codes.is_comprehension(loop)


def one(w):
    with w:
        print(1)
    print(2)


def last(w):
    with w:
        print(1)


def with_return(w):
    with w:
        return 5
    print(2)


@pytest.mark.parametrize(("function", "same"), [(one, True), (last, True), (with_return, False)])
def test_where_a_with_block_ends(function, same) -> None:
    codes = CodeMap(function.__code__)
    enter = next(k for k in range(len(codes.instructions)) if codes.opname(k) == "BEFORE_WITH")
    calls = [
        k
        for k in range(enter, len(codes.instructions) - 1)
        if codes.opname(k) == "CALL"
        and codes.opname(k - 1) in ("LOAD_CONST", "PRECALL")
        and codes.after_exit(k) is not None
    ]
    exits = [k for k in calls if codes.instructions[k].arg in (2, 3)]  # three with the object, in 3.14
    assert codes.same_code(codes.after_exit(exits[0]), codes.after_with(enter)) is same


def second_loop(n):
    for i in n:
        f = lambda: a
        a = print(i)
    for i in n:
        print(i)
        a = 1


@pytest.mark.parametrize(
    ("function", "name", "first", "always"),
    [(straight, "b", 2, 2), (branches, "a", 4, None), (straight, "a", None, None), (closure, "a", 3, None)],
)
def test_reads_of_the_next_iteration(function, name, first, always) -> None:
    codes, loop = loop_of(function)
    assert line(codes, codes.first_read(name, loop + 1), function) == first
    assert line(codes, codes.always_read(name, loop + 1, barrier=loop), function) == always


def test_a_captured_variable() -> None:
    codes, first = loop_of(second_loop)
    loop = next(k for k in range(first + 1, len(codes.instructions)) if codes.opname(k) == "FOR_ITER")
    assert codes.is_captured("a", loop + 1)
    assert not codes.is_captured("a", first)
    assert not codes.is_captured("f", loop + 1)


def handled(n, w):
    for i in n:
        try:
            print(i)
            a = 1
        except KeyError:
            a = a + 1
        with w:
            b = 1
        with w:
            b = 2
            print(b)


def test_exceptions_lead_to_their_handlers() -> None:
    codes, loop = loop_of(handled)
    assert line(codes, codes.first_read("a", loop + 1), handled) == 6
    assert codes.always_read("a", loop + 1, barrier=loop) is None
    assert codes.first_read("b", loop + 1) is None
    assert line(codes, codes.first_read("a", loop), handled) == 6
