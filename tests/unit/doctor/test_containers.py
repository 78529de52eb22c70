"""`slurmkit doctor --containers`: pyxis and enroot of this machine, as their files say."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from image_lab import stand_in

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.doctor import containers
from slurmkit.doctor.case import Diagnosis
from slurmkit.doctor.checks import CHECKS, run_checks
from slurmkit.state import container_site
from slurmkit.state.container_site import (
    PyxisSettings,
    read_enroot_settings,
    read_pyxis_settings,
)
from slurmkit.testing import FakeSlurm

_PING = "Slurmctld(primary) at ctld is UP\n"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose folders of enroot, the kernel and Slurm are below one folder."""
    for name in ("enroot/hooks.d", "sys/user", "sys/kernel", "slurm", "bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in containers._HOOKS:
        (tmp_path / "enroot/hooks.d" / name).touch(0o755)
    for module in (containers, container_site):
        monkeypatch.setattr(module, "ENROOT_FOLDER", tmp_path / "enroot")
    monkeypatch.setattr(containers, "_KERNEL", tmp_path / "sys")
    monkeypatch.setattr(containers, "filesystem_type", lambda _: "ext4")
    for name in [name for name in os.environ if name.startswith("ENROOT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    programs = {"enroot": "#!/bin/sh\n[ $1 = list ] || echo 4.1.2\n", "unshare": "#!/bin/sh\n"}
    stand_in(monkeypatch, tmp_path / "bin", **programs)
    return tmp_path


def plugstack(machine: Path, *lines: str) -> dict[str, str]:
    """Write plugstack.conf, and return the settings of Slurm that lead to it."""
    (machine / "slurm" / "plugstack.conf").write_text("\n".join(lines), "utf-8")
    return {"SLURM_CONF": str(machine / "slurm" / "slurm.conf")}


def slurm(machine: Path, queue: str = "") -> FakeSlurm:
    config = f"Configuration data as of x\nSLURM_CONF = {machine}/slurm/slurm.conf\n"
    answers: dict[str, Callable[..., str]] = {
        "scontrol": lambda argv, _: _PING if "ping" in argv else config,
        "squeue": lambda *_: queue,
    }
    return FakeSlurm(answers)


def look(machine: Path, name: str, queue: str = "") -> list[Diagnosis]:
    (check,) = [check for check in containers.CHECKS if check.name == name]
    return list(run_checks(slurm(machine, queue), [check]))


def test_the_options_of_pyxis_are_found_where_they_stand(machine: Path) -> None:
    """importer= and use_squashfuse= were not detected."""
    config = plugstack(machine, "# include nothing.conf", "include plugstack.conf.d/*.conf")
    assert read_pyxis_settings(config) is None
    folder = machine / "slurm" / "plugstack.conf.d"
    folder.mkdir()
    (folder / "a.conf").write_text("optional /usr/lib/slurm/other.so importer=/no\n", "utf-8")
    line = "required /usr/lib/slurm/spank_pyxis.so importer=/opt/i.sh use_squashfuse=1"
    (folder / "b.conf").write_text(f"{line} runtime_path=/run/x # container_scope=job\n", "utf-8")
    assert read_pyxis_settings(config) == PyxisSettings(
        runtime_path="/run/x", importer="/opt/i.sh", use_squashfuse=True
    )
    named = {"PlugStackConfig": str(folder / "b.conf"), "SLURM_CONF": "/nowhere/slurm.conf"}
    assert read_pyxis_settings(named) == read_pyxis_settings(config)
    assert read_pyxis_settings({"PlugStackConfig": "(null)", "SLURM_CONF": "/x/slurm.conf"}) is None
    plugstack(machine, "include plugstack.conf")
    assert read_pyxis_settings(config) is None


def test_the_settings_of_enroot_are_read_as_enroot_reads_them(machine: Path) -> None:
    """ENROOT_* paths were never looked at."""
    (machine / "enroot" / "enroot.conf").write_text(
        "#ENROOT_TEMP_PATH /no\nENROOT_DATA_PATH /data/$(id -u)/${XDG_CACHE_HOME}\n", "utf-8"
    )
    drop_ins = machine / "enroot" / "enroot.conf.d"
    drop_ins.mkdir()
    (drop_ins / "x.conf").write_text("ENROOT_CACHE_PATH = $HOME/c\nENROOT_DATA_PATH /later\n")
    found = read_enroot_settings({"HOME": "/h", "ENROOT_TEMP_PATH": "/t"})
    assert found["ENROOT_DATA_PATH"] == f"/data/{os.getuid()}//h/.cache"
    assert found["ENROOT_CACHE_PATH"] == "/h/c"
    assert found["ENROOT_TEMP_PATH"] == "/t"
    assert found["ENROOT_RUNTIME_PATH"] == "/run/enroot"


def test_a_machine_in_order(machine: Path) -> None:
    plugstack(machine, f"required pyxis.so container_scope=job runtime_path={machine}")
    found = list(run_checks(slurm(machine), containers.CHECKS))
    room = shutil.disk_usage(machine).free
    bad = [each for each in found if each.severity != "ok"]
    assert not bad or (room < containers._IMPORT_ROOM and [b.check for b in bad] == ["pyxis"])
    assert not {check.name for check in CHECKS} & {check.name for check in containers.CHECKS}


@pytest.mark.parametrize(
    ("file", "bad"),
    [
        ("user/max_user_namespaces", "0"),
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ],
)
def test_user_namespaces(machine: Path, file: str, bad: str) -> None:
    """User namespaces are checked."""
    (machine / "sys" / file).write_text(f"{bad}\n", "utf-8")
    (found,) = look(machine, "user-namespaces")
    assert found.severity == "warning"
    assert found.message == f"{file.replace('/', '.')} is {bad}"
    (machine / "sys" / file).write_text("7\n", "utf-8")
    (machine / "bin" / "unshare").write_text("#!/bin/sh\necho no >&2; exit 1\n", "utf-8")
    (found,) = look(machine, "user-namespaces")
    assert found.message == "no user namespace can be made here: no"


@pytest.mark.parametrize(
    ("version", "severity"),
    [("3.0.1", "warning"), ("3.4.1", "note"), ("4.1.2", "ok"), ("git", "ok")],
)
def test_the_release_of_enroot(machine: Path, version: str, severity: str) -> None:
    """enroot's release is checked."""
    (machine / "bin" / "enroot").write_text(f"#!/bin/sh\necho {version}\n", "utf-8")
    (found,) = look(machine, "enroot")
    assert found.severity == severity


def test_hooks(machine: Path) -> None:
    """Without 50-slurm-pmi.sh each rank is alone."""
    (machine / "enroot/hooks.d/50-slurm-pmi.sh").unlink()
    (found,) = look(machine, "enroot-hooks")
    assert "50-slurm-pmi.sh is not in" in found.message
    shutil.rmtree(machine / "enroot")
    (found,) = look(machine, "enroot-hooks")
    assert found.severity == "unknown"


@pytest.mark.parametrize(
    ("settings", "kind", "says"),
    [
        ("", "nfs4", "which other machines share"),
        ("ENROOT_DATA_PATH /run/enroot/x", "ext4", "one is in the other"),
        ("ENROOT_TEMP_PATH /", "overlay", "on overlayfs"),
        ("ENROOT_TEMP_PATH /proc/sys", "ext4", "where you may not write"),
    ],
)
def test_folders(
    machine: Path, settings: str, kind: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENROOT_DATA_PATH and the others are checked."""
    monkeypatch.setattr(containers, "filesystem_type", lambda _: kind)
    real = os.access
    monkeypatch.setattr(os, "access", lambda p, m: str(p) != "/proc/sys" and real(p, m))
    (machine / "enroot" / "enroot.conf").write_text(settings, "utf-8")
    found = look(machine, "enroot-paths")
    assert says in " ".join(each.message for each in found)


def test_a_large_cache_of_layers_is_named(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """enroot only ever adds to its cache."""
    cache = machine / "layers of mine"
    monkeypatch.setenv("ENROOT_CACHE_PATH", str(cache))
    monkeypatch.setattr(containers, "_LARGE_CACHE", 1 << 20)
    assert look(machine, "enroot-cache")[0].severity == "ok"  # there is none yet
    cache.mkdir()
    for name, size in (("old", 700_000), ("new", 600_000)):
        (cache / name).write_bytes(b"x" * size)
    os.utime(cache / "old", (1, 1))
    (found,) = look(machine, "enroot-cache")
    assert found.message.startswith(f"enroot's cache of layers {cache} holds 1.2")
    command = found.fix.removeprefix("while nothing is imported: ")
    assert command.startswith("find ")
    subprocess.run(["sh", "-c", command], check=True)
    assert [each.name for each in cache.iterdir()] == ["new"]
    assert look(machine, "enroot-cache")[0].severity == "ok"


def test_what_of_pyxis_surprises_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """container_scope, importers, and room in /run/pyxis."""
    usage = shutil.disk_usage(machine)._replace(free=1 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    plugstack(machine, f"required pyxis.so runtime_path={machine}")
    scope, room = look(machine, "pyxis")
    assert scope.message.startswith("container_scope=global: containers with a name outlive")
    assert room.message == f"{machine} has 1 GiB free"
    plugstack(machine, "required pyxis.so container_scope=job importer=/i.sh use_squashfuse=true")
    importer, fuse = look(machine, "pyxis")
    assert importer.message.endswith("importer /i.sh, which is not executable here")
    assert fuse.message.startswith("use_squashfuse")
    plugstack(machine, "required other.so")
    (found,) = look(machine, "pyxis")
    assert found.message == "plugstack.conf here does not load pyxis"


def test_containers_of_ended_jobs_are_named(machine: Path) -> None:
    """Containers of failed starts stay on the nodes."""
    names = "pyxis_20.0 pyxis_21.3 pyxis_train slurmkit_20_1 pyxis_slurmkit_preflight_22_0 mine"
    (machine / "bin" / "enroot").write_text(f"#!/bin/sh\nprintf '%s\\n' {names}\n", "utf-8")
    (found,) = look(machine, "left-over-containers", queue="21\n")
    assert found.message == (
        "3 of your containers are left of jobs that ended: pyxis_20.0, slurmkit_20_1,"
        " pyxis_slurmkit_preflight_22_0"
    )
    assert found.fix.startswith("enroot remove --force pyxis_20.0 ")
    (found,) = look(machine, "left-over-containers", queue="20\n21\n22\n")
    assert found.severity == "ok"


def test_the_command_shows_these_checks_alone(capsys: pytest.CaptureFixture[str]) -> None:
    run_to_exit_code(cli, ["doctor", "--containers", "--all"])
    shown = capsys.readouterr().out
    assert "user-namespaces" in shown
    assert "terminal" not in shown
