"""Exit codes of 128 and more, from which sacct takes 128 off up to 25.05."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from jobs_lab import FakeJobs
from waiting import PATIENCE

from slurmkit.errors import ControllerDown
from slurmkit.jobs.accounting_records import read_runs, read_steps
from slurmkit.jobs.exit_codes import (
    ExitCode,
    describe_end,
    describe_exit_codes,
    parse_exit_code,
    sacct_exit_code,
    settle_exit_codes,
    settle_step_codes,
)
from slurmkit.jobs.job import Job
from slurmkit.jobs.lookup import read_jobs
from slurmkit.jobs.poller import settle_watched_codes
from slurmkit.testing import FakeSlurm


def answer(raw_id: int, number: int, status: object = ("ERROR",)) -> str:
    """What `sacct --json` prints since 23.11, as far as it is read."""
    code = {"status": status, "return_code": {"set": True, "infinite": False, "number": number}}
    return json.dumps({"jobs": [{"job_id": raw_id, "name": "x", "exit_code": code}], "meta": {}})


def answers(raw_ids: Iterable[int], number: int) -> str:
    """The same for several jobs."""
    jobs = [one for raw_id in raw_ids for one in json.loads(answer(raw_id, number))["jobs"]]
    return json.dumps({"jobs": jobs})


def forgotten(release: str = "24.11.5", code: str = "72:0") -> tuple[FakeJobs, Job]:
    """A failed job that slurmctld has forgotten."""
    jobs = FakeJobs(release)
    jobs.runs = [{"JobID": "7", "State": "FAILED", "ExitCode": code, "StdErr": "/none"}]
    return jobs, jobs.cluster().job("7")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("3:0", ExitCode((3,))),
        ("0:9", ExitCode(signal=9)),
        ("72 or 200", ExitCode((72, 200))),
        ("", ExitCode()),
        (None, ExitCode()),
    ],
)
def test_codes_are_parsed(text: str | None, parsed: ExitCode) -> None:
    assert parse_exit_code(text) == parsed


@pytest.mark.parametrize(
    ("release", "text", "state", "shown"),
    [
        ("24.11.5", "72:0", "FAILED", "72 or 200"),
        ("25.05.7", "2:0", "FAILED", "2 or 130"),
        ("24.11.5", "0:0", "FAILED", "0 or 128"),
        ("24.11.5", "15:0", "CANCELLED by 1000", "15 or 143"),
        ("24.11.5", "0:0", "COMPLETED", "0:0"),
        ("24.11.5", "0:9", "FAILED", "0:9"),
        ("24.11.5", "200:0", "FAILED", "200:0"),
        ("24.11.5", "", "FAILED", ""),
        ("25.11.0", "72:0", "FAILED", "72:0"),
        ("26.05.1", "2:0", "FAILED", "2:0"),
        ("25.05.7", "0:0", "FAILED", "0 or 128"),
    ],
)
def test_a_code_of_sacct_is_in_doubt_up_to_25_05(
    release: str, text: str, state: str, shown: str
) -> None:
    assert sacct_exit_code(FakeSlurm({}, release=release), text, state) == shown


def test_a_release_that_does_not_tell_leaves_the_doubt() -> None:
    assert sacct_exit_code(FakeSlurm({}, release=""), "72:0", "FAILED") == "72 or 200"


@pytest.mark.parametrize("printed", ["200:0", "51200"])
def test_the_code_of_one_job_is_squeues_while_slurmctld_remembers_it(printed: str) -> None:
    jobs = FakeJobs("22.05.11")
    jobs.ends("7", "FAILED", ExitCode="72:0", StdErr="/none")
    jobs.queue["7"] = {"State": "FAILED", "exit_code": printed}
    job = jobs.cluster().job("7")
    assert (job.wait().exit_code, job.info().exit_code) == ("200:0", "200:0")
    outcome = job.outcome()
    assert (outcome.exit_code, outcome.exit_codes, outcome.exit_status) == (200, (), 200)
    assert "failed with exit code 200, after" in outcome.words


def test_the_code_of_one_forgotten_job_is_that_of_sacct_json() -> None:
    jobs, job = forgotten()
    jobs.json = answer(7, 200)
    assert (job.wait().exit_code, job.info().exit_code) == ("200:0", "200:0")
    assert (job.outcome().exit_code, job.outcome().exit_status) == (200, 200)


@pytest.mark.parametrize(
    "printed",
    [
        "",
        json.dumps({"jobs": [{"job_id": 7, "exit_code": {"status": "SUCCESS", "return_code": 0}}]}),
        answer(8, 200),
        answer(7, 3),
        answer(7, 0, ["SUCCESS"]),
        "{",
    ],
)
def test_a_code_that_nobody_knows_is_shown_as_both(printed: str) -> None:
    jobs, job = forgotten()
    jobs.json = printed
    assert (job.wait().exit_code, job.info().exit_code) == ("72 or 200", "72 or 200")
    outcome = job.outcome()
    assert (outcome.exit_code, outcome.exit_codes, outcome.exit_status) == (None, (72, 200), 1)
    assert "failed with exit code 72 or 200, after" in outcome.words


def test_an_exit_code_of_0_of_22_05_is_not_taken_for_the_code() -> None:
    """`exit 128` is 0:0 in sacct's text, and 0 in its JSON."""
    jobs, job = forgotten("22.05.11", "0:0")
    code = {"status": "SUCCESS", "return_code": 0}
    jobs.json = json.dumps({"jobs": [{"job_id": 7, "exit_code": code}]})
    assert job.outcome().exit_codes == (0, 128)


def test_a_whole_code_takes_no_further_command() -> None:
    jobs, job = forgotten("25.11.2", "200:0")
    jobs.json = answer(7, 72)
    assert job.info().exit_code == "200:0"
    assert not any("--json" in argv for argv in jobs.slurm.asked)


def test_many_jobs_take_no_further_command() -> None:
    jobs = FakeJobs("24.11.5")
    ids = [str(number) for number in range(7, 17)]
    jobs.runs = [{"JobID": each, "State": "FAILED", "ExitCode": "2:0"} for each in ids]
    runs = read_runs(jobs.slurm, ids)
    assert {run.exit_code for run in runs} == {"2 or 130"}
    assert len(jobs.slurm.asked) == 1


def test_the_codes_of_many_jobs_take_one_command_each_way() -> None:
    """A workflow, or the tasks of a sweep."""
    jobs = FakeJobs("24.11.5")
    ids = [str(number) for number in range(7, 17)]
    for each in ids:
        jobs.ends(each, "FAILED", ExitCode="2:0")
        jobs.queue[each] = {"State": "FAILED", "exit_code": "130:0"}
    cluster = jobs.cluster()
    infos = read_jobs(cluster.backend, cluster.slurm, ids)
    assert {info.exit_code for info in infos.values() if info} == {"130:0"}
    assert [argv[0] for argv in jobs.slurm.asked] == ["squeue", "sacct", "squeue"]
    jobs.queue.clear()
    infos = read_jobs(cluster.backend, cluster.slurm, ids)
    assert {info.exit_code for info in infos.values() if info} == {"2 or 130"}
    assert sum("--json" in argv for argv in jobs.slurm.asked) == 1


def test_a_code_of_another_run_is_not_taken() -> None:
    jobs, job = forgotten()
    info = job.info()
    jobs.queue["7"] = {"State": "FAILED", "exit_code": "3:0"}
    assert settle_exit_codes(jobs.slurm, [info]) == [info]
    jobs.queue["7"] = {"State": "FAILED", "exit_code": "0:9"}
    assert settle_exit_codes(jobs.slurm, [info]) == [info]


def test_the_codes_of_many_jobs_are_asked_for_in_batches() -> None:
    """sacct prints much about each job, so those beyond 500 stay in doubt."""
    jobs, job = forgotten()
    numbers = range(7, 7 + 520)
    jobs.json = answers(numbers[:500], 200)
    info = msgspec.structs.replace(job.info(), exit_code="72 or 200")
    infos = [msgspec.structs.replace(info, job_id=str(n), raw_id=str(n)) for n in numbers]
    jobs.slurm.asked.clear()
    codes = [each.exit_code for each in settle_exit_codes(jobs.slurm, infos)]
    assert codes == ["200:0"] * 500 + ["72 or 200"] * 20
    batches = [argv[2] for argv in jobs.asked("sacct")]
    assert [len(words.split(",")) for words in batches] == [50] * 10


def test_the_code_of_the_worst_task_of_an_array_is_settled() -> None:
    """`slurmkit job` of an array said `exit code 1 or 129`."""
    jobs = FakeJobs("24.11.5")
    for task, state, code in (("1", "COMPLETED", "0:0"), ("2", "FAILED", "1:0")):
        jobs.runs.append({"JobID": f"7_{task}", "JobIDRaw": f"1{task}", "State": state,
                          "ExitCode": code})  # fmt: skip
    jobs.runs.append({"JobID": "8", "State": "FAILED", "ExitCode": "1:0"})
    jobs.json = json.dumps(
        {"jobs": [*json.loads(answer(12, 129))["jobs"], *json.loads(answer(8, 1))["jobs"]]}
    )
    cluster = jobs.cluster()
    infos = read_jobs(cluster.backend, cluster.slurm, ["7", "8"])
    assert {each: info and info.exit_code for each, info in infos.items()} == {
        "7": "129:0", "8": "1:0"
    }  # fmt: skip
    array = infos["7"]
    assert array is not None
    assert (array.part, array.raw_id, array.tally) == ("7_2", "12", {"COMPLETED": 1, "FAILED": 1})
    assert [argv for argv in jobs.asked("sacct") if "--json" in argv] == [
        ["sacct", "--json", "--jobs=7_2,8"]
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1:0", "exit code 1"),
        ("1 or 129", "exit code 1 or 129 (128 + 1, SIGHUP)"),
        ("0:9", "signal 9 (SIGKILL)"),
        ("0:53", "signal 53"),  # Slurm's own, e.g. of a log that cannot be opened
        ("", ""),
        (None, ""),
    ],
)
def test_an_end_has_one_spelling(text: str | None, words: str) -> None:
    """`workflow show` said 1:0, and `wait` 1."""
    assert describe_end(text) == words


def test_codes_of_steps_are_settled_by_one_look() -> None:
    """Each step that ended with 1 was said to have ended with 1 or 129."""
    run = json.loads(answer(15, 1))["jobs"][0]
    run["steps"] = [
        {"step": {"id": step}, "exit_code": json.loads(answer(0, code))["jobs"][0]["exit_code"]}
        for step, code in (("15.batch", 1), ("15.0", 129), ("15.1", 3), ("15.2", 0))
    ]
    asked: list[list[str]] = []

    def sacct(argv: Sequence[str], _: str | None) -> str:
        asked.append(list(argv))
        return json.dumps({"jobs": [run] * runs})

    slurm = FakeSlurm({"sacct": sacct})
    doubt = {"12_3.batch": "1 or 129", "12_3.0": "1 or 129", "12_3.1": "1 or 129", "12_3.2": "0:9"}
    runs = 1
    assert settle_step_codes(slurm, "12_3", doubt) == {
        "12_3.batch": "1:0", "12_3.0": "129:0", "12_3.1": "1 or 129", "12_3.2": "0:9"
    }  # fmt: skip
    assert settle_step_codes(slurm, "12_3", {"12_3.0": "3:0"}) == {"12_3.0": "3:0"}
    assert asked == [["sacct", "--json", "--jobs=12_3"]]
    runs = 2
    assert settle_step_codes(slurm, "12", doubt) == doubt
    gone = FakeSlurm({"sacct": lambda *_: "not JSON"})
    assert settle_step_codes(gone, "12", doubt) == doubt


def test_a_watch_hears_of_an_end_before_codes_are_asked_for() -> None:
    """`sacct --json` may take long."""
    jobs, _ = forgotten()
    jobs.json = answer(7, 200)
    cluster = jobs.cluster()
    with cluster.poller.watch(["7"]) as watch:
        *_, known = watch.changes(timeout=PATIENCE)
    assert known["7"].over
    assert not any("--json" in argv for argv in jobs.slurm.asked)
    whole = settle_watched_codes(jobs.slurm, known)["7"]
    assert whole.info is not None
    assert whole.info.exit_code == "200:0"
    assert cluster.job("7").wait(PATIENCE).exit_code == "200:0"
    assert sum("--json" in argv for argv in jobs.slurm.asked) == 2


def test_an_array_and_its_outcome_show_the_same_code() -> None:
    jobs = FakeJobs("24.11.5")
    jobs.runs = [
        {"JobID": "7_1", "JobIDRaw": "8", "State": "COMPLETED"},
        {"JobID": "7_2", "JobIDRaw": "9", "State": "FAILED", "ExitCode": "9:0", "StdErr": "/none"},
    ]
    jobs.json = answer(9, 137)
    job = jobs.cluster().job("7")
    assert job.info().exit_code == "137:0"
    assert job.outcome().exit_code == 137
    assert "7_2: failed with exit code 137 (128 + 9, SIGKILL)" in job.outcome().words


def test_a_killed_step_tells_the_code_of_its_job() -> None:
    """srun ends with 128 more than the signal."""
    jobs, job = forgotten(code="11:0")
    jobs.steps = [
        {"JobID": "7", "State": "FAILED", "ExitCode": "11:0"},
        {"JobID": "7.0", "State": "FAILED", "ExitCode": "0:11"},
    ]
    outcome = job.outcome()
    assert (outcome.exit_code, outcome.signal, outcome.exit_status) == (139, 11, 139)


def test_the_codes_of_steps_are_in_doubt_too() -> None:
    jobs, _ = forgotten()
    jobs.steps = [
        {"JobID": "7", "State": "FAILED", "ExitCode": "72:0"},
        {"JobID": "7.0", "State": "FAILED", "ExitCode": "72:0"},
    ]
    assert [step.exit_code for step in read_steps(jobs.slurm, "7")] == ["72 or 200"] * 2


def test_a_slurmctld_that_is_away_leaves_sacct() -> None:
    jobs, job = forgotten()
    info = job.info()
    jobs.squeue_fails = ControllerDown("away")
    assert settle_exit_codes(jobs.slurm, [info])[0].exit_code == "72 or 200"
    jobs.json = answer(7, 200)
    assert settle_exit_codes(jobs.slurm, [info])[0].exit_code == "200:0"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "3"),
        (128, "128"),
        (130, "130 (128 + 2, SIGINT)"),
        (137, "137 (128 + 9, SIGKILL)"),
        (139, "139 (128 + 11, SIGSEGV)"),
        (200, "200"),
        (255, "255"),
    ],
)
def test_a_code_above_128_names_the_signal(code: int, words: str) -> None:
    assert describe_exit_codes((code,)) == words
