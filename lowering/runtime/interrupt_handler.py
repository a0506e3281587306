"""The part of the launcher that Ctrl-C reaches: a handler of SIGINT that wraps Python's, and a word that ends kernels.

The handler calls Python's, and wakes a thread (`interrupts`), which decides whether kernels must end. It wakes none if
the thread that got the signal holds Python's lock: then Python runs, and handles the signal itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.host import Cell, External, Fields, Symbol, function
from lowering.runtime.faults import STOPPED
from lowering.runtime.launch_log import CLOCK
from lowering.tables import FIELD, PROGRAM

if TYPE_CHECKING:
    from lowering.llvm.host import I32, I64, Code, Ptr, Value

SIGINT = 2
ACTION_BYTES = 256
"""Room for a `struct sigaction`, which begins with the handler on all systems."""

PYTHON_HANDLER = Symbol("qd_python_handler", "global ptr null")
"""Python's own handler of signals, null while it is not known."""
HOLDS_LOCK = Symbol("qd_holds_lock", "global ptr null")
"""A function that says whether this thread holds Python's lock."""
WAKE = Symbol("qd_wake", "global i64 -1")
"""The file where a byte wakes the thread, -1 where there is none."""
INTERRUPT_WORDS = (PYTHON_HANDLER, HOLDS_LOCK, WAKE)
"""Words that the launcher shares with `interrupts`, beside the function `qd_ask_to_end`."""
_GUARDED = Symbol("guarded", "internal global [2 x i64] zeroinitializer")
_ACTION = External("i32 sigaction(i32, ptr, ptr)")
_WRITE = External("i64 write(i32, ptr, i64)")
_SLEEP = External("i32 usleep(i32)")


def _is_apple(c: Code) -> bool:
    return "apple" in c.module.triple or "darwin" in c.module.triple


def _atomic(c: Code, place: Value) -> Value:
    return c.op("i64", f"load atomic i64, {place} monotonic, align 8")


def _stop(c: Code, value: int) -> None:
    c.do(f"store atomic i64 {value}, {c.value(STOPPED, 'ptr')} release, align 8")


@function()
def on_interrupt(c: Code, signal: I32, info: Ptr, context: Ptr) -> None:
    """Handles SIGINT."""
    handler, holds = (c.value(word, "ptr").load("ptr") for word in (PYTHON_HANDLER, HOLDS_LOCK))
    c.call(handler, "void", ["i32", "ptr", "ptr"], [signal, info, context])
    c.give_if(c.call(holds, "i32", [], []).differs(0))
    wake = _atomic(c, c.value(WAKE, "ptr"))
    with c.when(wake >= 0):
        place = External(f"ptr {'__error' if _is_apple(c) else '__errno_location'}()")(c)
        errno = place.load("i32")
        _WRITE(c, wake.to("i32", "trunc"), c.string("!"), 1)
        place.store(errno, "i32")


@function()
def qd_ask_to_end(c: Code, times: I64, ran: Ptr) -> None:
    """Sets the word for so many times 0.1 ms, or until a call has ended because of it; does nothing where `ran` is set:
    the caller holds Python's lock, so that the main thread cannot begin another call between the look and the word."""
    c.give_if(_atomic(c, ran).differs(0))
    _stop(c, 1)
    k = Cell(c.value(0, "i64"))
    with c.loop() as leave:
        _SLEEP(c, 100)
        k.value = k.value + 1
        leave((k.value >= times) | _atomic(c, c.value(STOPPED, "ptr")).equals(0))
    _stop(c, 0)


@function("alwaysinline")
def guard(c: Code, program: Ptr) -> None:
    """Puts the handler around Python's wherever that stands alone, if the program has loops."""
    with c.when(Fields(PROGRAM, program).loops.differs(0)):
        keep_handler(c)


@function()
def keep_handler(c: Code) -> None:
    """Asks the system for the handler once in a tick of its clock, and puts ours around Python's."""
    now, python, guarded = c.memory("[2 x i64]"), c.value(PYTHON_HANDLER, "ptr").load("ptr"), c.value(_GUARDED, "ptr")
    c.give_if(python.equals(None))
    CLOCK(c, 5 if _is_apple(c) else 6, now)  # a coarse clock
    seconds, fraction = now.load("i64"), now.load("i64", FIELD)
    c.give_if(fraction.equals(_atomic(c, guarded.at(FIELD))) & seconds.equals(_atomic(c, guarded)))
    for value, place in ((seconds, guarded), (fraction, guarded.at(FIELD))):
        c.do(f"store atomic {value}, {place} monotonic, align 8")
    put_handler(c, python)


@function("cold noinline")
def put_handler(c: Code, python: Ptr) -> None:
    """Puts the handler around Python's if that stands alone."""
    action = c.memory(f"[{ACTION_BYTES} x i8]", 16)
    _ACTION(c, SIGINT, None, action)
    with c.when(action.load("ptr").equals(python)):
        action.store(on_interrupt, "ptr")
        _ACTION(c, SIGINT, action, None)
