"""NVIDIA's assembler, where one is installed: with JAX's CUDA packages, with a CUDA toolkit, or with Triton.

The driver makes cubins as well, by its linker. But code that is to be linked may be called from elsewhere, so it is
compiled with the registers that calls take: up to twice as many as a kernel needs, and then half as many threads run.
The assembler knows that a kernel is all there is. Measured on an H200: rows of a sparse matrix 1.29 ms by the linker,
0.75 ms by the assembler, their gradient 5.5 and 4.1 ms, most other kernels the same.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = "ptxas"
_RELEASE = re.compile(r"release (\d+)\.")


@dataclass(frozen=True)
class Assembler:
    """An assembler of this machine."""

    path: Path

    @property
    def identity(self) -> str:
        """Other code may come from an assembler whose identity is another. Nothing is started to tell."""
        about = self.path.stat()
        return f"{self.path} {about.st_size} {about.st_mtime_ns}"

    @functools.cached_property
    def release(self) -> int:
        """Of CUDA, the number before the point; 0 where it does not say."""
        found = _RELEASE.search(self._run("--version").stdout)
        return int(found[1]) if found else 0

    def cubin(self, assembly: str, architecture: str) -> bytes | None:
        """A cubin from PTX; None where the assembler does not take it, because it does not know the chip, say."""
        with tempfile.TemporaryDirectory(prefix="qdtrace-ptxas-") as folder:
            given, made = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
            given.write_text(assembly)
            done = self._run(f"-arch={architecture}", str(given), "-o", str(made))
            return made.read_bytes() if not done.returncode else None

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.path), *arguments], capture_output=True, text=True, check=False)


@functools.cache
def assembler() -> Assembler | None:
    """The first that is found; None where there is none."""
    return next((Assembler(path) for path in _candidates() if path.is_file()), None)


def _candidates() -> Iterator[Path]:
    for folder in _folders("nvidia"):  # JAX's packages: nvidia/cu13/bin, nvidia/cuda_nvcc/bin
        yield from sorted(folder.glob(f"*/bin/{_NAME}"))
    if found := shutil.which(_NAME):
        yield Path(found)
    for folder in _folders("triton"):
        yield folder / "backends/nvidia/bin" / _NAME


def _folders(package: str) -> list[Path]:
    """Where a package is, which is not loaded."""
    spec = find_spec(package)
    return [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
