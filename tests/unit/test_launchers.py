"""The two launchers of our own: what they write is run by bash."""

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from slurmkit.capabilities.model import Capabilities
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
