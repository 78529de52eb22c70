"""Images that are kept: found by name, moved in whole, checked before use, pruned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from slurmkit_containers.cache import CachedImage, ImageCache, ImageOrigin, longest_unused
from slurmkit_containers.importing.importer import remove_leftovers
from slurmkit_containers.trust import open_trusted

from slurmkit.errors import ImageError

UBUNTU = "docker.io#ubuntu:24.04"
DIGEST = f"sha256:{'5' * 64}"


def squashfs(data: bytes = b"files") -> bytes:
    """The begin of a squashfs file as far as it is looked at, and something after it."""
    size = 96 + len(data)
    return b"hsqs" + bytes(36) + size.to_bytes(8, "little") + bytes(48) + data


@pytest.fixture
def cache(tmp_path: Path) -> ImageCache:
    made = ImageCache(tmp_path / "images")
    made.make_folder()
    return made


def keep(
    cache: ImageCache, name: str = UBUNTU, data: bytes = b"files", digest: str | None = None
) -> CachedImage:
    file = cache.folder / "new"
    file.write_bytes(squashfs(data))
    return cache.keep(file, name, ImageOrigin(source="here", digest=digest))


def test_what_is_kept_is_found_and_nothing_else_lies_there(cache: ImageCache) -> None:
    kept = keep(cache)
    found = cache.find(UBUNTU)
    assert found is not None
    assert found.entry == kept.entry
    cache.check(found)
    cache.check(found, full=True)
    names = {path.name for path in cache.folder.iterdir()}
    assert names == {"lock", f"{kept.entry.address}.sqsh", f"{kept.entry.address}.json"}
    assert cache.find("docker.io#ubuntu:22.04") is None


def test_it_is_addressed_by_its_digest_or_else_by_what_is_in_it(cache: ImageCache) -> None:
    assert keep(cache, digest=DIGEST).path.name == f"sha256-{'5' * 64}.sqsh"
    kept = keep(cache, "docker.io#other:1")
    assert kept.path.stem == f"sha256-{kept.entry.sha256}"


def test_a_name_moves_to_the_newer_image_and_one_image_has_many_names(cache: ImageCache) -> None:
    old, new = keep(cache, data=b"old"), keep(cache, data=b"new")
    found = cache.find(UBUNTU)
    assert found is not None
    assert found.path == new.path
    assert old.path.exists()  # a job may run from it
    keep(cache, "docker.io#mine:1", data=b"new")
    again = cache.find(UBUNTU)
    assert again is not None
    assert set(again.entry.references) == {UBUNTU, "docker.io#mine:1"}


@pytest.mark.parametrize("data", [b"", b"hsqs", b"#!/bin/sh\n" + bytes(100), squashfs()[:-1]])
def test_what_is_no_whole_squashfs_file_is_not_kept(cache: ImageCache, data: bytes) -> None:
    file = cache.folder / "new"
    file.write_bytes(data)
    with pytest.raises(ImageError, match=r"not a squashfs file|cut off"):
        cache.keep(file, UBUNTU, ImageOrigin(source="here"))
    assert cache.entries() == []


def test_a_file_of_the_same_size_and_time_with_other_bytes_is_refused(cache: ImageCache) -> None:
    kept = keep(cache)
    before = kept.path.stat()
    kept.path.write_bytes(squashfs(b"evil!"))
    os.utime(kept.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept.path.stat().st_size == before.st_size
    with pytest.raises(ImageError, match=r"has changed since its import.*image import --again"):
        cache.check(kept)


def test_a_file_that_was_touched_or_restored_is_hashed_and_passes_once_for_all(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep(cache)
    os.utime(kept.path)
    cache.check(kept)
    found = cache.find(UBUNTU)
    assert found is not None

    def no_hash(*_: object) -> str:
        raise AssertionError("hashed again")

    monkeypatch.setattr("slurmkit_containers.cache.sha256_of", no_hash)
    cache.check(found)


def test_a_cut_off_file_is_refused(cache: ImageCache) -> None:
    kept = keep(cache)
    os.truncate(kept.path, 50)
    with pytest.raises(ImageError, match="has changed since its import"):
        cache.check(kept)


def test_a_link_in_place_of_the_file_is_refused(cache: ImageCache, tmp_path: Path) -> None:
    kept = keep(cache)
    kept.path.rename(tmp_path / "x.sqsh")
    kept.path.symlink_to(tmp_path / "x.sqsh")
    with pytest.raises(ImageError, match="is a symbolic link"):
        cache.check(kept)


def test_a_pipe_in_place_of_the_file_is_refused_and_not_waited_for(cache: ImageCache) -> None:
    kept = keep(cache)
    kept.path.unlink()
    os.mkfifo(kept.path)
    with pytest.raises(ImageError, match="not a plain file"):
        cache.check(kept)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_refused(cache: ImageCache, mode: int) -> None:
    kept = keep(cache)
    kept.path.chmod(mode)
    with pytest.raises(ImageError, match=rf"written by others \(mode {mode:04o}\)"):
        cache.check(kept)


def test_a_foreign_file_is_refused(cache: ImageCache) -> None:
    kept = keep(cache)
    with pytest.raises(ImageError, match=f"belongs to user id {os.getuid()}"):
        open_trusted(kept.path, {os.getuid() + 1})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_or_record_of_another_user_is_not_used(cache: ImageCache) -> None:
    kept = keep(cache)
    os.chown(kept.path, 4711, 4711)
    with pytest.raises(ImageError, match=r"belongs to user id 4711, and is not used"):
        cache.check(kept)
    os.chown(kept.path.with_suffix(".json"), 4711, 4711)
    assert cache.find(UBUNTU) is None


def test_a_folder_that_others_can_write_is_refused(cache: ImageCache) -> None:
    keep(cache)
    cache.folder.chmod(0o777)
    with pytest.raises(ImageError, match="chmod go-w"):
        cache.entries()
    with pytest.raises(ImageError, match="chmod go-w"):
        cache.make_folder()


def test_a_folder_that_is_a_link_is_refused(cache: ImageCache, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(cache.folder)
    with pytest.raises(ImageError, match="is a link, or not a folder"):
        ImageCache(tmp_path / "link").entries()


def test_a_record_that_is_none_of_ours_is_left_out(cache: ImageCache) -> None:
    kept = keep(cache)
    (cache.folder / "sha256-1.json").write_text("{}", "utf-8")
    (cache.folder / "sha256-2.json").write_bytes(kept.path.with_suffix(".json").read_bytes())
    assert [each.entry.address for each in cache.entries()] == [kept.entry.address]


def test_the_longest_unused_go_first(cache: ImageCache) -> None:
    kept = [keep(cache, f"docker.io#i:{n}", data=bytes([n])) for n in range(4)]
    for at, each in enumerate(kept):
        os.utime(each.path.with_suffix(".json"), (at, at))
    cache.used(kept[0])  # now the last used
    size = kept[0].entry.size
    gone = [each.path for each in longest_unused(cache.entries(), 2 * size)]
    assert gone == [kept[2].path, kept[1].path]
    cache.remove(longest_unused(cache.entries(), 2 * size))
    assert {each.path for each in cache.entries()} == {kept[0].path, kept[3].path}
    assert not kept[1].path.exists()


def test_what_is_kept_can_be_read_by_all_and_written_by_its_owner(cache: ImageCache) -> None:
    assert keep(cache).path.stat().st_mode & 0o777 == 0o644


def test_a_record_without_its_file_and_a_file_without_its_record(cache: ImageCache) -> None:
    kept, other = keep(cache), keep(cache, "docker.io#other:1", data=b"other")
    kept.path.unlink()
    assert cache.find(UBUNTU) is None
    other.path.with_suffix(".json").unlink()
    cache.clean()
    assert not other.path.exists()
    with pytest.raises(ImageError, match="cannot be read: No such file"):
        cache.check(other)


def test_a_folder_that_is_below_a_file_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ImageError, match="cannot be read: Not a directory"):
        ImageCache(tmp_path / "file" / "images").entries()


def test_files_of_ones_own_in_the_folder_stay(cache: ImageCache) -> None:
    left = cache.folder / f"sha256-{'a' * 64}.sqsh"
    mine = [cache.folder / name for name in ("mine.sqsh", "sha256-x.sqsh", "import-mine-1")]
    for file in (left, *mine):
        file.touch()
    remove_leftovers(cache)
    assert not left.exists()
    assert all(file.exists() for file in mine)


def test_an_image_that_was_imported_anew_meanwhile_is_judged_by_its_new_record(
    cache: ImageCache,
) -> None:
    old = keep(cache, digest=DIGEST)
    keep(cache, data=b"packed otherwise", digest=DIGEST)
    cache.check(old)
    cache.check(old, full=True)


def test_times_are_not_noted_over_a_newer_record(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = keep(cache, digest=DIGEST)
    os.utime(old.path)

    def meanwhile(*_: object) -> str:
        monkeypatch.undo()
        keep(cache, data=b"packed otherwise", digest=DIGEST)
        return old.entry.sha256

    monkeypatch.setattr("slurmkit_containers.cache.sha256_of", meanwhile)
    cache.check(old)
    found = cache.find(UBUNTU)
    assert found is not None
    cache.check(found, full=True)
