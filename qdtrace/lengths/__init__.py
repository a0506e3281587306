"""Calls of one function with arrays of any length, by one compiled program."""
