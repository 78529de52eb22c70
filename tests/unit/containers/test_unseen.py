"""What a plan says of paths that a container does not see, with the options that mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from container_lab import cluster
from recorded_lab import capabilities, standing

from slurmkit.planning.planner import Plan, plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.spec.containers import Container, ContainerPaths, Mount
from slurmkit.spec.findings import Finding
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script in it, and one with data beside it; the former is the current one."""
    made = tmp_path / "work"
    made.mkdir()
    (made / "train.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "set.h5").touch()
    monkeypatch.chdir(made)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return made


def planned(*command: str, spec: dict[str, Any] | None = None, **fields: Any) -> Plan:
    known = msgspec.structs.replace(
        capabilities(), container_options=cluster("0.24").container_options
    )
    container = Container(**({"image": "ubuntu"} | fields))
    return plan_offline(
        JobSpec(command=command, container=container, **(spec or {})), SiteState(known, standing())
    )


def told(*command: str, spec: dict[str, Any] | None = None, **fields: Any) -> list[Finding]:
    made = planned(*command, spec=spec, **fields)
    assert not made.errors
    return [f for f in (*made.warnings, *made.notes) if f.code == "container-unseen"]


def test_a_script_beside_which_one_stands(work: Path) -> None:
    (found,) = told("python", "train.py", "--epochs", "3")
    assert found.severity == "warning"
    assert found.message == f"the container does not see {work}, where train.py is"
    assert found.fix == (("container-mounts", str(work)), ("container-workdir", str(work)))
    fields = {"mounts": (str(work),), "workdir": str(work)}  # as it says
    assert not told("python", "train.py", "--epochs", "3", **fields)


def test_it_is_looked_for_where_the_container_starts(work: Path) -> None:
    (found,) = told("python", "train.py", mounts=(f"{work}:/work",))
    assert "its command starts in the image's own folder, not in /work" in found.message
    assert found.fix == (("container-workdir", "/work"),)
    assert not told("python", "train.py", mounts=(f"{work}:/work",), workdir="/work")
    (found,) = told("python", "train.py", workdir=str(work))
    assert found.fix == (("container-mounts", str(work)),)


def test_paths_elsewhere_are_named_with_their_folders(work: Path) -> None:
    data = work.parent / "data"
    (found,) = told("python", "-c", "1", f"--data={data}/set.h5", str(data), "/usr/bin/env")
    assert found.message == f"the container does not see {data}, where {data}/set.h5 is"
    assert found.fix == (("container-mounts", str(data)),)
    mounts = ("/scratch", str(data))
    (note,) = told("python", f"--data={data}/set.h5", str(data), mounts=mounts)
    assert note.severity == "note"  # of the folder alone
    (found,) = told("python", "train.py", f"{data}/set.h5", mounts=("/scratch",))
    assert dict(found.fix)["container-mounts"] == f"/scratch:/scratch,{work},{data}"


def test_a_folder_that_nothing_names_is_a_note(work: Path) -> None:
    (found,) = told("hostname")
    assert found.severity == "note"
    assert found.message == f"the container does not see {work}, where the job starts"
    assert not told("hostname", mounts=(str(work.parent),))
    (found,) = told("hostname", spec={"chdir": "/scratch"}, mounts=(str(work.parent),))
    assert "/scratch, where the job starts" in found.message


def test_the_home_directory_is_where_the_runtime_puts_it(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(work.parent))
    assert not told("hostname", mount_home=True)
    (found,) = told("python", str(work / "train.py"), mount_home=True, remap_root=True)
    assert found.severity == "warning"


def test_apptainer_shows_home_and_folder_by_itself(
    work: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[containers]\nruntimes = ["apptainer"]\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    monkeypatch.setattr("slurmkit_containers.runtimes.common._TMP", "/elsewhere")
    inside = {"image": "/x.sif", "runtime": "apptainer"}
    assert not told("python", "train.py", **inside)
    data = work.parent / "data"
    (found,) = told("python", "train.py", f"{data}/set.h5", **inside)
    assert found.fix == (("container-mounts", str(data)),)


def test_files_of_ranks_need_their_folder(work: Path) -> None:
    spec = {"gpus": Gpus(2, "a100"), "launch": Launch(launcher="torchrun", log_per_rank=True)}

    def codes(**fields: Any) -> list[str]:
        return [w.code for w in planned("train.py", spec=spec, **fields).warnings]

    assert codes() == ["container-unseen", "log-per-rank-container"]
    assert codes(mounts=(str(work),), workdir=str(work)) == []


def test_where_a_path_is_inside() -> None:
    view = ContainerPaths((Mount("/a", "/x"), Mount("/a/b", "/y/z"), Mount("/home", "/home")))
    assert view.inside("/a/c") == "/x/c"
    assert view.inside("/a/b") == "/y/z"
    assert view.inside("/a/b/../d") == "/x/d"
    assert view.inside("/ab") is None
    assert view.sees("/home/alice")
    assert not view.sees("/homer")


def test_what_is_not_on_this_machine_is_told(work: Path) -> None:
    def absent(**fields: Any) -> list[str]:
        found = planned("hostname", **fields).warnings
        return [w.message.split()[3] for w in found if w.code == "container-absent"]

    assert absent(mounts=("/nowhere/a:/a:ro", str(work), "tmpfs:/x")) == ["/nowhere/a"]
    assert absent(image="./x.sqsh", save="./there/y.sqsh") == [f"{work}/x.sqsh", f"{work}/there"]
    (work / "x.sqsh").touch()
    assert absent(image="./x.sqsh", save="./y.sqsh") == []
    assert absent() == []
