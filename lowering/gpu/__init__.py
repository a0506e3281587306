"""The call from XLA on a GPU: what all makers' drivers share."""
