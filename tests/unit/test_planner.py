"""From a spec to a script, and the script through a real bash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmkit.errors import BadInput
from slurmkit.planner import plan
from slurmkit.spec import Gpus, JobSpec

GOLDEN = """\
#!/bin/bash
#SBATCH --job-name="it's #1 \\"x\\""
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=a100:2
#SBATCH --time=10
#SBATCH --partition=gpu
#SBATCH --chdir=/home/alice
#SBATCH --output=slurm-%j.out

srun --cpus-per-task=8 -- python train.py --name 'a b'
"""
WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=40)


def test_the_script_is_this_text() -> None:
    spec = JobSpec(
        command=("python", "train.py", "--name", "a b"),
        nodes=2,
        gpus=Gpus(2, "a100"),
        cpus_per_task=8,
        time="10",
        partition="gpu",
        job_name='it\'s #1 "x"',
        chdir="/home/alice",
    )
    (submission,) = plan(spec).submissions
    assert submission.script == GOLDEN
    assert dict(submission.options)["gpus-per-node"] == "a100:2"
    assert submission.after == ()


def test_name_and_place_have_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    options = dict(plan(JobSpec(command=("/opt/bin/run.sh",))).submissions[0].options)
    assert options["job-name"] == "run.sh"
    assert options["chdir"] == str(tmp_path)


@pytest.fixture(scope="module")
def fake_srun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An srun that prints the command it was given as JSON."""
    folder = tmp_path_factory.mktemp("bin")
    srun = folder / "srun"
    srun.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        "print(json.dumps(sys.argv[sys.argv.index('--') + 1:]))\n",
        "utf-8",
    )
    srun.chmod(0o755)
    return folder


@settings(max_examples=60, deadline=None)
@given(words=st.lists(WORDS, min_size=1, max_size=4), name=WORDS, comment=WORDS)
def test_bash_hands_on_exactly_what_was_given(
    fake_srun: Path, words: list[str], name: str, comment: str
) -> None:
    """No word of a command and no option can become shell code or a line of its own."""
    spec = JobSpec(command=tuple(words), job_name=name or None, comment=comment, chdir="/")
    if any(char in name + comment for char in "\n\r"):
        with pytest.raises(BadInput, match="neither a line break"):
            plan(spec)
        return
    script = plan(spec).submissions[0].script
    done = subprocess.run(
        ["/bin/bash"],
        input=script.encode(),
        env={"PATH": f"{fake_srun}:/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == words
    assert not done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"command": ()}, "no command"),
        ({"nodes": 0}, "--nodes must be at least 1"),
        ({"ntasks_per_node": -1}, "--ntasks-per-node must be at least 1"),
        ({"command": "hostname"}, "not one text"),
        ({"command": ("\udcff",)}, "not UTF-8"),
        ({"output": ""}, "--output may not be empty"),
        ({"chdir": "here"}, "--chdir 'here' is not an absolute path"),
        ({"time": "99999999999999"}, "more than Slurm can hold"),
        ({"mem": "lots"}, "--mem 'lots' is not a size"),
        ({"time": "soon"}, "not one of Slurm's forms"),
        ({"partition": "gpu;rm"}, "--partition 'gpu;rm' is not a Slurm name"),
        ({"command": ("a\0b",)}, "NUL"),
    ],
)
def test_bad_specs_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        JobSpec(**{"command": ("x",), **options})  # type: ignore[arg-type]


def test_a_directory_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadInput, match="cd to another"):
        plan(JobSpec(command=("x",)))


@pytest.mark.parametrize("option", ["output", "chdir", "comment", "job_name"])
def test_line_breaks_in_options_are_refused(option: str) -> None:
    spec = JobSpec(command=("x",), **{option: "/a\nb"})  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="neither a line break"):
        plan(spec)


@pytest.mark.parametrize(
    "text", ["", "a100", "a100:", ":2", "a100:x", "2.5", "a b:1", "a100:2,h100:1"]
)
def test_bad_gpus_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="TYPE:"):
        Gpus.parse(text)


def test_gpus_read_back() -> None:
    assert Gpus.parse("a100_3g.20gb:2") == Gpus(2, "a100_3g.20gb")
    assert str(Gpus.parse("4")) == "4"
    with pytest.raises(BadInput, match="0 GPUs"):
        Gpus.parse("a100:0")
