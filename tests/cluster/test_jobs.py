"""Jobs on the real cluster: how they end, waiting for them, their logs, and controlling them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from cluster_lab import CLUSTER
from waiting import PATIENCE, wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
EAT = "python3 -c 'x = bytearray(400000000); import time; time.sleep(1000)'"
# However long it takes to requeue or preempt it.
FIRST_RUN_WAITS = '[ -n "$SLURM_RESTART_COUNT" ] || sleep 1000'
# What comes before the last word are options of sbatch; partition cpu, 20 minutes.
ENDS = {
    "completed": ["true"],
    "failed": ["exit 3"],
    "signal": ["kill -SEGV $$"],
    "step-signal": ["srun bash -c 'kill -SEGV $$'"],
    "timeout": ["--time=1", "sleep 300"],
    "cancelled": ["sleep 1000"],
    "memory": ["--mem=100M", f"srun {EAT}"],
    "no-output": ["--output=/nonexistent/log", "true"],
    "requeued": [f"{FIRST_RUN_WAITS}; exit $SLURM_RESTART_COUNT"],
    "array": ["--array=1-4%2", "exit $((SLURM_ARRAY_TASK_ID % 3))"],
    "dependent": ["--kill-on-invalid-dep=yes", "true"],
    "preempted": ["--partition=mps", "--qos=scavenger", "--gres=gpu:2", FIRST_RUN_WAITS],
    "preempted-last": [
        *("--partition=untyped", "--qos=scavenger", "--gres=gpu:4", "--no-requeue", "sleep 1000"),
    ],
}


def sbatch(lab: Lab, *options: str, user: str = "alice") -> str:
    """Submit to partition cpu unless an option says otherwise; the last word is the command."""
    *given, command = options
    common = ("--partition=cpu", "--time=20", "--output=jobs-%j", *given)
    done = lab.run("sbatch", "--parsable", *common, f"--wrap={command}", user=user)
    return done.stdout.strip()


def facts(lab: Lab, job_id: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = json.loads(lab.run("slurmkit", "job", job_id, "--json").stdout)["rows"]
    return found


def until_state(lab: Lab, job_id: str, state: str) -> None:
    def shown() -> bool:
        argv = ("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T")
        return state in lab.run(*argv, check=False).stdout.split()

    wait_for(shown)


def background(lab: Lab, *argv: str) -> subprocess.Popen[str]:
    command = [str(CLUSTER), "exec", "login", "--name", lab.name, "--user", "alice", "--", *argv]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(scope="module")
def ids(lab: Lab) -> Iterator[dict[str, str]]:
    """One job for each kind of end, brought to it side by side."""
    made: dict[str, str] = {}
    for kind, options in ENDS.items():
        after = [f"--dependency=afterok:{made['failed']}"] if kind == "dependent" else []
        made[kind] = sbatch(lab, f"--job-name={kind}", *after, *options)
    for kind in ("cancelled", "requeued", "preempted", "preempted-last"):
        until_state(lab, made[kind], "RUNNING")
    lab.run("scancel", made["cancelled"], user="olga")
    lab.run("scontrol", "requeue", made["requeued"])
    sbatch(lab, "--partition=mps", "--gres=gpu:2", "sleep 2")
    sbatch(lab, "--partition=untyped", "--gres=gpu:4", "sleep 2")
    lab.run("slurmkit", "wait", *made.values(), check=False)
    yield made
    lab.run("scancel", *made.values(), check=False)


@pytest.mark.parametrize(
    ("name", "end", "status"),
    [
        ("completed", ("completed", 0, None), 0),
        ("failed", ("failed", 3, None), 3),
        ("signal", ("failed", None, 11), 139),
        ("timeout", ("timeout", None, None), 1),
        ("cancelled", ("cancelled", None, None), 1),
        ("no-output", ("failed", None, 53), 1),
        ("requeued", ("failed", 1, None), 1),
        ("array", ("failed", 1, None), 1),
        ("dependent", ("cancelled", None, None), 1),
        ("preempted", ("completed", 0, None), 0),
        ("preempted-last", ("preempted", None, None), 1),
    ],
)
def test_each_kind_of_end(
    lab: Lab, ids: dict[str, str], name: str, end: tuple[object, ...], status: int
) -> None:
    outcome = facts(lab, ids[name])["outcome"]
    assert (outcome["kind"], outcome["exit_code"], outcome["signal"]) == end
    waited = lab.run("slurmkit", "wait", ids[name], check=False)
    assert waited.returncode == status
    assert waited.stderr.startswith(f"job {ids[name]}: ")
    assert not waited.stdout


@pytest.mark.parametrize(("name", "kind"), [("step-signal", "failed"), ("memory", "out_of_memory")])
def test_the_end_of_a_step_is_its_jobs(lab: Lab, ids: dict[str, str], name: str, kind: str) -> None:
    outcome = facts(lab, ids[name])["outcome"]
    assert outcome["kind"] == kind
    assert outcome["signal"] == (11 if kind == "failed" else 9)
    says = "SIGSEGV" if kind == "failed" else "a step used more than its limit of 100M"
    assert says in outcome["words"]


def test_who_cancelled_a_job(lab: Lab, ids: dict[str, str]) -> None:
    assert facts(lab, ids["cancelled"])["outcome"]["cancelled_by"] == "olga"
    assert "cancelled by olga" in lab.run("slurmkit", "job", ids["cancelled"]).stdout


def test_the_runs_of_requeued_jobs(lab: Lab, ids: dict[str, str]) -> None:
    for name, states in (
        ("requeued", ["REQUEUED", "FAILED"]),
        ("preempted", ["PREEMPTED", "COMPLETED"]),
        ("preempted-last", ["PREEMPTED"]),
    ):
        runs = facts(lab, ids[name])["outcome"]["runs"]
        assert [run["state"] for run in runs] == states
    assert "2: PREEMPTED, COMPLETED" in lab.run("slurmkit", "job", ids["preempted"]).stdout


def test_an_output_path_that_could_not_be_opened(lab: Lab, ids: dict[str, str]) -> None:
    assert "could not be opened on the node" in facts(lab, ids["no-output"])["outcome"]["words"]
    done = lab.run("slurmkit", "log", ids["no-output"], check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_an_array_as_a_whole(lab: Lab, ids: dict[str, str]) -> None:
    shown = facts(lab, ids["array"])
    assert shown["tally"] == {"FAILED": 3, "COMPLETED": 1}
    assert (shown["state"], shown["outcome"]["tally"]) == ("FAILED", shown["tally"])
    done = lab.run("slurmkit", "log", ids["array"], check=False)
    assert done.returncode == 2
    assert f"name one of them, e.g. {ids['array']}_1" in done.stderr
    several = lab.run("slurmkit", "job", f"{ids['array']}_3", ids["failed"], "--json").stdout
    assert [job["outcome"]["exit_code"] for job in json.loads(several)["rows"]] == [0, 3]


def test_the_worst_of_several_and_what_cannot_be_waited_for(lab: Lab, ids: dict[str, str]) -> None:
    several = (ids["completed"], ids["failed"], ids["signal"])
    assert lab.run("slurmkit", "wait", *several, check=False).returncode == 139
    done = lab.run("slurmkit", "wait", "987654", ids["completed"], check=False)
    assert done.returncode == 1
    assert "no job 987654" in done.stderr
    assert f"job {ids['completed']}: completed" in done.stderr


def test_what_has_ended_is_not_controlled(lab: Lab, ids: dict[str, str]) -> None:
    for command in (["cancel"], ["hold"], ["release"], ["update", "--nice=5"]):
        done = lab.run("slurmkit", *command, ids["failed"], check=False)
        assert done.returncode == 1
        assert f"job {ids['failed']} has already ended (FAILED)" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_node_fails(lab: Lab) -> None:
    """Its job runs again, elsewhere: 22.05 can lose one that comes back to a node that was down.

    One that may not run again ends with that.
    """
    again = sbatch(lab, "--partition=mig,cpu", FIRST_RUN_WAITS)
    until_state(lab, again, "RUNNING")
    node = lab.run("squeue", "-h", "-o", "%N", "-j", again).stdout.strip()
    words = ("--partition=mig,cpu", f"--nodelist={node}", "--no-requeue")
    last = sbatch(lab, *words, "sleep 1000")
    until_state(lab, last, "RUNNING")
    subprocess.run(["docker", "kill", lab.container(node)], check=True, capture_output=True)
    try:
        done = lab.run("slurmkit", "wait", last, check=False)
        # The node comes back once the job has run elsewhere.
        assert lab.run("slurmkit", "wait", again, check=False).returncode == 0
    finally:
        subprocess.run(["docker", "start", lab.container(node)], check=True, capture_output=True)
    assert done.returncode == 1
    assert "ended because a node failed" in done.stderr
    assert facts(lab, last)["outcome"]["kind"] == "node_failure"
    outcome = facts(lab, again)["outcome"]
    assert [run["state"] for run in outcome["runs"]] == ["NODE_FAIL", "COMPLETED"]


# ---- waiting and following -------------------------------------------------------------------


# Before the real one on the PATH, so that its calls can be counted.
COUNTED = '#!/bin/bash\necho "$@" >>"${0%/*}/$COUNTED.calls"\nexec /usr/bin/squeue "$@"\n'


@pytest.fixture
def counted(lab: Lab) -> Iterator[str]:
    """A folder with a squeue that counts its calls, in the file `$COUNTED.calls` there."""
    path = lab.run("mktemp", "-d").stdout.strip()
    lab.run("tee", f"{path}/squeue", input=COUNTED)
    lab.run("chmod", "+x", f"{path}/squeue")
    yield path
    lab.run("rm", "-r", path)


def counting(folder: str, name: str, *argv: str) -> tuple[str, ...]:
    """A command whose calls of squeue are counted."""
    return ("env", f"COUNTED={name}", f"PATH={folder}:/usr/local/bin:/usr/bin:/bin", *argv)


def wait_for_calls(lab: Lab, folder: str, name: str) -> None:
    """Until a command has asked squeue twice: it has its first answer, and goes on."""
    calls = ("cat", f"{folder}/{name}.calls")
    wait_for(lambda: lab.run(*calls, check=False).stdout.count("\n") >= 2)


@pytest.mark.parametrize("command", ["wait", "log"])
def test_ctrl_c_leaves_the_job_alone(lab: Lab, counted: str, command: str) -> None:
    job_id = sbatch(lab, "echo begun; sleep 1000")
    until_state(lab, job_id, "RUNNING")
    options = ("--follow",) if command == "log" else ()
    # What bash starts in the background heeds interrupts with `set -m` only; it then tells of jobs.
    run = 'exec 3>&2 2>/dev/null; set -m; "$@" 2>&3 & echo $! >"$0/pid"; wait $!'
    words = counting(counted, command, "slurmkit", command, *options, job_id)
    with background(lab, "bash", "-c", run, counted, *words) as running:
        wait_for_calls(lab, counted, command)
        # One signal: its process group would get another.
        lab.run("sh", "-c", f"kill -INT $(cat {counted}/pid)")
        said = running.communicate(timeout=PATIENCE)[1]
    done = subprocess.CompletedProcess((), running.returncode, "", said)
    assert done.returncode == 130
    assert f"not cancelled: job {job_id}; to cancel" in done.stderr
    assert done.stderr.count("\n") == 1
    assert facts(lab, job_id)["state"] == "RUNNING"
    lab.run("scancel", job_id)


def test_many_jobs_are_asked_about_together(lab: Lab) -> None:
    """However often the poller asks, it takes no more commands for 40 than for one."""
    job_id = sbatch(lab, "--array=1-40", "sleep 5")
    code = (
        "from slurmkit import Cluster; cluster = Cluster()\n"
        f"ids = ['{job_id}_%d' % task for task in range(1, 41)]\n"
        "with cluster.poller.watch(ids) as watch:\n"
        "    *_, known = watch.changes(timeout=500)\n"
        "print(cluster.slurm.calls, cluster.poller.calls)\n"
        "print(*{one.info.state for one in known.values()})"
    )
    commands, asked, *states = lab.run("/opt/slurmkit/venv/bin/python", "-c", code).stdout.split()
    assert states == ["COMPLETED"]
    assert int(commands) <= 2 * int(asked) + 4


def test_an_outage_of_slurmctld_is_outlasted(lab: Lab, counted: str) -> None:
    """Whether squeue fails meanwhile or only waits is a matter of the network."""
    over = f"outage-{time.time_ns()}"
    job_id = sbatch(lab, f"until test -e {over}; do sleep 0.3; done; rm {over}; exit 4")
    until_state(lab, job_id, "RUNNING")
    wait = counting(counted, "wait", "slurmkit", "wait", job_id)
    follow = counting(counted, "log", "slurmkit", "log", "--follow", job_id)
    with background(lab, *wait) as waiting, background(lab, *follow) as following:
        for each in ("wait", "log"):
            wait_for_calls(lab, counted, each)
        subprocess.run(["docker", "stop", lab.container("ctld")], check=True, capture_output=True)
        try:
            lab.run("touch", over)
            time.sleep(25)
        finally:
            start = ["docker", "start", lab.container("ctld")]
            subprocess.run(start, check=True, capture_output=True)
        said = waiting.communicate(timeout=PATIENCE)[1]
        assert waiting.returncode == 4
        assert f"job {job_id}: failed with exit code 4" in said
        assert f"job {job_id} ended: FAILED" in following.communicate(timeout=PATIENCE)[1]
        assert following.returncode == 0


def test_a_log_is_followed_across_a_requeue_that_appends(lab: Lab) -> None:
    """Standard output and standard error, each with a file of its own that appears late."""
    said_by_each = "sleep 2; n=${SLURM_RESTART_COUNT:-0}; echo out $n; echo err $n >&2"
    script = f"{said_by_each}; [ $n = 1 ] || sleep 1000"
    job_id = sbatch(lab, "--open-mode=append", "--error=jobs-%j.err", script)
    follow = ("slurmkit", "log", "--follow", job_id)
    with background(lab, *follow) as out, background(lab, *follow, "--error") as err:
        assert out.stdout is not None
        assert err.stdout is not None
        first = (out.stdout.readline(), err.stdout.readline())
        assert first == ("out 0\n", "err 0\n")
        lab.run("slurmkit", "requeue", job_id)
        read, said = out.communicate(timeout=PATIENCE)
        errors = err.communicate(timeout=PATIENCE)[0]
    assert [line for line in read.splitlines() if line.startswith("out")] == ["out 1"]
    assert "was requeued and waits for its next run" in said
    assert [line for line in errors.splitlines() if line.startswith("err")] == ["err 1"]
    assert lab.run("slurmkit", "log", "--lines", "1", "--error", job_id).stdout == "err 1\n"


def test_the_files_of_ranks(lab: Lab) -> None:
    job_id = sbatch(lab, "--ntasks=3", "srun --output=rank-%j-%t bash -c 'echo I am $SLURM_PROCID'")
    lab.run("slurmkit", "wait", job_id)
    for rank in range(3):
        argv = ("slurmkit", "log", "--file", "rank-%j-%t", "--rank", str(rank), job_id)
        assert lab.run(*argv).stdout == f"I am {rank}\n"


def test_a_het_job(lab: Lab) -> None:
    options = ("--partition=cpu", "--time=2", "--output=jobs-%j")
    wrap = ("--wrap", "echo here; srun --het-group=0,1 true; sleep 3; exit 5")
    argv = ("sbatch", "--parsable", *options, ":", "--partition=untyped", *wrap)
    job_id = lab.run(*argv).stdout.strip()
    done = lab.run("slurmkit", "wait", job_id, check=False)
    assert done.returncode == 5
    assert facts(lab, job_id)["outcome"]["kind"] == "failed"
    assert facts(lab, f"{job_id}+0")["outcome"]["exit_code"] == 5
    for each in (job_id, f"{job_id}+1"):
        assert lab.run("slurmkit", "log", each).stdout == "here\n"


def test_a_job_with_a_special_exit_waits(lab: Lab) -> None:
    job_id = sbatch(lab, "sleep 1000")
    wait_for(lambda: facts(lab, job_id)["state"] == "RUNNING")
    lab.run("scontrol", "requeuehold", "State=SpecialExit", job_id)
    wait_for(lambda: "held" in facts(lab, job_id)["reason"])
    assert (facts(lab, job_id)["state"], facts(lab, job_id)["started"]) == ("PENDING", None)
    told = lab.run("slurmkit", "why", job_id).stdout
    assert told.startswith(f"job {job_id} waits: it was requeued")
    lab.run("slurmkit", "cancel", job_id)


def test_why_a_job_waits_for_an_array(lab: Lab) -> None:
    """Squeue calls the array `12_*`, which is no job id."""
    array = sbatch(lab, "--array=0-1", "--begin=now+1hour", "true")
    after = sbatch(lab, f"--dependency=afterok:{array}", "true")
    told = lab.run("slurmkit", "why", after).stdout
    assert f"job {array}_[0-1] of alice" in told
    lab.run("scancel", after, array)


def test_tasks_cancelled_while_they_were_held(lab: Lab) -> None:
    job_id = sbatch(lab, "--array=0-3%1", "sleep 1000")
    wait_for(lambda: "RUNNING" in facts(lab, job_id)["tally"])
    lab.run("slurmkit", "hold", job_id)
    lab.run("slurmkit", "cancel", job_id)
    lab.run("slurmkit", "wait", job_id, check=False)
    outcome = facts(lab, f"{job_id}_3")["outcome"]
    assert (outcome["kind"], outcome["cancelled_by"]) == ("cancelled", "alice")
    assert " cancelled by alice" in lab.run("slurmkit", "why", job_id).stdout


# ---- control ---------------------------------------------------------------------------------


def test_hold_release_update_and_cancel(lab: Lab) -> None:
    job_id = sbatch(lab, "--begin=now+1hour", "true")
    done = lab.run("slurmkit", "hold", job_id, "987654", check=False)
    assert (done.returncode, done.stdout) == (1, f"held job {job_id}\n")
    assert "no job 987654" in done.stderr
    assert facts(lab, job_id)["reason"] == "JobHeldUser"
    lab.run("slurmkit", "release", job_id)
    wait_for(lambda: facts(lab, job_id)["reason"] != "JobHeldUser")
    changes = ("--time", "1:00:00", "--partition", "gpu", "--qos", "high", "--job-name", "a b")
    assert lab.run("slurmkit", "update", job_id, *changes).stdout == f"updated job {job_id}\n"
    shown = facts(lab, job_id)
    assert (shown["time_limit"], shown["partition"], shown["name"]) == ("1:00:00", "gpu", "a b")
    assert lab.run("slurmkit", "cancel", job_id).stdout == f"cancelled job {job_id}\n"
    assert facts(lab, job_id)["state"] == "CANCELLED"


def test_a_running_jobs_time_limit_is_only_lowered(lab: Lab) -> None:
    job_id = sbatch(lab, "--time=20", "sleep 1000")
    until_state(lab, job_id, "RUNNING")
    done = lab.run("slurmkit", "update", job_id, "--time", "40", check=False)
    assert done.returncode == 1
    assert "its time limit is 20:00; users may lower the limit of a running job" in done.stderr
    assert done.stderr.count("\n") == 1
    lab.run("slurmkit", "update", job_id, "--time", "5")
    assert facts(lab, job_id)["time_limit"] == "5:00"
    held = lab.run("slurmkit", "update", job_id, "--nice", "5", user="bob", check=False)
    assert held.returncode == 1
    assert "the job is not yours" in held.stderr
    lab.run("scancel", job_id)


def test_cancel_by_filter_asks_first(lab: Lab) -> None:
    name = f"mine-{time.time_ns()}"
    waits = sbatch(lab, f"--job-name={name}", "--begin=now+1hour", "--array=1-3%1", "true")
    runs = sbatch(lab, f"--job-name={name}", "sleep 1000")
    until_state(lab, runs, "RUNNING")
    chosen = ("slurmkit", "cancel", "--me", "--name", name, "--state", "PENDING")
    unasked = lab.run(*chosen, check=False)
    assert unasked.returncode == 2
    assert "add --yes" in unasked.stderr
    typed = ("script", "--quiet", "--return", "--command", " ".join(chosen), "/dev/null")
    no = lab.run(*typed, input="n\n")
    assert f"{waits}_[1-3%1]" in no.stdout
    assert "cancel this job?" in no.stdout
    assert facts(lab, waits)["state"] == "PENDING"
    assert f"cancelled job {waits}_[1-3]" in lab.run(*typed, input="y\n").stdout
    until_state(lab, waits, "CANCELLED")
    assert facts(lab, runs)["state"] == "RUNNING"
    assert lab.run("slurmkit", "cancel", "--me", "--name", name, "--yes").stdout == (
        f"cancelled job {runs}\n"
    )
    nothing = lab.run("slurmkit", "cancel", "--me", "--name", name, "--yes")
    assert "no job of yours in the queue matches" in nothing.stderr


def test_a_signal(lab: Lab) -> None:
    script = "trap 'echo caught; exit 6' USR1; echo ready; while :; do sleep 1; done"
    job_id = sbatch(lab, script)
    wait_for(lambda: "ready" in lab.run("slurmkit", "log", job_id, check=False).stdout)
    done = lab.run("slurmkit", "cancel", "--signal", "B:USR1", job_id)
    assert done.stdout == f"sent B:USR1 to job {job_id}\n"
    assert lab.run("slurmkit", "wait", job_id, check=False).returncode == 6
    assert lab.run("slurmkit", "log", job_id).stdout == "ready\ncaught\n"
