"""docs/coverage.md: what the sweep found, one row a function."""

import re
from collections import Counter
from pathlib import Path

import jax
import numpy as np

from tests.answers.document import section

from .calls import TABLE, Entry, function_of
from .sweep import Outcome

Results = dict[tuple[str, str, str], Outcome]
PATH = Path(__file__).parents[2] / "docs" / "coverage.md"
RULES = "# Import rules in lanes"
"""What begins the second part of the page, which `python -m tests.rules` writes."""
HEAD = """# JAX functions in lanes

Written by `python -m tests.coverage`: each public function is called as a lane function under `qd.vmap` with scalars,
vectors and small matrices, in f32 and f64, and compared with `jax.vmap` of the same function (jax {version}).
`make test ARGS="-m slow"` runs the same comparison.

```python
import jax.numpy as jnp
import qdtrace as qd

rows = jnp.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
assert qd.vmap(jnp.sort)(rows).tolist() == [[1.0, 2.0, 3.0], [0.0, 4.0, 5.0]]
```

| | functions |
|---|---|
{counts}

*equal*: every result has the dtype and shape that `jax.vmap` gives and agrees to a few roundings (`tests/coverage` has
the bound of each function, with the reason where it is a wide one); infinities, NaN, integers and bools agree exactly.
Floats are asked at infinities, NaN, both zeros, negative and large numbers and ties; signs of zero results are not
compared here. *refused*: `qd.UnsupportedError` names what is missing. *not called*: the reason says why no lane
can call it.
"""


def page(results: Results) -> str:
    """The whole page."""
    rows: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for module, entries in TABLE.items():
        for name, entry in sorted(entries.items()):
            if function_of(module, name) is None:
                continue
            status, note = _status(module, name, entry, results)
            counts[status] += 1
            rows.setdefault(module, []).append(f"| `{name}` | {status} | {note} |")
    counted = "\n".join(f"| {status} | {counts[status]} |" for status in sorted(counts))
    parts = [HEAD.format(version=jax.__version__, counts=counted), "\n", section().rstrip("\n"), "\n"]
    for module, lines in rows.items():
        parts.append("\n".join([f"\n## {module}\n", "| function | as a lane | how |", "|---|---|---|", *lines, ""]))
    return "".join(parts)


def _status(module: str, name: str, entry: Entry, results: Results) -> tuple[str, str]:
    if not entry.calls:
        return "not called", entry.excluded
    found = [results[module, name, np.dtype(d).name] for d in (np.float32, np.float64)]
    worst = next((o for o in found if o.kind != "equal"), found[0])
    return worst.kind, _cell(worst.detail) if worst.detail else _shapes(entry)


def _shapes(entry: Entry) -> str:
    """Ranks of the operands, and the wide bounds."""
    ranks = sorted({op.draw(np.float32, 0).ndim - 1 for call in entry.calls for op in call.operands})
    kinds = ["scalars", "vectors", "matrices", "arrays of rank 3", "arrays of rank 4"]
    why = sorted({f"{call.ulps:g} roundings: {call.why}" for call in entry.calls if call.why})
    return "; ".join([", ".join(kinds[r] for r in ranks), *why])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def with_rules(part: str, text: str) -> str:
    """A new first part in front of the second part of a page."""
    return part if RULES not in text else f"{part}\n{text[text.index(RULES) :]}"


def listed(text: str) -> dict[str, dict[str, str]]:
    """module -> function -> status, of a page."""
    out: dict[str, dict[str, str]] = {}
    for part in re.split(r"^## ", text.split(RULES)[0], flags=re.MULTILINE)[1:]:
        module = part.split("\n", 1)[0].strip()
        if found := re.findall(r"^\| `(\w+)` \| ([^|]+) \|", part, flags=re.MULTILINE):
            out[module] = dict(found)
    return out


def version_of(text: str) -> str:
    """The release of jax that a page is of."""
    (version,) = re.findall(r"\(jax ([\d.]+)\)", text.split(RULES)[0])
    return version
