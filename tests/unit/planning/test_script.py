"""From a spec to a script, and the script through a real bash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_lab import capabilities

from slurmkit.errors import BadInput
from slurmkit.planning.gpu_request import GpuTypeNames, ResolvedGpus
from slurmkit.planning.launchers.base import LaunchStep, make_launcher
from slurmkit.planning.layout import Layout
from slurmkit.planning.request import JobShape
from slurmkit.planning.script import step_options, write_submission
from slurmkit.planning.shape import job_shape
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch
from slurmkit.spec.submission import Submission

GOLDEN = """\
#!/bin/bash
#SBATCH --job-name="it's #1 \\"x\\""
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=a100:2
#SBATCH --time=10
#SBATCH --partition=gpu
#SBATCH --exclusive
#SBATCH --contiguous
#SBATCH --chdir=/home/alice
#SBATCH --output=slurm-%j.out

export GREETING='a "b" $HOME'

srun --cpus-per-task=8 --label --mpi=pmix -- python train.py --name 'a b'
"""
WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=40)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: (
        not name.startswith(("SLURM", "SBATCH", "SRUN", "PYXIS"))
        and name not in ("_", "PATH", "IFS", "PS4", "UID", "EUID", "PPID")
        and not name.startswith(("BASH", "SHELLOPTS", "POSIX", "LC_", "LANG", "PYTHON", "GROUPS"))
    )
)


def written(spec: JobSpec) -> Submission:
    known = capabilities()
    made = job_shape(spec, known, (known.partitions[0],), GpuTypeNames())
    if spec.script:
        return write_submission(spec, made, ())
    chosen = make_launcher(spec.launch.launcher or "srun")
    spec = chosen.settle(spec)
    made = job_shape(spec, known, (known.partitions[0],), GpuTypeNames())
    step = LaunchStep(spec=spec, layout=made[1], options=step_options(spec), capabilities=known)
    return write_submission(spec, made, chosen.lines(step))


def test_the_script_is_this_text() -> None:
    spec = JobSpec(
        command=("python", "train.py", "--name", "a b"),
        nodes=2,
        gpus=Gpus(2, "A100"),
        cpus_per_task=8,
        time="10",
        partition="gpu",
        exclusive=True,
        job_name='it\'s #1 "x"',
        chdir="/home/alice",
        environment={"GREETING": 'a "b" $HOME'},
        launch=Launch(mpi="pmix", label=True),
        options={"contiguous": ""},
    )
    made = written(spec)
    assert made.script == GOLDEN
    assert dict(made.options)["gpus-per-node"] == "a100:2"
    assert made.after == ()


@pytest.mark.parametrize(
    ("gpus", "line"),
    [
        (Gpus(shard=3), "--gres=shard:3,nvme:1"),
        (Gpus(mig="nothing"), None),
        (Gpus(5, "h100", "job"), None),
    ],
)
def test_gpu_lines(gpus: Gpus, line: str | None) -> None:
    script = written(JobSpec(command=("x",), gpus=gpus, gres="nvme:1", chdir="/")).script
    assert line is None or f"#SBATCH {line}\n" in script


def test_a_whole_script_keeps_its_text() -> None:
    text = "#!/usr/bin/env python3\n\nimport os\nprint('a')\n"
    script = written(JobSpec(script=text, chdir="/", time="5")).script
    first, *rest = script.splitlines()
    assert first == "#!/usr/bin/env python3"
    assert script.endswith("\n\nimport os\nprint('a')\n")
    assert all(line.startswith("#SBATCH --") for line in rest[: rest.index("")])


def test_a_script_is_given_no_default_that_would_bind_its_steps() -> None:
    spec = JobSpec(script="#!/bin/sh\nsrun -n 8 ./x\n", exclusive=True)
    assert not {"ntasks-per-node", "cpus-per-task"} & dict(written(spec).options).keys()
    asked = JobSpec(script="#!/bin/sh\n", cpus_per_task=4, ntasks_per_node=2)
    assert {"ntasks-per-node", "cpus-per-task"} <= dict(written(asked).options).keys()


def test_a_script_keeps_the_binding_of_its_gpus() -> None:
    gpus = Gpus(2, bind="closest")
    assert dict(written(JobSpec(script="#!/bin/sh\n", gpus=gpus)).options)["gpu-bind"] == "closest"
    made = written(JobSpec(command=("x",), gpus=gpus))
    assert "gpu-bind" not in dict(made.options)
    assert "--gpu-bind=closest -- x" in made.script
    own = JobSpec(command=("x",), gpus=gpus, launch=Launch(launcher="none"))
    assert dict(written(own).options)["gpu-bind"] == "closest"


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(script="#!/bin/sh\ndate\n#PBS -l nodes=9\n"),
        JobSpec(command=("bash", "-c", "cat <<E\n#BSUB -n 9\nE\n")),
        JobSpec(command=("x",), environment={"A": "\n#PBS -q other"}),
    ],
)
def test_options_of_other_schedulers_are_not_read(spec: JobSpec) -> None:
    """Sbatch reads such lines anywhere in a script, over the options it was given."""
    assert "#SBATCH --ignore-pbs\n" in written(spec).script


def test_cpus_for_each_gpu_go_without_cpus_for_each_task() -> None:
    """Slurm refuses both together since 23.11; a step must be given its own number."""
    spec = JobSpec(command=("x",), gpus=Gpus(2), cpus_per_gpu=8)
    made = written(spec)
    assert "cpus-per-task" not in dict(made.options)
    assert "srun --cpus-per-task=16 -- x" in made.script


def test_steps_see_what_the_script_exports() -> None:
    spec = JobSpec(command=("x",), environment={"A": "1"}, options={"export": "NONE"})
    assert "srun --cpus-per-task=1 --export=ALL -- x" in written(spec).script


def test_name_and_place_have_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    options = dict(written(JobSpec(command=("/opt/bin/run.sh",))).options)
    assert options["job-name"] == "run.sh"
    assert options["chdir"] == str(tmp_path)
    assert options["output"] == "slurm-%j.out"
    assert dict(written(JobSpec(command=("x",), array="1-3")).options)["output"] == (
        "slurm-%A_%a.out"
    )


@pytest.fixture(scope="module")
def fake_srun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An srun that prints the command it was given, and its environment, as JSON."""
    folder = tmp_path_factory.mktemp("bin")
    srun = folder / "srun"
    srun.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[sys.argv.index('--') + 1:], dict(os.environ)]))\n",
        "utf-8",
    )
    srun.chmod(0o755)
    return folder


@settings(max_examples=examples(60), deadline=None)
@given(
    words=st.lists(WORDS, min_size=1, max_size=4),
    name=WORDS,
    comment=WORDS,
    environment=st.dictionaries(NAMES, WORDS, max_size=3),
)
def test_bash_hands_on_exactly_what_was_given(
    fake_srun: Path, words: list[str], name: str, comment: str, environment: dict[str, str]
) -> None:
    """No word, option or variable can become shell code or a line of its own."""
    given_options = {"job_name": name or None, "comment": comment or None}
    if any(char in name + comment for char in "\n\r"):
        with pytest.raises(BadInput, match="without a line break"):
            JobSpec(command=tuple(words), **given_options)
        return
    spec = JobSpec(command=tuple(words), chdir="/", environment=environment, **given_options)
    done = subprocess.run(
        ["/bin/bash"],
        input=written(spec).script.encode(),
        env={"PATH": f"{fake_srun}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    argv, seen = json.loads(done.stdout)
    assert argv == words
    assert {key: seen[key] for key in environment} == environment
    assert not done.stderr


@pytest.mark.parametrize(
    ("given", "written_as"),
    [
        (None, "V100"),
        ("ib", "V100&ib"),
        ("ib|eth", "V100&(ib|eth)"),
        ("[r1|r2]", "V100&[r1|r2]"),
    ],
)
def test_a_feature_that_proves_the_type_is_asked_for(given: str | None, written_as: str) -> None:
    spec = JobSpec(command=("/",), constraint=given, gpus=Gpus(1, "v100"))
    kind, layout = (
        ResolvedGpus(constraint="V100"),
        Layout(nodes=1, ntasks=None, ntasks_per_node=None),
    )
    options = dict(write_submission(spec, JobShape(kind, layout), ()).options)
    assert (options["constraint"], options["job-name"]) == (written_as, "job")


def test_a_directory_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadInput, match="cd to another"):
        written(JobSpec(command=("x",)))
