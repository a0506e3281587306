"""NVIDIA's assembler, where one is installed: with JAX's CUDA packages, with a CUDA toolkit, or with Triton.

The driver makes cubins as well, by its linker. But code that is to be linked may be called from elsewhere, so it is
compiled with the registers of the calling convention: up to twice what a kernel needs, so half as many threads run.
The assembler compiles whole programs. Measured on an H200: rows of a sparse matrix 1.29 ms by the linker,
0.75 ms by the assembler, their gradient 5.5 and 4.1 ms, most other kernels the same.

An installed assembler may not run: it is for another processor, or there is no room for its files. Then the next one
is tried, and when none is left a warning says why the linker is used.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import stat
import subprocess
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from qdtrace.errors import QdWarning
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = "ptxas"
_RELEASE = re.compile(r"release (\d+)\.")
_CUBIN = b"\x7fELF"
"""The first bytes of a cubin."""
_warned: set[str] = set()
"""Texts of the warnings that this process has given already."""


@frozen
class Assembler:
    """An assembler of this machine. Its methods raise OSError if it cannot be started or is killed, or if its files
    cannot be written or read."""

    path: Path
    identity: str
    """Changes whenever the assembler's code may change; it is found without starting the assembler."""

    @functools.cached_property
    def release(self) -> int | None:
        """The major CUDA release of the assembler, or None if its output names none."""
        found = _RELEASE.search(self._run("--version").stdout)
        return int(found[1]) if found else None

    @property
    def runs(self) -> bool:
        """Returns whether the assembler can be started and names its release."""
        try:
            return self.release is not None
        except OSError:
            return False

    def cubin(self, assembly: str, architecture: str) -> bytes | None:
        """Returns a cubin from PTX, or None if the assembler rejects it, for example because the chip is too new."""
        with tempfile.TemporaryDirectory(prefix="qdtrace-ptxas-", ignore_cleanup_errors=True) as folder:
            given, made = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
            given.write_bytes(assembly.encode())
            if self._run(f"-arch={architecture}", str(given), "-o", str(made)).returncode:
                return None
            code = made.read_bytes()
            return code if code.startswith(_CUBIN) else None

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.path), *arguments]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
        if done.returncode < 0:
            raise ChildProcessError(f"ended by signal {-done.returncode}")
        return done


def assembled(assembly: str, architecture: str, newest: int) -> bytes | None:
    """Returns a cubin by the first assembler of release `newest` or older that makes one, or None if none does."""
    failed: list[str] = []
    for one in assemblers():
        try:
            known = one.release is not None and one.release <= newest
            made = one.cubin(assembly, architecture) if known else None
        except OSError as error:
            failed.append(f"{one.path} fails ({error.strerror or error})")
            continue
        if made is not None:
            return made
    if failed:
        _warn("; ".join(failed))
    return None


def _warn(what: str) -> None:
    if what in _warned:
        return
    _warned.add(what)
    warnings.warn(
        f"NVIDIA's assembler {what}: the driver's linker makes code in its place, which may take more registers, and "
        "is kept; once it works, `python -m qdtrace cache clear` has code made anew",
        QdWarning,
        stacklevel=2,
    )


@functools.cache
def assemblers() -> tuple[Assembler, ...]:
    """Returns the installed assemblers, the preferred one first."""
    return tuple(filter(None, map(_installed, dict.fromkeys(_candidates()))))


def _installed(path: Path) -> Assembler | None:
    """Returns the assembler at that path, or None if there is no file that this user may start."""
    try:
        about = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(about.st_mode) or not os.access(path, os.X_OK):
        return None
    return Assembler(path, f"{path} {about.st_size} {about.st_mtime_ns}")


def _candidates() -> Iterator[Path]:
    for folder in _folders("nvidia"):  # JAX's packages: nvidia/cu13/bin, nvidia/cuda_nvcc/bin
        yield from sorted(folder.glob(f"*/bin/{_NAME}"))
    if found := shutil.which(_NAME):
        yield Path(found).absolute()  # a relative one would be looked for anew when it is started
    for folder in _folders("triton"):
        yield folder / "backends/nvidia/bin" / _NAME


def _folders(package: str) -> list[Path]:
    """Returns the folders of a package without importing it."""
    try:
        spec = find_spec(package)
    except ValueError:  # something else was put in its place
        return []
    return [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
