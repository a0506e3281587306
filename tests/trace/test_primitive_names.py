"""Tables of JAX's primitives by name have names that JAX gives: one that nothing has would go unseen."""

import sys

import pytest
from jax.extend.core import primitives  # loads the modules of all

from qdtrace.groups import kernel, registry, work
from qdtrace.lanes import elements, limits, plan
from qdtrace.trace import compat, own_indices, products, rows, zero_at_zero
from qdtrace.trace.importer import calls, uses
from qdtrace.trace.importer import elements as importer_elements
from qdtrace.trace.importer.registry import DECOMPOSITIONS, RULES, load_decompositions, load_rules

load_rules()
load_decompositions()
OF_ONE_RELEASE = {"closed_call", "log2", "one_minus_square", "polynomial"}
TABLES = {
    "decompositions": {*DECOMPOSITIONS},
    "groups.registry": registry._rules,
    "groups.rules": kernel.rules._EXACT,
    "groups.work": work.HEAVY | work._MOVES,
    "lanes.elements": elements.SPECTRAL,
    "lanes.limits": limits.AS_FAST_ON_CPU | limits._BESIDE_FACTORS | limits._SUMS | limits._PERMUTING,
    "lanes.plan": plan._MOVES,
    "trace.compat": compat._WHOLE,
    "trace.own_indices": {*own_indices._BODIES, *own_indices._PLACES},
    "trace.products": products.FACTORISATIONS,
    "trace.rows": rows._OF_ROWS | rows._FOR_SCALARS,
    "trace.zero_at_zero": {*zero_at_zero._EACH, *zero_at_zero._FIRST, *zero_at_zero._PRODUCTS},
    "importer.elements": importer_elements.CHEAP,
    "importer.calls": calls._LINEAR_IN,
    "importer.registry": {*RULES},
    "importer.uses": uses._VIEWS | uses._ONCE,
}


@pytest.mark.parametrize("table", TABLES)
def test_names_of_primitives_are_names_of_jax(table):
    modules = [primitives, *(m for name, m in list(sys.modules.items()) if name.startswith(("jax._src", "qdtrace")))]
    known = {x.name for m in modules for x in vars(m).values() if isinstance(x, compat.Primitive)}
    assert set(TABLES[table]) - known - OF_ONE_RELEASE == set()
