"""What surrounds the code of tasks: the call from XLA, the parallel loop, linking, and the artifact cache."""
