"""The graph (intermediate representation): see README.md in this folder."""
