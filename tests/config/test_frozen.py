"""`frozen` and `mutable` beside `dataclass`: drawn classes have the same values, equality, hash, texts and errors."""

import functools
import pickle
import random
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from itertools import product
from typing import Any

import pytest

from qdtrace.errors import Loc
from qdtrace.frozen import frozen, mutable

NAN = float("nan")
VALUES = (0, 1, -0.0, "a", (1, NAN), None, (), 1.5, True)
FIELDS: tuple[Any, ...] = (
    lambda: field(),
    lambda: field(compare=False),
    lambda: field(hash=False),
    lambda: field(repr=False),
    lambda: field(default=2),
    lambda: 3,
    lambda: field(default_factory=lambda: (4,)),
    lambda: field(default_factory=list, compare=False),
    lambda: field(default=5, init=False),
    lambda: field(default_factory=lambda: 6, init=False),
)
FIRST_WITH_DEFAULT = 4


def drawn(seed: int, decorate: Any, bases: tuple[type, ...] = ()) -> type:
    """Returns a class of up to five drawn fields, those with defaults last."""
    draw = random.Random(seed)
    kinds = sorted(draw.choices(range(len(FIELDS)), k=draw.randrange(6)), key=lambda k: k >= FIRST_WITH_DEFAULT)
    own: dict[str, Any] = {"__annotations__": {}, "__module__": __name__, "__qualname__": "Drawn"}
    for k, kind in enumerate(kinds):
        own["__annotations__"][f"f{k}"] = "Any"
        if kind:
            own[f"f{k}"] = FIELDS[kind]()
    return decorate(type("Drawn", bases, own))


def outcome(f: Any) -> Any:
    try:
        return f()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("eq", [False, True])
def test_it_is_as_the_standard_one(seed: int, slots: bool, eq: bool) -> None:
    ours = drawn(seed, frozen(slots=slots, eq=eq))
    theirs = drawn(seed, dataclass(frozen=True, slots=slots, eq=eq))
    assert [f.name for f in fields(ours)] == [f.name for f in fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert hasattr(ours, "__slots__") is slots
    draw = random.Random(seed)
    made: list[tuple[Any, Any]] = []
    for count in [*range(len(fields(ours)) + 2)] * 2:
        given = draw.choices(VALUES, k=count)
        one, other = (outcome(functools.partial(kind, *given)) for kind in (ours, theirs))
        if isinstance(one, ours):
            assert repr(one) == repr(other)
            made.append((one, other))
        else:
            assert one == other  # the same error
    for (a, b), (c, d) in product(made, repeat=2):
        assert (a == c) is (b == d)
    for one, other in made:
        if eq:
            assert outcome(functools.partial(hash, one)) == outcome(functools.partial(hash, other))
        assert one != other
        assert [*asdict(one)] == [*asdict(other)]
        for name in (*(f.name for f in fields(ours)), "more"):
            with pytest.raises(FrozenInstanceError):
                setattr(one, name, 1)
            with pytest.raises(FrozenInstanceError):
                delattr(one, name)
        changed = {f.name: 7 for f in fields(ours) if f.init}
        assert asdict(replace(one, **changed)) == asdict(replace(other, **changed))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("eq", [False, True])
def test_a_mutable_one_is_as_the_standard_one(seed: int, slots: bool, eq: bool) -> None:
    ours = drawn(seed, mutable(slots=slots, eq=eq))
    theirs = drawn(seed, dataclass(slots=slots, eq=eq))
    draw = random.Random(seed)
    made: list[tuple[Any, Any]] = []
    for count in [*range(len(fields(ours)) + 2)] * 2:
        given = draw.choices(VALUES, k=count)
        one, other = (outcome(functools.partial(kind, *given)) for kind in (ours, theirs))
        if isinstance(one, ours):
            made.append((one, other))
        else:
            assert one == other  # the same error
    for one, other in made:
        for f in draw.sample(fields(ours), k=len(fields(ours)) // 2):
            value = draw.choice(VALUES)
            setattr(one, f.name, value)
            setattr(other, f.name, value)
        assert repr(one) == repr(other)
        by_value = outcome(functools.partial(hash, one)) == (TypeError, "unhashable type: 'Drawn'")
        assert by_value is eq
        assert hasattr(one, "__dict__") is hasattr(other, "__dict__")
    for (a, b), (c, d) in product(made, repeat=2):
        assert (a == c) is (b == d)


@pytest.mark.parametrize("decorate", [frozen, mutable])
def test_a_field_without_default_behind_one_with_is_refused(decorate: Any) -> None:
    with pytest.raises(TypeError, match="non-default argument 'b' follows default argument"):
        decorate(type("Mixed", (), {"__annotations__": {"a": "int", "b": "int"}, "a": 1}))


@frozen(slots=True)
class Pair:
    a: float
    b: tuple[int, ...] = ()


@frozen
class Checked:
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.a


@frozen
class More(Checked):
    b: int = 1

    def __hash__(self) -> int:
        return 5

    def __repr__(self) -> str:
        return "more"


class Loose(Checked):
    pass


@frozen(slots=True)
class WithSlots:
    a: int = 3


@frozen
class WithDict(WithSlots):
    b: int = 1


def test_pickle_keeps_values() -> None:
    for value in (Pair(1.5, (2,)), Checked(3), More(1, 2), Loc("f.py", 3)):
        found = pickle.loads(pickle.dumps(value))
        assert found == value
        assert type(found) is type(value)


def test_pickle_keeps_values_of_a_subclass_without_slots() -> None:
    assert pickle.loads(pickle.dumps(WithDict(1, 2))) == WithDict(1, 2)


def test_fields_are_compared_as_tuples_are() -> None:
    """Python 3.13 compares one by one, and the same NaN is another then: a key with one would never be found."""
    assert Pair(NAN) == Pair(NAN)
    assert Pair(NAN) != Pair(float("nan"))


def test_what_a_class_has_of_its_own_stays() -> None:
    with pytest.raises(ValueError, match="negative"):
        More(-1)
    assert (hash(More(1)), repr(More(1)), More(2).twice, More(1, 2) == More(1, 2), More(1) == Checked(1)) == (
        5, "more", 4, True, False,
    )  # fmt: skip


def test_other_attributes_of_a_subclass_are_set() -> None:
    loose: Any = Loose(1)
    loose.other = 2
    assert loose.other == 2
    del loose.other
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        loose.a = 2


def test_an_object_that_holds_itself_is_shown() -> None:
    held: Any = []
    held.append(Pair(held))
    assert repr(held) == "[Pair(a=[...], b=())]"


def test_a_field_by_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Keyed\.a is by keyword"):

        @frozen
        class Keyed:
            a: int = field(kw_only=True)
