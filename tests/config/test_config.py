"""Options: values, scopes, threads, environment, refusals."""

import doctest
import os
import re
import sys
import threading
from pathlib import Path

import pytest

import qdtrace as qd
from qdtrace.config import KNOBS, Options, config, current, knob_table, options, options_from, options_from_environment
from qdtrace.errors import TraceTypeError, TraceValueError
from tests import fresh

ROOT = Path(__file__).parents[2]
NAMES = ", ".join(KNOBS)


def test_defaults() -> None:
    assert Options() == Options()
    assert Options().opt_level == 1
    assert Options().fast_math is True
    assert Options().debug is False
    assert Options().num_threads is None
    assert Options().codegen == "auto"


def test_scopes_nest_and_end() -> None:
    before = current()
    with options(fast_math=False) as outer:
        assert current() is outer
        assert config.fast_math is False
        with options(opt_level=0):
            assert (config.fast_math, config.opt_level) == (False, 0)
        assert config.opt_level == before.opt_level
    assert current() is before


def test_a_scope_ends_with_an_exception() -> None:
    before = current()
    with pytest.raises(RuntimeError, match="inside"), options(debug=True):
        raise RuntimeError("inside")
    assert current() is before


def test_a_scope_is_of_its_thread() -> None:
    seen = []
    with options(debug=True):
        thread = threading.Thread(target=lambda: seen.append(config.debug))
        thread.start()
        thread.join()
    assert seen == [Options().debug]


def test_assignment_is_of_the_process() -> None:
    before = config.block_dim
    try:
        config.block_dim = 64
        seen = []
        thread = threading.Thread(target=lambda: seen.append(config.block_dim))
        thread.start()
        thread.join()
        assert seen == [64]
        with options(block_dim=32):
            assert config.block_dim == 32
        assert config.block_dim == 64
    finally:
        config.block_dim = before


def test_options_are_hashable_and_compare_by_value() -> None:
    assert hash(Options(debug=True)) == hash(Options(debug=True))
    assert len({Options(), Options(), Options(debug=True)}) == 2
    assert Options(debug=True) != Options()


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        (
            {"fastmath": True},
            TraceValueError,
            f"needs the name of an option, got 'fastmath'\nnote: options are {NAMES}\nhelp: write `fast_math`",
        ),
        (
            {"offline_cache_traces": False},
            TraceValueError,
            f"needs the name of an option, got 'offline_cache_traces'\nnote: options are {NAMES}\n"
            "help: leave it out: every process traces, but for functions that are said to be `pure`",
        ),
        ({"zzz": 1}, TraceValueError, f"needs the name of an option, got 'zzz'\nnote: options are {NAMES}"),
        ({"debug": "nan"}, TraceValueError, "option `debug` needs one of False, True, 'nans', got 'nan'"),
        ({"fast_math": 1}, TraceTypeError, "option `fast_math` needs one of False, True, 'approx', got 1"),
        ({"fast_math": "fast"}, TraceValueError, "option `fast_math` needs one of False, True, 'approx', got 'fast'"),
        ({"fast_math": None}, TraceTypeError, "option `fast_math` needs one of False, True, 'approx', got None"),
        ({"verify": 1}, TraceTypeError, "option `verify` needs a bool, got 1"),
        ({"opt_level": True}, TraceTypeError, "option `opt_level` needs an int, 0 or more, got True"),
        ({"opt_level": -1}, TraceValueError, "option `opt_level` needs an int, 0 or more, got -1"),
        ({"opt_level": None}, TraceTypeError, "option `opt_level` needs an int, 0 or more, got None"),
        ({"num_threads": 0}, TraceValueError, "option `num_threads` needs an int or None, 1 or more, got 0"),
        ({"num_threads": 1.5}, TraceTypeError, "option `num_threads` needs an int or None, 1 or more, got 1.5"),
        ({"codegen": "gcc"}, TraceValueError, "option `codegen` needs one of 'auto', 'llvm', 'triton', got 'gcc'"),
        ({"codegen": 3}, TraceTypeError, "option `codegen` needs one of 'auto', 'llvm', 'triton', got 3"),
        ({"debug_dump_path": 3}, TraceTypeError, "option `debug_dump_path` needs a path, got 3"),
        ({"ad_stack_memory": "a"}, TraceTypeError, "option `ad_stack_memory` needs a float, 0 or more, got 'a'"),
        (
            {"ad_stack_memory": float("nan")},
            TraceValueError,
            "option `ad_stack_memory` needs a float, 0 or more, got nan",
        ),
    ],
)
def test_refusals(values: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as info:
        options(**values)
    assert str(info.value) == text


def test_values_take_the_type_of_the_knob(tmp_path: Path) -> None:
    with options(ad_stack_memory=1, debug_dump_path=tmp_path, num_threads=2):
        assert isinstance(config.ad_stack_memory, float)
        assert config.debug_dump_path == str(tmp_path)
        assert config.num_threads == 2


def test_an_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match=r"^qd\.config has no option 'speed'$"):
        _ = config.speed
    with pytest.raises(TraceValueError, match="needs the name of an option, got 'speed'"):
        config.speed = 3
    assert dir(config) == sorted(KNOBS)
    assert "fast_math = " in repr(config)


def test_environment() -> None:
    made = options_from_environment(
        {
            "QD_OPT_LEVEL": "0",
            "QD_FAST_MATH": "off",
            "QD_DUMP_IR": "1",
            "QD_AGGRESSIVE_KERNEL_FUSION": "1",
            "QD_NUM_THREADS": "3",
            "QD_BLOCK_DIM": "auto",
            "QD_CODEGEN": "LLVM",
            "QD_AD_STACK_MEMORY": "0.5",
            "QD_DEBUG_DUMP_PATH": "/tmp/Some Where",
            "QD_VERIFY": "",
            "OTHER": "x",
        }
    )
    assert made == Options(
        opt_level=0, fast_math=False, dump_ir=True, fuse_tasks="aggressive", num_threads=3, codegen="llvm",
        ad_stack_memory=0.5, debug_dump_path="/tmp/Some Where",
    )  # fmt: skip
    modes = {"aggressive": ("1", "on", "true", "YES"), "off": ("0", "off", "false", "no")}
    for mode, spelled in modes.items():
        for word in spelled:
            assert options_from_environment({"QD_AGGRESSIVE_KERNEL_FUSION": word}).fuse_tasks == mode
    assert options_from_environment({"QD_AGGRESSIVE_KERNEL_FUSION": "auto"}).fuse_tasks == "auto"
    assert options_from_environment({}) == Options()
    for word, value in {"1": True, "true": True, "0": False, "no": False, "Approx": "approx"}.items():
        assert options_from_environment({"QD_FAST_MATH": word}).fast_math is value


def test_bools_of_fusion():
    assert [options_from({"fuse_tasks": value}).fuse_tasks for value in (True, False)] == ["aggressive", "off"]


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("QD_FAST_MATH", "maybe", "one of False, True, 'approx'"),
        ("QD_VERIFY", "maybe", "a bool"),
        ("QD_OPT_LEVEL", "high", "an int, 0 or more"),
        ("QD_OPT_LEVEL", "-1", "an int, 0 or more"),
        ("QD_CODEGEN", "gcc", "one of 'auto', 'llvm', 'triton'"),
        ("QD_AD_STACK_MEMORY", "auto", "a float, 0 or more"),
    ],
)
def test_environment_refusals(name: str, value: str, wanted: str) -> None:
    with pytest.raises(TraceValueError) as info:
        options_from_environment({name: value})
    assert str(info.value) == f"environment variable {name} needs {wanted}, got {value!r}"


def test_the_environment_is_read_at_import() -> None:
    code = "from qdtrace.config import current; print(current().opt_level, current().fast_math)"
    environment = {**os.environ, "QD_OPT_LEVEL": "0", "QD_FAST_MATH": "0", "PYTHONPATH": str(ROOT)}
    done = fresh.run([sys.executable, "-c", code], env=environment, check=True)
    assert done.stdout == "0 False\n"


def test_the_table_has_every_knob() -> None:
    assert doctest.testmod(sys.modules["qdtrace.config"], extraglobs={"qd": qd}).failed == 0
    rows = re.findall(r"^\| `(\w+)` \| `(QD_\w+)` ", knob_table(), re.MULTILINE)
    assert rows == [(k.name, k.env) for k in KNOBS.values()]
    assert len({env for _, env in rows}) == len(rows)


def test_the_table_for_users_is_true():
    page = (Path(__file__).parents[2] / "docs/options.md").read_text()
    assert knob_table() in page
