"""Hooks of JAX that show this package what runs: failed callbacks, errors of XLA, results of calls, breakpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax

from qdtrace.trace.compat import private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from qdtrace.trace.jaxprs import JaxprEqn

CALLBACK_LOGGER = "jax._src.callback"
"""Name of the logger that JAX reports a failed callback to."""


def forget_failed_runs(is_known: Callable[[Exception], bool]) -> None:
    """Waits for the last run with callbacks of each device, and has JAX forget those whose error is known.

    JAX keeps what such runs end in, and raises their errors again when somebody waits for effects: as the process
    ends, at the latest, in two more tracebacks.
    """
    kept = _last_runs()
    for device, token in list(kept.items()):
        try:
            token.block_until_ready()
        except Exception as error:
            if is_known(error) and kept.get(device) is token:
                del kept[device]


def wait_in_barrier(name: str, waiter: object) -> None:
    """Has the next `jax.effects_barrier` of this thread call `waiter.block_until_ready`."""
    _last_runs()[name] = waiter


def _last_runs() -> dict[object, Any]:
    """Returns the table of objects that `jax.effects_barrier` waits for in this thread, by device or name."""
    return getattr(private("dispatch", "runtime_tokens"), "output_runtime_tokens", {})


def on_compile_error(look: Callable[[Exception], Exception | None]) -> None:
    """Has JAX raise what a function gives for an error of XLA's compiler; JAX without such a hook raises its own."""
    if (register := private("compiler", "register_xla_runtime_error_handler")) is not None:
        register(look)


def after_each_run(look: Callable[[object], None]) -> None:
    """Has JAX call a function with the results of each compiled function that somebody calls, from now on.

    JAX has a hook for calls that it makes without Python, which `jax_debug_nans` takes over and gives up (its context
    manager for the thread); the others pass a method. Where a release has neither, nothing is called.
    """
    hooks, unset = private("api", "_post_hook_state"), getattr(private("api", "config_ext"), "unset", None)
    runner = private("interpreters.pxla", "ExecuteReplicated")
    if hooks is None or unset is None or runner is None:
        return
    run = runner.__call__

    def run_and_look(self: object, *args: object) -> object:
        results = run(self, *args)
        look(results)
        return results

    if not hasattr(run, "qdtrace"):
        run_and_look.qdtrace = True  # type: ignore[attr-defined]
        runner.__call__ = run_and_look
    if not (jax.config.jax_debug_nans or jax.config.jax_debug_infs):  # type: ignore[attr-defined]
        hooks.set_global(lambda function, args, kwargs, results: look(results))
        if hooks.get_local() is None:
            hooks.set_local(unset)


def run_now(eqn: JaxprEqn, values: Sequence[object]) -> None:
    """Runs an equation without results, a print or a callback, on arrays, at once."""
    eqn.primitive.impl(*values, **eqn.params)


def is_breakpoint(eqn: JaxprEqn) -> bool:
    """Returns whether JAX made a callback for `jax.debug.breakpoint`."""
    if eqn.primitive.name != "debug_callback":
        return False
    held = getattr(eqn.params["callback"], "__closure__", None) or ()
    functions = [eqn.params["callback"], *(cell.cell_contents for cell in held)]
    return any(getattr(f, "__qualname__", "").startswith("breakpoint.<locals>") for f in functions)


def change_breakpoint_frames(change: Callable[[str, dict[str, object]], dict[str, object]]) -> None:
    """Has `jax.debug.breakpoint` show other variables of a frame: a function of its file and its own variables."""
    known = private("debugger.core", "DebuggerFrame")
    if known is None:
        return
    usual = known.from_frameinfo

    def from_frameinfo(_: object, info: object) -> object:
        frame = usual(info)
        return replace(frame, locals=change(frame.filename, frame.locals))

    known.from_frameinfo = classmethod(from_frameinfo)
