"""Calls that carry their program, to be run in another process (docs/design/0026).

The attributes of such a call are texts: `content` is the program, packed; `digest` its hash, by which a process finds
a program that it has already; `version` and `machine` say where it may run.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import platform
import re
import sys
import zlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lowering.runtime.keys import digest
from qdtrace.config import PROCESS_KNOBS, options_from
from qdtrace.errors import BackendError, Loc, QdError
from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.runtime.layout import Layout
    from qdtrace.config import Options
    from qdtrace.ir.program import Program

TARGET = "qdtrace_program"
"""The foreign-function target of all these calls."""
_LOC = re.compile(r"(.*):(\d+)(?: in (.*))?")
_PACKAGE = sys.modules["qdtrace"]
"""The package, only for its version, as this package may not import it."""
_NAMES = ["content", "digest", "machine", "version"]
_REMAKE = "save it again with this version, where it was saved"


def layout_key(layout: Layout) -> str:
    """Returns a digest of what the caller and the handler of a program have to agree on."""
    types = [[str(ref_type(v)) for v in refs] for refs in (layout.program.params, layout.written)]
    return digest(types, sorted(layout.aliases.items()), layout.scratch_bytes)


def attributes_of(program: Program, options: Options, layout: Layout, machine: str, *, shared: bool) -> dict[str, str]:
    """Returns the attributes of a call. `machine` is empty if the graph is saved without machine code of XLA."""
    plain, located = print_program(program), print_program(program, locs=True).splitlines()
    locs = [line[len(bare) + 4 :] for bare, line in zip(plain.splitlines(), located, strict=True)]
    chosen = {name: value for name, value in asdict(options).items() if name not in PROCESS_KNOBS}
    parts = {"graph": plain, "locs": locs, "options": chosen, "layout": layout_key(layout), "shared": shared}
    content = base64.b64encode(zlib.compress(json.dumps(parts).encode())).decode()
    about = {"content": content, "version": _PACKAGE.__version__, "machine": machine}
    return about | {"digest": _digest(about)}


def _digest(about: Mapping[str, str]) -> str:
    return hashlib.sha256("\n".join(about[k] for k in ("content", "version", "machine")).encode()).hexdigest()


def read(attributes: Mapping[str, str], machine: str) -> tuple[Program, Options, str, bool]:
    """Returns a call's program, its options, the key of its layout, and whether several devices run it together.

    Raises BackendError for a program that is damaged, or of another version or machine.
    """
    if sorted(attributes) != _NAMES or _digest(attributes) != attributes["digest"]:
        raise BackendError("a saved program is damaged: its hash is another one", help="save it again")
    if attributes["version"] != _PACKAGE.__version__:
        raise BackendError(
            f"a saved program needs qdtrace {attributes['version']}, which saved it, got {_PACKAGE.__version__}",
            help=_REMAKE,
        )
    if attributes["machine"] not in ("", machine):
        raise BackendError(
            f"a saved executable needs a processor of the kind on which it was compiled, got {platform.machine()} with "
            "other instructions",
            help="compile it here, or save the function by jax.export, which runs on any processor",
        )
    try:
        parts: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(attributes["content"])))
        locs = {number: loc for number, text in enumerate(parts["locs"], 1) if (loc := _loc(text))}
        program = parse_program(parts["graph"], locs=locs)
        options = options_from(parts["options"])
    except (QdError, KeyError, ValueError, zlib.error, binascii.Error) as error:
        raise BackendError(f"a saved program cannot be read: {error}", help=_REMAKE) from error
    return program, options, parts["layout"], parts["shared"]


def _loc(text: str) -> Loc | None:
    found = _LOC.fullmatch(text)
    return Loc(found[1], int(found[2]), found[3] or "") if found else None
