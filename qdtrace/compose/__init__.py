"""How traced programs become part of a JAX program: staging and the call primitive."""
