"""`qd.check` in every place where it may stand."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import qdtrace as qd


def told(values: str, options: dict[str, Any]) -> str:
    """Returns the values that a failed check tells; a GPU tells the iteration alone, but for the interpreter."""
    return values if jax.default_backend() == "cpu" or "debug" in options else ""


def test_check_in_a_loop() -> None:
    def f(x: Any) -> Any:
        for i in qd.range(4):
            qd.check(x[i] >= 0, "needs numbers of 0 or more, 100 % of them")
            x[i] = jnp.sqrt(x[i])
        return x

    assert qd.jit(f)(jnp.array([0.0, 1.0, 4.0, 9.0])).tolist() == [0, 1, 2, 3]
    every: list[dict[str, Any]] = [{}, {"debug": True}, {"bounds": "clip"}, {"bounds": "unchecked"}]
    for options in every:
        with pytest.raises(qd.CheckError) as caught:
            qd.block_until_ready(qd.jit(f, options=options)(jnp.array([0.0, 1.0, -1.0, 9.0])))
        line = f.__code__.co_firstlineno + 2
        assert (
            str(caught.value)
            == f"""check failed: needs numbers of 0 or more, 100 % of them
  at {__file__}:{line} in test_check_in_a_loop.<locals>.f
      qd.check(x[i] >= 0, "needs numbers of 0 or more, 100 % of them")
note: in iteration 2{told(": -1 >= 0 does not hold", options)}"""
        )


def _in_when(x: Any, v: Any) -> Any:
    for i in qd.range(2):
        with qd.when(x[i] > 5):
            qd.check(x[i] < v, "no")
        x[i] += 1
    return x


def _in_inner_loop(x: Any, v: Any) -> Any:
    for i in qd.range(2):
        for _ in qd.range(x[i]):
            qd.check(x[i] < v, "no")
        x[i] += 1
    return x


def _in_while(x: Any, v: Any) -> Any:
    for i in qd.range(2):
        c = qd.local(x[i])
        for _ in qd.while_(lambda: c.value > 0):  # noqa: B023
            qd.check(c.value < v, "no")
            c.value -= 1
        x[i] += 1
    return x


def _between(x: Any, v: Any) -> Any:
    qd.check(x[1] < v, "no")
    for i in qd.range(2):
        x[i] += 1
    return x


def _behind(x: Any, v: Any) -> Any:
    for i in qd.range(2):
        x[i] += 1
    qd.check(x[1] < v + 1, "no")
    return x


def _arrays(x: Any, v: Any) -> Any:
    qd.check(x[...] < v, "no")
    return x[...] + 1


def _nested(x: Any, v: Any) -> Any:
    return qd.jit(_in_when)(x, v)


def _in_lane(x: Any, v: Any) -> Any:
    def one(a: Any) -> Any:
        qd.check(a < v, "no")
        return a + 1

    return qd.vmap(one)(x[...])


def _under_vmap_in_lane(x: Any, v: Any) -> Any:
    def each(a: Any) -> Any:
        qd.check(a < v, "no")
        return a + 1

    return qd.vmap(lambda a: jax.vmap(each)(jnp.stack([a, a])).sum() // 2)(x[...])


def _cond_in_lane(x: Any, v: Any) -> Any:
    def bad(a: Any) -> Any:
        qd.check(a < v, "no")
        return a + 1

    return qd.vmap(lambda a: lax.cond(a > 5, bad, lambda a: a + 1, a))(x[...])


def _switch_in_lane(x: Any, v: Any) -> Any:
    def bad(a: Any) -> Any:
        qd.check(a < v, "no")
        return a + 1

    return qd.vmap(lambda a: lax.switch((a > 5).astype(jnp.int32), [lambda a: a + 1, bad], a))(x[...])


def _while_in_lane(x: Any, v: Any) -> Any:
    def body(c: Any) -> Any:
        qd.check(c < v, "no")
        return c - 1

    return qd.vmap(lambda a: lax.while_loop(lambda c: c > 0, body, a) + a + 1)(x[...])


def _scan_in_lane(x: Any, v: Any) -> Any:
    def body(c: Any, k: Any) -> Any:
        qd.check(c < v + k, "no")
        return c, 0

    return qd.vmap(lambda a: lax.scan(body, a, jnp.arange(3))[0] + 1)(x[...])


def _grad_in_lane(x: Any, v: Any) -> Any:
    def square(a: Any) -> Any:
        qd.check(a < v, "no")
        return a * a / 2

    return qd.vmap(lambda a: jax.grad(square)(a.astype(jnp.float32)).astype(jnp.int32) + 1)(x[...])


PLACES = (
    _in_when, _in_inner_loop, _in_while, _between, _behind, _arrays, _nested, _in_lane, _under_vmap_in_lane,
    _cond_in_lane, _switch_in_lane, _while_in_lane, _scan_in_lane, _grad_in_lane,
)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("f", PLACES, ids=lambda f: f.__name__.strip("_"))
def test_check_in_every_place(f: Callable[..., Any]) -> None:
    x = jnp.array([3, 7])
    function = qd.jit(f)
    assert function(x, 8).tolist() == [4, 8]
    with pytest.raises(qd.CheckError, match=r"^check failed: no\n") as caught:
        qd.block_until_ready(function(x, 7))
    assert __file__ in str(caught.value)
    with pytest.raises(qd.CheckError, match=r"^check failed: no\n"):
        qd.block_until_ready(qd.jit(f, options={"debug": True})(x, 7))
    assert function(x, 8).tolist() == [4, 8]
    around = jax.jit(lambda x, v: function(x, v) * 2)
    assert around(x, 8).tolist() == [8, 16]
    with pytest.raises(Exception, match="check failed: no"):
        qd.block_until_ready(around(x, 7))


@pytest.mark.cpu
def test_the_call_itself_fails() -> None:
    """On a GPU, where it does not wait, a later one does."""
    with pytest.raises(qd.CheckError, match=r"^check failed: no\n"):
        qd.jit(_in_when)(jnp.array([3, 7]), 7)


@pytest.mark.full
def test_checks_that_are_not_reached() -> None:
    for f in (_in_when, _cond_in_lane, _switch_in_lane, _nested):
        assert qd.jit(f)(jnp.array([3, 5]), 0).tolist() == [4, 6]
    for f in (_in_inner_loop, _in_while, _while_in_lane):
        assert qd.jit(f)(jnp.array([0, 0]), -3).tolist() == [1, 1]


def test_check_of_what_is_known_while_tracing() -> None:
    def f(x: Any, *, fine: bool) -> Any:
        qd.check(fine, "static")
        for i in qd.range(2):
            x[i] += 1
        return x

    function = qd.jit(f, static_argnames="fine")
    assert function(jnp.zeros(2), fine=True).tolist() == [1, 1]
    assert "check" not in str(qd.make_graph(function)(jnp.zeros(2), fine=True))
    with pytest.raises(qd.CheckError, match=r"^check failed: static"):
        qd.block_until_ready(function(jnp.zeros(2), fine=False))


def test_a_function_that_does_nothing_but_check() -> None:
    @qd.jit
    def positive(x: Any) -> Any:
        for i in qd.range(3):
            qd.check(x[i] > 0, "not positive")
        return x

    assert positive(jnp.ones(3)).tolist() == [1, 1, 1]
    with pytest.raises(qd.CheckError, match="not positive"):
        qd.block_until_ready(positive(jnp.zeros(3)))
    around = jax.jit(lambda x: positive(x).sum())
    assert float(around(jnp.ones(3))) == 3
    with pytest.raises(Exception, match="not positive"):
        qd.block_until_ready(around(jnp.zeros(3)))


@pytest.mark.parametrize(
    ("condition", "message", "error"),
    [
        (1, "m", "the condition of qd.check needs to be a bool, got int"),
        ("x", "m", "the condition of qd.check needs to be a bool, got str"),
        (None, "m", "the condition of qd.check needs to be a bool, got NoneType"),
        (True, 3, "the message of qd.check needs to be a string, got int"),
    ],
)
def test_what_check_refuses(condition: Any, message: Any, error: str) -> None:
    def f(x: Any) -> Any:
        qd.check(condition, message)
        return x

    with pytest.raises(qd.TraceTypeError) as caught:
        qd.jit(f)(jnp.ones(3))
    assert str(caught.value).startswith(error)


MESSAGES = [
    "", " ", "\n", "two\nlines", "ends with one\n", "a\r\nb\tc", "%d %s %n %% %lld", "{} {0} {x!r}", "\\n \\0 \\",
    "'\"`", "\x01 \x1b[31m \x7f", "é 漢字 🦆 e\u0301 \u202e", "check failed: again",
    "index 3 is out of bounds for axis 0 of `x`",
    "as ours\n  at file.py:3 in g\n      line\nand more", "x" * 9000, "漢" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=[f"{m[:20]!a}" for m in MESSAGES])
@pytest.mark.parametrize("options", [{}, {"debug": True}], ids=["compiled", "debug"])
def test_messages_are_told_whole(message: str, options: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        for i in qd.range(3):
            qd.check(x[i] < 0, message)
        return x

    with pytest.raises(qd.CheckError) as caught:
        qd.block_until_ready(qd.jit(f, options=options)(jnp.ones(3)))
    rule, _, rest = str(caught.value).rpartition(f"\n  at {__file__}:{f.__code__.co_firstlineno + 2} in ")
    assert rule == f"check failed: {message}"
    values = told(": 1 < 0 does not hold", options)
    assert re.search(rf"qd.check\(x\[i\] < 0, message\)\nnote: in iteration [012]{values}\Z", rest)


@pytest.mark.parametrize(
    ("message", "got"),
    [
        ("before\0after", "the character '\\x00'"), ("\0", "the character '\\x00'"),
        ("half \ud83e", "the character '\\ud83e'"), ("\udfff", "the character '\\udfff'"),
        ("x" * 10_001, "10001 characters"),
    ],
)  # fmt: skip
def test_messages_that_compiled_code_cannot_tell(message: str, got: str) -> None:
    def f(x: Any) -> Any:
        for i in qd.range(3):
            qd.check(x[i] < 0, message)
        return x

    with pytest.raises(qd.TraceValueError) as caught:
        qd.jit(f)(jnp.ones(3))
    needs = "the message of qd.check needs to be a text of at most 10000 characters without NUL"
    assert str(caught.value).startswith(f"{needs}, got {got}\n  at {__file__}:{f.__code__.co_firstlineno + 2} in ")
