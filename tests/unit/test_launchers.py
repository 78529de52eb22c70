"""The two launchers of our own: what they write is run by bash."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.capabilities.model import Capabilities
from slurmkit.gpus import Gpus
from slurmkit.launchers import Batch, Srun
from slurmkit.spec import JobSpec, Launch

CLUSTER = Capabilities(
    taken=0, release=(24, 11, 5), cluster_name="lab", config={}, nodes=(), partitions=()
)
SHOW = 'show() { for word; do printf "%s\\0" "$word"; done; }; srun() { show "$@"; }\n'
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def argv(lines: tuple[str, ...]) -> list[str]:
    """Run lines with an srun that shows its words."""
    script = SHOW + "\n".join(lines)
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@given(st.lists(WORDS, max_size=4), st.lists(WORDS, max_size=3))
def test_srun_gets_every_word_as_it_is(words: list[str], options: list[str]) -> None:
    spec = JobSpec(command=("show", *words))
    made = Srun().lines(spec, ("--cpus-per-task=2", *options))
    assert argv(made) == ["--cpus-per-task=2", *options, "--", "show", *words]


@given(st.lists(WORDS, max_size=4))
def test_batch_runs_the_command_itself(words: list[str]) -> None:
    spec = JobSpec(command=("show", *words))
    assert argv(Batch().lines(spec, ("--cpus-per-task=2",))) == words


@pytest.mark.parametrize("name", ["A=1", "if", "time", "a b", "x+=2", "plain"])
def test_the_first_word_is_a_program_whatever_it_looks_like(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('#!/bin/sh\necho "ran $1"\n', "utf-8")
    (tmp_path / name).chmod(0o755)
    line = "\n".join(Batch().lines(JobSpec(command=(name, "x=1")), ()))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True, env=env)
    assert done.stdout == b"ran x=1\n"


def test_a_binding_that_the_command_itself_must_use_is_said() -> None:
    launch = Launch(launcher="none")
    (note,) = Batch().needs(
        JobSpec(command=("x",), gpus=Gpus(2, bind="closest"), launch=launch), CLUSTER
    )
    assert (note.severity, note.code) == ("note", "launcher-no-binding")


def test_what_a_launcher_cannot_do_is_said() -> None:
    script = JobSpec(script="#!/bin/bash\n", nodes=2)
    (error,) = Srun().needs(script, CLUSTER)
    assert (error.severity, error.code) == ("error", "launcher-needs-command")
    assert not list(Batch().needs(script, CLUSTER))
    labelled = JobSpec(script="#!/bin/bash\n", launch=Launch(label=True, mpi="pmix"))
    (warning,) = Batch().needs(labelled, CLUSTER)
    assert warning.message.startswith("mpi and label is for srun")
    (warning,) = Batch().needs(JobSpec(command=("x",), ntasks=2), CLUSTER)
    assert (warning.severity, warning.code) == ("warning", "launcher-runs-once")
    assert not list(Batch().needs(JobSpec(command=("x",)), CLUSTER))
    assert not list(Srun().needs(JobSpec(command=("x",), nodes=4), CLUSTER))
