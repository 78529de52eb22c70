"""The straight line on the real cluster: plan, submit, follow, cancel, and the books."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
HOME = "/home/alice"
# Goes on until a file is there, its argument.
HOLD = (
    'echo "$(hostname) $CUDA_VISIBLE_DEVICES"; until test -e "$0"; do sleep 0.3; done;'
    ' echo "$(hostname) done"'
)


def submit(lab: Lab, *args: str) -> str:
    job_id = lab.run("slurmkit", "submit", "--parsable", *args).stdout.strip()
    assert job_id.isdigit()
    return job_id


def info(lab: Lab, job_id: str) -> dict[str, Any]:
    facts: dict[str, Any]
    (facts,) = json.loads(lab.run("slurmkit", "job", job_id, "--json").stdout)["rows"]
    return facts


def wait_for_state(lab: Lab, job_id: str, *states: str, source: str | None = None) -> None:
    def reached() -> bool:
        facts = info(lab, job_id)
        return facts["state"] in states and source in (None, facts["source"])

    wait_for(reached)


@pytest.mark.smoke
def test_from_submit_to_report(lab: Lab) -> None:
    """A GPU job becomes GPU-hours under its PI, equal to what sacct says of it."""
    began = lab.run("date", "+%Y-%m-%dT%H:%M:%S").stdout.strip()
    gpus = ("--gpus-per-node", "a100:2", "--nodes", "2", "--time", "10")
    over = lab.run("mktemp", "-u", "-p", HOME).stdout.strip()  # its file ends the job
    job_id = submit(lab, *gpus, "--", "bash", "-c", HOLD, over)
    wait_for_state(lab, job_id, "RUNNING")
    facts = info(lab, job_id)
    lab.run("touch", over)
    assert {node: len(held) for node, held in facts["gpu_indices"].items()} == {"c1": 2, "c2": 2}

    log = lab.run("slurmkit", "log", "-f", job_id)
    lab.run("rm", over)
    assert sorted(log.stdout.split("\n")) == [
        "",
        f"c1 {','.join(map(str, facts['gpu_indices']['c1']))}",
        "c1 done",
        f"c2 {','.join(map(str, facts['gpu_indices']['c2']))}",
        "c2 done",
    ]
    assert f"job {job_id} ended: COMPLETED, exit code 0" in log.stderr

    wait_for_state(lab, job_id, "COMPLETED", source="sacct")
    row = lab.run("sacct", "-XnPj", job_id, "-o", "ElapsedRaw,AllocTRES").stdout.strip()
    elapsed, tres = row.split("|")
    assert "gres/gpu=4" in tres
    lab.run("slurmkit", "ledger", "people", "sync", user="slurmkit")
    lab.run("slurmkit", "ledger", "ingest", user="slurmkit")
    window = ("--from", began, "--to", "2100-01-01")
    report = ("slurmkit", "report", "usage", *window, "--by", "pi", "--format", "json")
    rows = json.loads(lab.run(*report, user="slurmkit").stdout)["rows"]
    assert [row["pi"] for row in rows] == ["vogel"]
    assert round(rows[0]["gpu_hours"], 4) == round(4 * int(elapsed) / 3600, 4)


@pytest.mark.smoke
def test_cancel(lab: Lab) -> None:
    job_id = submit(lab, "--time", "5", "--partition", "cpu", "--", "sleep", "300")
    wait_for_state(lab, job_id, "RUNNING")
    assert job_id in lab.run("slurmkit", "queue", "--user", "alice").stdout
    lab.run("slurmkit", "cancel", job_id)
    wait_for_state(lab, job_id, "CANCELLED")
    again = lab.run("slurmkit", "cancel", job_id, check=False)
    assert again.returncode == 1
    assert "has already ended (CANCELLED)" in again.stderr


def test_what_was_planned_is_what_slurm_got(lab: Lab) -> None:
    name = 'it\'s #1 "x" \\ ; $(date)'
    args = ("--job-name", name, "--comment", "a # b", "--time", "3", "--", "true", "a b", "$HOME")
    planned = lab.run("slurmkit", "plan", *args).stdout
    job_id = submit(lab, *args)
    kept = lab.run("scontrol", "write", "batch_script", job_id, "-").stdout
    assert kept.rstrip("\n") == planned.rstrip("\n")
    # slurmdbd makes " a `; told of a job's end before its begin, it knows no name of it yet.
    known = wait_for(lambda: info(lab, job_id)["name"], lambda known: known != "allocation")
    assert known.replace("`", '"') == name


def test_a_hostile_name_is_escaped(lab: Lab) -> None:
    name = "evil\n\x1b[2J9999|root"
    job_id = lab.run(
        "sbatch", "--parsable", "--partition=cpu", f"--job-name={name}", "--wrap=sleep 1000"
    ).stdout.strip()
    shown = lab.run("slurmkit", "queue").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith(job_id)]
    assert "evil\\n\\x1b[2J9999|root" in line
    assert "\x1b" not in shown
    assert "evil\\n\\x1b[2J9999" in lab.run("slurmkit", "job", job_id).stdout
    lab.run("slurmkit", "cancel", job_id)


@pytest.mark.parametrize(
    "pattern", ["slurm-%j.out", "%x_%u-%5j", "n%N-%n-%t-%s-%a-%A-%J", "%%j-%j", "a b-%j"]
)
def test_the_log_is_where_slurm_wrote_it(lab: Lab, pattern: str) -> None:
    job_id = submit(
        lab, "--time", "1", "--partition", "cpu", "--output", pattern, "--", "echo", "hi"
    )
    wait_for_state(lab, job_id, "COMPLETED")
    said = info(lab, job_id)["output"]
    assert re.fullmatch(rf"{HOME}/.+", said)
    assert lab.run("cat", said).stdout == "hi\n"
    assert lab.run("slurmkit", "log", job_id).stdout == "hi\n"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("submit", "--gpus-per-node", "a100:x", "--", "true"), 2, "cannot read GPUs 'a100:x'"),
        (("job", "987654"), 1, "no job 987654"),
        (("log", "987654"), 1, "no job 987654"),
        (("cancel", "987654"), 1, "no job 987654"),
    ],
)
def test_refusals_are_one_line(lab: Lab, args: tuple[str, ...], code: int, says: str) -> None:
    done = lab.run("slurmkit", *args, check=False)
    assert done.returncode == code
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_another_users_job_is_not_cancelled(lab: Lab) -> None:
    job_id = submit(lab, "--time", "5", "--partition", "cpu", "--", "sleep", "300")
    done = lab.run("slurmkit", "cancel", job_id, user="bob", check=False)
    assert done.returncode == 1
    assert "Access/permission denied" in done.stderr
    assert "the job is not yours" in done.stderr
    lab.run("slurmkit", "cancel", job_id)


def test_the_job_gets_its_users_environment(lab: Lab) -> None:
    """What slurmkit sets for the commands it reads must not reach the job."""
    mine = ("env", "SLURM_TIME_FORMAT=relative", "LC_ALL=C", "SLURM_JOB_ID=999", "SBATCH_QOS=none")
    shown = ("bash", "-c", "echo $SLURM_TIME_FORMAT $LC_ALL $SLURM_JOB_ID $SBATCH_QOS")
    options = ("--parsable", "--time", "1", "--partition", "cpu")
    job_id = lab.run(*mine, "slurmkit", "submit", *options, "--", *shown).stdout.strip()
    assert lab.run("slurmkit", "log", "-f", job_id).stdout == f"relative C {job_id}\n"


def test_an_array_and_its_tasks(lab: Lab) -> None:
    """GPU indices are a task's own; the array as a whole holds them all, and is cancelled."""
    array = ("--array=1-3", "--gres=gpu:1", "--partition=untyped", "--time=20", "--wrap=sleep 1000")
    job_id = lab.run("sbatch", "--parsable", *array).stdout.strip()
    for task in (1, 2, 3):
        wait_for_state(lab, f"{job_id}_{task}", "RUNNING")
    held = [info(lab, f"{job_id}_{task}")["gpu_indices"]["c4"] for task in (1, 2, 3)]
    assert sorted(map(len, held)) == [1, 1, 1]
    assert len({index for (index,) in held}) == 3
    whole = info(lab, job_id)
    assert (whole["state"], whole["tally"]) == ("RUNNING", {"RUNNING": 3})
    assert whole["gpu_indices"] == {"c4": sorted(index for (index,) in held)}
    done = lab.run("slurmkit", "log", job_id, check=False)
    assert done.returncode == 2
    assert "has several parts (3 RUNNING); name one of them" in done.stderr
    lab.run("slurmkit", "cancel", job_id)
    wait_for_state(lab, f"{job_id}_3", "CANCELLED")


def test_the_output_of_a_requeued_job_is_followed(lab: Lab) -> None:
    script = "echo run $SLURM_RESTART_COUNT; sleep $((SLURM_RESTART_COUNT ? 8 : 1000))"
    job_id = submit(lab, "--time", "20", "--partition", "cpu", "--", "bash", "-c", script)
    wait_for_state(lab, job_id, "RUNNING")
    wait_for(lambda: "run" in lab.run("slurmkit", "log", job_id, check=False).stdout)
    lab.run("scontrol", "requeue", job_id)
    log = lab.run("slurmkit", "log", "-f", job_id)
    assert "run 1" in log.stdout
    assert f"job {job_id} ended: COMPLETED" in log.stderr


def test_an_unknown_user_is_named(lab: Lab) -> None:
    done = lab.run("slurmkit", "queue", "--user", "nobody-here", check=False)
    assert done.returncode == 2
    assert "--user nobody-here: there is no such user" in done.stderr
