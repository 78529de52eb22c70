"""`slurmkit queue`: what it prints where."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
from queue_lines import job

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import NoSuchJob
from slurmkit.testing import FakeSlurm, squeue_text

WAITING = {"State": "PENDING", "NodeList": "", "TimeUsed": "0:00", "Reason": "Resources"}
GPU = "cpu=1,gres/gpu=2"
JOBS = [
    job("7", UserName="bob", tres_alloc=GPU, Name="日本"),
    job("12_1", JobID="13", tres_alloc=GPU),
    job("12_[2-9]", **WAITING, tres_alloc=GPU),
]


class Queue:
    """A cluster whose queue can be looked at by the command."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, str]] = []
        self.config = "AccountingStorageTRES = cpu,mem\nClusterName = lab\n"
        self.slurm = FakeSlurm({"squeue": self._squeue, "scontrol": lambda a, s: self.config})

    def _squeue(self, argv: Sequence[str], stdin: str | None) -> str:
        if "--jobs=99" in argv:
            raise NoSuchJob("slurm_load_jobs error: Invalid job id specified")
        return squeue_text(argv, self.jobs)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    made = Queue()
    monkeypatch.setattr("slurmkit.cli.queue.Cluster", lambda: Cluster(made.slurm))
    return made


def run(*args: str) -> int:
    return run_to_exit_code(cli, ["queue", *args])


def cells(line: str) -> list[str]:
    return line.split()


def test_a_table_and_its_source(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    queue.jobs = JOBS
    assert run() == 0
    shown = capsys.readouterr()
    header, first, array = shown.out.splitlines()
    assert (
        cells(header)
        == "JOBID USER ACCOUNT PARTITION STATE TIME LIMIT NODES GPUS WHERE NAME".split()
    )
    assert cells(first) == "7 bob vision gpu RUNNING 0:05 10:00 1 2 c1 日本".split()
    assert "12_[1-9]" in array
    assert "R 1, PD 8" in array
    assert "c1 (Resources)" in array
    assert "10 jobs, from squeue at " in shown.err
    assert [argv[0] for argv in queue.slurm.asked] == ["squeue"]


def test_a_narrow_terminal_shows_the_names_and_the_reasons(
    queue: Queue, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {**WAITING, "Reason": "QOSMaxGRESPerUser"}
    queue.jobs = [job("7", Name="llama-pretrain"), job("8", **held, Name="important")]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run() == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert cells(header) == "JOBID USER STATE TIME GPUS WHERE NAME …".split()
    assert first.endswith("llama-pretrain")
    assert "(QOSMaxGRESPerUser)  important" in second


def test_help_says_in_which_order_the_jobs_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "order is squeue's: by partition" in " ".join(capsys.readouterr().out.split())


def test_tasks_one_by_one(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    queue.jobs = JOBS[:2]
    assert run("--array") == 0
    assert "--array" in queue.slurm.asked[0]
    assert cells(capsys.readouterr().out.splitlines()[2])[:1] == ["12_1"]


def test_json_has_the_rows_as_squeue_gives_them(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.jobs = JOBS
    assert run("--json", "--sort=-jobid") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert [row["job_id"] for row in found["rows"]] == ["12_1", "12_[2-9]", "7"]
    assert found["rows"][1]["reason"] == "Resources"
    assert found["rows"][1]["gpus"] == 2
    assert found["schema"] == "slurmkit.queue/1"
    assert found["taken"].endswith("Z")
    assert found["seconds"] >= 0
    assert not shown.err


def test_filters_are_split_at_commas(queue: Queue) -> None:
    queue.jobs = [job("7"), job("8", Partition="cpu")]
    args = ("-u", "alice, bob", "-p", "gpu,cpu", "-t", "PD,R", "-n", "a,b", "-w", "c[1-3],c5")
    assert run(*args, "7", "8") == 0
    assert {
        "--user=alice,bob",
        "--partition=gpu,cpu",
        "--states=PD,R",
        "--name=a,b",
        "--nodelist=c[1-3],c5",
        "--jobs=7,8",
    } <= set(queue.slurm.asked[0])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--user", ""], "--user may not be empty"),
        (["--partition", "gpu,,cpu"], "--partition may not be empty"),
        (["--sort", "gpu"], "did you mean 'gpus'"),
        (["12,13"], "not a job id"),
        (["--me", "--user", "bob"], "either --me or --user"),
        (["--watch", "soon"], "'soon' is not a valid float"),
        (["--partition", "nope"], "no such partition"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    args: list[str], says: str, queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


def test_jobs_that_are_not_there_are_named(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    """squeue would say nothing of them."""
    queue.jobs = JOBS[1:]
    assert run("12_1", "12_5", "13", "98", "12_10") == 1
    shown = capsys.readouterr()
    assert "12_[1-9]" in shown.out
    assert "slurmkit: not in the queue: 98, 12_10; see: slurmkit job 98" in shown.err


@pytest.mark.parametrize("args", [["99"], ["99", "--json"]])
def test_one_job_that_is_not_there(
    args: list[str], queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == 1
    shown = capsys.readouterr()
    assert shown.err == "slurmkit: not in the queue: 99; see: slurmkit job 99\n"
    assert not shown.out


def test_a_job_that_other_conditions_leave_out(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("7", "--states", "PD") == 1
    assert "not in the queue with these filters: 7;" in capsys.readouterr().err


@pytest.mark.parametrize(("tracked", "gpus"), [("cpu,mem", "?"), ("cpu,gres/gpu", "0")])
def test_where_no_job_has_gpus_slurm_is_asked_whether_it_counts_them(
    tracked: str, gpus: str, queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.jobs = [job("7")]
    queue.config = f"AccountingStorageTRES = {tracked}\n"
    assert run() == 0
    assert cells(capsys.readouterr().out.splitlines()[1])[8] == gpus
    assert [argv[0] for argv in queue.slurm.asked] == ["squeue", "scontrol"]


def test_foreign_text_is_escaped(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    queue.jobs = [job("7", Name="a\n\x1b[2J", Reason="x\x1b", State="PENDING", NodeList="")]
    assert run() == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2
    assert "\x1b" not in shown


def test_it_starts_with_few_imports() -> None:
    """Each of these takes some of the 100 ms that it may be slower than squeue."""
    code = "import slurmkit.cli.queue, slurmkit.cluster.cluster, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "slurmkit.state.queue" in loaded
    late = {"rich", "ClusterShell", "tomllib", "shutil", "tempfile", "difflib", "secrets"}
    assert not loaded & late
