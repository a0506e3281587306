"""How tiles of a scan hand on what they add, as Triton source: functions that the kernel of a scan calls.

A tile leaves its sum in a *word*: 32 bits and a mark, in one store, so that no order of stores to different words
matters; 64 bits are two words with a mark each. Words are zero when a launch begins. Tiles form groups of G, groups
form groups of G, and the last tile of a group finds what is carried into the next one:

    words[0 .. GROUPS]                    what is carried into each group, and behind the last one
    words[GROUPS + 1 .. 2 * GROUPS]       sums of groups
    words[2 * GROUPS + 1 ...]             sums of tiles

Which words are combined, and in which tree, is fixed; so is the result, whenever they come. A tile waits for tiles of
smaller numbers only. Numbers come from a counter, so those tiles are running or done, and no wait is for ever. Words
are read as they are written, by atomic operations, which no cache holds back; one warp of a program asks.

After D. Merrill and M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (2016), whose tiles combine
whatever is there already, in another order in each run.
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


def _look_back(op: str) -> Helper:
    return jit(
        f"look_back_{op}(words, tile, last, total, neutral, GROUPS: tl.constexpr, FAR: tl.constexpr, G: tl.constexpr)",
        "What is carried into a tile. The last one of a group, and `last`, leaves what is carried into the next group.",
        "lane = tl.arange(0, G)",
        "group = tile // G",
        "place = tile % G",
        "tiles = words + 2 * GROUPS + 1 + group * G + lane",
        "leads = (place == G - 1) | (tile == last)",
        "inner = total",
        "if leads:",
        f"    inner = gathered_{op}(tiles, lane < place, neutral, total, FAR)",
        f"    whole = combine_{op}(inner, total)",
        "    publish(words + GROUPS + 1 + group, whole, FAR)",
        "    outer = group // G * G",
        "    groups = words + GROUPS + 1 + outer + lane",
        f"    middle = gathered_{op}(groups, lane < group - outer, neutral, total, FAR)",
        f"    far = combine_{op}(received(words + outer, total, FAR), middle)",
        f"    publish(words + group + 1, combine_{op}(far, whole), FAR)",
        "carry = received(words + group, total, FAR)  # mostly the last to come, and one word to ask for",
        "if ~leads:",
        f"    inner = gathered_{op}(tiles, lane < place, neutral, total, FAR)",
        f"return combine_{op}(carry, inner)",
        needs=("publish", "received", f"gathered_{op}"),
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
    **{f"look_back_{op}": _look_back(op) for op in _OPS},
}
