"""Files that are not in the page cache, and on a store that answers late."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest

import cudriver as cu
import slowfs
from cudriver._core import _read_files
from cudriver.weights import source
from cudriver.weights.reading import RUN
from cudriver.weights.source import Source
from weightskit import entry, raw

SIZE = 9 << 20
DATA = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Its bytes begin at an odd place: a disk cannot read them directly."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw({"a": entry("U8", [SIZE], 0, SIZE)}, DATA.tobytes()))
    assert (path.stat().st_size - SIZE) % 512
    return path


def loaded(path: Path) -> None:
    assert (cu.load_safetensors(path)["a"].to_numpy() == DATA).all()


def test_what_is_far_and_not_cached_comes_in_long_reads(file: Path, tmp_path: Path) -> None:
    """Through the page cache it came in 72 requests of 128 KiB."""
    requests: list[int] = []
    with slowfs.shown(file, tmp_path / "far", requests) as path:
        if path is None:
            pytest.skip("no file system can be mounted")
        loaded(path)
    reads = sorted(requests)[1:]  # without the header's
    assert sum(reads) < SIZE + 4096
    assert len(reads) <= 2 * -(-SIZE // slowfs.LONGEST), reads


def test_what_is_far_and_cached_is_not_asked_for_again(file: Path, tmp_path: Path) -> None:
    requests: list[int] = []
    with slowfs.shown(file, tmp_path / "far", requests) as path:
        if path is None:
            pytest.skip("no file system can be mounted")
        path.read_bytes()
        loaded(path)
    assert sum(requests) < SIZE + (1 << 20)


def test_a_file_system_that_reads_no_such_place_directly_is_asked_otherwise(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "cached", lambda *range: False)
    monkeypatch.setattr(source, "is_far", lambda device: True)
    loaded(file)


def test_what_was_cut_while_it_is_read_directly_is_told_as_that(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "cached", lambda *range: False)
    monkeypatch.setattr(source, "is_far", lambda device: True)
    opened = Source(file)
    opened.choose(0, SIZE)
    os.truncate(file, SIZE // 2 + 1)
    with pytest.raises(ValueError, match=f"was truncated to {SIZE // 2 + 1} bytes"):
        opened.explain(1, SIZE - 1)
    opened.close()


@pytest.mark.parametrize(("kind", "far"), [
    ("nfs4", True), ("fuse.s3fs", True), ("cifs", True), ("fuseblk", False), ("ext4", False),
])  # fmt: skip
def test_a_file_system_is_far_by_its_name(
    monkeypatch: pytest.MonkeyPatch, kind: str, far: bool
) -> None:
    mounts = f"30 1 8:1 / / rw - xfs /dev/sda1 rw\n31 1 0:52 / /far rw shared:1 - {kind} a:/b rw\n"
    monkeypatch.setattr(source, "open", lambda *_, **__: io.StringIO(mounts), raising=False)
    assert source.is_far(os.makedev(0, 52)) == far
    assert not source.is_far(os.makedev(8, 1))


def test_no_file_system_of_this_machine_is_far(file: Path, tmp_path: Path) -> None:
    """An overlay or btrfs has no disk's number, and is local all the same."""
    assert not source.is_far(os.stat("/proc").st_dev)
    assert not source.is_far(os.makedev(0, 123456))
    requests: list[int] = []
    with slowfs.shown(file, tmp_path / "far", requests) as path:
        if path is not None:
            assert source.is_far(path.stat().st_dev)


def test_a_file_that_was_just_written_is_cached_and_one_that_was_dropped_is_not(
    file: Path,
) -> None:
    opened = Source(file)
    assert opened.cached(0, SIZE)
    os.fsync(opened.fd)
    os.posix_fadvise(opened.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if opened.cached(0, SIZE):
        pytest.skip("the file system keeps its files in memory")
    os.pread(opened.fd, SIZE, SIZE // 4)
    assert opened.cached(0, SIZE)
    opened.close()


@pytest.mark.parametrize("piece", [0, -1])
def test_a_read_has_a_byte_at_least(piece: int) -> None:
    with pytest.raises(TypeError, match="a piece and two int64"):
        _read_files(np.ones(1, RUN), 2, piece, np.zeros(2, np.int64), cu.Stream())


def test_what_the_system_does_not_tell_counts_as_cached(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may forbid mincore(): then nobody knows, and the reads stay as they were."""

    class Library:
        def __init__(self, name: object) -> None: ...

        @staticmethod
        def mincore(*arguments: object) -> int:
            return -1

    monkeypatch.setattr("ctypes.CDLL", Library)
    opened = Source(file)
    assert opened.cached(0, SIZE)
    opened.close()
