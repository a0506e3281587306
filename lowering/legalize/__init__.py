"""Rewrites of graphs just before code is emitted, which spare the emitters special cases."""
