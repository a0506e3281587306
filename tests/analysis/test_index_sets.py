"""Proofs about indices hold in all iterations: random tasks are enumerated, with 8 and with 32 bits."""

import random
from collections import Counter
from functools import cache

import pytest

from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.dependence import IterationSpace, dependence_between
from qdtrace.analysis.index.footprint import IndexSets
from qdtrace.analysis.index.injectivity import Injectivity
from qdtrace.analysis.index.mixed_radix import MixedRadix
from qdtrace.analysis.index.trips import task_values
from qdtrace.analysis.memory import TaskMemory
from qdtrace.ir.memory import indices_of
from qdtrace.ir.program import ref_type
from tests.analysis.index_programs import (
    MAY,
    MUST,
    Draw,
    element,
    in_range,
    iterations,
    meeting,
    same_reference,
    stores_of,
    value_of_form,
    value_of_term,
)

SEEDS = range(80)
CASES = [pytest.param(bits, part, id=f"{bits} bits, {part}") for bits in (8, 32) for part in range(2)]


@cache
def drawn(seed: int, bits: int):
    """A task, its forms, and its iterations with all values."""
    task = Draw(random.Random(seed), f"i{bits}").task()
    forms = AffineForms(task, flips=True, bits=bits)
    return task, forms, list(iterations(task, random.Random(seed)))


def seeds(part: int) -> range:
    return SEEDS[part::2]


@pytest.mark.full
@pytest.mark.parametrize(("bits", "part"), CASES)
def test_forms_have_the_value_of_their_variable(bits: int, part: int) -> None:
    for seed in seeds(part):
        _, forms, runs = drawn(seed, bits)
        for var, form in forms.forms.items():
            bounds = forms.bounds(form)
            for _, env in runs:
                if var not in env:
                    continue
                found = value_of_form(form, env, bits)
                assert (found - env[var]) % forms.modulus == 0, (seed, var, form)
                # what is a Flipped term is bounded as its dtype is, whatever its sign
                if bounds is not None and forms.flips and not any("Flipped" in repr(t) for t in form.terms):
                    assert bounds[0] <= found <= bounds[1], (seed, var, form)


@pytest.mark.full
@pytest.mark.parametrize(("bits", "part"), CASES)
def test_digits_of_an_index_make_it_up(bits: int, part: int) -> None:
    split = 0
    for seed in seeds(part):
        task, forms, runs = drawn(seed, bits)
        assert task.index is not None
        values = task_values(task)
        assert values is not None
        radix = MixedRadix({task.index: values}, forms.forms.values())
        for term in {t for form in forms.forms.values() for t in form.terms}:
            found = radix.digits(term)
            if found is None:
                continue
            split += task.index in radix.weights
            for i, env in runs:
                digits = digits_of(radix, i, task.index)
                total = found[1] + sum(c * digits[d] for d, c in found[0].items())
                assert total == value_of_term(term, env, bits), (seed, term)
                assert all(0 <= v < radix.size(d) for d, v in digits.items()), (seed, term)
    assert split > 10


def digits_of(radix: MixedRadix, value: int, index) -> dict[object, int]:
    """The digits of a value of the index, each from 0."""
    values, chain = radix.indices[index], radix.weights.get(index)
    if chain is None:
        return {(index, 0): (value - values.start) // values.step}
    found = {(index, k): value // w % (chain[k + 1] // w) for k, w in enumerate(chain[:-1])}
    found[index, len(chain) - 1] = value // chain[-1] - values.start // chain[-1]
    return found


@pytest.mark.full
@pytest.mark.parametrize(("bits", "part"), CASES)
def test_accesses_depend_on_each_other_as_is_said(bits: int, part: int) -> None:
    said: Counter[str] = Counter()
    for seed in seeds(part):
        task, forms, runs = drawn(seed, bits)
        assert task.index is not None
        constants = {v for eqn in task.head for v in eqn.outvars}
        space = IterationSpace(task.index, task_values(task), constants)
        stores = stores_of(task)
        touched = {s: {(i, at) for i, env in runs if in_range(s, at := element(s, env))} for s in stores}
        for a, b in same_reference(stores):
            tuples = [[forms.of(k) for k in indices_of(e)] for e in (a, b)]
            found = dependence_between(ref_type(a.invars[0]), *tuples, (forms, forms), space)
            apart = {j - i for i, at in touched[a] for j, other in touched[b] if at == other}
            where = (seed, bits, a.invars, b.invars, found)
            if found.never:
                said["never"] += 1
                assert not apart, where
            elif found.same:
                said["same"] += 1
                assert apart <= {0}, where
            elif found.distance is not None and len(found.distance) == 1:
                said["distance"] += 1
                assert apart <= set(found.distance), where
            elif found.distance is not None:
                said["digits"] += 1
                radix = MixedRadix({task.index: space.iterations}, [f for t in tuples for f in t])
                pairs = [(i, j) for i, at in touched[a] for j, other in touched[b] if at == other]
                for i, j in pairs:
                    before, after = (digits_of(radix, k, task.index) for k in (i, j))
                    assert tuple(after[d] - before[d] for d in reversed(before)) == found.distance, where
    assert min(said[kind] for kind in ("never", "same", "distance", "digits")) >= 2, said


@pytest.mark.parametrize(("bits", "part"), CASES)
def test_a_shared_key_means_one_iteration(bits: int, part: int) -> None:
    shared = 0
    for seed in seeds(part):
        task, forms, runs = drawn(seed, bits)
        injectivity = Injectivity(task, forms)
        stores = stores_of(task)
        touched = {s: {(i, element(s, env)) for i, env in runs} for s in stores}
        keys = {s: injectivity.keys(indices_of(s)) for s in stores}
        for a, b in same_reference(stores):
            if keys[a] & keys[b]:
                shared += 1
                of = {at: i for i, at in touched[b]}
                assert all(of.get(at, i) == i for i, at in touched[a]), (seed, bits, a.invars, b.invars)
    assert shared > 20


@pytest.mark.full
@pytest.mark.parametrize(("bits", "part"), CASES)
def test_aliases_of_one_iteration(bits: int, part: int) -> None:
    said: Counter[str] = Counter()
    for seed in seeds(part):
        task, forms, runs = drawn(seed, bits)
        memory = TaskMemory(task, forms)
        for a, b in same_reference(stores_of(task)):
            found = meeting(memory, memory.of(a), memory.of(b))
            said[found] += 1
            for _, env in runs:
                first, second = element(a, env), element(b, env)
                if in_range(a, first) and in_range(b, second) and found != MAY:
                    assert (first == second) == (found == MUST), (seed, bits, a.invars, b.invars)
    assert min(said.values()) > 20


@pytest.mark.parametrize(("bits", "part"), CASES)
def test_elements_that_are_surely_touched(bits: int, part: int) -> None:
    """All numbers of the progressions are touched; a box has as many elements as it says."""
    proved = 0
    for seed in seeds(part):
        task, forms, runs = drawn(seed, bits)
        sets = IndexSets(task, forms)
        for store in stores_of(task):
            kind, indices = ref_type(store.invars[0]), indices_of(store)
            if kind.size > forms.modulus or not all(in_range(store, element(store, env)) for _, env in runs):
                continue
            touched = {number(element(store, env), kind.shape) for _, env in runs}
            pieces = [p.clipped(kind.size) for p in sets.elements(kind, indices, 64)]
            said = {p.start + k * p.step for p in pieces for k in range(p.count)}
            proved += len(said) > 1
            assert said <= touched, (seed, bits, store.invars)
            box = sets.box(kind, indices, len(runs))
            assert box.fewest <= len(touched) <= box.most, (seed, bits, store.invars, box)
    assert proved > 5


def number(indices: tuple[int, ...], shape: tuple[int, ...]) -> int:
    total = 0
    for k, n in zip(indices, shape, strict=True):
        total = total * n + k
    return total
