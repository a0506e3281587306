"""Every public name says what it takes and shows a program, which runs."""

from __future__ import annotations

import doctest
import inspect
import re

import jax
import jax.numpy as jnp
import pytest

import qdtrace as qd


def text_of(name: str) -> str:
    public = getattr(qd, name)
    return inspect.getdoc(public if callable(public) else type(public)) or ""


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ["__init__", *qd.__all__])
def test_the_example_of_a_name_runs(name: str) -> None:
    text = (qd.__doc__ or "") if name == "__init__" else text_of(name)
    names = {"jax": jax, "jnp": jnp, "qd": qd}
    test = doctest.DocTestParser().get_doctest(text, names, f"qdtrace.{name}", None, 0)
    assert len(test.examples) >= 1
    told: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    assert result.failed == 0, "".join(told)


@pytest.mark.parametrize("name", [n for n in qd.__all__ if inspect.isfunction(getattr(qd, n))])
def test_a_function_explains_its_parameters(name: str) -> None:
    parameters = set(inspect.signature(getattr(qd, name)).parameters)
    section = re.search(r"^Args:\n((?:    .*\n?)*)", text_of(name), re.MULTILINE)
    entries = re.findall(r"^    (\w[\w, ]*): ", section[1], re.MULTILINE) if section else []
    assert {p for entry in entries for p in entry.split(", ")} == parameters
