"""XLA as the oracle of tests: its optimisation takes most of their time and changes no meaning."""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import jax
import pytest
from jax._src import compiler

QUICK_EMITTER: dict[str, object] = {}
"""Option of XLA for its older emitter of loops, which takes half of the time; later releases abort at it."""
if jax.__version_info__ < (0, 11):
    QUICK_EMITTER["xla_cpu_use_fusion_emitters"] = False


def called_quickly(test: Callable[[], object]) -> bool:
    """Returns whether a test passes where XLA compiles without optimisation and with its older emitter of loops.

    What it raises otherwise is dropped, and so is what was compiled: XLA as users have it is to decide.
    """
    make = compiler.get_compile_options

    def options(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        debug = made.executable_build_options.debug_options
        debug.xla_backend_optimization_level = 0
        debug.xla_llvm_disable_expensive_passes = True
        made.env_option_overrides = [*made.env_option_overrides, *QUICK_EMITTER.items()]
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", options)
        try:
            test()
        except (Exception, pytest.fail.Exception):
            jax.clear_caches()
            return False
    return True


@contextlib.contextmanager
def optimisation(wanted: bool) -> Generator[None]:
    """Has XLA compile with or without optimisation."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", not wanted)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def wide_oracle() -> Generator[None]:
    """XLA without optimisation, and 64 bits."""
    with optimisation(False), jax.enable_x64(True):
        yield
