"""The artifact cache: object code on disk, one file per task and one per handler, named by content.

A file is written under a temporary name and renamed, so processes never see half of one, and two that make the same
file write the same thing. Every file carries its own key and a checksum of all it holds: files that a crash or a full
disk left behind, or that were copied or renamed to another name, are removed and made anew.

Object code is executed, so only files of this user (or the administrator) are loaded: a folder that others may change
is not used at all, and in one where each may only remove their own files, as in /tmp, files of others are ignored. A
folder that cannot be used costs one warning and the cache, nothing else.

The time of a file is that of its last use. A folder that grows beyond its limit loses the files that were not used for
longest, whichever version of the compiler made them. A process that looks for a file while another removes it finds it
whole or not at all, and makes it anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import struct
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qdtrace.counters import count, hit, miss
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qdtrace.config import Options

_MAGIC = b"qdtrace\x02"
_HEADER = struct.Struct("<8s32sII")
_SUFFIX = ".qdo"
_WRITING = ".writing-"
"""Beginning of the names of temporary files."""
_ADMINISTRATOR = 0
_AS_IT_STANDS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""Flags that make `open` refuse links and return at once for a FIFO."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_log = logging.getLogger("qdtrace.cache")
USED_AGAIN = 3600
"""Seconds after which another use of a file is written down, and a temporary file was left behind by a crash."""
SHARE_BETWEEN_LOOKS = 16
"""Part of the limit that a process may write before it looks at the size of the folder again."""
VERSION_LENGTH = 8
"""Letters of the compiler's version at the end of a key."""
_written: dict[Path, int] = {}
"""Bytes that this process has written into each folder since it last looked at its size."""
_warned: set[str] = set()
"""Texts of the warnings that this process has given already."""


@frozen
class Artifact:
    """Object code and facts about it (plain JSON values)."""

    code: bytes
    facts: Mapping[str, object]


def encode(key: str, artifact: Artifact) -> bytes:
    """Returns the content of the cache file of a key."""
    name = key.encode()
    facts = json.dumps(dict(artifact.facts), sort_keys=True).encode()
    body = name + facts + artifact.code
    return _HEADER.pack(_MAGIC, _checksum(len(name), len(facts), body), len(name), len(facts)) + body


def decode(key: str, data: bytes) -> Artifact | None:
    """Returns the artifact in a cache file, or None if it is damaged, of another format, or of another key."""
    if len(data) < _HEADER.size:
        return None
    magic, checksum, name, facts = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != _MAGIC or body[:name] != key.encode() or _checksum(name, facts, body) != checksum:
        return None
    return Artifact(body[name + facts :], json.loads(body[name : name + facts]))


def _checksum(name: int, facts: int, body: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<II", name, facts) + body).digest()


class Kept(NamedTuple):
    """A file of the cache."""

    name: str
    nbytes: int
    used: float
    """Time of the last use, in seconds since 1970."""

    @property
    def version(self) -> str:
        """The beginning of the version of the compiler that made it, or nothing for other files."""
        return self.name.removesuffix(_SUFFIX).partition("_")[2]

    @property
    def is_artifact(self) -> bool:
        """Returns whether it is an artifact, and not a file that is being written or was left behind."""
        return self.name.endswith(_SUFFIX)


@frozen
class ArtifactCache:
    """A folder of artifacts."""

    folder: Path
    limit: int | None = None
    """Bytes that the files may take, or None if there is no limit."""

    def load(self, key: str, kind: str = "code") -> Artifact | None:
        """Returns the artifact of a key, or None if there is none; removes a file that is damaged or misnamed.

        `kind` names it in the counters.
        """
        path = self._path(key)
        try:
            if not self._is_trusted():
                miss(kind, "folder not used")
                return None
            data, used = _content(path)
        except (OSError, ValueError):  # ValueError: no name of a file
            miss(kind, "not there")
            return None
        artifact = decode(key, data)
        if artifact is None:
            miss(kind, "damaged")
            _log.debug("%s is not the artifact of its name: it is made anew", path)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        hit(kind)
        count(bytes_read=len(data))
        if used < time.time() - USED_AGAIN:
            with contextlib.suppress(OSError):
                os.utime(path)
        return artifact

    def save(self, key: str, artifact: Artifact) -> None:
        """Writes an artifact. Warns, once per process, if the folder cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._is_trusted():
                return
            data = encode(key, artifact)
            self._make_room(len(data))
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=_WRITING)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(temporary, self._path(key))
                count(bytes_written=len(data))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or str(e)
            _warn(f"cannot write {self.folder} ({why})", "to a folder that can be written")

    def _is_trusted(self) -> bool:
        """Returns whether no other user can place files in the folder. Raises OSError if there is no such folder."""
        status = self.folder.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError
        if not hasattr(os, "geteuid"):  # no owners and modes of this kind
            return True
        if status.st_uid not in (os.geteuid(), _ADMINISTRATOR):
            _warn(f"{self.folder} belongs to another user", "to a folder of your own")
            return False
        if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
            what = f"others may write {self.folder} (mode {stat.S_IMODE(status.st_mode):o})"
            _warn(what, "to a folder of your own, `chmod go-w` this one")
            return False
        return True

    def size(self) -> tuple[int, int]:
        """Returns the number of files, and the bytes in them."""
        kept = self.files()
        return len(kept), sum(file.nbytes for file in kept)

    def clear(self) -> int:
        """Removes all artifacts and returns their number. Other files in the folder stay."""
        return self._remove(self.files())

    def prune(self, most: int | None, version: str = "") -> int:
        """Removes the artifacts of other versions than `version`, if it is given, then those that were not used for
        longest, until all take at most `most` bytes. Returns their number."""
        kept = self.files()
        others = [file for file in kept if version and file.is_artifact and file.version != version[:VERSION_LENGTH]]
        kept = [file for file in kept if file not in others]
        total = sum(file.nbytes for file in kept)
        unused = list[Kept]()
        for file in sorted(kept, key=lambda file: file.used):
            if most is None or total <= most:
                break
            if file.is_artifact or file.used < time.time() - USED_AGAIN:
                unused.append(file)
                total -= file.nbytes
        return self._remove([*others, *unused])

    def _make_room(self, nbytes: int) -> None:
        """Removes artifacts if the folder may be full once `nbytes` more are written."""
        if self.limit is None:
            return
        share = self.limit // SHARE_BETWEEN_LOOKS
        written = _written.get(self.folder)
        if written is None or written + nbytes > share:
            self.prune(self.limit - share - nbytes)
            written = 0
        _written[self.folder] = written + nbytes

    def files(self) -> list[Kept]:
        """Returns all files of the cache."""
        kept: list[Kept] = []
        # os.scandir, not pathlib: the folder may hold ten thousands of files, and a process that writes looks at all
        with contextlib.suppress(OSError, ValueError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX) or entry.name.startswith(_WRITING):
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        kept.append(Kept(entry.name, status.st_size, status.st_mtime))
        return kept

    def _path(self, key: str) -> Path:
        return self.folder / (key + _SUFFIX)

    def _remove(self, files: Iterable[Kept]) -> int:
        """Removes files and returns the number of artifacts among those that were there."""
        count = 0
        for file in files:
            with contextlib.suppress(OSError):
                (self.folder / file.name).unlink()
                count += file.is_artifact
        return count


def artifact_cache(options: Options) -> ArtifactCache | None:
    """Returns the cache that the options ask for, or None; warns once if the home directory is unknown."""
    if not options.offline_cache:
        return None
    try:
        limit = options.offline_cache_limit
        return ArtifactCache(Path(options.offline_cache_dir).expanduser(), limit and limit << 20)
    except RuntimeError:  # `~` of a user that the system does not know, as in many containers
        _warn(f"no home directory is known for {options.offline_cache_dir}", "to a folder that can be written")
        return None


def _warn(what: str, instead: str) -> None:
    if what in _warned:
        return
    _warned.add(what)
    warnings.warn(
        f"qdtrace: compiled code is not kept: {what}; set QD_OFFLINE_CACHE_DIR {instead}, or QD_OFFLINE_CACHE=0",
        RuntimeWarning,
        stacklevel=3,
    )


def _content(path: Path) -> tuple[bytes, float]:
    """Returns the content of a file that only this user or the administrator can have written, else nothing, and the
    time of its last use.

    Opening it neither blocks nor follows a link, whatever has the name of an artifact.
    """
    handle = os.open(path, os.O_RDONLY | _AS_IT_STANDS)
    try:
        status = os.fstat(handle)
        if not _is_own(status):
            return b"", status.st_mtime
        with open(handle, "rb", closefd=False) as file:
            return file.read(), status.st_mtime
    finally:
        os.close(handle)


def _is_own(status: os.stat_result) -> bool:
    """Returns whether only this user or the administrator can have written a file."""
    if not stat.S_ISREG(status.st_mode):
        return False
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid in (os.geteuid(), _ADMINISTRATOR) and not status.st_mode & _OTHERS_WRITE
