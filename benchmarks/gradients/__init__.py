"""Gradients that are timed: beside their primal, the same written by hand, and the peers that have reverse mode."""
