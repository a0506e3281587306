"""Kernels ready to launch from the code of tasks: loaded from the cache, or compiled and then kept in it."""

from __future__ import annotations

import re
from dataclasses import astuple
from typing import TYPE_CHECKING, cast

from lowering.gpu.codegen import TritonKernels
from lowering.gpu.commands import TaskKernels
from lowering.gpu.fill import FILL, fill_text
from lowering.runtime.cache import Artifact
from lowering.runtime.compile import load_or_make
from lowering.runtime.keys import artifact_key, digest
from lowering.runtime.once import Once
from lowering.simt.code import Launch
from qdtrace.counters import count
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lowering.gpu.driver import Driver
    from lowering.runtime.cache import ArtifactCache
    from lowering.simt.code import KernelCode
    from lowering.simt.devices import Device
    from qdtrace.ir.program import Task, Var


@frozen
class LoadedTask:
    """A task, or series, that can be launched."""

    kernels: TaskKernels
    handles: tuple[int, ...]
    """Handles of the kernels for the driver, in the order of the launches."""


class Loader:
    """Kernels of this process on the devices of one driver."""

    def __init__(self, device: Device, driver: Driver) -> None:
        self.device = device
        self.driver = driver
        self._tasks: Once[LoadedTask] = Once()
        self._fills: Once[int] = Once()

    def task(
        self,
        content: str,
        refs: Iterable[Var],
        emit: Callable[[], KernelCode | TritonKernels],
        label: str,
        cache: ArtifactCache | None,
    ) -> LoadedTask:
        """Returns the task, or series, of that content key; `refs` are its references. `emit` is called only if no
        cache has it. Symbols of kernels begin with `label`, the only name that profilers show."""
        key = self._key(digest(content, label))

        def compiled() -> Artifact:
            made = emit()
            by_triton = isinstance(made, TritonKernels)
            symbols = {k.name: f"{label}__{k.name}" for k in made.launches} if label and not by_triton else {}
            launches, images = self._compiled(made, symbols)
            code = made.code if isinstance(made, TritonKernels) else made
            numbers = {v: n for n, v in enumerate(refs)}
            facts = {
                "refs": [numbers[v] for v in code.refs],
                "launches": [astuple(launch) for launch in launches],
                "symbols": [symbols.get(launch.name, launch.name) for launch in launches],
                "images": list(map(len, images)),
                "scratch": code.scratch_bytes,
            }
            return Artifact(b"".join(images), facts)

        def make() -> LoadedTask:
            artifact = load_or_make(key, compiled, cache)
            kernels = _kernels_of(artifact.facts)
            libraries = [self._load(image) for image in _images_of(artifact)]
            if len(libraries) == 1:  # with all kernels
                libraries *= len(kernels.launches)
            symbols = cast("list[str]", artifact.facts["symbols"])
            each = zip(libraries, symbols, kernels.launches, strict=True)
            handles = [self.driver.kernel(library, symbol, k.shared_bytes, k.held) for library, symbol, k in each]
            return LoadedTask(kernels, tuple(handles))

        return self._tasks.get(key, make)

    def fill(self, cache: ArtifactCache | None) -> int:
        """Returns the handle of the kernel that fills memory."""
        text = fill_text(self.device)
        key = self._key(digest("fill", text))

        def make() -> int:
            artifact = load_or_make(key, lambda: Artifact(self._linked(text), {}), cache)
            return self.driver.kernel(self._load(artifact.code), FILL)

        return self._fills.get(key, make)

    def _key(self, content: str) -> str:
        return artifact_key(digest(content, self.driver.made_by), self.device.target)

    def _compiled(
        self, made: KernelCode | TritonKernels, symbols: Mapping[str, str]
    ) -> tuple[Sequence[Launch], list[bytes]]:
        """Returns the launches of a task and its machine code: one image with all kernels, or one for each launch."""
        if not isinstance(made, TritonKernels):
            text = made.text
            for name, symbol in symbols.items():
                text = re.sub(rf"@{name}\b", f"@{symbol}", text)
            return made.launches, [self._linked(text)]
        count(compiled=1)
        return [kernel.launch for kernel in made.kernels], [kernel.image for kernel in made.kernels]

    def _linked(self, text: str) -> bytes:
        count(compiled=1)
        return self.driver.code(text, self.device)

    def _load(self, code: bytes) -> int:
        count(linked=1)
        return self.driver.load(code)


def label_of(tasks: Sequence[Task]) -> str:
    """Returns the label of the kernel of these tasks, made of the names that the user gave, or the function's.

    Tasks that differ only in their number have one label, so they share code.
    """
    first, last = (re.sub(r"\.(serial)?\d+", "", task.name) for task in (tasks[0], tasks[-1]))
    whole = first if first == last else f"{first}_to_{last}"
    return re.sub(r"\W+", "_", whole, flags=re.ASCII).strip("_")[:64]


def _images_of(artifact: Artifact) -> Iterator[bytes]:
    begin = 0
    for size in cast("list[int]", artifact.facts["images"]):
        yield artifact.code[begin : begin + size]
        begin += size


def _kernels_of(facts: Mapping[str, object]) -> TaskKernels:
    records = cast("list[tuple[str, int, int, int, int, int, int]]", facts["launches"])
    launches = tuple([Launch(*fields) for fields in records])
    return TaskKernels(tuple(cast("list[int]", facts["refs"])), launches, int(str(facts["scratch"])))
