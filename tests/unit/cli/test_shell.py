"""`slurmkit shell`: what salloc is given, what is refused before, what Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from recorded_lab import capabilities, standing
from waiting import PATIENCE

from slurmkit.cli import shell as module
from slurmkit.cli.main import run_to_exit_code
from slurmkit.planning.planner import Plan, plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.slurm import commands
from slurmkit.spec.jobspec import JobSpec


class Cluster:
    """As much of one as is asked."""

    def capabilities(self) -> object:
        return capabilities()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[list[str], dict]]:
    """What was run, with which further environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/zsh")
    monkeypatch.chdir(tmp_path)
    found: list[tuple[list[str], dict]] = []

    def attach(_: Cluster, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        found.append((list(argv), dict(environment)))
        return 3

    def planned(spec: JobSpec, _: object) -> Plan:
        return plan_offline(spec, SiteState(capabilities(), standing()))

    monkeypatch.setattr(Cluster, "attach", attach, raising=False)
    monkeypatch.setattr(module, "plan", planned)
    monkeypatch.setattr(module, "Cluster", Cluster)
    return found


def run(*words: str) -> int:
    return run_to_exit_code(module.shell_command, list(words))


def test_salloc_gets_what_a_job_would_and_a_step_with_all_of_its_first_node(
    given: list[tuple[list[str], dict]], tmp_path: Path
) -> None:
    assert run("--gpus-per-node=a100:2", "--time=10", "--env", "TOKEN=x") == 3
    ((argv, environment),) = given
    assert argv == [
        "salloc", "--job-name=zsh", "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1",
        "--gpus-per-node=a100:2", "--time=10", f"--chdir={tmp_path}",
        "bash", "-c", "srun --interactive --preserve-env --pty -- /bin/zsh -l",
    ]  # fmt: skip
    assert environment == {"TOKEN": "x"}  # never a word that everybody sees


def test_nccl_tells_of_itself_there_too(given: list[tuple[list[str], dict]]) -> None:
    assert run("--time=10", "--gpus-per-node=a100:2", "--nccl-debug", "--", "x") == 3
    assert given[0][1] == {"NCCL_DEBUG": "INFO"}


def test_another_program_can_be_named(given: list[tuple[list[str], dict]]) -> None:
    run("--time=10", "--", "python3", "-c", "print('a b')")
    words = given[0][0][-1]
    assert words.endswith("""-- python3 -c 'print('"'"'a b'"'"')'""")


@pytest.mark.parametrize(
    ("variable", "value"),
    [("REQUEUE", "1"), ("NO_REQUEUE", "1"), ("OPEN_MODE", "append"), ("EXPORT", "NONE")],
)
def test_defaults_for_batch_jobs_are_in_nobodys_way(
    given: list[tuple[list[str], dict]],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
) -> None:
    monkeypatch.setenv(f"SBATCH_{variable}", value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert run("--time=10", "--", "x") == 3
    option = variable.lower().replace("_", "-")
    assert not [word for word in given[0][0] if word.startswith(f"--{option}")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--array=1-3",), "array does not work in an interactive job"),
        (("--output=x",), "output does not work in an interactive job"),
        (("--no-requeue",), "no-requeue does not work in an interactive job"),
        (("--script=x",), "script does not work in an interactive job"),
        (("--signal=B:TERM@30",), "--signal=B:TERM@30: B: needs a batch script; leave out B:"),
        (("--launch=torchrun",), "--launch does not work here; start the launcher in the shell"),
        (("--mpi=pmix",), "mpi does not work in an interactive job"),
        (("--wrap=x",), "wrap does not work in an interactive job"),
        (("--export=NONE",), "export does not work in an interactive job"),
        (("--cpu-bind=cores",), "cpu-bind does not work in an interactive job"),
        (("--label",), "label does not work in an interactive job"),
        (("--log-per-rank",), "log-per-rank does not work in an interactive job"),
        (("--preflight", "nccl"), "preflight does not work in an interactive job"),
        (("--gpus-per-node=a100:99",), "no shell was started: 1 error"),
    ],
)
def test_what_cannot_be_is_refused_before(
    given: list[tuple[list[str], dict]],
    words: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--time=10", *words) == 2
    assert not given
    assert says in capsys.readouterr().err


WAITS = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: exit(7))
print("up", flush=True)
time.sleep(20)
"""


def test_ctrl_c_is_for_the_command_alone() -> None:
    command = [sys.executable, "-c", WAITS]
    runs = "from slurmkit.slurm.commands import run_in_terminal"
    program = f"{runs}; exit(run_in_terminal({command!r}))"
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"up\n"
        os.killpg(started.pid, signal.SIGINT)
        assert started.wait(PATIENCE) == 7
    before = signal.getsignal(signal.SIGINT)  # ignored in the background of some shells
    assert commands.run_in_terminal([sys.executable, "-c", "raise SystemExit(5)"]) == 5
    assert signal.getsignal(signal.SIGINT) is before


def test_salloc_takes_no_options_that_were_not_checked_and_may_be_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SALLOC_QOS", "free")
    asks = "import os; raise SystemExit(os.environ.get('SALLOC_QOS') is not None)"
    assert commands.run_in_terminal([sys.executable, "-c", asks]) == 0
    ends = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert commands.run_in_terminal([sys.executable, "-c", ends]) == 128 + signal.SIGTERM


def test_in_a_container_it_is_bash_unless_another_is_named(
    given: list[tuple[list[str], dict]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, job = tmp_path / "config.toml", tmp_path / "job.toml"
    config.write_text('[containers]\nruntimes = ["apptainer"]\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    job.write_text('[container]\nimage = "/x.sif"\n', "utf-8")
    run("--time=10", "--job-file", str(job))
    run("--time=10", "--job-file", str(job), "--", "sh")
    assert [argv[-1].rpartition(" ")[2] for argv, _ in given] == ["bash", "sh"]
