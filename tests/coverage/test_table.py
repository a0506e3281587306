"""The table of calls names every public function of the modules, and docs/coverage.md is of this table."""

import importlib
import types

import jax
import numpy as np
import pytest

from . import document, sweep
from .calls import TABLE, Call, Entry, function_of
from .table import F, Module, T

PAGE = document.PATH.read_text()


def functions(module: str) -> set[str]:
    """Public functions, without classes and modules."""
    try:
        holder = importlib.import_module(module)
    except ImportError:
        parent, _, last = module.rpartition(".")
        holder = getattr(importlib.import_module(parent), last)
    public = {n: getattr(holder, n, None) for n in dir(holder) if not n.startswith("_")}
    return {n for n, x in public.items() if callable(x) and not isinstance(x, type | types.ModuleType)}


@pytest.mark.parametrize("module", TABLE)
def test_every_public_function_is_in_the_table(module):
    missing = functions(module) - set(TABLE[module])
    assert not missing, "add calls of them, or the reason why there are none, to tests/coverage"


def test_an_entry_has_calls_or_a_reason():
    assert [n for e in TABLE.values() for n, x in e.items() if bool(x.calls) == bool(x.excluded)] == []


def test_wide_bounds_have_reasons():
    assert [n for e in TABLE.values() for n, x in e.items() for c in x.calls if c.ulps > 512 and not c.why] == []


def test_the_page_is_of_this_table():
    here = {m: {n for n in entries if function_of(m, n) is not None} for m, entries in TABLE.items()}
    page = {m: set(rows) for m, rows in document.listed(PAGE).items()}
    if document.version_of(PAGE) == jax.__version__:
        assert page == here, "run python -m tests.coverage"
    else:
        assert {(m, n) for m, names in page.items() for n in names} <= {(m, n) for m, e in TABLE.items() for n in e}


def test_the_page_has_what_was_promised():
    statuses = [status for rows in document.listed(PAGE).values() for status in rows.values()]
    called = [s for s in statuses if s != "not called"]
    assert set(called) <= {"equal", "refused"}
    assert called.count("equal") >= 0.98 * len(called)


def _entry(fn, *operands, **options) -> Entry:
    return Entry([Call(fn, operands, **options)])


@pytest.mark.full
def test_the_sweep_tells_outcomes_apart(monkeypatch):
    f = np.float32
    assert sweep.outcome(_entry(lambda x: jax.numpy.sin(x), F(3)), f).kind == "equal"
    refused = sweep.outcome(_entry(lambda x: jax.pure_callback(lambda v: v, x, x, vmap_method="expand_dims"), T(3)), f)
    assert (refused.kind, refused.detail) == ("refused", "`pure_callback` calls Python, which a loop body cannot do")
    monkeypatch.setattr(sweep.qd, "vmap", lambda g: jax.vmap(lambda *a: jax.tree.map(lambda y: y * 1.001, g(*a))))
    wrong = sweep.outcome(_entry(lambda x: jax.numpy.sin(x), T(3)), f)
    assert wrong.kind == "wrong"
    assert " of 72, at [[" in wrong.detail
    monkeypatch.setattr(sweep.qd, "vmap", lambda g: 1 / 0)
    assert sweep.outcome(_entry(lambda x: x, T(3)), f) == sweep.Outcome("crash", "ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("got", "want", "bad"),
    [
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], 0),
        ([1.0, 2.0], [1.0, np.nan], 1),
        ([np.inf, 1.0], [-np.inf, 1.0], 1),
        ([1.0 + 1e-6, 1e-3], [1.0, 1e-3], 0),
        ([1.0, 1e-3 + 1e-6], [1.0, 1e-3], 0),
        ([1.0 + 1e-4, 1.0], [1.0, 1.0], 1),
    ],
)
def test_comparison(got, want, bad):
    got, want = (np.array([x], np.float32) for x in (got, want))
    assert np.count_nonzero(sweep._bad(got, want, Call(None, ()))) == bad


def test_comparison_by_element():
    got, want = (np.array([[1.0, x]], np.float32) for x in (1e-3 + 1e-6, 1e-3))
    assert np.count_nonzero(sweep._bad(got, want, Call(None, (), of_lane=False))) == 1
    assert np.count_nonzero(sweep._bad(got, want, Call(None, (), of_lane=False, absolute=64))) == 0


def test_special_values_are_asked():
    module = Module("jax.numpy.probe")
    module.elementwise("f", 2, values=[0.0, -0.0, np.nan])
    entry = TABLE.pop("jax.numpy.probe")["f"]
    pairs = {
        tuple(np.array([a, b]).tobytes() for a, b in [pair])
        for call in entry.calls
        for pair in zip(*(op.draw(np.float64, 0).ravel() for op in call.operands), strict=True)
    }
    assert len(pairs) == 9
