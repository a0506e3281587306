"""Every parameter of every JAX primitive with an import rule: read by the rule, or refused when it is not what the
rule assumes, or named with the reason why no value depends on it."""

import dis
import functools
import inspect
from collections import defaultdict
from typing import Any

import jax
import numpy as np
import pytest

from qdtrace.errors import TraceTypeError, UnsupportedError
from qdtrace.ir.builder import Builder
from qdtrace.trace.compat import Primitive
from qdtrace.trace.importer import Importer, contraction, elementwise, registry, sorting
from qdtrace.trace.importer.registry import DECOMPOSITIONS, RULES, Rule

from .cases import CASES, NEWER, RELEASE, Case
from .harness import check, imported

registry.load_rules()
registry.load_decompositions()
OURS = tuple(name for name in RULES if name.startswith("qd_"))
"""Markers of this package: their parameters and rules change together, tests of markers draw them."""
TAKE_ALL = [name for name, rule in RULES.items() if rule.takes_all]
ALL = {**DECOMPOSITIONS, **{name: rule for name, rule in RULES.items() if name not in OURS}}
DRAWN_REASONS = (registry.PROMISE, registry.RESULT_TYPE, contraction.PRECISION, sorting.STABLE, elementwise.ACCURACY)
"""Reasons to ignore a parameter that cases must bear out, by two values of it."""

ELSEWHERE = {
    *([("closed_call", "call_jaxpr"), ("scan", "num_consts"), ("scan", "num_carry")] if RELEASE >= (0, 11) else []),
    *([("eval_jaxpr", "call_jaxpr"), ("scan", "ft_in")] if RELEASE < (0, 11) else []),
    *([("top_k", "is_stable")] if not NEWER else []),
    *([("log2", "accuracy"), ("erfc", "accuracy")] if not NEWER else []),
}
"""Parameters that the other supported releases of JAX have."""
UNSEEN = {("platform_index", "platforms"): "`cond` goes by the platforms that it has itself"}
ONE_VALUE = {
    ("random_seed", "impl"): "other generators are refused by the dtype of the key",
    ("random_wrap", "impl"): "other generators are refused by the dtype of the key",
}


@pytest.fixture(scope="module")
def drawn() -> dict[tuple[str, str], dict[Any, list[Case]]]:
    """(primitive, parameter) -> value -> cases in which an imported equation has it."""
    found: Any = defaultdict(lambda: defaultdict(list))
    with pytest.MonkeyPatch.context() as patch:
        original = Importer.import_eqn
        current: list[Case] = []

        def record(self: Importer, eqn: Any, env: Any) -> None:
            for name, value in eqn.params.items():
                found[eqn.primitive.name, name][value].append(current[-1])
            original(self, eqn, env)

        patch.setattr(Importer, "import_eqn", record)
        for case in CASES:
            current.append(case)
            imported(case.fn, *case.args)
    return found


@pytest.mark.sample(4, full=2)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_values(case: Case) -> None:
    check(case.fn, *case.args)


@pytest.mark.full
def test_cases_draw_what_rules_account_for(drawn: Any) -> None:
    missing = []
    for name, rule in ALL.items():
        reasons = {p: why for p, why in rule.ignores.items() if why in DRAWN_REASONS}
        for parameter in sorted({*rule.reads, *reasons}):
            if len(drawn.get((name, parameter), ())) < 2 and (name, parameter) not in {*ELSEWHERE, *ONE_VALUE}:
                missing.append((name, parameter))
    assert not missing, "add cases with two values of these parameters to tests/importer/cases.py"


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name, rule in ALL.items() if rule.reads])
def test_dropping_a_parameter_would_be_seen(name: str, drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that took a parameter for what it was elsewhere fails at a case."""
    for parameter in sorted(ALL[name].reads):
        values = drawn.get((name, parameter), {})
        if (name, parameter) not in {*ELSEWHERE, *UNSEEN}:
            assert any(
                _is_seen(name, parameter, taken, case, monkeypatch)
                for taken in values
                for value, cases in values.items()
                if value != taken
                for case in cases
            ), f"no case tells values of `{parameter}` apart"


def _is_seen(name: str, parameter: str, value: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> bool:
    original = Rule.keywords

    def frozen(self: Rule, imp: Importer, eqn: Any) -> dict[str, Any]:
        found = original(self, imp, eqn)
        return {**found, parameter: value} if eqn.primitive.name == name else found

    with monkeypatch.context() as patch:
        patch.setattr(Rule, "keywords", frozen)
        try:
            results = imported(case.fn, *case.args)(*case.args)
        except Exception:  # whatever a rule runs into
            return True
    return any(
        a.shape != b.shape or a.dtype != b.dtype or not np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
        for a, b in zip(results, _results(case), strict=True)
    )


@functools.cache
def _results(case: Case) -> list[np.ndarray]:
    return imported(case.fn, *case.args)(*case.args)


@pytest.mark.parametrize("name", [name for name, rule in ALL.items() if rule.reads])
def test_signature_is_what_is_read(name: str) -> None:
    fn = inspect.unwrap(ALL[name].run)
    loaded = {i.argval for i in dis.get_instructions(fn) if i.opname.startswith("LOAD")}
    pairs = {a for i in dis.get_instructions(fn) if isinstance(i.argval, tuple) for a in i.argval}
    assert ALL[name].reads <= loaded | pairs


@pytest.mark.parametrize("name", [name for name in (*ALL, *OURS) if name not in TAKE_ALL])
def test_new_parameter_is_refused(name: str) -> None:
    rule = {**RULES, **DECOMPOSITIONS}[name]
    params = dict.fromkeys(rule.needed)
    assert set(rule.keywords(*_equation(name, params))) == set(params)
    with pytest.raises(UnsupportedError, match=f"`{name}` does not work with the parameter `surprise` .here 'x'"):
        rule.keywords(*_equation(name, {**params, "surprise": "x"}))


@pytest.mark.parametrize("name", [name for name, rule in ALL.items() if rule.assumes])
def test_other_value_than_assumed_is_refused(name: str) -> None:
    rule = ALL[name]
    for parameter, value in rule.assumes.items():
        params = dict.fromkeys(rule.needed)
        rule.keywords(*_equation(name, {**params, parameter: value}))
        text = f"`{name}` does not work with {parameter}='x', only with {parameter}="
        with pytest.raises(UnsupportedError, match=text):
            rule.keywords(*_equation(name, {**params, parameter: "x"}))


def test_settings_that_an_equation_keeps_are_known() -> None:
    """Besides parameters an equation keeps settings; of these only `threefry_partitionable` has a say in values."""
    (eqn,) = jax.make_jaxpr(jax.lax.sin)(1.0).eqns
    placed = {"cur_abstract_mesh", "remove_size_one_mesh_axis", "cur_layout_mode", "no_collectives"}
    hints = {"compute_type", "xla_metadata", "configs"}
    assert {*type(eqn.ctx).__slots__} - {"__weakref__"} <= {*placed, *hints, "threefry_partitionable"}


def test_missing_parameter_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="`transpose` does not work without its parameter `permutation`"):
        RULES["transpose"].keywords(*_equation("transpose", {}))


def test_refusal_names_line_and_way_out() -> None:
    sine = Primitive("sin")
    sine.def_abstract_eval(lambda x, **_: x)
    with pytest.raises(UnsupportedError) as caught:
        imported(lambda x: sine.bind(x, degrees=True), np.ones(3, np.float32))
    text = str(caught.value)
    assert "the import rule of `sin` does not work with the parameter `degrees` (here True)" in text
    assert "test_parameters.py" in text
    assert "qd.def_import_rule('sin', jnp_function)" in text


def test_rule_for_any_parameter_gives_a_reason() -> None:
    with pytest.raises(TraceTypeError, match="takes any parameter, and so would leave out what it does not know"):
        registry.rule("test_any")(lambda imp, eqn, x, **_: x)
    with pytest.raises(TraceTypeError, match="takes any parameter"):
        registry.decomposition("test_any")(lambda x, **_: x)
    assert "test_any" not in {**RULES, **DECOMPOSITIONS}


def _equation(name: str, params: dict[str, Any]) -> tuple[Importer, Any]:
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda x, **_: x)
    (eqn,) = jax.make_jaxpr(lambda x: primitive.bind(x, **params))(1.0).eqns
    return Importer(Builder()), eqn
