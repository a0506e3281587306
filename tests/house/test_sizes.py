"""A package grows by decision: its lines of code, and other numbers that are to fall, stand in sizes.txt; more than 2 %
above fails."""

import pytest

from .journeys import counted
from .sizes import allowed, lines_of_code, measured

TOLERANCE = 1.02
ALLOWED = allowed()
JOURNEYS = [name for name in ALLOWED if name.startswith(("stays-of-", "climbs-of-"))]


def test_all_packages_are_listed() -> None:
    assert measured().keys() == ALLOWED.keys() - set(JOURNEYS), "run python -m tests.house.sizes"


@pytest.mark.parametrize("package", [name for name in ALLOWED if name not in JOURNEYS])
def test_a_package_has_not_grown(package: str) -> None:
    assert measured().get(package, 0) <= TOLERANCE * ALLOWED[package], (
        "raise the number in tests/house/sizes.txt in the same commit and say why"
    )


@pytest.mark.full
def test_a_journey_has_not_grown() -> None:
    found = counted()
    assert found.keys() == set(JOURNEYS), "run python -m tests.house.sizes"
    assert {name: count for name, count in found.items() if count > ALLOWED[name]} == {}, (
        "python -m tests.house.journeys NAME prints the stays"
    )


def test_what_is_counted() -> None:
    head = '"""Head."""\n\nimport os\nfrom a import (\n    b,\n)\n'
    function = '# why\ndef f():\n    """Says.\n\n    More."""\n    return """x\n    y"""\n'
    assert lines_of_code(head + function) == 3
