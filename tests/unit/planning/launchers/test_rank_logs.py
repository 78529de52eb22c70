"""A file for each rank, beside the job's: by bash, with an srun that starts what it is given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from jobs_lab import FakeJobs
from launcher_lab import JOB, lines, needs, step

from slurmkit.errors import BadInput, LogUnavailable
from slurmkit.jobs.log import LogFile
from slurmkit.planning.launchers.base import make_launcher
from slurmkit.spec.containers import Container
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch

# srun as it is with --output, of one task with number 3; torchrun and its like with one worker.
FAKES = r"""
srun() {
  local out=/dev/stdout word
  while [ "$1" != -- ]; do
    case $1 in --output=*) word=${1#--output=}; word=${word//%t/3}; out=${word//%%/%} ;; esac
    shift
  done
  shift
  SLURM_PROCID=3 SLURM_NODEID=0 SLURM_LOCALID=1 SLURM_NTASKS=4 "$@" >"$out" 2>&1
}
agent() {
  while [ "$1" != --no-python ] && [ "$1" != --no_python ]; do shift; done
  shift
  RANK=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 "$@"
}
torchrun() { agent "$@"; }
python3() { case $2 in torch.*|accelerate.*) agent "$@" ;; *) command python3 "$@" ;; esac }
accelerate() { agent "$@"; }
sh() { bash "$@"; }
export -f agent torchrun python3 accelerate
"""
SAY = "import sys; print('out', *sys.argv[1:], flush=True); print('err', file=sys.stderr)"


def job(launcher: str | None, *command: str, mode: str | None = None) -> JobSpec:
    launch = Launch(launcher=launcher, log_per_rank=True)
    return JobSpec(
        command=command, nodes=2, ntasks_per_node=2, gpus=Gpus(2), launch=launch, open_mode=mode
    )


@pytest.mark.parametrize("mode", [None, "append"])
@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        (None, ("python3", "say.py", "a b")),
        ("srun", ("python3", "say.py", "a b")),
        ("mpi", ("python3", "say.py", "a b")),
        ("torchrun", ("say.py", "a b")),
        ("torchrun", ("python3", "say.py", "a b")),
        ("torchrun", ("./say.sh", "a b")),
        ("accelerate", ("python3", "say.py", "a b")),
        ("accelerate", ("say.py", "a b")),
        ("accelerate", ("accelerate", "launch", "--use_fsdp", "say.py", "a b")),
        ("deepspeed", ("deepspeed", "--no_local_rank", "say.py", "a b")),
    ],
)
def test_each_rank_writes_beside_the_job_whatever_starts_it(
    launcher: str | None, command: tuple[str, ...], mode: str | None, tmp_path: Path
) -> None:
    (tmp_path / "say.py").write_text(SAY, "utf-8")
    (tmp_path / "say.sh").write_text('#!/bin/sh\nexec python3 say.py "$@"\n', "utf-8")
    (tmp_path / "say.sh").chmod(0o755)
    log = tmp_path / "50% of it.out"
    rank = tmp_path / "50% of it.out.rank3"
    rank.write_text("before\n", "utf-8")
    script = FAKES + lines(step(job(launcher, *command, mode=mode))).replace("exec ", "")
    env = {"PATH": os.environ["PATH"]} | JOB
    with log.open("wb") as out:
        words = ["bash", "-c", script]
        subprocess.run(words, cwd=tmp_path, env=env, stdout=out, check=True)
    assert log.read_bytes() == b""
    of_worker = launcher in ("torchrun", "accelerate", "deepspeed")
    kept = "before\n" if mode and of_worker else ""
    assert rank.read_text("utf-8") == f"{kept}out a b\nerr\n"
    if not of_worker:
        assert ("--open-mode=append" in script) is (mode == "append")


def test_without_it_nothing_is_said_of_files() -> None:
    for name in ("srun", "mpi", "torchrun", "accelerate", "deepspeed"):
        spec = JobSpec(command=("x.py",), launch=Launch(launcher=name))
        assert "slurmkit_output" not in lines(step(spec))


@pytest.mark.parametrize(
    ("launcher", "code"),
    [("srun", "log-per-rank-output"), ("torchrun", "log-per-rank-output"),
     ("mpi", "log-per-rank-output"), ("none", "launcher-no-srun")],
)  # fmt: skip
def test_what_has_no_files_beside_it_is_said(launcher: str, code: str) -> None:
    launch = Launch(launcher=launcher, log_per_rank=True)
    spec = JobSpec(command=("x.py",), output="/dev/null", launch=launch)
    assert code in [finding.code for finding in needs(spec)]


def test_workers_in_a_container_must_see_the_folder() -> None:
    launch = Launch(launcher="deepspeed", log_per_rank=True)
    spec = JobSpec(command=("x.py",), container=Container(image="/x.sqsh"), launch=launch)
    (warning,) = needs(spec)
    assert (warning.severity, warning.code) == ("warning", "log-per-rank-container")


def test_an_accelerate_whose_script_does_not_show_is_refused() -> None:
    launch = Launch(launcher="accelerate", log_per_rank=True)
    spec = JobSpec(command=("accelerate", "launch", "--cpu", "-m", "a.b"), launch=launch)
    (error,) = make_launcher("accelerate").needs(step(spec))
    assert error.code == "log-per-rank-script"


def test_the_log_command_finds_a_rank_and_says_where_the_others_are(tmp_path: Path) -> None:
    log, rank = tmp_path / "log", tmp_path / "log.rank2"
    log.write_text("all\n", "utf-8")
    jobs = FakeJobs()
    jobs.ends("7", STDOUT=str(log))
    said: list[str] = []
    assert b"".join(jobs.cluster().job("7").log(notice=said.append)) == b"all\n"
    assert not said
    (tmp_path / "log.rank0").touch()
    rank.write_text("its own\n", "utf-8")
    assert b"".join(jobs.cluster().job("7").log(notice=said.append)) == b"all\n"
    assert said == [f"its ranks write to {log}.rank0 and so on; --rank N shows one of these files"]
    read = jobs.cluster().job("7").log(file=LogFile(rank=2), notice=said.append)
    assert b"".join(read) == b"its own\n"
    assert len(said) == 1
    with pytest.raises(LogUnavailable, match="that the job had --log-per-rank"):
        b"".join(jobs.cluster().job("7").log(file=LogFile(rank=9)))
    with pytest.raises(BadInput, match="leave out --error"):
        LogFile(rank=1, stderr=True)


def test_the_last_lines_of_the_rank_that_failed_are_those_of_its_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("srun: error: c2: task 2: Exited with exit code 7\n", "utf-8")
    (tmp_path / "log.rank2").write_text("a\n\n[rank2]: ValueError: bad batch\n", "utf-8")
    jobs = FakeJobs()
    kept = {"StdErr": str(log), "StdOut": str(log)}
    jobs.runs = [{"JobID": "7", "State": "FAILED", "ExitCode": "7:0", **kept}]
    outcome = jobs.cluster().job("7").outcome()
    assert outcome.first_failure is not None
    assert outcome.first_failure.lines == ("a", "ValueError: bad batch")
