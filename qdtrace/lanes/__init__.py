"""Loops of `qd.vmap`, and what runs for all of their lanes at once."""
