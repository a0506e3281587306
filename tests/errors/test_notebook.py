"""In a notebook the place of an error is a cell."""

import subprocess
import sys

import pytest

pytest.importorskip("IPython")

CHILD = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")
CELLS = '''
import jax, jax.numpy as jnp, qdtrace as qd
X = jnp.ones(4)
%%
@qd.jit
def f(x):
    for i in qd.range(4):
        if x[i] > 0:
            x[i] = 1
    return x
%%
f(X)
%%
@qd.jit
def g(x):
    y = qd.zeros_like(x)
    for i in qd.range(4):
        y[i] = x[i + 1]
    return y
%%
g(X)
%%
try:
    jax.block_until_ready(jax.jit(g)(X))
except Exception as error:
    told = qd.explain(error)
%%
print(told.loc, told.loc.line, told)
%%
@jax.jit
def h(x):
    return qd.vmap(lambda v: {}[v.shape])(x)
h(X)
'''
for cell in CELLS.split("%%"):
    shell.run_cell(cell.strip(), store_history=True)
    print("end of cell")
"""


def test_places_are_cells_and_frames_the_users() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    tracing, running, explained = (done.stdout.split("end of cell\n")[k] for k in (2, 4, 6))
    own = done.stdout.split("end of cell\n")[7]
    assert "KeyError: ()" in own
    assert "Cell In[8], line 3" in own
    assert "During handling" not in own
    assert "  at Cell In[2], line 4 in f\n      if x[i] > 0:\n" in tracing
    assert "  at Cell In[4], line 5 in g\n      y[i] = x[i + 1]\n" in running
    assert explained.strip().startswith("Cell In[4], line 5 in g 5 index 4 is out of bounds")
    assert "      y[i] = x[i + 1]\n" in explained
    for text in (tracing, running, own):
        assert "qdtrace/" not in text
        assert "ipython-input" not in text
