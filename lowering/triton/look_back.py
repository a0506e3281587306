"""Single-pass prefix sums over tiles of a scan, as Triton functions that the scan's kernel calls.

A tile publishes its sum in a *word*: 32 bits and a mark, in one store, so that the order of stores to different words
does not matter; 64 bits are two words with a mark each. Words are zero when a launch begins. Tiles form groups of G,
groups form groups of G, and the last tile of a group computes the value carried into the next one:

    words[0 .. GROUPS]                    values carried into each group, and out of the last one
    words[GROUPS + 1 .. 2 * GROUPS]       sums of groups
    words[2 * GROUPS + 1 ...]             sums of tiles

A tile that uses its carried-in value looks back; if no iteration uses it, tiles only pass on their sums. The latter is
not written as a look-back whose result is unused: Triton 3.5 and 3.6 do not compile that.

The words to combine, and their tree, are fixed, so the result does not depend on timing. A tile waits only for tiles of
smaller numbers. Numbers come from a counter, so those tiles are running or done, and every wait ends. Words are read
and written by atomic operations, which no cache delays; one warp of a program polls.

This follows D. Merrill and M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (2016), whose tiles
combine whatever is there already, in another order in each run.
"""

from __future__ import annotations

from lowering.triton.helpers import Helper, jit

_OPS = ("add", "mul", "min", "max", "and", "or", "xor")


def _gathered(op: str) -> Helper:
    return jit(
        f"gathered_{op}(place, mask, neutral, like, FAR: tl.constexpr)",
        "The values of several places, combined, when all of them are there.",
        "low = awaited(place, mask)",
        "high = low",
        "if FAR:",
        "    high = awaited(place + FAR, mask)",
        "values = tl.where(mask, unpacked(low, high, like, FAR), neutral).to(like.dtype)",
        f"return tl.reduce(values, 0, combine_{op})",
        needs=("awaited", "unpacked", f"combine_{op}"),
    )


def _lead(op: str) -> Helper:
    return jit(
        f"lead_{op}(words, tile, total, neutral, GROUPS: tl.constexpr, FAR: tl.constexpr, G: tl.constexpr)",
        "The last tile of a group leaves what is carried into the next one. Gives what tiles before it in it add.",
        "lane = tl.arange(0, G)",
        "group = tile // G",
        "tiles = words + 2 * GROUPS + 1 + group * G + lane",
        f"inner = gathered_{op}(tiles, lane < tile % G, neutral, total, FAR)",
        f"whole = combine_{op}(inner, total)",
        "publish(words + GROUPS + 1 + group, whole, FAR)",
        "outer = group // G * G",
        "groups = words + GROUPS + 1 + outer + lane",
        f"middle = gathered_{op}(groups, lane < group - outer, neutral, total, FAR)",
        f"far = combine_{op}(received(words + outer, total, FAR), middle)",
        f"publish(words + group + 1, combine_{op}(far, whole), FAR)",
        "return inner",
        needs=("publish", "received", f"gathered_{op}"),
    )


_ARGUMENTS = "words, tile, last, total, neutral, GROUPS: tl.constexpr, FAR: tl.constexpr, G: tl.constexpr"
_LEADS = "leads = (tile % G == G - 1) | (tile == last)"


def _hand_on(op: str) -> Helper:
    return jit(
        f"hand_on_{op}({_ARGUMENTS})",
        "The last tile of a group, and `last`, leaves what is carried into the next group; others wait for nothing.",
        _LEADS,
        "if leads:",
        f"    lead_{op}(words, tile, total, neutral, GROUPS, FAR, G)",
        needs=(f"lead_{op}",),
    )


def _look_back(op: str) -> Helper:
    return jit(
        f"look_back_{op}({_ARGUMENTS})",
        "What is carried into a tile. The last one of a group, and `last`, leaves what is carried into the next group.",
        _LEADS,
        "inner = total",
        "if leads:",
        f"    inner = lead_{op}(words, tile, total, neutral, GROUPS, FAR, G)",
        "group = tile // G",
        "carry = received(words + group, total, FAR)  # mostly the last to come, and one word to ask for",
        "if ~leads:",
        "    lane = tl.arange(0, G)",
        "    tiles = words + 2 * GROUPS + 1 + group * G + lane",
        f"    inner = gathered_{op}(tiles, lane < tile % G, neutral, total, FAR)",
        f"return combine_{op}(carry, inner)",
        needs=("received", f"gathered_{op}", f"lead_{op}"),
    )


LOOK_BACK: dict[str, Helper] = {
    "publish": jit(
        "publish(place, value, FAR: tl.constexpr)",
        "Leaves a value for other programs; of 64 bits the second word is FAR words away.",
        "if FAR:",
        "    bits = value.to(tl.int64, bitcast=True)",
        '    tl.atomic_xchg(place, (bits & 0xFFFFFFFF) | (1 << 32), sem="relaxed")',
        '    tl.atomic_xchg(place + FAR, ((bits >> 32) & 0xFFFFFFFF) | (1 << 32), sem="relaxed")',
        "else:",
        "    bits = value.to(tl.int32, bitcast=True).to(tl.int64)",
        '    tl.atomic_xchg(place, (bits & 0xFFFFFFFF) | (1 << 32), sem="relaxed")',
    ),
    "unpacked": jit(
        "unpacked(low, high, like, FAR: tl.constexpr)",
        "The value in one word, or in two.",
        "if FAR:",
        "    return ((low & 0xFFFFFFFF) | (high << 32)).to(like.dtype, bitcast=True)",
        "else:",
        "    return low.to(tl.int32).to(like.dtype, bitcast=True)",
    ),
    "awaited": jit(
        "awaited(place, mask)",
        "Words, when all of them are there.",
        'words = tl.atomic_or(place, 0, mask=mask, sem="relaxed")',
        "while tl.reduce(tl.where(mask, (words >> 32).to(tl.int32), 1), 0, combine_and) == 0:",
        '    words = tl.atomic_or(place, 0, mask=mask, sem="relaxed")',
        "return words",
        needs=("combine_and",),
    ),
    "awaited_one": jit(
        "awaited_one(place)",
        "A word, when it is there.",
        'word = tl.atomic_or(place, 0, sem="relaxed")',
        "while word == 0:",
        '    word = tl.atomic_or(place, 0, sem="relaxed")',
        "return word",
    ),
    "received": jit(
        "received(place, like, FAR: tl.constexpr)",
        "The value of a place, when it is there.",
        "low = awaited_one(place)",
        "high = low",
        "if FAR:",
        "    high = awaited_one(place + FAR)",
        "return unpacked(low, high, like, FAR)",
        needs=("awaited_one", "unpacked"),
    ),
    **{f"gathered_{op}": _gathered(op) for op in _OPS},
    **{f"lead_{op}": _lead(op) for op in _OPS},
    **{f"hand_on_{op}": _hand_on(op) for op in _OPS},
    **{f"look_back_{op}": _look_back(op) for op in _OPS},
}
