"""The tools by which a work measures itself: sizes, peers, checks and times."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from benchmarks.gpu.cuda import CudaPeers, PeerMissingError
from benchmarks.gpu.timing import TURN, Times, alternate
from benchmarks.run import Peer, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from benchmarks.gpu.row import Row

    Work = Callable[["Bench"], Iterator[Row]]

T = TypeVar("T")


class Bench:
    """One run of the suite. `small` takes the sizes that tests run on a CPU; used as a context."""

    def __init__(self, *, small: bool = False, rounds: int = 7, say: Callable[[str], None] = print) -> None:
        self.small = small
        self.rounds = rounds
        self.say = say
        self._open = ExitStack()
        self.folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self.cuda = CudaPeers(self.folder) if jax.default_backend() == "gpu" else NoPeers()
        self._open.callback(self.cuda.close)
        self._shared: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def size(self, full: int, small: int) -> int:
        """Returns the size of a work: `small` if the run is `small`, else `full`."""
        return small if self.small else full

    def times(self, *calls: Callable[[], Any], turns: int = 1) -> list[Times]:
        """Times calls in turn (see `alternate`), after one call of each. More and shorter `turns` help to compare host
        times, as the host's speed changes from one tenth of a second to the next."""
        for call in calls:
            jax.block_until_ready(call())
        if self.small:
            return alternate(calls, 2, 1e-3)
        return alternate(calls, self.rounds * turns, TURN / turns)

    def by_hand(self, program: str, figure: str) -> tuple[float | None, str]:
        """A figure of CUDA by hand; None, and why it is missing."""
        try:
            return float(self.cuda[program][figure]), ""
        except PeerMissingError as error:
            return None, str(error)

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Made once for all works of the run."""
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name]

    def quadrants(
        self, peer: str, program: str, given: Mapping[str, Any], check: Callable[[Any, Any], str]
    ) -> tuple[float | None, str]:
        """Milliseconds of a program of Quadrants in its own process, checked first; None, and why it is missing."""
        if jax.default_backend() != "gpu":
            return None, "Quadrants: measured on a GPU only"
        inputs = self.folder / f"{program}.npz"
        np.savez(inputs, **given)
        os.environ["QUADRANTS_ARCH"] = "cuda"
        process = Peer(peer, program, inputs, self.folder)
        try:
            process.ask("run")
            check(given, process.results())
            times = sorted(process.ask("time", repeats=self.rounds)["times"])
        except PeerError as error:
            return None, f"Quadrants: {error}"
        finally:
            process.close()
        return 1e3 * times[len(times) // 2], ""


class NoPeers:
    """In place of CUDA by hand, where there is no GPU to run it."""

    results: Mapping[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        raise PeerMissingError("CUDA by hand: needs a GPU")

    def close(self) -> None:
        """Nothing to wait for."""
