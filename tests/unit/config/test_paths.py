"""The folders of a user, locks on files, and errors when a file cannot be written."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

import pytest

from slurmkit.config.paths import (
    describe_write_error,
    filesystem_type,
    lock_file,
    mount_point,
    open_lock_file,
)

MOUNTS = """\
1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 0:50 / /home rw - autofs auto rw
3 2 0:51 / /home rw - nfs4 server:/home rw
4 1 0:52 / /data/my\\040disk rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left"), "No space left; make room there"),
        (OSError(errno.EDQUOT, "Quota exceeded"), "Quota exceeded; make room there"),
        (OSError("Failure"), "Failure; make room there, if the disk or your quota is full"),
        (OSError(errno.EACCES, "Permission denied"), "Permission denied"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
    ],
)
def test_room_is_asked_for_only_where_it_lacks(error: OSError, says: str) -> None:
    assert describe_write_error(error) == says


@pytest.mark.parametrize(
    ("path", "point", "kind"),
    [
        ("/home/alice/x", "/home", "nfs4"),
        ("/homes/x", "/", "ext4"),
        ("/data/my disk/x", "/data/my disk", "xfs"),
    ],
)
def test_where_a_path_is_mounted(path: str, point: str, kind: str) -> None:
    assert mount_point(Path(path), MOUNTS) == Path(point)
    assert filesystem_type(Path(path), MOUNTS) == kind
    assert mount_point(Path(path), "") == Path("/")


def test_one_at_a_time_has_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with open_lock_file(path) as first, open_lock_file(path) as second:
        assert lock_file(first)
        assert not lock_file(second)
        begun = time.monotonic()
        assert not lock_file(second, patience=0.3)
        assert time.monotonic() - begun >= 0.3
        threading.Timer(0.3, first.close).start()
        assert lock_file(second, patience=60)
    with open_lock_file(path) as third:
        assert lock_file(third, patience=None)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_is_no_link_that_somebody_left(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        open_lock_file(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()
