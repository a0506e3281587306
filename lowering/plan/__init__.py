"""Decisions about a task that are the same for every machine, made before a line of its code is written."""
