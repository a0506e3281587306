"""The thread that prints for calls on a device: it waits for the records of each call, in the order of the calls."""

from __future__ import annotations

import atexit
import queue
import sys
import threading
from typing import TYPE_CHECKING

from qdtrace.errors import QdError
from qdtrace.failures import tell_later
from qdtrace.trace import hooks

if TYPE_CHECKING:
    from collections.abc import Callable

_jobs: queue.Queue[Callable[[], None]] = queue.Queue()
_lock = threading.Lock()
_thread: list[threading.Thread] = []


def waits() -> bool:
    """Returns whether records are left to be shown."""
    return _jobs.unfinished_tasks > 0


def show_later(show: Callable[[], None]) -> None:
    """Calls a function that waits for results and shows their records. `jax.effects_barrier` waits for it, and so
    does the end of the process; an error that it raises is raised by the next call."""
    with _lock:
        if not any(t.is_alive() for t in _thread):  # of a process that was forked there is none
            _thread[:] = [threading.Thread(target=_run, name="qdtrace-tells", daemon=True)]
            _thread[0].start()
            atexit.register(block_until_ready)
    _jobs.put(show)
    hooks.wait_in_barrier(__name__, sys.modules[__name__])


def _run() -> None:
    while True:
        show = _jobs.get()
        try:
            show()
        except Exception as error:
            failure = error if isinstance(error, QdError) else QdError(f"a callback failed: {error!r}")
            tell_later(failure)
        finally:
            _jobs.task_done()


def block_until_ready() -> None:
    """Waits for all that is left to be shown; `jax.effects_barrier` asks the module, as it asks arrays."""
    if threading.current_thread() not in _thread:  # a callback may wait for effects: not for itself
        _jobs.join()
