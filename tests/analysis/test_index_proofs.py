"""Proofs about indices are repeated by z3, at 8 bits: for all loaded values, with integers that wrap."""

import itertools
import random
from collections import Counter

import pytest
import z3

from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.dependence import IterationSpace, dependence_between
from qdtrace.analysis.index.injectivity import Injectivity
from qdtrace.analysis.index.trips import task_values
from qdtrace.analysis.memory import TaskMemory
from qdtrace.ir.memory import indices_of
from qdtrace.ir.program import Literal, ref_type
from tests.analysis.index_programs import MUST, NO, Draw, meeting, same_reference, stores_of, values
from tests.passes.solver import meaning

BITS = 8
SEEDS = range(1000, 1060)


class Iteration:
    """All values of one iteration as bit vectors, with what is known of them."""

    def __init__(self, task, name: str, head) -> None:
        self.known: list[z3.BoolRef] = []
        self.env = dict(head)
        self._name = name
        self.env[task.index] = self.fresh(task.index.hint, values(task.start, task.stop))
        self._run(task.body.eqns)

    def fresh(self, hint: str, among: range | None = None):
        made = z3.BitVec(f"{self._name}.{hint}{len(self.env)}", BITS)
        if among is not None:
            first, last = min(among[0], among[-1]), max(among[0], among[-1])
            self.known += [made >= first, made <= last]
            if abs(among.step) > 1:
                self.known.append(z3.Or([made == k for k in among]))
        return made

    def at(self, atom):
        return z3.BitVecVal(int(atom.value), BITS) if isinstance(atom, Literal) else self.env[atom]

    def _run(self, eqns) -> None:
        for eqn in eqns:
            name = eqn.primitive.name
            if name == "load":
                self.env[eqn.outvar] = self.fresh("loaded")
            elif name == "for":
                self.env[eqn.blocks[0].params[0]] = self.fresh("k", values(*eqn.invars[:3]))
                self._run(eqn.blocks[0].eqns)
            elif name != "store":
                operands = [self.at(a) for a in eqn.invars]
                self.env[eqn.outvar] = meaning(name, operands, eqn.invars[0].dtype, eqn.outvar.dtype, eqn.params)

    def indices(self, store):
        return [self.at(a) for a in indices_of(store)]

    def inside(self, store):
        shape = ref_type(store.invars[0]).shape
        return [z3.And(k >= 0, k < n) for k, n in zip(self.indices(store), shape, strict=True)]


class Setting:
    """A random task, two of its iterations, and what may be asked of them."""

    def __init__(self, seed: int) -> None:
        self.task = Draw(random.Random(seed), f"i{BITS}").task()
        self.forms = AffineForms(self.task, flips=True, bits=BITS)
        self.stores = stores_of(self.task)
        head = {eqn.outvar: z3.BitVec(f"head{k}", BITS) for k, eqn in enumerate(self.task.head)}
        self.first, self.second = (Iteration(self.task, name, head) for name in "ij")

    def refuted(self, *claims) -> bool:
        """Whether the claims cannot hold together."""
        solver = z3.Solver()
        solver.add(*self.first.known, *self.second.known, *claims)
        return solver.check() == z3.unsat

    def equal(self, a, b, other=None):
        """Both accesses are in range and touch one element; the second one in the second iteration."""
        other = other or self.second
        same = [x == y for x, y in zip(self.first.indices(a), other.indices(b), strict=True)]
        return [*same, *self.first.inside(a), *other.inside(b)]

    @property
    def distance(self):
        wide = [z3.SignExt(BITS, side.env[self.task.index]) for side in (self.second, self.first)]
        return wide[0] - wide[1]


@pytest.mark.parametrize("part", range(2))
@pytest.mark.full
def test_dependence(part: int) -> None:
    proved: Counter[str] = Counter()
    for seed in SEEDS[part::2]:
        s = Setting(seed)
        constants = {v for eqn in s.task.head for v in eqn.outvars}
        space = IterationSpace(s.task.index, task_values(s.task), constants)
        injectivity = Injectivity(s.task, s.forms)
        for a, b in same_reference(s.stores):
            tuples = [[s.forms.of(k) for k in indices_of(e)] for e in (a, b)]
            found = dependence_between(ref_type(a.invars[0]), *tuples, (s.forms, s.forms), space)
            where = (seed, a.invars, b.invars, found)
            if found.never:
                proved["never"] += 1
                assert s.refuted(*s.equal(a, b)), where
            elif found.same:
                proved["same"] += 1
                assert s.refuted(*s.equal(a, b), s.distance != 0), where
            elif found.distance is not None and len(found.distance) == 1:
                proved["distance"] += 1
                assert s.refuted(*s.equal(a, b), s.distance != found.distance[0]), where
            if injectivity.keys(indices_of(a)) & injectivity.keys(indices_of(b)):
                proved["key"] += 1
                same = [x == y for x, y in zip(s.first.indices(a), s.second.indices(b), strict=True)]
                assert s.refuted(*same, s.distance != 0), where
    assert min(proved[kind] for kind in ("never", "same", "distance", "key")) >= 2, proved


def test_apart() -> None:
    """No two iterations touch an element that both of two accesses may touch, if those are apart."""
    proved = Counter[bool]()
    for seed in SEEDS:
        s = Setting(seed)
        memory = TaskMemory(s.task, s.forms)
        for a, b in same_reference(s.stores):
            if memory.are_apart([a, b]):
                proved[memory.share_a_proof([a, b])] += 1
                for one, other in itertools.product((a, b), repeat=2):
                    assert s.refuted(*s.equal(one, other), s.distance != 0), (seed, one.invars, other.invars)
    assert min(proved[True], proved[False]) >= 2, proved


@pytest.mark.parametrize("part", range(2))
def test_aliases(part: int) -> None:
    proved: Counter[str] = Counter()
    for seed in SEEDS[part::2]:
        s = Setting(seed)
        memory = TaskMemory(s.task, s.forms)
        for a, b in itertools.combinations(s.stores, 2):
            if a.invars[0] is not b.invars[0]:
                continue
            found = meeting(memory, memory.of(a), memory.of(b))
            proved[found] += 1
            if found == NO:
                assert s.refuted(*s.equal(a, b, s.first)), (seed, a.invars, b.invars)
            elif found == MUST:
                same = zip(s.first.indices(a), s.first.indices(b), strict=True)
                assert s.refuted(z3.Or([x != y for x, y in same])), (seed, a.invars, b.invars)
    assert min(proved.values()) >= 5


@pytest.mark.parametrize("part", range(2))
@pytest.mark.full
def test_forms(part: int) -> None:
    """A form without terms of its own kind has the value of its variable, for all values of its variables."""
    proved = 0
    for seed in SEEDS[part::2]:
        s = Setting(seed)
        for var, form in s.forms.forms.items():
            if any(term not in s.first.env for term in form.terms):
                continue  # enumerated in test_index_sets
            total = z3.BitVecVal(form.constant, BITS)
            for term, factor in form.terms.items():
                total = total + factor * s.first.env[term]
            proved += 1
            assert s.refuted(total != s.first.env[var]), (seed, var, form)
    assert proved > 30
