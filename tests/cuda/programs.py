"""Small programs that several files run."""

import qdtrace as qd


@qd.jit
def affine(x):
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = 2 * x[i] + 1
    return out


@qd.jit
def shifted(x, by):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = x[i + by]
    return out
