"""How jobs ended, on what each Slurm release recorded of real ends (recorded/record_ends.py)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from ended_jobs import RECORDED, Ended
from jobs_lab import FakeJobs

from slurmkit.errors import JobOver, NoSuchJob, Refused
from slurmkit.jobs.backends.commands import _UPDATE_KEYS, CommandsBackend
from slurmkit.slurm.commands import slurm_error
from slurmkit.testing import FakeSlurm

RELEASES = ["22.05", "24.11", "26.05"]


@pytest.fixture(params=RELEASES)
def ended(request: pytest.FixtureRequest, tmp_path: Path) -> Ended:
    return Ended(str(request.param), tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "code", "signal", "status"),
    [
        ("completed", "completed", 0, None, 0),
        ("failed", "failed", 3, None, 3),
        ("signal", "failed", None, 11, 139),
        ("timeout", "timeout", None, None, 1),
        ("cancelled", "cancelled", None, None, 1),
        ("memory-batch", "out_of_memory", None, 9, 1),
        ("no-output", "failed", None, 53, 1),
        ("deadline", "deadline", None, None, 1),
        ("requeued", "failed", 1, None, 1),
        ("dependent", "cancelled", None, None, 1),
        ("preempted", "completed", 0, None, 0),
        ("preempted-last", "preempted", None, None, 1),
        ("node", "completed", 0, None, 0),
        ("node-last", "node_failure", None, None, 1),
    ],
)
def test_each_kind_of_end(
    ended: Ended, name: str, kind: str, code: int | None, signal: int | None, status: int
) -> None:
    outcome = ended.job(name).outcome()
    if code and ended.release == "22.05":  # nothing tells whether sacct took 128 off
        assert outcome.exit_codes == (code, code + 128)
        code, status = None, 1
    assert (outcome.kind, outcome.exit_code, outcome.signal) == (kind, code, signal)
    assert outcome.exit_status == status
    assert outcome.source == "sacct"


@pytest.mark.parametrize(("name", "signal"), [("step-signal", 11), ("memory", 9)])
def test_the_signal_of_the_step_a_script_waited_for(ended: Ended, name: str, signal: int) -> None:
    """Srun ends with 128 more than the signal, which sacct takes off again up to 25.05."""
    outcome = ended.job(name).outcome()
    assert (outcome.signal, outcome.exit_code) == (signal, 128 + signal)


def test_the_word_of_slurmstepd_on_memory(ended: Ended) -> None:
    said = ended.job("memory").outcome()
    assert "out of memory: a step used more than its limit of 100M" in said.words
    assert "(source: the step's message in the log)" in said.words
    ended.log.unlink()
    unsaid = ended.job("memory").outcome()
    assert (unsaid.kind, "(source: memory use in sacct)" in unsaid.words) == ("out_of_memory", True)


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("preempted", ["PREEMPTED", "COMPLETED"]),
        ("node", ["NODE_FAIL", "COMPLETED"]),
        ("requeued", ["REQUEUED", "FAILED"]),
        ("failed", ["FAILED"]),
    ],
)
def test_the_runs_of_a_requeued_job(ended: Ended, name: str, states: list[str]) -> None:
    outcome = ended.job(name).outcome()
    assert [run.state for run in outcome.runs] == states
    assert (f"earlier runs: {states[0]}" in outcome.words) == (len(states) > 1)


def test_an_array(ended: Ended) -> None:
    outcome = ended.job("array").outcome()
    assert outcome.tally == {"FAILED": 4, "COMPLETED": 2}
    assert (outcome.kind, outcome.log) == ("failed", None)
    if ended.release == "22.05":
        assert (outcome.exit_code, outcome.exit_codes) == (None, (1, 129))
    else:
        assert (outcome.exit_code, outcome.exit_codes) == (1, ())
    cancelled = ended.job("array-cancelled").outcome()
    assert (cancelled.kind, cancelled.tally) == ("cancelled", {"CANCELLED": 9})
    assert cancelled.runs[0].state == "CANCELLED"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("failed", "failed with exit code 3"),
        ("signal", "failed: ended by signal 11 (SIGSEGV)"),
        ("timeout", "ran into its time limit of 00:01:00, after 1:"),
        ("cancelled", "cancelled by 10031, after 0:"),
        ("no-output", "or its directory could not be opened on the node"),
        ("node-last", "ended because a node failed, after 0:3"),
        ("deadline", "given up: it could not end before its deadline"),
    ],
)
def test_ends_in_words(ended: Ended, name: str, says: str) -> None:
    assert says in ended.job(name).outcome().words


def test_a_step_killed_by_root_below_its_memory_is_only_perhaps_out_of_memory(
    tmp_path: Path,
) -> None:
    jobs = FakeJobs()
    jobs.runs = [{"JobID": "7", "State": "FAILED", "ExitCode": "0:9", "StdErr": "/none"}]
    jobs.steps = [
        {"JobID": "7", "State": "FAILED", "ExitCode": "0:9", "AllocTRES": "cpu=1,mem=1G"},
        {"JobID": "7.batch", "State": "CANCELLED by 0", "ExitCode": "0:9", "MaxRSS": "5000K"},
    ]
    outcome = jobs.cluster().job("7").outcome()
    assert (outcome.kind, outcome.signal, outcome.exit_status) == ("failed", 9, 137)
    assert "perhaps for too much memory" in outcome.words


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("slurmstepd-c7: error: StepId=7.0 exceeded memory limit (9 > 8), being killed\n",
         "out_of_memory"),
        ("my check: exceeded memory limit\n", "failed"),
    ],
)  # fmt: skip
def test_a_step_killed_for_its_memory_in_its_owners_name(
    tmp_path: Path, log: str, kind: str
) -> None:
    (tmp_path / "log").write_text(f"begun\n{log}", "utf-8")
    jobs = FakeJobs()
    jobs.runs = [{"JobID": "7", "State": "FAILED", "ExitCode": "9:0", "StdErr": f"{tmp_path}/log"}]
    jobs.steps = [
        {"JobID": "7", "State": "FAILED", "ExitCode": "9:0", "AllocTRES": "cpu=1,mem=100M"},
        {"JobID": "7.0", "State": "CANCELLED by 10011", "ExitCode": "0:9", "MaxRSS": "5000K"},
    ]
    outcome = jobs.cluster().job("7").outcome()
    assert (outcome.kind, outcome.signal) == (kind, 9)


def test_a_job_of_another_year_is_not_a_run_of_this_one() -> None:
    jobs = FakeJobs()
    old = {"Submit": "1600000000", "Start": "1600000001", "End": "1600000002"}
    other = {"Submit": "1699999000", "Start": "1699999001", "End": "1699999990", "User": "bob"}
    jobs.runs = [{"JobID": "7", **old}, {"JobID": "7", **other}, {"JobID": "7"}]
    assert len(jobs.cluster().job("7").outcome().runs) == 1


def test_slurms_own_word_on_memory() -> None:
    jobs = FakeJobs()
    jobs.runs = [{"JobID": "7", "State": "OUT_OF_MEMORY", "ExitCode": "0:125"}]
    outcome = jobs.cluster().job("7").outcome()
    assert (outcome.kind, outcome.signal, outcome.exit_status) == ("out_of_memory", None, 1)


@pytest.mark.parametrize(
    ("printed", "code", "signal", "status"),
    [("3:0", 3, None, 3), ("768", 3, None, 3), ("0:11", None, 11, 139), ("4021", None, 53, 1)],
)
def test_without_a_database_the_exit_code_is_squeues(
    printed: str, code: int | None, signal: int | None, status: int
) -> None:
    jobs = FakeJobs()
    jobs.sacct_fails = Refused("Slurm accounting storage is disabled")
    jobs.queue["7"] = {"State": "FAILED", "exit_code": printed}
    outcome = jobs.cluster().job("7").outcome()
    assert (outcome.exit_code, outcome.signal, outcome.exit_status) == (code, signal, status)
    assert (outcome.source, outcome.runs) == ("squeue", ())


# ---- refusals of control commands --------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_refusals_of_control_commands(release: str) -> None:
    """Through the border's own translation, so that its words and ours stay apart."""
    controls = json.loads((RECORDED / release / "control.json").read_text())
    kinds = {"NoSuchJob": NoSuchJob, "JobOver": JobOver, "Refused": Refused}
    for line, said in controls.items():
        if said["error"] == "Several":
            continue
        act = _act(line, said)
        with pytest.raises(kinds[said["error"]]) as caught:
            act()
        assert type(caught.value) is kinds[said["error"]], line
        assert said["id"] in str(caught.value)


def test_refusals_of_several_cancels_at_once() -> None:
    for release in RELEASES:
        controls = json.loads((RECORDED / release / "control.json").read_text())
        (line, said) = next(item for item in controls.items() if item[1]["error"] == "Several")
        unknown, ended, others, mine = line.split()[2:]
        failed = _backend(line, said).cancel([unknown, ended, others, mine])
        found = {job_id: type(error) for job_id, error in failed.items()}
        assert found == {unknown: NoSuchJob, ended: JobOver, others: Refused}, release


def _backend(line: str, said: dict[str, object]) -> CommandsBackend:
    def answer(argv: Sequence[str], stdin: str | None) -> str:
        assert argv == line.split()
        if said["code"]:
            raise slurm_error(argv[0], str(said["stderr"]), int(str(said["code"])))
        return f"{said['stdout']}{said['stderr']}"

    return CommandsBackend(FakeSlurm({"scontrol": answer, "scancel": answer}))


def _act(line: str, said: dict[str, object]) -> Callable[[], object]:
    backend, words = _backend(line, said), line.split()
    if words[0] == "scancel":
        return lambda: _raise(backend.cancel([words[2]]))
    if words[1] != "update":
        return lambda: getattr(backend, words[1])(words[2])
    names = {value: name for name, value in _UPDATE_KEYS.items()}
    name, _, value = words[3].partition("=")
    return lambda: backend.update(str(said["id"]), {names[name]: value})


def _raise(failed: Mapping[str, Exception]) -> None:
    for error in failed.values():
        raise error


def test_the_process_that_failed_first_says_why_not_srun(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("srun: error: c2: task 2: Exited with exit code 7\n", "utf-8")
    jobs = FakeJobs()
    jobs.runs = [{"JobID": "7", "State": "FAILED", "ExitCode": "15:0", "StdErr": str(log)}]
    outcome = jobs.cluster().job("7").outcome()
    assert outcome.words.startswith("failed: rank 2 on c2 failed first (exit code 7)")
    assert outcome.first_failure is not None


@pytest.mark.parametrize(
    ("by", "line", "kind"),
    [
        ("0", "error: Exceeded job memory limit", "out_of_memory"),
        ("10011", "error: Exceeded job memory limit", "cancelled"),
        ("0", "error: *** JOB 7 ON c7 CANCELLED", "cancelled"),
    ],
)
def test_a_job_whose_steps_together_had_too_much_memory(
    tmp_path: Path, by: str, line: str, kind: str
) -> None:
    """As slurmd of 26.05 ended one with OverMemoryKill: sacct says that root cancelled it."""
    (tmp_path / "log").write_text(f"[2026-11-30T02:16:08.019] {line}\n", "utf-8")
    jobs = FakeJobs()
    end = {"ExitCode": "0:0", "StdErr": f"{tmp_path}/log"}
    jobs.runs = [{"JobID": "7", "State": f"CANCELLED by {by}", **end}]
    outcome = jobs.cluster().job("7").outcome()
    assert outcome.kind == kind
    assert ("its steps together" in outcome.words) == (kind == "out_of_memory")
