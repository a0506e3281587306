"""Fresh processes of Python for tests: forks of one that has imported JAX, and nothing of the package.

Importing JAX takes half of the time of a small program. What `run` runs has an environment, streams, `sys.argv` and
`sys.path` of its own. Each set of variables that Python or JAX reads as it starts has a server.
"""

import atexit
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

EARLY = ("JAX_", "XLA_", "PYTHON", "LD_", "OMP_", "NPROC")
"""Prefixes of these variables."""


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs Python with the arguments behind `sys.executable`, and returns what it printed."""
    executable, *argv = map(str, command)
    assert executable == sys.executable
    env = dict(os.environ if env is None else env)
    early = tuple(sorted((k, v) for k, v in env.items() if k.startswith(EARLY) and k != "PYTHONPATH"))
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {"argv": argv, "env": env, "cwd": str(cwd or Path.cwd()), "out": str(out), "err": str(err)}
        status = _server(early).ask(request)
        done = subprocess.CompletedProcess([executable, *argv], status, out.read_text(), err.read_text())
    assert not (check and status), done.stderr
    return done


class _Server:
    """The process that forks."""

    def __init__(self, early: tuple[tuple[str, str], ...]) -> None:
        others = {k: v for k, v in os.environ.items() if not k.startswith(EARLY)}
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            env={**others, **dict(early)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def ask(self, request: dict[str, Any]) -> int:
        """Returns the exit status of a request."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


@cache
def _server(early: tuple[tuple[str, str], ...]) -> _Server:
    return _Server(early)


def serve() -> None:
    """Forks for each request, and returns in the process that has run one."""
    del sys.path[0]  # the folder of this file
    import_module("jax.numpy")

    gc.freeze()
    while line := sys.stdin.readline():
        request = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forks
            child = os.fork()
        if not child:
            _become(**request)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(argv: list[str], env: dict[str, str], cwd: str, out: str, err: str) -> None:
    """Runs a program as if Python had been started with it."""
    for stream, path in enumerate((os.devnull, out, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT if stream else os.O_RDONLY), stream)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if argv[0] == "-W":
        warnings.simplefilter(argv[1])  # type: ignore[arg-type]
        del argv[:2]
    kind, program = argv[0], argv[0] if argv[0] not in ("-c", "-m") else argv.pop(1)
    sys.argv = argv
    first = {"-c": "", "-m": cwd}.get(kind, str(Path(program).resolve().parent))
    sys.path[:0] = [first, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), main.__dict__)
    else:
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    serve()
