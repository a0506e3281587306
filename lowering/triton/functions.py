"""Functions in Triton's language that kernels call; `helpers` reads this file as text, and nothing imports it.

The first ones are for cases that an operator of Triton leaves undefined. They take blocks and scalars of any dtype that
they make sense for. `tl.where` of a Python number may return a wider dtype, so results are converted back.

The last ones are single-pass prefix sums over tiles of a scan; of a function with OP in its name there is one for each
operation of a sum. A tile publishes its sum in a *word*: 32 bits and a mark, in one store, so that the order of stores
to different words does not matter; 64 bits are two words with a mark each. Words are zero when a launch begins. Tiles
form groups of G, groups form groups of G, and the last tile of a group computes the value carried into the next one:

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

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def divide(a, b):
    """Truncated quotient; by zero all bits are set; the smallest number by -1 is itself."""
    safe = tl.where((b == 0) | (b == -1), 1, b).to(b.dtype)
    quotient = tl.where(b == -1, 0 - a, a // safe)
    return tl.where(b == 0, -1, quotient).to(a.dtype)


@triton.jit
def divide_unsigned(a, b):
    """Quotient; by zero all bits are set."""
    quotient = a // tl.where(b == 0, 1, b).to(b.dtype)
    return tl.where(b == 0, ~(a ^ a), quotient)


@triton.jit
def remainder(a, b):
    """Remainder of the truncated quotient; by zero it is the dividend."""
    safe = tl.where((b == 0) | (b == -1), 1, b).to(b.dtype)
    return tl.where(b == 0, a, a % safe)


@triton.jit
def remainder_unsigned(a, b):
    """Remainder; by zero it is the dividend."""
    safe = tl.where(b == 0, 1, b).to(b.dtype)
    return tl.where(b == 0, a, a % safe)


@triton.jit
def shift_left(a, by, BITS: tl.constexpr):
    """Returns 0 for shifts by the width or more; `by` is unsigned."""
    moved = a << (by & (BITS - 1)).to(a.dtype)
    return tl.where(by < BITS, moved, a ^ a)


@triton.jit
def shift_right(a, by, BITS: tl.constexpr):
    """Shifts an unsigned number; returns 0 for shifts by the width or more."""
    moved = a >> (by & (BITS - 1))
    return tl.where(by < BITS, moved, a ^ a)


@triton.jit
def shift_sign(a, by, BITS: tl.constexpr):
    """Shifts a signed number; returns the sign for shifts by the width or more; `by` is unsigned."""
    return a >> tl.where(by < BITS, by, BITS - 1).to(a.dtype)


@triton.jit
def saturate(x, LOW: tl.constexpr, END: tl.constexpr, first, last):
    """Returns a float as an integer of first .. last, truncated; LOW is first, END is last + 1; NaN gives 0."""
    whole = tl.where((x >= LOW) & (x < END), x, 0.0).to(last.dtype)
    low = tl.where(x < LOW, first, whole)
    return tl.where(x >= END, last, low)


@triton.jit
def narrow(x):
    """Rounds f64 to f32, to odd: rounding that once more to a 16 bit float is right."""
    near = x.to(tl.float32)
    bits = near.to(tl.int32, bitcast=True)
    toward_zero = tl.where(tl.abs(near.to(tl.float64)) > tl.abs(x), bits - 1, bits)
    odd = (near.to(tl.float64) != x) & (x == x)
    return tl.where(odd, toward_zero | 1, bits).to(tl.float32, bitcast=True)


@triton.jit
def sign(x):
    """Returns -1, 1, or a zero or NaN itself."""
    size = tl.where(x > 0, 1.0, -1.0).to(x.dtype)
    return tl.where((x > 0) | (x < 0), size, x)


@triton.jit
def logistic(x):
    """Returns 1 / (1 + exp(-x)); the exponential is never above 1."""
    small = libdevice.exp(-1.0 * tl.abs(x))
    return tl.div_rn(tl.where(x >= 0, 1.0, small), 1.0 + small)


@triton.jit
def logistic_double(x):
    """Returns 1 / (1 + exp(-x)) in f64."""
    small = libdevice.exp(-1.0 * tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def population_count(x):
    """Counts the bits that are set in a u64: sums of 2, 4, 8 bits, then of all bytes."""
    x = x - ((x >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (x * 0x0101010101010101) >> 56


@triton.jit
def leading_zeros(x):
    """Counts the zeros in front of the first bit of a u64: all bits behind it are set, then those left are counted."""
    x = x | (x >> 1)
    x = x | (x >> 2)
    x = x | (x >> 4)
    x = x | (x >> 8)
    x = x | (x >> 16)
    x = x | (x >> 32)
    return population_count(~x)


@triton.jit
def report(failure, failed, NUMBER: tl.constexpr, value, BITS: tl.constexpr):
    """Leaves the number of a check and the value, or the nearest that there is room for, in the word of failures."""
    near = tl.minimum(tl.maximum(value.to(tl.int64), -(1 << (BITS - 1))), (1 << (BITS - 1)) - 1)
    word = (near & ((1 << BITS) - 1)) | (NUMBER << BITS)
    tl.store(failure + 0 * failed.to(tl.int32), word, mask=failed)


@triton.jit
def publish(place, value, FAR: tl.constexpr):
    """Leaves a value for other programs; of 64 bits the second word is FAR words away."""
    if FAR:
        bits = value.to(tl.int64, bitcast=True)
        tl.atomic_xchg(place, (bits & 0xFFFFFFFF) | (1 << 32), sem="relaxed")
        tl.atomic_xchg(place + FAR, ((bits >> 32) & 0xFFFFFFFF) | (1 << 32), sem="relaxed")
    else:
        bits = value.to(tl.int32, bitcast=True).to(tl.int64)
        tl.atomic_xchg(place, (bits & 0xFFFFFFFF) | (1 << 32), sem="relaxed")


@triton.jit
def unpacked(low, high, like, FAR: tl.constexpr):
    """Returns the value in one word, or in two."""
    if FAR:
        return ((low & 0xFFFFFFFF) | (high << 32)).to(like.dtype, bitcast=True)
    else:
        return low.to(tl.int32).to(like.dtype, bitcast=True)


@triton.jit
def awaited(place, mask):
    """Returns words, when all of them are there."""
    words = tl.atomic_or(place, 0, mask=mask, sem="relaxed")
    while tl.reduce(tl.where(mask, (words >> 32).to(tl.int32), 1), 0, combine_and) == 0:
        words = tl.atomic_or(place, 0, mask=mask, sem="relaxed")
    return words


@triton.jit
def awaited_one(place):
    """Returns a word, when it is there."""
    word = tl.atomic_or(place, 0, sem="relaxed")
    while word == 0:
        word = tl.atomic_or(place, 0, sem="relaxed")
    return word


@triton.jit
def received(place, like, FAR: tl.constexpr):
    """Returns the value of a place, when it is there."""
    low = awaited_one(place)
    high = low
    if FAR:
        high = awaited_one(place + FAR)
    return unpacked(low, high, like, FAR)


@triton.jit
def gathered_OP(place, mask, neutral, like, FAR: tl.constexpr):
    """Returns the values of several places, combined, when all of them are there."""
    low = awaited(place, mask)
    high = low
    if FAR:
        high = awaited(place + FAR, mask)
    values = tl.where(mask, unpacked(low, high, like, FAR), neutral).to(like.dtype)
    return tl.reduce(values, 0, combine_OP)


@triton.jit
def lead_OP(words, tile, total, neutral, GROUPS: tl.constexpr, FAR: tl.constexpr, G: tl.constexpr):
    """Leaves what is carried into the next group, as its last tile. Returns what tiles before it in the group add."""
    lane = tl.arange(0, G)
    group = tile // G
    tiles = words + 2 * GROUPS + 1 + group * G + lane
    inner = gathered_OP(tiles, lane < tile % G, neutral, total, FAR)
    whole = combine_OP(inner, total)
    publish(words + GROUPS + 1 + group, whole, FAR)
    outer = group // G * G
    groups = words + GROUPS + 1 + outer + lane
    middle = gathered_OP(groups, lane < group - outer, neutral, total, FAR)
    far = combine_OP(received(words + outer, total, FAR), middle)
    publish(words + group + 1, combine_OP(far, whole), FAR)
    return inner


@triton.jit
def hand_on_OP(words, tile, last, total, neutral, GROUPS: tl.constexpr, FAR: tl.constexpr, G: tl.constexpr):
    """The last tile of a group, and `last`, leaves what is carried into the next group; others wait for nothing."""
    leads = (tile % G == G - 1) | (tile == last)
    if leads:
        lead_OP(words, tile, total, neutral, GROUPS, FAR, G)


@triton.jit
def look_back_OP(words, tile, last, total, neutral, GROUPS: tl.constexpr, FAR: tl.constexpr, G: tl.constexpr):
    """Returns what is carried into a tile. The last one of a group, and `last`, leaves what the next group gets."""
    leads = (tile % G == G - 1) | (tile == last)
    inner = total
    if leads:
        inner = lead_OP(words, tile, total, neutral, GROUPS, FAR, G)
    group = tile // G
    carry = received(words + group, total, FAR)  # mostly the last to come, and one word to ask for
    if ~leads:
        lane = tl.arange(0, G)
        tiles = words + 2 * GROUPS + 1 + group * G + lane
        inner = gathered_OP(tiles, lane < tile % G, neutral, total, FAR)
    return combine_OP(carry, inner)
