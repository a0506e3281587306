"""Explanations of refusals, and the search for Python state that a trace cannot see."""
