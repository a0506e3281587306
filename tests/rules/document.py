"""The part of docs/coverage.md on import rules: what held of the programs that `python -m tests.rules` drew."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import jax

from .all_cases import TABLE
from .compare import SIDES, WAYS, Finding
from .known import FAULTS, known

Results = dict[str, list[Finding]]
"""Findings by rule."""
PATH = Path(__file__).parents[2] / "docs" / "coverage.md"
TITLE = "# Import rules in lanes"
HEAD = """{title}

Written by `python -m tests.rules`: each primitive with an import rule (`qdtrace/trace/importer`) is reached by lane
functions, on programs drawn from its dtypes, sizes (0 to 5000 elements, so in registers and in memory), kinds of
operand (an argument, a copy in memory, a view, a number spread over a shape, arithmetic of the index), points (zeros
of both signs, ties, ends of domains, axes and diagonals of the complex plane; in some programs subnormal and large
numbers, infinities, NaN) and batches of 0, 1, 2 and 17. Value, `jax.jvp`, `jax.vjp` and the tangent of the adjoint
are compared with those of `jax.vmap` (jax {version}), from outside of the lane (`jax.vjp(qd.vmap(f), x)`) and inside
(`qd.vmap(lambda x: jax.vjp(f, x)...)`). `make test ARGS="-m slow tests/rules"` draws more.

| | comparisons of a result of {programs} programs |
|---|---|
{counts}

*equal*: dtype and shape, places of NaN and infinities agree, and values to a few roundings (tests/rules has the bound
of each rule). *right*: JAX's result is another, and this is as good: on a branch cut JAX may take one value for both
signs of a zero, where lanes take the side that the sign says (as NumPy does; `arccosh` of 0.75-0j is -0.72j in a lane
and +0.72j in JAX); subnormal numbers count as zeros in threads of XLA; and XLA folds products with infinities and NaN
when it compiles operations together. *refused*: a `QdError` says why. *none*: JAX itself has no such derivative.
*wrong* and *crash* are faults that wait for a design, below.

Infinite and NaN parts of complex numbers are drawn by `tests/importer/test_complex_ends.py`, and what differs from JAX
is above. Gradients of cumulated sums and products are not asked at NaN: JAX's go by `associative_scan`, which spreads
NaN to elements that do not depend on it. The slope of `digamma` at infinity is NaN in JAX, and zero in lanes;
its value at zero, NaN in jax 0.10, is minus infinity as from jax 0.11 on.

A cell has the number of results that agree; `r` is refused, `n` none, and a fault stands out. Kinds: `a`rgument,
`m`emory, `v`iew, `s`pread, `g`enerated.
"""


def page(results: Results, programs: int) -> str:
    """This part of the page."""
    counted: Counter[str] = Counter(f.kind for found in results.values() for f in found)
    lines = [f"| {kind} | {counted[kind]} |" for kind in ("equal", "right", "refused", "none", "wrong", "crash")]
    head = HEAD.format(title=TITLE, version=jax.__version__, programs=programs, counts="\n".join(lines))
    columns = [f"{way} {side}" for side in SIDES for way in WAYS]
    table = ["| rule | dtypes | kinds | " + " | ".join(columns) + " | notes |", "|---" * (4 + len(columns)) + "|"]
    table += [_row(rule, results[rule]) for rule in sorted(results)]
    faults = ["", "## Faults of import rules", ""]
    faults += [f"- {', '.join(f'`{r}`' for r in f.rules)}: {f.why}." for f in FAULTS] or ["None is known."]
    other = ["", "## Import rules that are drawn elsewhere", "", "| rule | why |", "|---|---|"]
    other += [f"| `{rule}` | {why} |" for rule, why in sorted(TABLE.elsewhere.items())]
    return "\n".join([head, *table, *faults, *other, ""])


def _row(rule: str, found: Sequence[Finding]) -> str:
    parts = [f.part.split() for f in found]
    dtypes = {re.sub(r"\[.*", "", p[1]) for p in parts}
    kinds = {k[0] for p in parts for k in (p[2].split("/") if len(p) > 2 else ())}
    cells = [_cell(rule, [f for f in found if (f.way, f.side) == (w, s)]) for s in SIDES for w in WAYS]
    short = "".join(k for k in "amvsg" if k in kinds)
    return f"| `{rule}` | {_dtypes(dtypes)} | {short} | {' | '.join(cells)} | {_notes(found)} |"


def _dtypes(names: set[str]) -> str:
    """Short names in order."""
    short = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
    found = []
    for name in names:
        kind, bits = re.match(r"([a-z]+)(\d*)", name).groups()  # type: ignore[union-attr]
        found.append(f"{short.get(kind, kind)}{bits}")
    return " ".join(sorted(found))


def _cell(rule: str, found: Sequence[Finding]) -> str:
    """Numbers of each outcome."""
    counted: Counter[str] = Counter()
    for f in found:
        fault = f.kind in ("wrong", "crash")
        counted["fault" if fault and known(rule, f) else f"**{f.kind}**" if fault else f.kind] += 1
    agree = counted.pop("equal", 0) + counted.pop("right", 0)
    short = {"refused": "r", "none": "n"}
    rest = [f"{n} {short.get(kind, kind)}" for kind, n in sorted(counted.items())]
    return ", ".join([*([str(agree)] if agree else []), *rest])


def _notes(found: Sequence[Finding]) -> str:
    """Reasons of refusals."""
    reasons: dict[str, int] = defaultdict(int)
    for f in found:
        if f.kind == "refused":
            text = f.detail.split(": ", 1)[-1]
            text = re.sub(r", (got|this one moves) .*", "", text)
            reasons[text] += 1
    return "; ".join(sorted(reasons)).replace("|", "\\|")


def merged(text: str, part: str) -> str:
    """The whole page with this part in the place of the old one."""
    return text.split(TITLE)[0].rstrip("\n") + "\n\n" + part


def rules_of(text: str) -> set[str]:
    """The rules that a page has rows of."""
    part = text.split(TITLE, 1)[1] if TITLE in text else ""
    return set(re.findall(r"^\| `([\w-]+)` \|", part, flags=re.MULTILINE))
