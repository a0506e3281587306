"""CUDA written by hand: `benchmarks/peers/cuda/*.cu`, each a program that checks and times itself and prints JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[1] / "peers" / "cuda"
FLAGS = ("-O3", "-std=c++17", "--extended-lambda")
PRECISE = frozenset({"escape"})
"""Compiled without fast math: sine and cosine as CUDA's library has them. All others give them up."""


class PeerMissingError(Exception):
    """A peer cannot run here."""


class CudaPeers:
    """The programs, which compile side by side while other things run."""

    def __init__(self, folder: Path, architecture: str = "native") -> None:
        self._folder = folder
        self._results: dict[str, dict[str, Any]] = {}
        self._building: dict[str, subprocess.Popen[bytes]] = {}
        compiler = shutil.which("nvcc")
        for source in sorted(SOURCES.glob("*.cu")) if compiler else ():
            fast = () if source.stem in PRECISE else ("--use_fast_math",)
            command = [compiler, *FLAGS, *fast, f"-arch={architecture}", source, "-o", folder / source.stem]
            with self._log(source.stem).open("wb") as log:
                self._building[source.stem] = subprocess.Popen(
                    list(map(str, command)), stdout=log, stderr=subprocess.STDOUT
                )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def built(self, name: str) -> Path:
        """The program, once it is compiled. Raises PeerMissingError."""
        if name not in self._building:
            raise PeerMissingError("CUDA by hand: nvcc is not installed")
        if self._building[name].wait():
            raise PeerMissingError(f"CUDA by hand: {_last(self._log(name).read_text())}")
        return self._folder / name

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Returns what a program printed; it runs once. Raises PeerMissingError."""
        if name not in self._results:
            done = subprocess.run([str(self.built(name))], capture_output=True, text=True, check=False)
            if done.returncode:
                raise PeerMissingError(f"CUDA by hand: {_last(done.stdout + done.stderr)}")
            self._results[name] = json.loads(done.stdout)
        return self._results[name]

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Results of the programs that have run, by name."""
        return self._results

    def close(self) -> None:
        """Waits for compilers that still run."""
        for process in self._building.values():
            process.wait()


def _last(text: str) -> str:
    lines = text.strip().splitlines() or ["no message"]
    return next((line for line in lines if "error" in line), lines[-1])[:200]
