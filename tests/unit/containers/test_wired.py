"""A job's container in its plan: the runtime that was chosen, and what it adds to the script."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from container_lab import cluster
from recorded_lab import capabilities, standing

from slurmkit.cli.job_options import job_options, parse_job_options
from slurmkit.planning.containers import GPU_VARIABLES
from slurmkit.planning.planner import Plan, plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.spec.containers import Container
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobfile import format_job_file
from slurmkit.spec.jobspec import JobSpec, Launch
from slurmkit.spec.survival import Survive

IMAGE = "nvcr.io/nvidia/pytorch:25.06-py3"


def planned(spec: JobSpec, pyxis: str | None = "0.24") -> Plan:
    known = msgspec.structs.replace(
        capabilities(), container_options=cluster(pyxis).container_options
    )
    return plan_offline(spec, SiteState(known, standing()))


def script(spec: JobSpec, pyxis: str | None = "0.24") -> str:
    made = planned(spec, pyxis)
    assert not made.errors
    return made.submissions[0].script


def test_pyxis_adds_options_to_srun_and_is_named() -> None:
    inside = Container(image=IMAGE, mounts=("/data",), writable=False)
    spec = JobSpec(command=("python", "x.py"), container=inside)
    assert script(spec).split("\n\n", 1)[1] == (
        'unset "${!PYXIS_@}"\n'
        'export ENROOT_LOGIN_SHELL="${ENROOT_LOGIN_SHELL:-n}"\n'
        "\n"
        "srun --cpus-per-task=1 '--container-image=nvcr.io#nvidia/pytorch:25.06-py3'"
        " --container-mounts=/data:/data --container-readonly -- python x.py\n"
    )
    assert "its steps run in pyxis" in [note.message for note in planned(spec).notes]


def test_a_job_that_survives_sees_whether_a_checkpoint_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "")
    folder = tmp_path / ".local/state/slurmkit/runs"

    def job(on_timeout: str | None = "requeue", **more: Any) -> JobSpec:
        policy = Survive(on_timeout=on_timeout)  # type: ignore[arg-type]
        inside = Container(image="alpine", **more)
        return JobSpec(command=("x",), time="1:00:00", container=inside, survive=policy)

    mount = f"{folder}:{folder}"
    assert f"--container-mounts=/data:/data,{mount} " in script(job(mounts=("/data",)))
    assert f"--container-mounts={mount} " in script(job(mount_home=True, remap_root=True))
    assert str(folder) not in script(job(mount_home=True))
    assert script(job(mounts=(str(folder),))).count(mount) == 1
    assert str(folder) not in script(job(None))
    monkeypatch.setenv("XDG_STATE_HOME", "/a b")
    made = planned(job())
    assert "container-survive" in {each.code for each in made.warnings}
    assert "/a b" not in made.submissions[0].script.splitlines()[-4]


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "mpi"])
def test_every_launcher_starts_in_the_container(launcher: str) -> None:
    spec = JobSpec(
        command=("python", "x.py"),
        nodes=2,
        gpus=Gpus(2, "a100"),
        launch=Launch(launcher=launcher),
        container=Container(image="alpine"),
    )
    assert " --container-image=alpine " in script(spec).splitlines()[-1]


def test_apptainer_stands_before_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[containers]\nruntimes = ["apptainer"]\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    launch = Launch(launcher="torchrun")
    spec = JobSpec(command=("x.py",), launch=launch, container=Container(image="/x.sif"))
    line = script(spec, None).splitlines()[-1]
    assert line.index(" -- apptainer ") < line.index("/x.sif") < line.index("torchrun")


def test_what_is_left_behind_is_removed_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[containers]\nruntimes = ["enroot"]\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    text = script(JobSpec(command=("x",), container=Container(image="ubuntu")), None)
    assert text.index("trap slurmkit_end EXIT") < text.index("|| exit") < text.rindex("srun ")


@pytest.mark.parametrize(
    ("spec", "pyxis", "code", "says"),
    [
        (JobSpec(command=("x",), container=Container(image="ubuntu")), None,
         "container-runtime", "no container runtime here can run"),
        (JobSpec(command=("x",), container=Container(image="ubuntu", unshare=("net",))), "0.20",
         None, "container-unshare; pyxis has it from 0.24 on"),
        (JobSpec(script="#!/bin/sh\n", container=Container(image="ubuntu")), "0.24",
         "container-needs-step", "a container works only for steps"),
        (JobSpec(command=("x",), launch=Launch(launcher="none"),
                 container=Container(image="ubuntu")), "0.24",
         "container-needs-step", "a container works only for steps"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error_of_the_plan(
    spec: JobSpec, pyxis: str | None, code: str | None, says: str
) -> None:
    (error,) = planned(spec, pyxis).errors
    assert says in error.message
    assert code in (None, error.code)


def test_the_path_of_the_image_is_kept() -> None:
    """/etc/profile of Debian images replaced PATH in a login shell."""
    text = script(JobSpec(command=("x",), container=Container(image="golang:1.25")))
    seen = "srun() { echo $ENROOT_LOGIN_SHELL; }\n" + text
    assert subprocess.check_output(["bash", "-c", seen], text=True) == "n\n"
    own = JobSpec(
        command=("x",),
        container=Container(image="golang:1.25"),
        environment={"ENROOT_LOGIN_SHELL": "y"},
    )
    seen = "srun() { echo $ENROOT_LOGIN_SHELL; }\n" + script(own)
    assert subprocess.check_output(["bash", "-c", seen], text=True) == "y\n"


@pytest.mark.parametrize(
    ("variables", "given", "exported"),
    [
        (["PATH=/bin"], {}, "all compute,utility"),
        (None, {}, "all compute,utility"),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=video"], {}, "- -"),
        (["PATH=/bin"], {"NVIDIA_VISIBLE_DEVICES": "none"}, "none -"),
        (["PATH=/bin"], {"NVIDIA_DRIVER_CAPABILITIES": "all"}, "- all"),
    ],
)
def test_gpus_are_seen_in_an_image_that_does_not_ask_for_them(
    variables: list[str] | None, given: dict[str, str], exported: str, tmp_path: Path
) -> None:
    """nvidia-smi in ubuntu:24.04 saw no GPU, without a word."""
    if not shutil.which("mksquashfs") or not shutil.which("unsquashfs"):
        pytest.skip("squashfs-tools are not installed")
    (tmp_path / "root" / "etc").mkdir(parents=True)
    if variables is not None:
        text = "".join(f"{line}\n" for line in variables)
        (tmp_path / "root" / "etc" / "environment").write_text(text, "utf-8")
    image = tmp_path / "x.sqsh"
    subprocess.run(["mksquashfs", tmp_path / "root", image], check=True, capture_output=True)
    inside = Container(image=str(image))
    spec = JobSpec(command=("x",), container=inside, gpus=Gpus(1), environment=given)
    show = 'srun() { echo "${NVIDIA_VISIBLE_DEVICES--} ${NVIDIA_DRIVER_CAPABILITIES--}"; }\n'
    for has_program, seen in ((True, exported), (False, None)):
        found = "true" if has_program else "false"
        text = f"command() {{ {found}; }}\n{show}{script(spec)}"
        told = subprocess.check_output(["bash", "-c", text], text=True).strip()
        assert told == (seen or " ".join(given.get(n, "-") for n in GPU_VARIABLES))
    told_note = "container-gpus" in {note.code for note in planned(spec).notes}
    assert told_note is (exported == "all compute,utility")
    no_gpus = msgspec.structs.replace(spec, gpus=None)
    assert "nvidia" not in script(no_gpus)


def test_an_image_is_read_once_for_all_plans_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, program, image = tmp_path / "log", tmp_path / "unsquashfs", tmp_path / "x.sqsh"
    program.write_text(f"#!/bin/sh\necho $2 >> {log}\necho A=1\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    spec = JobSpec(command=("x",), container=Container(image=str(image)), gpus=Gpus(1))
    for content, count in (("", 1), ("changed", 2)):
        image.write_text(content, "utf-8")
        for _ in range(3):
            assert "container-gpus" in {note.code for note in planned(spec).notes}
        assert log.read_text("utf-8").split() == [str(image)] * count


def test_where_the_image_cannot_be_read_the_plan_says_what_to_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that the nodes fetch may set the variables, or not."""
    monkeypatch.setenv("PATH", str(tmp_path))  # without unsquashfs
    own = tmp_path / "own.sqsh"
    own.touch()
    images = {"ubuntu:24.04": True, IMAGE: False, "/absent.sqsh": False, str(own): True}
    for image, told in images.items():
        spec = JobSpec(command=("x",), container=Container(image=image), gpus=Gpus(1))
        notes = [n.message for n in planned(spec).notes if n.code == "container-gpus"]
        assert bool(notes) is told
        assert not told or "--env NVIDIA_VISIBLE_DEVICES=all" in notes[0]
        assert "NVIDIA" not in script(spec)


def test_ranks_meet_where_the_script_says_not_where_a_hook_of_enroot_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook 50-slurm-pytorch.sh gave NGC images another MASTER_PORT."""
    inside = Container(image=IMAGE, environment=("A",))
    for launcher, names in (("srun", "A,MASTER_ADDR,MASTER_PORT"), ("torchrun", "A"), (None, "A")):
        spec = JobSpec(command=("x",), container=inside, launch=Launch(launcher=launcher))
        assert f"--container-env={names} " in script(spec)
    own = JobSpec(command=("x",), container=Container(image=IMAGE), launch=Launch(launcher="srun"))
    file = tmp_path / "config.toml"
    file.write_text('[containers]\nruntimes = ["apptainer"]\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    assert "APPTAINERENV_MASTER" not in script(own, None)  # which has no such hook
    assert "--container-env" not in script(own, "0.11")  # which has no such option
    assert not planned(own, "0.11").warnings


def test_a_site_that_imports_for_pyxis_is_left_to_do_so(tmp_path: Path) -> None:
    """importer= of pyxis 0.23 was neither detected nor named."""
    spec = JobSpec(command=("x",), nodes=2, container=Container(image=IMAGE))
    options = cluster("0.24").container_options
    known = msgspec.structs.replace(
        capabilities(),
        container_options=options,
        config=capabilities().config | {"SLURM_CONF": str(tmp_path / "slurm.conf")},
    )
    for line, code in (
        ("required pyxis.so", "container-image-import"),
        ("required pyxis.so importer=/opt/i.sh", "container-importer"),
    ):
        (tmp_path / "plugstack.conf").write_text(line, "utf-8")
        notes = plan_offline(spec, SiteState(known, standing())).notes
        found = {note.code: note.message for note in notes}
        assert {"container-image-import", "container-importer"} & set(found) == {code}
    assert found["container-importer"].endswith("by the site's importer /opt/i.sh")


def test_settings_of_enroot_that_pyxis_drops_are_told() -> None:
    """`--env ENROOT_ALLOW_HTTP=y` had no effect, and no word."""
    given = {"ENROOT_ALLOW_HTTP": "y", "ENROOT_REMAP_ROOT": "y"}
    spec = JobSpec(command=("x",), container=Container(image="r.io/x"), environment=given)
    (found,) = planned(spec).warnings
    assert found.message.startswith("pyxis does not pass ENROOT_ALLOW_HTTP of a job on to enroot")


def run_with(srun: str, text: str, tmp_path: Path) -> tuple[int, str]:
    """Run a batch script in bash with a stand-in for srun."""
    body = f"srun() {{ {srun}; }}\n{text}"
    done = subprocess.run(
        ["bash", "-c", body], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("survive", [None, Survive(on_timeout="requeue")])
def test_a_container_that_was_not_saved_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survive: Survive | None
) -> None:
    """A failed export left the job COMPLETED, without the file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "my saved.sqsh"
    inside = Container(image="ubuntu", save=str(file))
    spec = JobSpec(command=("x",), container=inside)
    if survive:
        made = script(msgspec.structs.replace(spec, survive=survive, time="10"))
        assert f"the container was not saved to\" '{file}'" in made
        return
    text = script(spec)
    code, said = run_with("true", text, tmp_path)
    assert code == 1
    assert said == f"slurmkit: the container was not saved to {file}\n"
    assert run_with(f"echo new >'{file}'", text, tmp_path) == (0, "")
    assert run_with("true", text, tmp_path)[0] == 1  # the file is that of an earlier job
    assert run_with(f"echo newer >'{file}'", text, tmp_path) == (0, "")
    assert run_with("return 7", text, tmp_path) == (7, "")


@pytest.mark.parametrize(
    "fields", [{"nodes": 2}, {"nodes": "1-2"}, {"ntasks": 4}, {"array": "0-3"}]
)
def test_a_file_is_saved_by_one_task_on_one_node(fields: dict[str, Any]) -> None:
    """Two nodes wrote one file, and the last one won."""
    inside = Container(image="ubuntu", save="/x/saved.sqsh")
    (found,) = planned(JobSpec(command=("x",), container=inside, **fields)).errors
    assert found.code == "container-save"
    assert "overwrites the others" in found.message


def test_tasks_of_an_array_share_no_kept_container() -> None:
    """3 of 4 tasks on one node failed; another image was silently unused."""
    inside = Container(image="ubuntu", name="arr")
    spec = JobSpec(command=("x",), container=inside, array="0-3")
    (found,) = planned(spec).errors
    assert found.code == "container-name"
    assert "--array=0-3%1" in found.message
    one_by_one = planned(msgspec.structs.replace(spec, array="0-3%1"))
    assert not one_by_one.errors
    (note,) = [note for note in one_by_one.notes if note.code == "container-name"]
    assert "whatever image it was made of" in note.message
    assert note.message.endswith("enroot remove pyxis_arr")
    by_mode = Container(image="ubuntu", name="arr:create")
    made = planned(msgspec.structs.replace(spec, container=by_mode, array=None))
    assert "container-name" not in {note.code for note in made.notes}


def asked(*words: str) -> Container | None:
    found: list[Container | None] = []

    @click.command()
    @job_options()
    def command(**options: object) -> None:
        found.append(parse_job_options(options).spec.container)

    done = CliRunner().invoke(command, [*words, "--", "x"])
    if not found:
        raise done.exception or AssertionError(done.output)
    return found[0]


def test_options_are_named_as_those_of_pyxis(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    job = str(file)
    below = Container(image="ubuntu", mounts=("/scratch",), mount_home=True, runtime="pyxis")
    file.write_text(format_job_file(JobSpec(command=("x",), container=below)), "utf-8")
    assert asked() is None
    assert asked("--job-file", job) == below.at("/")
    words = ("--container-image=debian", "--no-container-mount-home", "--container-env=A,B")
    assert asked("--job-file", job, *words, "--container-readonly") == msgspec.structs.replace(
        below.at("/"), image="debian", mount_home=False, environment=("A", "B"), writable=False
    )


def test_mounts_may_be_given_one_by_one() -> None:
    words = ("--container-image=x", "--container-mounts=/a,/b", "--container-mounts", "/c")
    assert asked(*words) == Container(image="x", mounts=("/a:/a", "/b:/b", "/c:/c"))


def test_pmix_needs_no_file_that_a_container_does_not_see() -> None:
    inside = Container(image="alpine")
    spec = JobSpec(command=("x",), nodes=2, launch=Launch(launcher="mpi"), container=inside)
    line = 'export PMIX_MCA_gds="${PMIX_MCA_gds:-hash}"'
    text = script(spec)
    assert text.index(line) < text.index("srun ")
    assert line not in script(msgspec.structs.replace(spec, container=None))


def test_variables_of_the_job_win_over_those_of_the_image() -> None:
    own = {"A": "1", "HF_TOKEN": "hf_" + "x" * 34, "LINES": "a\nb"}
    inside = Container(image="alpine", environment=("C", "A"))
    spec = JobSpec(command=("x",), environment=own, container=inside)
    text = script(spec)
    assert " --container-env=C,A,HF_TOKEN " in text
    assert "hf_x" not in text
    (lines,) = [n.message for n in planned(spec).notes if n.code == "container-variables"]
    assert (
        "if the image sets LINES itself, the job gets the image's value: a value of several lines"
        in lines
    )


def test_where_they_cannot_that_is_told() -> None:
    spec = JobSpec(command=("x",), environment={"A": "1"}, container=Container(image="alpine"))
    assert "container-env" not in script(spec, "0.11")
    (found,) = [w for w in planned(spec, "0.11").warnings if w.code == "container-variables"]
    assert found.message == (
        "if the image sets A itself, the job gets the image's value: pyxis here has no"
        " --container-env; pyxis has it from 0.15 on"
    )


def test_paths_of_a_job_file_are_below_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    below = Container(image="./x.sqsh", mounts=("./data", "./in:/in:ro"), save="./y.sqsh")
    spec = JobSpec(command=("x",), chdir="/elsewhere", container=below)
    (folder / "job.toml").write_text(format_job_file(spec), "utf-8")
    monkeypatch.chdir(tmp_path)
    assert asked("--job-file", "jobs/job.toml") == below.at(str(folder))
    found = asked("--job-file", "jobs/job.toml", "--container-mounts=./here", "--chdir=/elsewhere")
    assert found is not None
    assert found.mounts == (f"{tmp_path}/here:{tmp_path}/here",)
    assert found.image == f"{folder}/x.sqsh"


def test_paths_of_a_spec_are_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = Container(image="./x.sqsh", mounts=("./data:/data",))
    text = script(JobSpec(command=("x",), chdir="/elsewhere", container=inside))
    assert f" --container-image={tmp_path}/x.sqsh --container-mounts={tmp_path}/data:/data " in text


@pytest.mark.parametrize(
    ("runtime", "image", "says"),
    [
        ("enroot", "alpine", " --env=A -- x"),
        ("apptainer", "/x.sif", '|| export APPTAINERENV_A="$A"'),
        ("oci", "/bundle", '|| export SLURMKIT_ENV_A="$A"'),
    ],
)
def test_they_do_with_every_runtime(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runtime: str, image: str, says: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[containers]\nruntimes = ["{runtime}"]\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    inside = Container(image=image, runtime=runtime)
    text = script(JobSpec(command=("x",), environment={"A": "1"}, container=inside), None)
    assert text.index("export A=1") < text.index(says)
