"""Files of the artifact cache."""

from __future__ import annotations

import stat

import pytest

from lowering.runtime.cache import Artifact, ArtifactCache, decode, encode

ARTIFACT = Artifact(b"\x7fELF code", {"cost": 3, "lanes": 16})


def test_an_artifact_survives_encoding():
    assert decode(encode(ARTIFACT)) == ARTIFACT
    assert decode(encode(Artifact(b"", {}))) == Artifact(b"", {})


def test_every_damage_is_noticed():
    data = encode(ARTIFACT)
    for k in range(len(data)):
        assert decode(data[:k]) is None, f"cut to {k} bytes"
        assert decode(data[:k] + bytes([data[k] ^ 0x10]) + data[k + 1 :]) is None, f"byte {k} changed"
    assert decode(data + b"x") is None


def test_save_load_size_clear(tmp_path):
    cache = ArtifactCache(tmp_path / "deep" / "folder")
    assert (cache.load("k"), cache.size(), cache.clear()) == (None, (0, 0), 0)
    cache.save("k", ARTIFACT)
    cache.save("k", ARTIFACT)
    assert cache.load("k") == ARTIFACT
    assert cache.size() == (1, len(encode(ARTIFACT)))
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert [p.name for p in cache.folder.iterdir()] == ["k.qdo"]
    (cache.folder / "mine.txt").write_text("stays")
    assert cache.clear() == 1
    assert [p.name for p in cache.folder.iterdir()] == ["mine.txt"]


def test_a_damaged_file_is_dropped(tmp_path):
    cache = ArtifactCache(tmp_path)
    cache.save("k", ARTIFACT)
    (tmp_path / "k.qdo").write_bytes(encode(ARTIFACT)[:-1])
    assert cache.load("k") is None
    assert cache.size() == (0, 0)


def test_a_folder_that_cannot_be_made_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    cache = ArtifactCache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning) as caught:
        cache.save("k", ARTIFACT)
    assert str(caught[0].message) == (
        f"qdtrace: compiled code is not kept: cannot write {cache.folder} (Not a directory); "
        "set QD_OFFLINE_CACHE_DIR to a folder that can be written, or QD_OFFLINE_CACHE=0"
    )
    assert cache.load("k") is None
    assert cache.size() == (0, 0)
