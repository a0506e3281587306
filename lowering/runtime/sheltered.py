"""Work that Ctrl-C does not interrupt: Python raises KeyboardInterrupt in the main thread alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def sheltered(work: Callable[[], T]) -> T:
    """Returns what `work` gives; KeyboardInterrupt is raised behind it.

    llvmlite frees what LLVM made in one line and notes it in the next: interrupted in between it frees it again.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    with ThreadPoolExecutor(1) as pool:  # leaves when the work has ended, whatever is raised here
        return pool.submit(work).result()
