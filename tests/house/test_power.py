"""Faults that `python -m tests.power` puts back have their places in the tree."""

from tests.power.catalogue import ROOT, all_faults


def test_the_places_of_known_faults_are_found_once() -> None:
    faults = all_faults()
    assert len(faults) == 41
    assert len({f.name for f in faults}) == len(faults)
    for fault in faults:
        fault.with_it((ROOT / fault.path).read_text())
        assert all((ROOT / test).is_file() for test in fault.tests), fault.name
