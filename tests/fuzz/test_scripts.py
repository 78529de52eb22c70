"""Random jobs as scripts: sbatch reads the options given, and bash runs the command given."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from fuzzing import fuzz, odd_text, random_spec
from msgspec.structs import replace
from recorded_lab import capabilities, standing

from slurmkit.errors import BadInput
from slurmkit.planning.planner import Plan, SiteState, plan_offline
from slurmkit.planning.secrets import SECRETS_FOLDER, secret_variables
from slurmkit.spec.jobfile import parse_directive
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.submission import Submission
from slurmkit.spec.sweep import Sweep, fill_in_values

# Records its words and its environment, each ended by NUL.
_SRUN = """#!/bin/bash
printf '%s\\0' "$@" >"$SEEN.argv"
exec env -0 >"$SEEN.env"
"""


def _job(chance: random.Random) -> JobSpec:
    spec = random_spec(chance)
    secrets = {"HF_TOKEN": f"hf_s3cr3t{odd_text(chance)}".replace("\0", "")}
    spec = replace(spec, environment=spec.environment | (secrets if chance.random() < 0.3 else {}))
    if chance.random() < 0.3:
        points = tuple((odd_text(chance).replace("\0", ""), str(n)) for n in range(3))
        word = f"--lr={{lr}} {odd_text(chance).replace('{', '{{').replace('}', '}}')}"
        command = (*(w.replace("{", "{{").replace("}", "}}") for w in spec.command), word)
        spec = replace(spec, command=command, sweep=Sweep(("lr", "seed"), points))
    return spec


def _check_options(made: Submission) -> None:
    """Read the options as sbatch does: `#SBATCH` lines up to the first line of the commands."""
    read: list[tuple[str, str]] = []
    for line in made.script.split("\n")[1:]:
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            read += parse_directive(line.removeprefix("#SBATCH"))
    assert read == list(made.options)


def _run(chance: random.Random, made: Plan, folder: Path) -> None:
    (sent,) = made.submissions
    spec, environment = made.spec, dict(made.spec.environment)
    shell = {"PATH": f"{folder}/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "SEEN": f"{folder}/seen",
             "HOME": os.environ["HOME"], "SLURM_CLUSTER_NAME": "lab",
             "SLURM_JOB_ID": "7"}  # fmt: skip
    words = spec.command
    if spec.sweep:
        task = chance.randrange(len(spec.sweep))
        shell |= {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "7"}
        environment |= spec.sweep.values(task)
        words = fill_in_values(words, spec.sweep.values(task))
    done = subprocess.run(
        ["/bin/bash"], input=sent.script.encode(), env=shell, capture_output=True, check=False,
        cwd=folder / "cwd", timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    argv = (folder / "seen.argv").read_bytes().split(b"\0")[:-1]
    assert argv[argv.index(b"--") + 1 :] == [word.encode() for word in words]
    variables = (folder / "seen.env").read_bytes().split(b"\0")[:-1]
    seen = dict(variable.split(b"=", 1) for variable in variables)
    for name, value in environment.items():
        assert seen[name.encode()] == value.encode(), name
    assert not list((folder / "cwd").iterdir()), "something of the job was run as shell code"


def test_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bin", "cwd"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "srun").write_text(_SRUN, "utf-8")
    (tmp_path / "bin" / "srun").chmod(0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("slurmkit.config.files.config_paths", list)
    secrets = tmp_path / "state" / "slurmkit" / SECRETS_FOLDER / "lab"
    secrets.mkdir(parents=True)
    site = SiteState(capabilities(), standing())
    ran = 0

    def case(chance: random.Random) -> None:
        nonlocal ran
        try:
            made = plan_offline(_job(chance), site)
        except BadInput:
            return
        secret = secret_variables(made.spec)
        for sent in made.submissions:
            _check_options(sent)
            assert "s3cr3t" not in sent.script
        lines = (f"export {name}={_quoted(value)}\n" for name, value in secret.items())
        (secrets / "7").write_text("".join(lines), "utf-8", newline="")
        _run(chance, made, tmp_path)
        ran += 1

    fuzz("scripts", case, at_least=200)
    print(f"scripts: {ran} of them run by bash")


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
