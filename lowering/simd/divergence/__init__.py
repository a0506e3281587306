"""Strategies for lanes of one vector whose loops have different trip counts."""
