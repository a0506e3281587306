"""Data sets shipped with the package; each file names its source in its first lines."""
