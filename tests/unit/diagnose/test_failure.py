"""Why a job failed: its log, exit codes and signals, steps, and what else can be found out."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from jobs_lab import FakeJobs

from slurmkit.diagnose import failure
from slurmkit.diagnose.failure import failed_steps
from slurmkit.diagnose.log_scan import scan_log_file, scan_log_text
from slurmkit.jobs.outcome import Outcome
from slurmkit.slurm.records import split_records

RECORDED = Path(__file__).parents[2] / "recorded"
MARK = "\x1frecorded"

TRACEBACK = """start
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    import torch

ModuleNotFoundError: No module named 'torch'
srun: error: c1: task 3: Exited with exit code 1
"""


def test_of_a_traceback_the_line_of_the_exception_counts() -> None:
    found = scan_log_text(TRACEBACK)
    assert found.first_error is not None
    assert found.first_error.text == "ModuleNotFoundError: No module named 'torch'"
    assert found.first_error.number == 6
    assert "package is missing" in found.means
    assert found.tasks == ("task 3 on c1: Exited with exit code 1",)
    assert found.last[-1].startswith("srun: error")


def test_an_exception_of_the_programs_own_is_found_behind_the_prefix_of_its_rank() -> None:
    text = "".join(
        f"[rank1]: {line}\n" for line in ("x", *TRACEBACK.splitlines()[1:4], "", "My: no")
    )
    found = scan_log_text(text)
    assert found.first_error is not None
    assert found.first_error.text == "[rank1]: My: no"
    assert found.means == "Python raised this"


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "memory was full"),
        (
            "[E ProcessGroupNCCL.cpp] Watchdog caught collective operation timeout",
            "ranks waited too long",
        ),
        ("c1:12:34 [0] NCCL WARN Connect to 10.0.0.1 failed", "NCCL_DEBUG=INFO"),
        ("CUDA error: uncorrectable ECC error encountered", "GPU itself is broken"),
        ("RuntimeError: No CUDA GPUs are available", "it saw no GPU"),
        (
            "slurmstepd: error: StepId=1.0 exceeded memory limit (9 > 1), being killed",
            "more memory",
        ),
        ("/bin/sh: 4: nosuch: not found", "not on the node's PATH"),
        ("bash: nosuch: command not found", "not on the node's PATH"),
        ("./a.out: error while loading shared libraries: libx.so", "library is missing"),
        ("OSError: [Errno 28] No space left on device", "full"),
        ("Segmentation fault (core dumped)", "a bug"),
        ("cp: /data: Permission denied", "no permission"),
        ("slurmstepd-c7: error: something", "an error that Slurm reports on the node"),
        ("srun: error: Unable to create step", "an error that Slurm reports for a step"),
        ("FATAL: the model diverged", "first line with an error"),
    ],
)
def test_lines_are_said_in_words(line: str, means: str) -> None:
    found = scan_log_text(f"fine\n{line}\nthe end\n")
    assert found.first_error is not None
    assert found.first_error.text == line
    assert found.first_error.number == 2
    assert means in found.means


def test_a_cause_goes_before_what_only_says_that_something_failed() -> None:
    found = scan_log_text("error: step failed\nCUDA out of memory\nKilled process 3\n")
    assert found.first_error is not None
    assert found.first_error.number == 2
    assert found.is_cause


@pytest.mark.parametrize(
    "line", ["0 errors", "validation error_rate=0.2", "mean squared error 0.3", "errors: 0", ""]
)
def test_what_only_looks_like_an_error_is_none(line: str) -> None:
    assert scan_log_text(f"{line}\n").first_error is None


def test_a_step_that_was_killed_for_its_memory_is_one_whoever_sacct_names() -> None:
    """On 22.05 the step may be shown as cancelled by its user."""
    words = "failed: ended by signal 9, after all (SIGKILL), after 0:03 on c7"
    killed = Outcome(
        job_id="1", kind="failed", signal=9, elapsed=3, nodes="c7", words=words, source="sacct"
    )
    line = "slurmstepd-c7: error: StepId=1.0 exceeded memory limit (242 > 104), being killed"
    judged = failure._correct_from_log(killed, scan_log_text(line))
    assert judged.kind == "out_of_memory"
    assert judged.words.endswith("(source: the step's message in the log), after 0:03 on c7")
    assert failure._correct_from_log(killed, scan_log_text("exceeded memory limit")) is killed
    crashed = Outcome(job_id="1", kind="failed", signal=11, source="sacct")
    assert failure._correct_from_log(crashed, scan_log_text(line)) is crashed


def test_tasks_that_were_cancelled_together_are_explained_by_the_first_of_them() -> None:
    jobs = FakeJobs()
    jobs.ends("7_0", "COMPLETED")
    jobs.queue["7_[1-3%1]"] = {"JobID": "7", "State": "CANCELLED", "StartTime": "N/A"}
    ended = {"State": "CANCELLED by 0", "Start": "None", "JobIDRaw": "7"}
    jobs.runs.append({"JobID": "7_[1-3%1]", **ended})
    told = failure.explain_end(jobs.cluster(), "7")
    assert told.job_id == "7_1"
    assert told.answer.startswith("job 7_1 cancelled by root")


def test_a_progress_bar_is_its_last_state() -> None:
    assert scan_log_text("1%\r50%\r100% done\n").last == ("100% done",)


def test_of_a_large_log_the_beginning_and_the_end_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurmkit.diagnose.log_scan._PIECE", 1000)
    log = tmp_path / "log"
    log.write_text("first\n" + "x" * 60 + "\n" * 5000 + "\nCUDA out of memory\nlast\n")
    found = scan_log_file(str(log))
    assert found.first_error is not None
    assert found.first_error.text == "CUDA out of memory"
    assert found.first_error.number is None
    assert found.last[-1] == "last"


def test_a_log_of_any_bytes_is_read_and_no_device_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\x1b[2J error\n")
    assert "\x1b[2J error" in scan_log_file(str(log)).last[0]
    with pytest.raises(OSError, match="not a regular file"):
        scan_log_file("/dev/null")


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_failed_steps_are_read_on_each_release(release: str) -> None:
    text = (RECORDED / release / "steps.txt").read_text("utf-8")
    batch, step = failed_steps(split_records(text, MARK, 5, "sacct"))
    assert (batch.name, batch.exit_code, batch.nodes) == ("batch", "0:11", "c7")
    assert (step.name, step.state, step.exit_code) == ("sh", "FAILED", "4:0")
    assert step.step_id.endswith(".0")


@pytest.mark.parametrize("code", range(1, 256))
def test_every_exit_code_has_words(code: int) -> None:
    means, advice = failure.explain_exit_code(code)
    assert means
    assert advice


def test_codes_above_128_are_the_signal_they_stand_for() -> None:
    assert "signal 11" in failure.explain_exit_code(139)[0]
    assert failure.explain_exit_code(139)[1] == failure.explain_signal(signal.SIGSEGV)[1]
    assert failure.explain_exit_code(200)[0] == "the program chose this code itself"
    assert failure.explain_signal(60)[0] == "a signal ended it"


def test_a_code_in_doubt_is_explained_as_both() -> None:
    outcome = Outcome(job_id="1", kind="failed", exit_codes=(2, 130), source="sacct")
    means, advice = failure._means(outcome)
    assert means == (
        "2: a command was called wrongly, or its input was wrong; or 130: its last command was"
        " ended by signal 2: it was interrupted"
    )
    assert advice == "see the error in its log; or see which command interrupted it"


def test_the_codes_of_failed_steps_are_in_doubt_too(tmp_path: Path) -> None:
    jobs = failed_job(tmp_path, "", code="72:0")
    told = failure.explain_end(jobs.cluster(), "7")
    assert told.ended is not None
    assert told.ended.exit_code == "72 or 200"
    assert [step.exit_code for step in told.ended.steps] == ["72 or 200"]


@pytest.mark.parametrize(
    ("state", "means"), [("OUT_OF_MEMORY", "a step ran out of memory"), ("FAILED", ""), (None, "")]
)
def test_a_completed_job_tells_of_a_step_that_was_lost(
    tmp_path: Path, state: str | None, means: str
) -> None:
    """The script went on after srun and ended with 0."""
    jobs = failed_job(tmp_path, "", code="0:0")
    jobs.runs[0] = {**jobs.runs[0], "State": "COMPLETED"}
    jobs.steps = [{"JobID": "7", "State": "COMPLETED"}, {"JobID": "7.batch", "State": "COMPLETED"}]
    jobs.steps += [{"JobID": "7.0", "State": state, "ExitCode": "0:125"}] if state else []
    told = failure.explain_end(jobs.cluster(), "7").ended
    assert told is not None
    assert told.kind == "completed"
    assert [step.state for step in told.steps] == ([state] if state else [])
    assert any(means in each for each in told.details) == bool(means)
    assert told.advice == ("ask for more memory: --mem or --mem-per-cpu" if means else "")


def failed_job(folder: Path, log: str, code: str, release: str = "24.11.5") -> FakeJobs:
    """A failed job with that log, which slurmctld has forgotten."""
    (folder / "log").write_text(log, "utf-8")
    jobs = FakeJobs(release)
    path = str(folder / "log")
    jobs.runs = [
        {"JobID": "7", "State": "FAILED", "ExitCode": code, "StdOut": path, "StdErr": path}
    ]
    jobs.steps = [
        {"JobID": "7", "State": "FAILED", "ExitCode": code},
        {"JobID": "7.0", "State": "FAILED", "ExitCode": code},
    ]
    return jobs


@pytest.mark.parametrize("release", ["24.11.5", "26.05.1"])
@pytest.mark.parametrize(
    ("line", "code", "means", "advice"),
    [
        ("slurmstepd-c1: error: execve(): nosuch.sh: No such file or directory", 2,
         "nosuch.sh could not be started: the node has no such file", "full path"),
        ("slurmstepd-c1: error: execve(): job.sh: Permission denied", 13,
         "job.sh could not be started: it is not executable", "--script FILE"),
        ("[2026-11-21T03:28:41.385] error: execve(): ./a b: Exec format error", 8,
         "./a b could not be started: it is no program for this node", "#! line"),
        ("slurmstepd: error: execve(): bad interpreter(/bin/no): No such file or directory", 2,
         "/bin/no could not be started: the node has no such file", "full path"),
    ],
)  # fmt: skip
def test_a_program_that_was_not_started_has_one_cause(
    tmp_path: Path, line: str, code: int, means: str, advice: str, release: str
) -> None:
    log = f"{line}\nsrun: error: c1: task 0: Exited with exit code {code}\n"
    told = failure.explain_end(failed_job(tmp_path, log, f"{code}:0", release).cluster(), "7").ended
    assert told is not None
    assert told.details[0] == means
    assert advice in told.advice
    said = " ".join([*told.details, told.advice, told.error_means])
    for other in ("called wrongly", "chose this code", "PATH", "load its module"):
        assert other not in said


def output_says(log: Path) -> str:
    outcome = Outcome(job_id="1", kind="failed", signal=53, log=str(log), source="sacct")
    (said,) = failure._output(outcome)
    return said


def test_an_output_path_that_cannot_be_opened_is_looked_at(tmp_path: Path) -> None:
    said = output_says(tmp_path / "a" / "b" / "x.out")
    assert said.startswith(f"{tmp_path}/a does not exist")
    assert f"mkdir -p {tmp_path}/a/b" in said
    (tmp_path / "file").touch()
    assert output_says(tmp_path / "file" / "x.out").endswith("is not a directory")
    assert output_says(tmp_path).endswith("is a directory, not a file")
    assert f"you can write to {tmp_path} from here" in output_says(tmp_path / "x.out")
