"""Rules of JAX that a user replaced: what was derived by JAX's own is not found then."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.interpreters import ad


def has_own_rules() -> bool:
    """Returns whether the primitives of `jax.lax` have JAX's rules of forward mode, or this package's."""
    primitives = (p for name, p in vars(jax.lax).items() if name.endswith("_p"))
    return all(is_own_rule(ad.primitive_jvps.get(p)) for p in primitives)


def is_own_rule(rule: Any) -> bool:
    """Returns whether a rule, with all functions that it is made of, is JAX's or this package's."""
    if isinstance(rule, functools.partial):
        return all(map(is_own_rule, (rule.func, *rule.args, *rule.keywords.values())))
    if isinstance(rule, tuple | list):
        return all(map(is_own_rule, rule))
    return not callable(rule) or is_own_module(getattr(rule, "__module__", None) or "")


def is_own_module(name: str) -> bool:
    """Returns whether a module is JAX's or this package's."""
    return name.partition(".")[0] in ("jax", "jaxlib", "qdtrace")
