"""Settings of all tests in the process that runs them: no time limits, the machine may be busy; those that need a GPU
are skipped without one."""

import atexit
import gc
import os
import re
from collections.abc import Generator
from pathlib import Path

import jax
import pytest
from hypothesis import settings

import qdtrace as qd
from tests import kept_code, selection
from tests.conftest import AGAIN
from tests.kept_code import shared_code
from tests.oracle import called_quickly
from tests.oracle import wide_oracle as wide_oracle
from tests.selection import (
    LANES_ALONE,
    choose_cases,
    few_contexts,
    is_default_run,
    is_whole_suite,
    kept_bytecode,
    known_files,
    names_tests,
    quick_code_first,
    quick_first,
    quick_xla,
    rare_collections,
    shared_executables,
)

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

HERE = Path(__file__).parent
ANY_DEVICE = (
    "algorithms/test_grids.py",
    "api/test_accumulation.py",
    "api/test_arguments.py",
    "api/test_bodies.py",
    "api/test_bounds.py",
    "api/test_bounds_of_rows.py",
    "api/test_checks.py",
    "api/test_donation.py",
    "api/test_index_dtypes.py",
    "api/test_jax_around.py",
    "api/test_nans.py",
    "api/test_programs.py",
    "api/test_ranges.py",
    "api/test_special_sums.py",
    "api/test_special_values.py",
    "api/test_staging",
    "api/test_vmap",
    "autodiff/",
    "compose/test_append",
    "compose/test_loops_of_xla.py",
    "differential/test_columns.py::test_results",
    "differential/test_divergent.py::test_kernels",
    "differential/test_triton.py",
    "lowering/test_control.py",
    "lowering/test_elementwise.py",
    "lowering/test_kernel_ranges.py",
    "lowering/test_kernels.py",
    "lowering/test_loads_ahead.py",
    "lowering/test_memory.py",
    "lowering/test_parts.py",
    "lowering/test_records.py",
    "lowering/test_reductions.py",
    "lowering/test_triton",
    "lowering/test_updates.py",
    "sparse/",
)
"""Tests that run where JAX's arrays are, or kernels on a GPU: with `-m gpu` they run there too, but for those
marked `cpu`."""


QUICK_FIRST = pytest.StashKey[bool]()
"""Of cases for which a pass with the quick XLA is enough, whether one with quickly made code is, too."""


def pytest_configure(config: pytest.Config) -> None:
    # tests change passes and limits in memory, which a key of the source's hash does not show
    os.environ["QD_OFFLINE_CACHE_PASSES"] = "0"
    qd.config.offline_cache_passes = False
    kept_bytecode()
    selection.takes_sample = is_default_run(config) and not names_tests(config)
    few_contexts()
    known_files()
    gc.disable()  # until tests are collected
    if is_default_run(config):
        quick_xla()
        shared_executables(HERE.parent / "build" / "xla")
    shared_code(HERE.parent / "build" / "llvm")
    kept_code.takes_quick = is_default_run(config)


def pytest_collection_finish() -> None:
    rare_collections()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    gc.freeze()  # pytest has looked for cycles in all there is, and would do so again
    atexit.register(gc.unfreeze)  # what Python does not free at its end, libraries tell as their leaks


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Takes a sample, but all cases of tests that are named."""
    if not names_tests(metafunc.config):
        choose_cases(metafunc, selection.left_marks(metafunc.config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Has cases take the quick XLA and quickly made code where they are enough; `-m gpu` also runs on a GPU what any
    device passes."""
    if is_whole_suite(config):
        for item in quick_first(items):
            item.stash[QUICK_FIRST] = False
        for item in quick_code_first(items):
            item.stash[QUICK_FIRST] = True
    if not re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        return
    for item in items:
        elsewhere = item.get_closest_marker("cpu") or item.get_closest_marker("slow")
        if not elsewhere and f"{item.path.relative_to(HERE).as_posix()}::{item.name}".startswith(ANY_DEVICE):
            item.add_marker("gpu")


@pytest.fixture
def young_heap() -> None:
    """Has collections of cycles in a test look only at what it makes: late in a run, one of all takes half a second."""
    gc.freeze()


@pytest.fixture(autouse=True)
def arrays_in_lanes(request: pytest.FixtureRequest) -> Generator[None]:
    """Keeps arrays of lanes in their loop where rules for these are tested; XLA would take the large ones."""
    if request.path.relative_to(HERE).parts[0] not in LANES_ALONE:
        yield
        return
    before, qd.config.array_mapping = qd.config.array_mapping, "lanes"
    yield
    qd.config.array_mapping = before


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a case with the quick XLA, and with quickly made code, where a pass with it is enough. One that fails pytest
    runs again, as the others, and the run says so at its end."""
    if QUICK_FIRST not in pyfuncitem.stash:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_code, "takes_quick", pyfuncitem.stash[QUICK_FIRST])
        if called_quickly(lambda: pyfuncitem.obj(**given)):
            return True
    pyfuncitem.user_properties.append((AGAIN, pyfuncitem.nodeid))
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    try:
        jax.devices("gpu")
    except RuntimeError:
        pytest.skip("needs a GPU")
