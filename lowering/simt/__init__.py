"""Tasks as kernels of a GPU: the shell around code with one lane."""
