"""A memo that makes a value once per key, even if several threads ask for it at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")


class Once(Generic[T]):
    """A memo: the first caller of a key makes the value, others wait for it. A failure is not kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Hashable, Future[T]] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the value of the key, made by `make` if this is the first call."""
        with self._lock:
            future = self._values.get(key)
            mine = future is None
            if future is None:
                future = self._values[key] = Future()
        if mine:
            try:
                future.set_result(make())
            except BaseException as e:
                with self._lock:
                    del self._values[key]
                future.set_exception(e)
                raise
        return future.result()
