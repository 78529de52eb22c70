"""One import for all who ask at once; what is killed, stopped or too large leaves nothing."""

from __future__ import annotations

import errno
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from image_lab import ENROOT, MKSQUASHFS, stand_in
from slurmkit_containers.cache import ImageCache, ImageOrigin
from slurmkit_containers.images import own_cache
from slurmkit_containers.importing import sources
from slurmkit_containers.importing.importer import ReimportMode, check_room, import_once, run_child
from slurmkit_containers.trust import ignore_progress
from waiting import PATIENCE, wait_until

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.errors import ImageError

NAME = "docker.io#ubuntu:24.04"
WORKER = "from slurmkit.cli.main import main; main()"
# 32 children of one process, so that Python is started and imported once.
CROWD = """
import os, sys
from slurmkit.cli.main import cli
from slurmkit.cli.main import run_to_exit_code
import slurmkit_containers.cli, slurmkit_containers.importing.sources
children = []
for _ in range(32):
    if not (child := os.fork()):
        code = run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"])
        os._exit(code or sys.stdout.flush() or 0)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.fixture(autouse=True)
def enroot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A stand-in for enroot, and the file in which it counts."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # so that no registry answers
    stand_in(monkeypatch, tmp_path / "bin", enroot=ENROOT)
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    return tmp_path / "count"


def started(count: Path, command: str = "ubuntu:24.04") -> subprocess.Popen[bytes]:
    """An import in a process of its own that has begun to write."""
    argv = [sys.executable, "-c", WORKER, "image", "import", command]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = own_cache().folder

    def is_writing() -> bool:
        assert child.poll() is None
        return bool(list(folder.glob("import-*/image.sqsh")))

    wait_until(is_writing)
    return child


def visible() -> list[str]:
    """What somebody who looks for images finds."""
    return [path.name for path in own_cache().folder.glob("*.sqsh")]


def test_32_at_once_import_once(enroot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOW", "1")
    done = subprocess.run(
        [sys.executable, "-c", CROWD], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert len(enroot.read_text("utf-8").splitlines()) == 1
    paths = done.stdout.splitlines()
    assert len(paths) == 32
    assert len(set(paths)) == 1
    assert Path(paths[0]).name in visible()
    assert done.stderr.count("imported now") == 1


def test_a_killed_import_leaves_nothing_that_is_used_and_the_next_one_cleans_up(
    enroot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW", "2")
    child = started(enroot)
    child.kill()
    child.wait()
    folder = own_cache().folder
    assert visible() == []
    assert list(folder.glob("import-*"))
    monkeypatch.setenv("SLOW", "0")
    assert run_to_exit_code(cli, ["image", "import", "debian:13"]) == 0  # another image
    assert not list(folder.glob("import-*"))
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 0
    assert len(visible()) == 2


def test_an_import_that_was_cut_off_begins_anew_and_says_so(
    enroot: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLOW", "2")
    child = started(enroot)
    child.kill()
    child.wait()
    monkeypatch.setenv("SLOW", "0")
    for _ in range(2):
        assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 0
    said = capsys.readouterr().err
    words = "an earlier import of docker.io#ubuntu:24.04 was interrupted: starting again"
    assert said.count(words) == 1


def test_what_a_killed_import_started_and_lives_on_spoils_nothing(
    enroot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW", "1")
    child = started(enroot)
    child.kill()
    child.wait()
    monkeypatch.setenv("SLOW", "2")  # the other one writes its file while this one works
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 0
    assert run_to_exit_code(cli, ["image", "inspect", "--full", "ubuntu:24.04"]) == 0
    first, second = (line.split()[-2] for line in enroot.read_text("utf-8").splitlines())
    assert first != second


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_stopped_ends_what_it_started_and_removes_what_it_wrote(
    enroot: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("SLOW", "300")
    child = started(enroot)
    child.send_signal(number)
    assert child.wait(PATIENCE) == 130  # before the download of 300 s
    assert not list(own_cache().folder.glob("import-*"))
    assert visible() == []


def test_a_terminal_shows_how_far_it_is_and_a_pipe_gets_the_path_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    talks = ENROOT.replace("sleep", "echo 'fetching \x1b[2J layers' >&2; sleep")
    stand_in(monkeypatch, tmp_path / "bin", enroot=talks)
    monkeypatch.setenv("SLOW", "1")
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-c", WORKER, "image", "import", "ubuntu:24.04"]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # which is how Linux says that nobody has it open any more
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    said, _ = child.communicate()
    assert said.splitlines() == [str(own_cache().folder / visible()[0])]
    assert rb"fetching \x1b[2J layers" in shown
    assert b"imported now" in shown


def test_a_live_import_is_not_cleaned_away(enroot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOW", "3")
    child = started(enroot)
    monkeypatch.setenv("SLOW", "0")
    assert run_to_exit_code(cli, ["image", "import", "debian:13"]) == 0
    assert run_to_exit_code(cli, ["image", "prune", "--size", "100G"]) == 0
    assert child.wait(PATIENCE) == 0
    assert len(visible()) == 2


def test_again_imports_anew_and_without_it_what_is_there_is_used(enroot: Path) -> None:
    for options in ([], [], ["--again"]):
        assert run_to_exit_code(cli, ["image", "import", *options, "ubuntu:24.04"]) == 0
    assert len(enroot.read_text("utf-8").splitlines()) == 2


def test_the_digest_is_asked_for_and_what_has_it_is_fetched(
    enroot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIGEST", f"sha256:{'a' * 64}")
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 0
    assert visible() == [f"sha256-{'a' * 64}.sqsh"]
    assert f"docker://ubuntu:sha256:{'a' * 64}" in enroot.read_text("utf-8")
    monkeypatch.setenv("DIGEST", "no digest at all")
    assert run_to_exit_code(cli, ["image", "import", "debian:13"]) == 0
    assert "docker://debian:13" in enroot.read_text("utf-8")


def test_a_mirror_is_asked_and_the_image_keeps_its_name(
    enroot: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[containers.mirrors]\n"docker.io" = "registry.site:5000/hub"\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 0
    assert "docker://registry.site:5000#hub/library/ubuntu:24.04" in enroot.read_text("utf-8")
    found = own_cache().find(NAME)
    assert found is not None
    assert found.entry.made.source == "registry.site:5000/hub/library/ubuntu:24.04"


def test_an_image_for_another_architecture_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warns = 'echo "[WARN] Image architecture doesn\'t match the requested one: s390x != amd64" >&2'
    more = "printf '%08192d\\n' 0"  # what follows is much
    stand_in(monkeypatch, tmp_path / "bin", enroot=f"{ENROOT}{warns}\n{more}\n")
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 1
    assert "is for another architecture than" in capsys.readouterr().err
    assert visible() == []


# enroot finds the user of a registry in the file, too.
@pytest.mark.parametrize("image", ["$oauthtoken@nvcr.io#nvidia/x:1", "nvcr.io/nvidia/x:1"])
@pytest.mark.parametrize(
    ("value", "runs"),
    [
        ("hunter2", False),
        ("$NGC_KEY", False),
        ("${NGC_KEY}", False),
        ("$(id >&2)", True),
        ("$x; touch /tmp/x", True),
        ("$`id`", True),
    ],
)
def test_a_command_for_a_password_is_run_only_if_nobody_else_wrote_it(
    value: str, runs: bool, image: str, enroot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command is allowed in a file that only its owner can write."""
    file = Path.home() / ".config" / "enroot" / ".credentials"
    file.parent.mkdir(parents=True)
    file.write_text(f"# mine\nmachine nvcr.io login $oauthtoken password {value}\n", "utf-8")
    file.chmod(0o606)
    code = run_to_exit_code(cli, ["image", "import", image])
    said = capsys.readouterr().err
    assert code == (1 if runs else 0)
    assert ("line 2: enroot would run the password as shell code" in said) is runs
    assert value not in said
    assert enroot.exists() is not runs
    file.chmod(0o600)
    assert run_to_exit_code(cli, ["image", "import", image]) == 0
    assert enroot.exists()


def test_what_enroot_says_when_it_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = "#!/bin/sh\necho '[ERROR] no such image: \x1b[2J' >&2; exit 3\n"
    stand_in(monkeypatch, tmp_path / "bin", enroot=fails)
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 1
    said = capsys.readouterr().err
    assert r"enroot failed with exit code 3: [ERROR] no such image: \x1b[2J" in said
    assert not list(own_cache().folder.glob("import-*"))


@pytest.mark.parametrize("image", ["dockerd://x:1", "me@nvcr.io#nvidia/x:1"])
def test_what_needs_enroot_says_so(
    image: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run_to_exit_code(cli, ["image", "import", image]) == 1
    assert "needs enroot, which is not on the PATH here" in capsys.readouterr().err


def test_without_enroot_and_registry_it_says_what_can_be_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, tmp_path / "squash", mksquashfs=MKSQUASHFS)
    monkeypatch.setenv("PATH", str(tmp_path / "squash"))
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 1
    assert "image import ./FILE.tar" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 1
    assert "install squashfs-tools" in capsys.readouterr().err


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    options = ["-o", "size=1m,mode=0700", "slurmkit-test", str(folder)]
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", *options], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_told_with_its_folder_and_leaves_nothing(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    writes = '#!/bin/bash\nexec dd if=/dev/zero "of=${@: -2:1}" bs=64k count=100 status=none\n'
    stand_in(monkeypatch, tmp_path / "bin", enroot=writes)
    argv = ["enroot", "import", "--output"]

    def make(file: Path, _: object) -> ImageOrigin:
        run_child([*argv, str(file), "docker://x"], file, ignore_progress)
        return ImageOrigin(source="x")

    cache = ImageCache(tiny / "images")
    with pytest.raises(ImageError, match=r"tiny/images is full \("):
        import_once(cache, NAME, make)
    assert not list(cache.folder.glob("import-*"))
    assert cache.entries() == []
    assert shutil.disk_usage(tiny).free > 1 << 19


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_or_quota_that_is_full_for_us_is_told_the_same(tmp_path: Path, number: int) -> None:
    def make(file: Path, _: object) -> ImageOrigin:
        file.write_bytes(bytes(1 << 20))
        raise OSError(number, os.strerror(number))

    cache = ImageCache(tmp_path / "images")
    with pytest.raises(ImageError, match=rf"images is full \({os.strerror(number)}\);"):
        import_once(cache, NAME, make)
    assert not list(cache.folder.glob("import-*"))


def test_what_can_never_fit_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"has no room: about 1024 PiB needed, .* free"):
        check_room(tmp_path, 1 << 60)


def test_a_file_that_was_changed_is_not_taken_for_imported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 0
    path = Path(capsys.readouterr().out.strip())
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 1
    assert "image import --again" in capsys.readouterr().err
    assert run_to_exit_code(cli, ["image", "import", "--again", "ubuntu:24.04"]) == 0
    assert run_to_exit_code(cli, ["image", "inspect", "--full", "ubuntu:24.04"]) == 0


@pytest.mark.parametrize(
    ("again", "begun", "made"),
    [("missing", 0, False), ("refresh", -60, True), ("refresh", 60, False), ("always", 60, True)],
)
def test_what_another_imported_meanwhile_is_used_only_if_it_began_since(
    again: ReimportMode, begun: float, made: bool, tmp_path: Path
) -> None:
    cache = ImageCache(tmp_path / "images")
    cache.make_folder()

    def make(file: Path, _: object) -> ImageOrigin:
        file.write_bytes(b"hsqs" + bytes(92))
        return ImageOrigin(source="x")

    make(cache.folder / "new", None)
    cache.keep(cache.folder / "new", NAME, ImageOrigin(source="x", begun=time.time() + begun))
    assert import_once(cache, NAME, make, again=again)[1] is made


def test_a_path_is_read_anew_though_another_import_of_its_name_began_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(sources, "import_once", lambda *_, again, **__: asked.append(again))
    (tmp_path / "etc").mkdir()
    for what in (str(tmp_path), "ubuntu"):
        sources.parse_import_source(what, "x").import_into(
            own_cache(), again=True, report=ignore_progress
        )
    assert asked == ["always", "refresh"]


def test_a_full_disk_elsewhere_is_not_told_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = "#!/bin/sh\necho 'tar: write: No space left on device' >&2; exit 2\n"
    stand_in(monkeypatch, tmp_path / "bin", enroot=fails)
    assert run_to_exit_code(cli, ["image", "import", "ubuntu:24.04"]) == 1
    said = capsys.readouterr().err
    assert "no room for enroot (no space left on device)" in said
    assert "ENROOT_TEMP_PATH, else TMPDIR or /tmp" in said
