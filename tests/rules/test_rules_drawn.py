"""Every import rule on drawn programs, with derivatives from outside and inside of the lane, against `jax.vmap`.

The default run has a fixed program of each rule: its value, and one derivative in turn. The slow tests have all cases
with all derivatives, and programs drawn by a seed.
"""

import jax
import pytest

from qdtrace.trace.importer import Importer, registry

from . import document
from .all_cases import CASES, TABLE, Case
from .compare import SIDES, WAYS, Finding, findings
from .draw import Program, drawn
from .known import known

pytestmark = pytest.mark.usefixtures("wide_oracle")

DRAWN = 6
"""Programs of a case in the slow run."""
TURNS = [(w, s) for w in WAYS[1:] for s in SIDES]
IN_TURN = {"custom_vjp_call": ("vjp", "outside")}
"""Where one derivative alone reaches a rule, `custom_lin` here."""

FIRST = list({cases[0].fn: cases[0] for cases in reversed(TABLE.cases.values())}.values())
"""A case of each rule; one lane function may be for several."""

registry.load_rules()
registry.load_decompositions()
RULES = sorted({*registry.RULES, *registry.DECOMPOSITIONS})


def test_every_rule_has_a_case_or_a_reason() -> None:
    missing = {*RULES} - {*TABLE.cases} - {*TABLE.elsewhere}
    assert not missing, "add cases of them to tests/rules, or the reason why there are none"
    assert not ({*TABLE.cases} | {*TABLE.elsewhere}) - {*RULES}, "these have no rule"
    assert not {*TABLE.cases} & {*TABLE.elsewhere}


def test_the_page_has_every_rule() -> None:
    rules = document.rules_of(document.PATH.read_text())
    assert {*TABLE.cases} | {*TABLE.elsewhere} <= rules, "run python -m tests.rules"


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of primitives whose equations were imported."""
    seen: set[str] = set()
    original = Importer.import_eqn

    def record(self, eqn, env):
        seen.add(eqn.primitive.name)
        original(self, eqn, env)

    monkeypatch.setattr(Importer, "import_eqn", record)
    return seen


@pytest.mark.full
@pytest.mark.sample(6, full=3)
@pytest.mark.parametrize("case", FIRST, ids=lambda c: c.name)
def test_first_program(case: Case, imported: set[str]) -> None:
    (program,) = drawn(case, 1)
    turn = IN_TURN.get(case.rule, TURNS[FIRST.index(case) % len(TURNS)])
    _check(case, program, [("value", "inside")] if case.costly else [turn, ("value", turn[1])])
    assert {c.rule for c in CASES if c.fn is case.fn} <= imported


@pytest.mark.slow
@pytest.mark.parametrize("number", range(DRAWN))
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_programs(case: Case, number: int) -> None:
    *_, program = drawn(case, number + 1)
    _check(case, program)
    jax.clear_caches()


def _check(case: Case, program: Program, pairs: list[tuple[str, str]] | None = None) -> None:
    found = findings(program, pairs)
    assert [_text(f) for f in found if f.kind in ("wrong", "crash") and known(case.rule, f) is None] == []


def _text(found: Finding) -> str:
    return f"{found.kind}: {found.part}, {found.way} {found.side}: {found.detail}"
