"""Reads the chip and the descriptor of each kernel from a linked code object of an AMD GPU."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MACHINE = 224
"""ELF's number of AMD GPUs."""
CHIPS = {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx950": 0x4F, "gfx1100": 0x41}
"""In the flags of the file."""
VERSION_5 = 3
"""How the header says that a code object is of version 5."""
KERNARG_POINTER, PRIVATE_BUFFER = 1 << 3, 1 << 0
"""What a kernel finds in its first registers: the address of its arguments, the resource of its private memory."""
_SYMBOLS, _RELOCATIONS = (2, 11), (4, 9)


@dataclass(frozen=True)
class Kernel:
    """One kernel descriptor: the LLVM AMDGPU usage guide, "Kernel Descriptor"."""

    shared_bytes: int
    private_bytes: int
    argument_bytes: int
    user_registers: int
    """Of these kinds, as bits."""
    code: bytes


@dataclass(frozen=True)
class CodeObject:
    """A file."""

    chip: int
    version: int
    kernels: dict[str, Kernel]
    relocations: int


def read(file: bytes) -> CodeObject:
    """Reads a linked code object."""
    assert file[:6] == b"\x7fELF\x02\x01", "no ELF file of 64 bits, low byte first"
    assert struct.unpack_from("<HH", file, 16) == (3, MACHINE), "no shared object for AMD GPUs"
    (flags,) = struct.unpack_from("<I", file, 48)
    sections = list(_sections(file))
    symbols = {name: where for s in sections if s[1] in _SYMBOLS for name, where in _symbols(file, s, sections)}
    kernels = {
        name.removesuffix(".kd"): _kernel(file, place, *symbols[name.removesuffix(".kd")])
        for name, (place, _) in symbols.items()
        if name.endswith(".kd")
    }
    relocations = sum(s[5] for s in sections if s[1] in _RELOCATIONS)
    return CodeObject(flags & 0xFF, file[8], kernels, relocations)


def _sections(file: bytes) -> Iterator[tuple[int, ...]]:
    (table,) = struct.unpack_from("<Q", file, 40)
    size, count = struct.unpack_from("<HH", file, 58)
    for k in range(count):
        yield struct.unpack_from("<IIQQQQIIQQ", file, table + k * size)


def _symbols(
    file: bytes, section: tuple[int, ...], sections: list[tuple[int, ...]]
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names with the place in the file and the size of what they name."""
    names = sections[section[6]][4]
    for k in range(section[5] // 24):
        name, _, _, inside, address, size = struct.unpack_from("<IBBHQQ", file, section[4] + 24 * k)
        if 0 < inside < len(sections):
            home = sections[inside]
            text = file[names + name : file.index(b"\0", names + name)].decode()
            yield text, (address - home[3] + home[4], size)


def _kernel(file: bytes, place: int, code: int, size: int) -> Kernel:
    shared, private, arguments = struct.unpack_from("<III", file, place)
    (registers,) = struct.unpack_from("<H", file, place + 56)
    return Kernel(shared, private, arguments, registers & 0x7F, file[code : code + size])
