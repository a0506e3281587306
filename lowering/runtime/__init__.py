"""The environment of task code: the call from XLA, the parallel loop, linking, and the artifact cache."""
