"""Pairs of tasks over equal bounds, and whether they may be joined, for `test_fuse_tasks`.

A body is written on one line, equations separated by `;`, with a `.` for each level of depth. The index `i` runs from 2
to 65; the flat buffers `a`, `b`, `c` have 256 elements, `w` is 256x2, `v` is 2x256, `loss` a scalar, `k` a list of
indices, `k2` and `k3` have zeros and ones.
"""

LOW, HIGH = 2, 66

INJECTIVE: dict[str, str] = {
    "i": "p: i32 = add i 0:i32",
    "i + 3": "p: i32 = add i 3:i32",
    "3 + i": "p: i32 = add 3:i32 i",
    "i - 2": "p: i32 = sub i 2:i32",
    "i + 1 + 1": "p1: i32 = add i 1:i32; p: i32 = add p1 1:i32",
    "3 * i": "p: i32 = mul i 3:i32",
    "-i + 70": "p1: i32 = neg i; p: i32 = add p1 70:i32",
    "70 - i": "p: i32 = sub 70:i32 i",
    "-2 * i + 132": "p1: i32 = mul i -2:i32; p: i32 = add p1 132:i32",
    "i << 1": "p: i32 = shift_left i 1:i32",
    "i << 1 + 1": "p1: i32 = shift_left i 1:i32; p: i32 = add p1 1:i32",
    "i ^ 5": "p: i32 = xor i 5:i32",
    "i ^ 128": "p: i32 = xor i 128:i32",
    "~i + 70": "p1: i32 = not i; p: i32 = add p1 70:i32",
    "i + i": "p: i32 = add i i",
    "u32": "p1: u32 = bitcast[dtype=u32] i; p2: u32 = add p1 1:u32; p: i32 = bitcast[dtype=i32] p2",
    "i64": "p1: i64 = convert[dtype=i64] i; p: i64 = add p1 1:i64",
    "i64 and back": "p1: i64 = convert[dtype=i64] i; p: i32 = convert[dtype=i32] p1",
    "i // 8 * 8 + i % 8": "p1: i32 = div i 8:i32; p2: i32 = rem i 8:i32; p3: i32 = mul p1 8:i32; p: i32 = add p3 p2",
    "2 * i // 2": "p1: i32 = mul i 2:i32; p: i32 = div p1 2:i32",
}
"""Index expressions of which two iterations never have the same value."""

SHARED: dict[str, str] = {
    "i // 2": "p: i32 = div i 2:i32",
    "i % 2": "p: i32 = rem i 2:i32",
    "min(i, 10)": "p: i32 = min i 10:i32",
    "max(i, 10)": "p: i32 = max i 10:i32",
    "9": "p1: i32 = sub i i; p: i32 = add p1 9:i32",
    "7": "p: i32 = add 7:i32 0:i32",
    "(i + 1) // 2": "p1: i32 = add i 1:i32; p: i32 = div p1 2:i32",
    "(i + 1) % 8": "p1: i32 = add i 1:i32; p: i32 = rem p1 8:i32",
    "i // 2 * 2": "p1: i32 = div i 2:i32; p: i32 = mul p1 2:i32",
    "i // 2 * 2 + i % 3": "p1: i32 = div i 2:i32; p2: i32 = mul p1 2:i32; p3: i32 = rem i 3:i32; p: i32 = add p2 p3",
    "i // 8 * 4 + i % 8": "p1: i32 = div i 8:i32; p2: i32 = rem i 8:i32; p3: i32 = mul p1 4:i32; p: i32 = add p3 p2",
    "i >> 1": "p: i32 = shift_right_arithmetic i 1:i32",
    "i & 62": "p: i32 = and i 62:i32",
    "i | 1": "p: i32 = or i 1:i32",
    "(i << 32) + 9": "p1: i32 = shift_left i 32:i32; p: i32 = add p1 9:i32",
    "0 * i + 9": "p1: i32 = mul i 0:i32; p: i32 = add p1 9:i32",
    "select": "p1: bool = lt i 9:i32; p: i32 = select p1 9:i32 i",
    "abs(i - 9)": "p1: i32 = sub i 9:i32; p: i32 = abs p1",
    "k[i]": "p: i32 = load k i",
    "k[i] + i": "p1: i32 = load k i; p: i32 = add p1 i",
    "i * i % 16": "p1: i32 = mul i i; p: i32 = rem p1 16:i32",
    "i8": "p1: i32 = mul i 8:i32; p2: u8 = convert[dtype=u8] p1; p: i32 = convert[dtype=i32] p2",
    "f32": "p1: f32 = convert[dtype=f32] i; p2: f32 = mul p1 0.5:f32; p: i32 = convert[dtype=i32] p2",
    "counted": "p1: u32 = bitcast[dtype=u32] i; p2: u32 = population_count p1; p: i32 = bitcast[dtype=i32] p2",
}
"""Index expressions that may have, or have, one value in two iterations."""

JOINED: dict[str, tuple[str, str]] = {
    # Rule 1: nothing shared is written.
    "nothing shared": ("x: f32 = load a i; store b x i", "y: f32 = load c i; store loss2 y i"),
    "both only read": ("x: f32 = load a i; store b x i", "y: f32 = load a 7:i32; store c y i"),
    "both read anywhere": ("q: i32 = load k i; x: f32 = load a q; store b x i", "y: f32 = load a 7:i32; store c y i"),
    # Rule 2: own data.
    "read after write": ("store b 1.0:f32 i", "y: f32 = load b i; store c y i"),
    "write after read": ("x: f32 = load b i; store c x i", "store b 1.0:f32 i"),
    "write after write": ("store b 1.0:f32 i", "store b 2.0:f32 i"),
    "accumulation of what was stored": ("store b 1.0:f32 i", "accum[op=add] b 2.0:f32 i"),
    "add, then max of its own": ("accum[op=add] b 1.0:f32 i", "accum[op=max] b 2.0:f32 i"),
    "add, then read of its own": ("accum[op=add] b 1.0:f32 i", "y: f32 = load b i; store c y i"),
    "atomics of its own": (
        "o: f32 = atomic[op=add] b 1.0:f32 i; store c o i", "q: f32 = atomic[op=exchange] b 2.0:f32 i; store a q i",
    ),
    "conditional, of its own": (
        "t: bool = lt i 9:i32; if t; .store b 1.0:f32 i",
        "y: f32 = load b i; u: bool = gt y 0.0:f32; if u; .store b y i",
    ),
    "components of one row": ("store w 1.0:f32 i 0:i32", "y: f32 = load w i 1:i32; store c y i"),
    "rows, any column": (
        "q: i32 = load k2 i; store w 1.0:f32 i q", "q: i32 = load k3 i; y: f32 = load w i q; store c y i",
    ),
    "columns of its own": ("store v 1.0:f32 0:i32 i", "y: f32 = load v 1:i32 i; store c y i"),
    "a split of the index over two axes": (
        "q: i32 = div i 2:i32; r: i32 = rem i 2:i32; store w 1.0:f32 q r",
        "q: i32 = div i 2:i32; r: i32 = rem i 2:i32; y: f32 = load w q r; store c y i",
    ),
    "a loop over the row": (
        "for j in 0:i32 : 2:i32 : 1:i32; .store w 1.0:f32 i j",
        "for j in 1:i32 : -1:i32 : -1:i32; .x: f32 = load w i j; .store a x i",
    ),
    "a loop over its part of a flat array": (
        "q: i32 = mul i 2:i32; for j in 0:i32 : 2:i32 : 1:i32; .p: i32 = add q j; .store b 1.0:f32 p",
        "q: i32 = mul i 2:i32; p: i32 = add q 1:i32; y: f32 = load b p; store c y i",
    ),
    # Rule 3: never the same element.
    "even and odd": (
        "p: i32 = mul i 2:i32; store b 1.0:f32 p",
        "p0: i32 = mul i 2:i32; p: i32 = add p0 1:i32; y: f32 = load b p; store c y i",
    ),
    "two of three": (
        "p: i32 = mul i 3:i32; store b 1.0:f32 p",
        "p0: i32 = mul i 3:i32; p: i32 = add p0 2:i32; y: f32 = load b p; store c y i",
    ),
    "intervals that do not meet": (
        "store b 1.0:f32 i", "p: i32 = add i 64:i32; y: f32 = load b p; store c y i",
    ),
    "opposite directions that do not meet": (
        "store b 1.0:f32 i", "p: i32 = sub 140:i32 i; y: f32 = load b p; store c y i",
    ),
    "a place above all": ("store b 1.0:f32 i", "y: f32 = load b 66:i32; store c y i"),
    "a place below all": ("store b 1.0:f32 i", "y: f32 = load b 1:i32; store c y i"),
    "rows that differ, any column": (
        "store v 1.0:f32 0:i32 i", "p: i32 = sub 70:i32 i; y: f32 = load v 1:i32 p; store c y i",
    ),
    # Rule 4: accumulations of one operation.
    "sums in one place": ("accum[op=add] loss 1.0:f32", "x: f32 = load a i; accum[op=add] loss x"),
    "sums at other places": (
        "p: i32 = div i 2:i32; accum[op=add] b 1.0:f32 p", "q: i32 = load k i; accum[op=add] b 2.0:f32 q",
    ),
    "largest of two": ("x: f32 = load a i; accum[op=max] loss x", "x: f32 = load c i; accum[op=max] loss x"),
}  # fmt: skip
"""Two bodies that may be joined."""

REFUSED: dict[str, tuple[str, str]] = {
    "the element before": ("store b 1.0:f32 i", "p: i32 = sub i 1:i32; y: f32 = load b p; store c y i"),
    "the element after": ("store b 1.0:f32 i", "p: i32 = add i 1:i32; y: f32 = load b p; store c y i"),
    "the element before, written later": (
        "p: i32 = sub i 1:i32; y: f32 = load b p; store c y i", "store b 1.0:f32 i",
    ),
    "its own and the one before": (
        "store b 1.0:f32 i",
        "x: f32 = load b i; p: i32 = sub i 1:i32; y: f32 = load b p; z: f32 = add x y; store c z i",
    ),
    "written by the one before": ("p: i32 = sub i 1:i32; store b 1.0:f32 p", "y: f32 = load b i; store c y i"),
    "overwritten by the one before": ("p: i32 = sub i 1:i32; store b 1.0:f32 p", "store b 2.0:f32 i"),
    "one hidden in a condition": (
        "store b 1.0:f32 i",
        "t: bool = eq i 9:i32; if t; .y: f32 = load b 20:i32; .store c y i",
    ),
    "one hidden in a branch not often taken": (
        "store b 1.0:f32 i",
        "t: bool = lt i 65:i32; if t; .store c 0.0:f32 i; else; .y: f32 = load b 4:i32; .store c y i",
    ),
    "one hidden in a loop": (
        "store b 1.0:f32 i", "for j in 5:i32 : 6:i32 : 1:i32; .y: f32 = load b j; .store c y i",
    ),
    "one hidden in the test of a loop": (
        "store b 1.0:f32 i",
        "r: i32 = while carry s = 0:i32; .y: f32 = load b 5:i32; .g: bool = gt y 4.0:f32; .test g; "
        ".n: i32 = add s 1:i32; .yield n; z: f32 = convert[dtype=f32] r; store c z i",
    ),
    "all of it": ("store b 1.0:f32 i", "for j in 0:i32 : 66:i32 : 1:i32; .y: f32 = load b j; .store c y i"),
    "a row of its own, then all rows": (
        "store w 1.0:f32 i 0:i32", "for j in 0:i32 : 66:i32 : 1:i32; .y: f32 = load w j 0:i32; .store c y i",
    ),
    "the transposed element": (
        "q: i32 = div i 2:i32; r: i32 = rem i 2:i32; store w 1.0:f32 q r",
        "q: i32 = rem i 64:i32; r: i32 = div i 64:i32; y: f32 = load w q r; store c y i",
    ),
    "the next row of a split": (
        "q: i32 = div i 2:i32; r: i32 = rem i 2:i32; store w 1.0:f32 q r",
        "q0: i32 = div i 2:i32; q: i32 = add q0 1:i32; r: i32 = rem i 2:i32; y: f32 = load w q r; store c y i",
    ),
    "splits by other widths": (
        "q: i32 = div i 2:i32; r: i32 = rem i 2:i32; store w 1.0:f32 q r",
        "q: i32 = div i 1:i32; r0: i32 = rem i 1:i32; y: f32 = load w q r0; store c y i",
    ),
    "the other column of the row before": (
        "store w 1.0:f32 i 0:i32", "p: i32 = sub i 1:i32; y: f32 = load w p 0:i32; store c y i",
    ),
    "the element before in one row": (
        "store v 1.0:f32 0:i32 i", "p: i32 = sub i 1:i32; y: f32 = load v 0:i32 p; store c y i",
    ),
    "rows that may be equal": (
        "store v 1.0:f32 0:i32 i", "q: i32 = load k2 i; p: i32 = sub i 1:i32; y: f32 = load v q p; store c y i",
    ),
    "other multiples": (
        "p: i32 = mul i 2:i32; store b 1.0:f32 p", "p: i32 = mul i 3:i32; y: f32 = load b p; store c y i",
    ),
    "a multiple and itself": ("p: i32 = mul i 2:i32; store b 1.0:f32 p", "y: f32 = load b i; store c y i"),
    "intervals that meet in one place": (
        "store b 1.0:f32 i", "p: i32 = add i 63:i32; y: f32 = load b p; store c y i",
    ),
    "opposite directions": ("store b 1.0:f32 i", "p: i32 = sub 67:i32 i; y: f32 = load b p; store c y i"),
    "the last place": ("store b 1.0:f32 i", "y: f32 = load b 65:i32; store c y i"),
    "the first place": ("store b 1.0:f32 i", "y: f32 = load b 2:i32; store c y i"),
    "overlapping windows": (
        "q: i32 = mul i 2:i32; for j in 0:i32 : 2:i32 : 1:i32; .p: i32 = add q j; .store b 1.0:f32 p",
        "q: i32 = mul i 2:i32; p: i32 = add q 2:i32; y: f32 = load b p; store c y i",
    ),
    "a distance that wraps": (  # 2147483647 + 2147483647 is -2
        "store b 1.0:f32 i",
        "p0: i32 = add i 2147483647:i32; p: i32 = add p0 2147483647:i32; y: f32 = load b p; store c y i",
    ),
    "a factor that wraps": (  # 65536 * 65537 is 65536
        "p: i32 = mul i 1:i32; store b 1.0:f32 p",
        "p0: i32 = mul i 65536:i32; p1: i32 = mul p0 65537:i32; p2: i32 = shift_right_logical p1 16:i32; "
        "p: i32 = sub p2 1:i32; y: f32 = load b p; store c y i",
    ),
    "the same loaded index": (
        "q: i32 = load k i; accum[op=add] b 1.0:f32 q", "q: i32 = load k i; y: f32 = load b q; store c y i",
    ),
    "indices loaded before and after a store": (
        "q: i32 = load k2 i; p: i32 = add q i; y: f32 = load b p; store c y i; store k2 1:i32 i",
        "q: i32 = load k2 i; p: i32 = add q i; accum[op=add] b 1.0:f32 p",
    ),
    "add and max": ("accum[op=add] loss 1.0:f32", "accum[op=max] loss 2.0:f32"),
    "add and min at shared places": (
        "p: i32 = div i 2:i32; accum[op=add] b 1.0:f32 p", "p: i32 = div i 2:i32; accum[op=min] b 2.0:f32 p",
    ),
    "sum, then read": ("accum[op=add] loss 1.0:f32", "y: f32 = load loss; store c y i"),
    "read, then sum": ("y: f32 = load loss; store c y i", "accum[op=add] loss 1.0:f32"),
    "sum, then the old values of an atomic": (
        "accum[op=add] loss 1.0:f32", "o: f32 = atomic[op=add] loss 0.0:f32; store c o i",
    ),
    "sum, then an atomic of another operation": (
        "accum[op=add] loss 1.0:f32", "o: f32 = atomic[op=max] loss 100.0:f32",
    ),
    "store in its own place, then sums anywhere": (
        "store b 1.0:f32 i", "p: i32 = div i 2:i32; accum[op=add] b 2.0:f32 p",
    ),
    "sums anywhere, then store in its own place": (
        "p: i32 = div i 2:i32; accum[op=add] b 2.0:f32 p", "store b 1.0:f32 i",
    ),
    "sums anywhere, of which one task also reads": (
        "p: i32 = div i 2:i32; accum[op=add] b 1.0:f32 p",
        "p0: i32 = add i 100:i32; y: f32 = load b p0; store c y i; y2: f32 = load b 4:i32; store a y2 i",
    ),
}  # fmt: skip
"""Two bodies that must stay two tasks."""


def body(line: str) -> str:
    """The lines of a body; a `.` in front is one level more."""
    out = []
    for part in line.split(";"):
        text = part.strip()
        depth = len(text) - len(text.lstrip("."))
        out.append("    " + "  " * depth + text.lstrip("."))
    return "\n".join(out)


REFS = (
    "a: ref[f32,256], b: ref[f32,256], c: ref[f32,256], w: ref[f32,256x2], v: ref[f32,2x256], loss: ref[f32], "
    "loss2: ref[f32,256], k: ref[i32,256], k2: ref[i32,256], k3: ref[i32,256]"
)


def task(line: str, bounds: str = f"{LOW}:i32 : {HIGH}:i32", name: str = "", hints: str = "") -> str:
    """A task of one body."""
    title = (f" @{name}" if name else "") + (f" {{{hints}}}" if hints else "")
    return f"  range_for i in {bounds}{title}\n{body(line)}\n"


def program(*tasks: str, refs: str = REFS, buffers: str = "") -> str:
    """Tasks over the usual references."""
    results = ", ".join(part.split(":")[0].strip() for part in refs.split(", "))
    return f"program p({refs})\n{buffers}{''.join(tasks)}  return {results}\n"
