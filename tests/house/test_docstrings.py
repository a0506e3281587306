"""Every public name says what it takes and shows a program, which runs."""

import doctest
import inspect
import operator
import re

import jax
import jax.numpy as jnp
import pytest

import qdtrace as qd

METHODS = [
    *("Append.push", "Boxes.closest", "Boxes.near", "Boxes.ray", "Boxes.refit", "Grid.near"),
    *("Sparsity.to_bcoo", "Sparsity.to_bcsr", "Sparsity.to_scipy"),
]
"""Methods that loops and operators are written with."""


def text_of(name: str) -> str:
    public = operator.attrgetter(name)(qd)
    return inspect.getdoc(public if callable(public) else type(public)) or ""


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ["__init__", *qd.__all__, *METHODS])
def test_the_example_of_a_name_runs(name: str) -> None:
    text = (qd.__doc__ or "") if name == "__init__" else text_of(name)
    names = {"jax": jax, "jnp": jnp, "qd": qd}
    test = doctest.DocTestParser().get_doctest(text, names, f"qdtrace.{name}", None, 0)
    assert len(test.examples) >= 1
    told: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    assert result.failed == 0, "".join(told)


@pytest.mark.parametrize("name", [n for n in (*qd.__all__, *METHODS) if inspect.isfunction(operator.attrgetter(n)(qd))])
def test_a_function_explains_its_parameters(name: str) -> None:
    parameters = set(inspect.signature(operator.attrgetter(name)(qd)).parameters) - {"self"}
    section = re.search(r"^Args:\n((?:    .*\n?)*)", text_of(name), re.MULTILINE)
    entries = re.findall(r"^    (\w[\w, ]*): ", section[1], re.MULTILINE) if section else []
    assert {p for entry in entries for p in entry.split(", ")} == parameters
