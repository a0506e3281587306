"""`qd.torch`: functions of this package and of JAX as differentiable functions of torch tensors."""
