"""Ctrl-C while the main thread waits for a kernel: the kernel ends, and the call raises KeyboardInterrupt (0023).

Python only notes a signal while no bytecode runs. A handler around Python's own (`interrupt_handler`) wakes a thread of
this module. If the main thread does not come back to its bytecode at once, the thread asks all kernels to end, again
and again until it does. A kernel that ends early makes its call fail with an error of XLA, which is raised before
Python has looked at the signal. So for that time the class of the error runs a function of Python, in which the signal
is handled. (A `jax.jit` function that ran in the caller's own thread fails with a ValueError, a class that cannot be
changed: there KeyboardInterrupt follows with the next function that Python calls or next loop.)

If SIGINT has another handler than `signal.default_int_handler`, which raises KeyboardInterrupt, nothing is done: the
effect of another one is unknown, and a call must not fail because of a signal that a program ignores.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import jax

from lowering.runtime import late, launch_log
from lowering.runtime.interrupt_handler import ACTION_BYTES, INTERRUPT_WORDS, SIGINT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

PATIENCE = 0.02
"""Seconds for the main thread to handle the signal itself, as in locks and sleeps, which a signal ends."""
AGAIN = 0.002
"""Seconds until kernels are asked again, as a loop of XLA may start one at any time."""
SHORTEST, LONGEST = 20, 500
"""Durations of a request, in 0.1 ms: the first, and the longest, for kernels that poll seldom. Python's lock is held
meanwhile, so calls that begin later are not asked."""

_words: dict[str, ctypes.c_int64] = {}
"""Words of memory that the launcher shares, by name."""
_ask_to_end: list[Any] = []
"""The function of the launcher that asks kernels to end, for some time."""
_reading = -1
_setting_up = threading.Lock()


def watch(launcher: Mapping[str, int]) -> None:
    """Connects Python to a launcher: to its late failures, its log, and the word that ends its kernels."""
    late.know(launcher)
    launch_log.log.know_launcher(launcher)
    _watch_interrupts(launcher)


def _watch_interrupts(launcher: Mapping[str, int]) -> None:
    """Makes Ctrl-C end the kernels that a launcher runs, where the system allows it; may be called again."""
    if sys.platform == "win32":
        return
    with _setting_up:
        if not _words:
            words = {word.name: ctypes.c_int64.from_address(launcher[word.name]) for word in INTERRUPT_WORDS}
            words["qd_holds_lock"].value = _address(ctypes.pythonapi.PyGILState_Check)
            os.register_at_fork(after_in_child=_forget_thread)
            _ask_to_end.append(ctypes.PYFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(launcher["qd_ask_to_end"]))
            _words.update(words)
        if not _words["qd_python_handler"].value:
            _words["qd_python_handler"].value = _python_handler()
        if _words["qd_wake"].value < 0 and _words["qd_python_handler"].value:
            _start_thread()


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _python_handler() -> int:
    """Returns the address of CPython's handler if it handles SIGINT now, else 0."""
    action = ctypes.create_string_buffer(ACTION_BYTES)
    if ctypes.CDLL(None).sigaction(SIGINT, None, action):
        return 0
    handler = ctypes.c_void_p.from_buffer(action).value or 0
    known = ctypes.pythonapi.PyErr_CheckSignals
    return handler if handler > 1 and _library(handler) == _library(_address(known)) else 0


def _library(address: int) -> int:
    """Returns the base address of the library that holds a function, or 0 if it is unknown."""
    found = (ctypes.c_void_p * 4)()
    look = ctypes.CDLL(None).dladdr
    return (found[1] or 0) if look(ctypes.c_void_p(address), found) else 0


def _start_thread() -> None:
    global _reading
    _reading, writing = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(target=_wait, args=(_reading,), name="qdtrace-interrupts", daemon=True).start()
    _words["qd_wake"].value = writing


def _forget_thread() -> None:
    """Forgets the thread in a forked process, which must not wake its parent's. The next compilation starts one."""
    global _setting_up
    _setting_up = threading.Lock()
    os.close(_words["qd_wake"].value) if _words["qd_wake"].value >= 0 else None
    _words["qd_wake"].value = -1


def _wait(reading: int) -> None:
    while os.read(reading, 1):
        with contextlib.suppress(Exception):
            _interrupt()


def _interrupt() -> None:
    """Asks kernels to end while the main thread stays where the signal met it, in a call that Python waits for."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    ran = ctypes.c_int64(0)
    went_on = _went_on(ran)
    time.sleep(PATIENCE)
    if went_on():
        return
    asked = SHORTEST
    with _python_in_errors():
        while not went_on():
            # looks at `ran` again: the main thread may have gone on before this line
            _ask_to_end[0](asked, ctypes.addressof(ran))
            time.sleep(AGAIN)
            asked = min(2 * asked, LONGEST)


def _went_on(ran: ctypes.c_int64) -> Callable[[], bool]:
    """Returns a function that says whether the main thread has handled the signal; sets `ran` when it runs bytecode.

    Python looks for signals, and then for what is pending, in jumps back, in new frames and behind calls. That the main
    thread is at another place does not show that it has looked: it may have waited for Python's lock behind its last
    look before a kernel. A wait of Python that a signal ends looks for signals alone, and raises KeyboardInterrupt.
    """
    main = threading.main_thread().ident or 0

    def mark(_: int) -> int:
        ran.value = 1
        return 0

    pending = _PENDING(mark)
    _marks[:] = [*_marks[-8:], pending]  # may be called after this function has been forgotten
    ran.value = ctypes.pythonapi.Py_AddPendingCall(pending, None)  # -1 where there is no room: kernels are left alone

    def went_on() -> bool:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        return bool(ran.value) or main not in frames or _handles_interrupt(main)

    return went_on


def _handles_interrupt(thread: int) -> bool:
    """Returns whether a thread is in a block that handles KeyboardInterrupt."""
    found: Any = sys._current_exceptions().get(thread)  # pyright: ignore[reportPrivateUsage]
    return isinstance(found[1] if isinstance(found, tuple) else found, KeyboardInterrupt)  # a tuple in Python 3.11


_PENDING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_marks: list[Any] = []


@contextlib.contextmanager
def _python_in_errors() -> Generator[None]:
    """A block in which XLA's errors run bytecode when they are made, so that Python handles a signal first and raises
    its exception instead."""
    kind = cast("Any", jax.errors.JaxRuntimeError)

    def made(self: RuntimeError, *args: object) -> None:
        RuntimeError.__init__(self, *args)

    own = "__init__" in vars(kind)
    before = kind.__init__
    kind.__init__ = made
    try:
        yield
    finally:
        if own:
            kind.__init__ = before
        else:
            del kind.__init__
