"""The artifact cache: object code on disk, one file a task and one a handler, named by content.

A file is written under a temporary name and renamed, so processes never see half of one, and two that make the same
file write the same thing. Every file carries a checksum: what a crash or a full disk left behind is dropped and made
anew. A folder that cannot be written costs a warning and the cache, nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAGIC = b"qdtrace\x01"
_HEADER = struct.Struct("<8s32sI")
_SUFFIX = ".qdo"


@dataclass(frozen=True)
class Artifact:
    """Object code and facts about it (plain JSON values)."""

    code: bytes
    facts: Mapping[str, object]


def encode(artifact: Artifact) -> bytes:
    """The content of a cache file."""
    facts = json.dumps(dict(artifact.facts), sort_keys=True).encode()
    body = facts + artifact.code
    digest = hashlib.sha256(struct.pack("<I", len(facts)) + body).digest()
    return _HEADER.pack(_MAGIC, digest, len(facts)) + body


def decode(data: bytes) -> Artifact | None:
    """The artifact in a cache file; None when it is damaged or of another format."""
    if len(data) < _HEADER.size:
        return None
    magic, digest, length = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != _MAGIC or hashlib.sha256(struct.pack("<I", length) + body).digest() != digest:
        return None
    return Artifact(body[length:], json.loads(body[:length]))


@dataclass(frozen=True)
class ArtifactCache:
    """A folder of artifacts."""

    folder: Path

    def load(self, key: str) -> Artifact | None:
        """The artifact of that key; None when there is none or its file is damaged (it is removed then)."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        artifact = decode(data)
        if artifact is None:
            with contextlib.suppress(OSError):
                path.unlink()
        return artifact

    def save(self, key: str, artifact: Artifact) -> None:
        """Keeps an artifact. Warns when the folder cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".writing-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(encode(artifact))
                os.replace(temporary, self._path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as e:
            warnings.warn(
                f"qdtrace: compiled code is not kept: cannot write {self.folder} ({e.strerror}); "
                "set QD_OFFLINE_CACHE_DIR to a folder that can be written, or QD_OFFLINE_CACHE=0",
                RuntimeWarning,
                stacklevel=2,
            )

    def size(self) -> tuple[int, int]:
        """Number of files, and bytes in them."""
        sizes: list[int] = []
        for path in self._files():
            with contextlib.suppress(OSError):
                sizes.append(path.stat().st_size)
        return len(sizes), sum(sizes)

    def clear(self) -> int:
        """Removes all artifacts; gives how many. Other files in the folder stay."""
        count = 0
        for path in self._files():
            with contextlib.suppress(OSError):
                path.unlink()
                count += path.suffix == _SUFFIX
        return count

    def _path(self, key: str) -> Path:
        return self.folder / (key + _SUFFIX)

    def _files(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return [p for p in self.folder.iterdir() if p.suffix == _SUFFIX or p.name.startswith(".writing-")]
