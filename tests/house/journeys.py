"""`python -m tests.house.journeys [NAME]`: how far a program travels through the files from a function to code.

A file is a room. Its floor is its layer in pyproject.toml, where a layer imports those below it. A program enters a
room when a function of it is called with the program: with a jaxpr, a `Source`, a `StagedProgram`, a `Program` or one
of its tasks. Of calls by one function of another the first counts. A stay is a run of such calls into one room; a climb
is a stay on a higher floor than the stay before. A call that is compiled hands on no program: there, all calls count.

With a NAME, prints the stays of that journey.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .tables import ROOT, ROOTS

FOLDERS = tuple(f"{ROOT / root}{os.sep}" for root in ROOTS)
DRIVERS = ("qdtrace/passes/base.py", "qdtrace/passes/pipelines.py")


class Route:
    """Stays of what has one of the `forms`, or of all calls; with `below`, while a function of that name runs.

    Passes and what they call are left out: the pipeline chooses them as it runs.
    """

    def __init__(self, forms: tuple[type, ...] = (), below: str | None = None) -> None:
        self.rooms: list[str] = []
        self._forms = forms
        self._below = below
        self._passed: set[tuple[CodeType | None, CodeType]] = set()
        self._within: FrameType | None = None
        self._pass: FrameType | None = None

    def enter(self, frame: FrameType) -> None:
        """Notes a call of a function of the package."""
        code, caller = frame.f_code, frame.f_back and frame.f_back.f_code
        if self._within is None and code.co_name == self._below:
            self._within = frame
        if self._pass is not None or (self._below is not None and self._within is None):
            return
        room = _room_of(code)
        if room.startswith("qdtrace/passes/") and room not in DRIVERS:
            self._pass = frame
            return
        if (caller, code) in self._passed:
            return
        if self._forms and not any(isinstance(x, self._forms) for x in _given(frame)):
            return
        self._passed.add((caller, code))
        if self.rooms[-1:] != [room]:
            self.rooms.append(room)

    def leave(self, frame: FrameType) -> None:
        """Notes the return of a function."""
        if frame is self._within:
            self._within = None
        if frame is self._pass:
            self._pass = None


@cache
def _room_of(code: CodeType) -> str:
    path = code.co_filename
    is_ours = path.startswith(FOLDERS) and not code.co_name.startswith("<")
    return str(Path(path).relative_to(ROOT)) if is_ours else ""


def _given(frame: FrameType) -> list[object]:
    code = frame.f_code
    return [frame.f_locals[name] for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]


def _walked(run: Callable[[], object], *routes: Route) -> None:
    """Runs a function, and notes on each route what this thread calls."""

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "return") and _room_of(frame.f_code):
            for route in routes:
                route.enter(frame) if event == "call" else route.leave(frame)

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)


def walk() -> dict[str, list[str]]:
    """Returns the stays of each journey; this process has to be a new one, whose caches are empty."""
    import jax
    import jax.numpy as jnp
    from jax.extend.core import ClosedJaxpr, Jaxpr

    import qdtrace as qd
    from qdtrace.compose.source import Source
    from qdtrace.compose.staged_program import StagedProgram
    from qdtrace.ir.program import Program, Task

    forms = (ClosedJaxpr, Jaxpr, Source, StagedProgram, Program, Task)

    def shrink(x: Any, limit: Any) -> Any:
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            v = qd.local(x[i])
            for _ in qd.while_(lambda v=v: v.value > limit, most=8):
                v.value = jnp.sqrt(v.value)
            out[i] = v.value
        return out

    x = jnp.linspace(1, 100, 100)  # each journey has a program of its own
    f = qd.jit(shrink)
    routes = {name: Route(forms) for name in ("first-call", "gradient", "vmap-in-jit", "lower")}
    routes["second-call"] = Route()
    routes["compiled-for"], routes["reverse"] = Route(forms, "compiled_for"), Route(forms, "reverse")
    _walked(lambda: f(x, 2.0), routes["first-call"], routes["compiled-for"])
    _walked(lambda: f(x, 2.0), routes["second-call"])
    _walked(lambda: jax.grad(lambda x: f(x, 2.0).sum())(x[:30]), routes["gradient"], routes["reverse"])
    _walked(lambda: jax.jit(jax.vmap(lambda x: f(x, 2.0)))(x.reshape(4, 25)), routes["vmap-in-jit"])
    _walked(lambda: f.lower(x[:50], 2.0).compile(), routes["lower"])
    return {name: route.rooms for name, route in sorted(routes.items())}


@cache
def journeys() -> dict[str, list[str]]:
    """Returns the stays of each journey, as a new process finds them."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "QD_OFFLINE_CACHE_DIR": folder, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", "from tests.house.journeys import *; print(json.dumps(walk()))"]
        done = subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@cache
def _layers() -> list[list[str]]:
    """Returns the modules of each floor, the highest first, of the layers that the linter of imports checks."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    top, emitters = (c["layers"] for c in contracts if c["type"] == "layers")
    at = top.index("lowering")
    return [re.findall(r"[\w.]+", line) for line in (*top[:at], *emitters, *top[at + 1 :])]


def floor_of(room: str) -> int:
    """Returns the floor of a file: of what no layer names, the highest."""
    module = ".".join(Path(room).with_suffix("").parts) + "."
    is_in = [any(module.startswith(f"{name}.") for name in names) for names in _layers()]
    return len(is_in) - (is_in.index(True) if True in is_in else 0)


def counted() -> dict[str, int]:
    """Returns stays and climbs of each journey."""
    found: dict[str, int] = {}
    for name, rooms in journeys().items():
        floors = [floor_of(room) for room in rooms]
        found[f"stays-of-{name}"] = len(rooms)
        found[f"climbs-of-{name}"] = sum(a < b for a, b in pairwise(floors))
    return found


if __name__ == "__main__":
    for room in journeys()[sys.argv[1]] if len(sys.argv) > 1 else ():
        print(f"{floor_of(room):4} {room}")
    for name, count in counted().items() if len(sys.argv) == 1 else ():
        print(f"{count:6} {name}")
